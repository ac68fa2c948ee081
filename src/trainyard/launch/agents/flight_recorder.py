"""Write a rank's flight record from inside the rank: on a signal, when gloo aborts it, and when it fails.

A thread waits for SIGUSR2, so that a record is written while the main thread is blocked in a collective or in a device
synchronization. The record is a document of schema `trainyard/flight-record/1` (`hangs/decode_record.py`): torch's
dump, decoded as plain data, with the rank, the members of its groups and the stack of its main thread, which the dump
lacks. torch has one recorder for NCCL and one for the other backends; their entries are joined.

The stack of each collective is recorded as addresses, and torch needs its compiler's modules to name them, which take
seconds to import. A record is therefore written without these stacks at once, and again with them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from trainyard.errors import BadFile
from trainyard.formats.plain_pickle import loads
from trainyard.hangs.decode_record import SCHEMA
from trainyard.redact import redact

SIGNAL = signal.SIGUSR2
_DUMPS = ("_dump_nccl_trace", "_dump_fr_trace")
"""Functions of torch that return the recorders' pickles: NCCL's, which only builds with CUDA have, and gloo's."""
NAMING_MODULE = "torch._inductor.standalone_compile"
"""The last module that torch imports to name the calls of a stack."""
_MAX_ENTRIES = 1000
"""Entries of a record: the last ones, which span several steps."""


class FlightRecorder:
    """Writes the flight record of this process to `path`. `heartbeat`: returns the numbers of steps that have begun and
    ended."""

    def __init__(self, path: Path, job: str, heartbeat: Callable[[], tuple[int, int]] = lambda: (-1, -1)) -> None:
        """Nothing is started or written yet. `job`: id of the job."""
        self.path, self.job, self.heartbeat = path, job, heartbeat
        self._lock = threading.Lock()
        self._pid = os.getpid()
        """The process whose record this is: loader workers, which it forks, write none."""
        self._abort_handler: Any = None

    def start(self) -> None:
        """Start the thread that writes a record on SIGUSR2, and write one before an abort. Call it in the main thread,
        before other threads are started: they inherit that the signal is blocked."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
        threading.Thread(target=self._serve, name="flight recorder", daemon=True).start()
        self._write_before_abort()

    def _serve(self) -> None:
        while True:
            signal.sigwait({SIGNAL})
            self.write()
            if NAMING_MODULE not in sys.modules:
                self.write(with_stacks=True)

    def _write_before_abort(self) -> None:
        """Have SIGABRT write the record before it ends the process.

        gloo aborts the process in a thread of its own if a peer sends more data than expected. `signal.signal` is of no
        use, since Python's handlers run in the main thread, later. The C library's handler runs at once.
        """

        def write(sign: int) -> None:
            signal.alarm(5)  # ends the process if the record cannot be written, for example for lack of memory
            faulthandler.dump_traceback()  # as faulthandler's own handler, which this one replaces
            self.write(f"ended by {signal.Signals(sign).name}", exit_code=-sign)

        self._abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(write)
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).signal(int(signal.SIGABRT), self._abort_handler)

    def write(self, error: str = "", exit_code: int | None = None, with_stacks: bool = False) -> None:
        """Write the record, in place of an earlier one. `error`, `exit_code`: how the process ends, empty and None
        while it runs. `with_stacks`: name the calls that issued each collective even if that takes seconds. Does
        nothing if torch has no recorder, or the file cannot be written."""
        if os.getpid() != self._pid:
            return
        with self._lock, suppress(OSError, BadFile, RuntimeError, ValueError):
            document = self.document(error, exit_code, with_stacks or NAMING_MODULE in sys.modules)
            part = self.path.with_name(f"{self.path.name}.part")
            part.write_bytes(msgspec.json.encode(document))
            part.replace(self.path)

    def document(self, error: str, exit_code: int | None, with_stacks: bool) -> dict[str, Any]:
        """The record as plain data; the arguments are those of `write`."""
        begun, done = self.heartbeat()
        return {
            "schema": SCHEMA,
            "rank": int(os.environ.get("RANK", "0")),
            "world": int(os.environ.get("WORLD_SIZE", "1")),
            "job": self.job,
            "pid": os.getpid(),
            "error": redact(error),
            "exit_code": exit_code,
            "steps_begun": begun,
            "steps_done": done,
            # After an exception, the main thread is in the code that handles it.
            "stack": "" if (exit_code or 0) > 0 else main_thread_stack(),
            "groups": group_members(),
            "dump": torch_dump(with_stacks),
        }


def main_thread_stack() -> str:
    """The calls of the main thread, as `format_stack` writes them."""
    return format_stack(sys._current_frames().get(threading.main_thread().ident or 0))


def format_stack(frame: FrameType | None) -> str:
    """The calls of a thread, innermost first, as faulthandler writes them; empty for None."""
    lines = []
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines)


def group_members() -> dict[str, list[int]]:
    """Name of each process group of this rank -> its members as global ranks; empty without torch.distributed."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return {}
    names: Mapping[Any, str] = distributed.distributed_c10d._world.pg_names
    return {name: list(distributed.get_process_group_ranks(group)) for group, name in dict(names).items()}


def torch_dump(with_stacks: bool) -> dict[str, Any]:
    """The dumps of torch's recorders as plain data, joined in the order of their entries; without entries if torch was
    not imported or records nothing. `with_stacks`: with the calls that issued each collective."""
    bindings = sys.modules.get("torch._C._distributed_c10d")
    dumps = []
    for name in _DUMPS:
        if (dump := getattr(bindings, name, None)) is not None:
            dumps.append(loads(dump(includeCollectives=True, includeStackTraces=with_stacks, onlyActive=False), name))
    entries = [entry for dump in dumps for entry in dump.get("entries", ())]
    if sum(bool(dump.get("entries")) for dump in dumps) > 1:
        entries.sort(key=lambda entry: entry["time_created_ns"])
        first = min(entry["record_id"] for entry in entries)
        entries = [{**entry, "record_id": first + index} for index, entry in enumerate(entries)]
    joined: dict[str, Any] = {"version": "", "pg_config": {}, "pg_status": {}}
    for dump in dumps:
        joined["version"] = joined["version"] or dump.get("version", "")
        joined["pg_config"].update(dump.get("pg_config") or {})
        if dump.get("entries"):
            joined["pg_status"] = dump.get("pg_status") or {}
    return {**joined, "entries": entries[-_MAX_ENTRIES:]}
