"""Reads Nsight Systems' SQLite export (`nsys export --type sqlite`).

Schema: https://docs.nvidia.com/nsight-systems/UserGuide/index.html#exporter-sqlite-schema. Tables and columns differ
between versions; only a few are required. Timestamps are ns since the session's start, which the file states. The
database is untrusted: only plain tables are read, and nothing in it is executed.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

from trainyard.errors import BadFile
from trainyard.events import COPY, KERNEL, MEMSET, Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import whole_files
from trainyard.trace.readers.annotate import add_call, add_range, copy_name
from trainyard.trace.readers.gather import Gather, experimental
from trainyard.trace.readers.recognise import recognise
from trainyard.trace.readers.sqlite_file import database_file

NOTE = experimental(
    "Nsight Systems' SQLite exports",
    "Unproven: several processes in one file, CUDA graphs traced as a whole, and which record a stream waits for.",
)
_time_of = itemgetter(0)
_MAX_VALUE_BYTES = 1 << 20
"""Maximum bytes of a value."""
_EXTRA_STEPS = 1000
"""Times 10,000: the database steps allowed in addition to those for its size."""
_WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_MEMCPY",
         "CUPTI_ACTIVITY_KIND_MEMSET")  # fmt: skip
# CUpti_ActivityMemcpyKind; A is an array in device memory, P another device.
_SIDES_BY_COPY_KIND = {1: "HD", 2: "DH", 3: "HD", 4: "DH", 5: "DD", 6: "DD", 7: "DD", 8: "DD", 9: "HH", 10: "DD"}
_SIDES = {"H": "host", "D": "device"}
_RANGE_EVENTS = (59, 60)
"""Event types of NVTX: a range pushed and popped on one thread, and one started and ended anywhere."""
_STREAM_WAIT_TYPE = 2
"""CUpti_ActivitySynchronizationType: a stream waits for an event."""


class Nsys:
    """The `Reader` of Nsight Systems' SQLite exports. `ReadOptions.mark`: prefix of the NVTX ranges that are steps."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "nsys"

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` for each process and device with work. Raises `BadFile`."""
        try:
            with database_file(path, how.limit) as file, closing(_open(file, how.limit)) as connection:
                return _NsysRows(path, _Tables(path, connection), how.mark).events()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            name = getattr(error, "sqlite_errorname", "")
            code = f" ({name})" if name else ""
            raise BadFile(f"{path}: the database cannot be read: {error}{code}.", "Export it again.") from error
        except MemoryError as error:  # SQLite reports damaged schemas and rows so, without having used memory
            raise BadFile(f"{path}: the database cannot be read: SQLite cannot load it.", "Export it again.") from error


def _open(path: Path, limit: int) -> sqlite3.Connection:
    """Opens the database read-only and allows only reading of tables. Raises `BadFile`, `sqlite3.Error`."""
    size = whole_files.size(path, limit)
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.text_factory = lambda value: value.decode("utf-8", "replace")
    connection.set_authorizer(_allow)
    # A damaged B-tree can have cycles; sound tables take about ten steps a row, and each row is at least a few bytes.
    steps_left = [_EXTRA_STEPS + size // 1000]

    def is_exhausted() -> bool:
        steps_left[0] -= 1
        return steps_left[0] < 0

    connection.set_progress_handler(is_exhausted, 10_000)
    return connection


def _allow(action: int, first: str | None, *_: str | None) -> int:
    reads = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    return (
        sqlite3.SQLITE_OK if reads or (action, first) == (sqlite3.SQLITE_PRAGMA, "table_info") else sqlite3.SQLITE_DENY
    )


class _Tables:
    """The database's plain tables. Views and virtual tables are not read."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        schema = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        self.names = {name for name, sql in schema if str(sql).lstrip().upper().startswith("CREATE TABLE")}

    def rows(self, table: str, columns: str, needed: str = "") -> Iterator[tuple[Any, ...]]:
        """The columns of each row, None for a column that the table lacks; no rows if the table is missing. Raises
        `BadFile` if it lacks a column of `needed`.

        Not a generator: a generator suspended in the middle of a table closes its cursor when it is garbage-collected,
        which raises once the database is closed.
        """
        if table not in self.names:
            return iter(())
        # The names in the queries are constants of this module, not text from the database.
        present = {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')}
        missing = sorted(set(needed.split()) - present)
        if missing:
            raise BadFile(f"{self.path}: the table {table} has no column {', '.join(missing)}.", "Export it again.")
        selected = ", ".join(f'"{column}"' if column in present else "NULL" for column in columns.split())
        return self.connection.execute(f'SELECT {selected} FROM "{table}"')  # noqa: S608


class _NsysRows:
    """The rows of each process in one database."""

    def __init__(self, path: Path, tables: _Tables, marks: str) -> None:
        """Read all tables into the rows of each process. `marks`: prefix of the ranges that mark steps. Raises
        `BadFile` if the database has neither kernels nor copies."""
        if not tables.names & set(_WORK):
            raise BadFile(
                f"{path}: the database has no table of CUDA kernels or copies.",
                "Profile with --trace=cuda,nvtx and export with nsys export --type sqlite.",
            )
        self.path, self.tables, self.marks = path, tables, marks
        self.texts = {ident: str(value) for ident, value in tables.rows("StringIds", "id value", "id value")}
        self.base = next(
            (ns for (ns,) in tables.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") if type(ns) is int), 0
        )
        # Each process numbers its visible devices from 0; this table maps them to GPUs of the machine.
        self.gpus = {
            (pid, device): gpu
            for pid, device, gpu in tables.rows("TARGET_INFO_CUDA_DEVICE", "pid cudaId gpuId")
            if type(gpu) is int
        }
        self.processes: defaultdict[int, Gather] = defaultdict(lambda: Gather(path.name, marks))
        self.called: dict[tuple[int, int], int] = {}
        self.add_calls()
        self.add_ranges()
        self.add_kernels()
        self.add_copies()
        self.add_waits()

    def events(self) -> tuple[Events, ...]:
        """One `Events` per process and device. Raises `BadFile` if no process has device work."""
        device_names = {
            ident: str(name) for ident, name in self.tables.rows("TARGET_INFO_GPU", "id name") if type(ident) is int
        }
        named = self.tables.rows("TARGET_INFO_SYSTEM_ENV", "name value")
        host_name = next((str(value) for name, value in named if name == "Hostname"), "")
        working = [rows for _, rows in sorted(self.processes.items()) if len(rows)]
        if not working:
            raise BadFile(f"{self.path}: the file holds no kernel and no copy.", "Profile with --trace=cuda,nvtx.")
        idle = len(self.processes) - len(working)
        notes = [NOTE, *([f"{idle:,} processes without device work were left out."] if idle else [])]
        return tuple(events for rows in working for events in rows.events(notes, device_names, host_name))

    def times(self, start: Any, end: Any) -> tuple[Any, Any]:
        """Converts times to the wall clock, so that files can be aligned; leaves invalid times unchanged."""
        return (start + self.base if type(start) is int else start), (end + self.base if type(end) is int else end)

    def add_calls(self) -> None:
        """Adds the calls of the CUDA runtime and driver."""
        columns = "start end globalTid correlationId nameId"
        for start, end, thread, correlation, name in self.tables.rows("CUPTI_ACTIVITY_KIND_RUNTIME", columns, columns):
            process = _process_of(thread)
            # cudaLaunchKernel_v7000: the suffix is the version that introduced it.
            text = self.texts.get(name, "").partition("_v")[0] or "call"
            add_call(self.processes[process], text, thread, *self.times(start, end), correlation)
            if type(start) is int and type(correlation) is int:
                self.called[process, correlation] = start

    def add_ranges(self) -> None:
        """Adds NVTX ranges as annotations or steps."""
        columns = "start end eventType text textId globalTid"
        for start, end, kind, text, ident, thread in self.tables.rows("NVTX_EVENTS", columns, "start end globalTid"):
            if kind in (*_RANGE_EVENTS, None) and end is not None:
                name = text if isinstance(text, str) else self.texts.get(ident, "")
                add_range(self.processes[_process_of(thread)], name, thread, *self.times(start, end))

    def add_kernels(self) -> None:
        """Adds kernels, and CUDA graphs that were traced as a whole."""
        columns = "start end deviceId streamId correlationId globalPid demangledName shortName"
        for start, end, device, stream, correlation, pid, long, short in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_KERNEL", columns, "start end deviceId streamId"
        ):
            name = self.texts.get(long) or self.texts.get(short) or "kernel"
            self.add_work(name, KERNEL, pid, device, stream, start, end, correlation)
        # With --cuda-graph-trace=graph a graph's kernels are one interval.
        columns = "start end deviceId streamId correlationId globalPid graphId"
        for start, end, device, stream, correlation, pid, graph in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns, "start end deviceId streamId"
        ):
            self.add_work(f"CUDA graph {graph}", KERNEL, pid, device, stream, start, end, correlation)

    def add_copies(self) -> None:
        """Adds copies and memsets."""
        columns = "start end deviceId streamId correlationId globalPid bytes copyKind"
        for start, end, device, stream, correlation, pid, size, kind in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_MEMCPY", columns, "start end deviceId streamId"
        ):
            source, target = _SIDES_BY_COPY_KIND.get(kind, "DD")
            name = copy_name(_SIDES[source], _SIDES[target])
            self.add_work(name, COPY, pid, device, stream, start, end, correlation, size)
        columns = "start end deviceId streamId correlationId globalPid bytes"
        for start, end, device, stream, correlation, pid, size in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_MEMSET", columns, "start end deviceId streamId"
        ):
            self.add_work("Memset (Device)", MEMSET, pid, device, stream, start, end, correlation, size)

    def add_work(
        self,
        name: str,
        kind: int,
        pid: Any,
        device: Any,
        stream: Any,
        start: Any,
        end: Any,
        correlation: Any,
        size: Any = -1,
    ) -> None:
        """Adds a device interval to its process. `pid`: as in the table; `start`, `end`: ns since the session's
        start."""
        process = self.owner(pid)
        lane, gpu = f"stream {stream}", self.gpu(process, device)
        times = self.times(start, end)
        self.processes[process].work(name, kind, lane, gpu, *times, correlation=correlation, size=size)

    def add_waits(self) -> None:
        """Adds stream waits: a wait for an event is a wait for the stream on which the event was last recorded."""
        recorded: defaultdict[tuple[int, Any], list[tuple[int, Any]]] = defaultdict(list)
        columns = "streamId correlationId globalPid eventId"
        for stream, correlation, pid, event in self.tables.rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT", columns):
            process = self.owner(pid)
            if (process, correlation) in self.called:
                recorded[process, event].append((self.called[process, correlation], stream))
        for records in recorded.values():
            records.sort(key=_time_of)
        columns = "deviceId streamId correlationId globalPid syncType eventId"
        for device, stream, correlation, pid, kind, event in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns
        ):
            process = self.owner(pid)
            if kind != _STREAM_WAIT_TYPE or (process, correlation) not in self.called:
                continue
            records = recorded[process, event]
            before = bisect_right(records, self.called[process, correlation], key=_time_of)
            if before:
                on = records[before - 1][1]
                gpu = self.gpu(process, device)
                self.processes[process].wait(correlation, gpu, f"stream {stream}", f"stream {on}")

    def owner(self, pid: Any) -> int:
        """The process of a device row. Older exports do not state it; then the file must hold only one process."""
        if type(pid) is int:
            return _process_of(pid)
        if len(self.processes) > 1:
            raise BadFile(
                f"{self.path}: kernels cannot be attributed to one of {len(self.processes)} processes: their table has "
                "no globalPid.",
                "Export it again with a newer nsys.",
            )
        return next(iter(self.processes), 0)

    def gpu(self, process: int, device: Any) -> int:
        """The device's number in the machine; the low 24 bits of `process` are the process id."""
        number = self.gpus.get((process & 0xFFFFFF, device), device)
        return number if type(number) is int else -1


def _process_of(global_id: Any) -> int:
    """The process part of a globalTid or globalPid: 8 bits of hardware id, 8 of VM id, 24 of process id, 24 of thread
    id."""
    return global_id >> 24 if type(global_id) is int else 0
