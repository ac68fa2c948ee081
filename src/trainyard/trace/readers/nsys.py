"""Reads Nsight Systems' SQLite export (`nsys export --type sqlite`).

Schema: https://docs.nvidia.com/nsight-systems/UserGuide/index.html#exporter-sqlite-schema. Tables and columns differ
between versions; only a few are required. Timestamps are ns since the session's start or the machine's boot. The
database is untrusted: only plain tables are read, and nothing in it is executed.

A process is a number as `extract_process` makes it from the ids in the tables. The rows of each process are collected
in a `Gather`: `work` adds a row of device work, `span` one of the host.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

from trainyard import units
from trainyard.errors import BadFile
from trainyard.events import Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import whole_files
from trainyard.trace.readers.gather import Gather
from trainyard.trace.readers.nsys_device import DeviceWork
from trainyard.trace.readers.nsys_host import MPI_TABLES, OPENACC_TABLES, HostActivity
from trainyard.trace.readers.nsys_processes import Processes
from trainyard.trace.readers.nsys_samples import add_samples
from trainyard.trace.readers.nsys_tables import WORK_TABLES, Tables
from trainyard.trace.readers.recognise import recognise
from trainyard.trace.readers.sqlite_file import database_file

_MAX_VALUE_BYTES = 1 << 20
"""Maximum bytes of a value."""
_EXTRA_STEPS = 1000
"""Times 10,000: the database steps allowed in addition to those for its size."""
# Tables that no real export at hand has filled: (tables, the feature they hold).
_UNPROVEN = (
    (("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",), "CUDA graphs traced as a whole"),
    (MPI_TABLES, "MPI tables"),
    (OPENACC_TABLES, "OpenACC"),
    (("OSRT_API",), "calls of the operating system"),
    (("CUPTI_ACTIVITY_KIND_CUDA_EVENT",), "waits between streams"),
    (("CUDA_UM_GPU_PAGE_FAULT_EVENTS",), "unified memory"),
)


class Nsys:
    """The `Reader` of Nsight Systems' SQLite exports. `ReadOptions.mark`: prefix of the NVTX ranges that are steps."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "nsys"

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` for each process and device with work. Raises `BadFile`."""
        try:
            with database_file(path, options.limit) as file, closing(_open(file, options.limit)) as connection:
                return _read(Tables(path, connection), options.mark)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            name = getattr(error, "sqlite_errorname", "")
            code = f" ({name})" if name else ""
            raise BadFile(f"{path}: the database cannot be read: {error}{code}.", "Export it again.") from error
        except MemoryError as error:  # SQLite reports damaged schemas and rows so, without having used memory
            raise BadFile(f"{path}: the database cannot be read: SQLite cannot load it.", "Export it again.") from error


def _open(path: Path, limit: int) -> sqlite3.Connection:
    """Opens the database read-only and allows only reading of tables, of a number of database steps in proportion to
    its size. Raises `BadFile` if it is larger than `limit` bytes, and `sqlite3.Error`."""
    size = whole_files.size(path, limit)
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.text_factory = lambda value: value.decode("utf-8", "replace")
    connection.set_authorizer(_allow)
    # A damaged B-tree can have cycles; sound tables take about ten steps a row, and each row is at least a few bytes.
    steps_left = [_EXTRA_STEPS + size // 1000]

    def is_exhausted() -> bool:
        """Counts 10,000 steps; SQLite interrupts the query if the result is true."""
        steps_left[0] -= 1
        return steps_left[0] < 0

    connection.set_progress_handler(is_exhausted, 10_000)
    return connection


def _allow(action: int, first: str | None, *_: str | None) -> int:
    """Authorizer of SQLite: whether a statement may do `action`, a code of SQLite, on `first`, the name of a table or a
    pragma. Allows only reads, and the pragma that lists a table's columns."""
    is_read = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    if is_read or (action, first) == (sqlite3.SQLITE_PRAGMA, "table_info"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _read(tables: Tables, marks: str) -> tuple[Events, ...]:
    """One `Events` per process and device. `marks`: prefix of the ranges that mark steps. Raises `BadFile` if no
    process has device work."""
    path = tables.path
    if not tables.names & set(WORK_TABLES):
        raise BadFile(
            f"{path}: the database has no table of CUDA kernels or copies.",
            "Profile with --trace=cuda,nvtx and export with nsys export --type sqlite.",
        )
    processes = Processes(tables)
    rows: defaultdict[int, Gather] = defaultdict(lambda: Gather(path.name, marks))  # process -> its rows

    def convert_times(start: Any, end: Any) -> tuple[Any, Any]:
        """Converts times to UTC, so that files can be aligned; leaves invalid times unchanged."""
        base = processes.base
        return (start + base if type(start) is int else start), (end + base if type(end) is int else end)

    # These add to `rows`. Device work needs the starts of the calls.
    host = HostActivity(tables, rows, convert_times)
    work = DeviceWork(tables, processes, rows, convert_times, host.call_starts)
    add_samples(tables, rows, processes.base)
    working = [process for process in sorted(rows) if len(rows[process])]
    if not working:
        raise BadFile(f"{path}: the file holds no kernel and no copy.", "Profile with --trace=cuda,nvtx.")
    notes = _notes(tables, processes, work, len(rows) - len(working))
    by_device: list[Events] = []
    for process in working:
        facts = processes.process(process, is_only=len(working) == 1)
        by_device.extend(
            rows[process].events(
                notes, processes.device_names, processes.host_name,
                rank=facts.rank, world=facts.world, python=facts.python,
            )
        )  # fmt: skip
    return tuple(by_device)


def _notes(tables: Tables, processes: Processes, work: DeviceWork, idle: int) -> list[str]:
    """Notes for the user on what the file lacks and on what is not yet validated. `idle`: number of processes without
    device work."""
    notes: list[str] = []
    unproven = [
        feature for names, feature in _UNPROVEN if any(next(tables.rows(name, "rowid"), None) for name in names)
    ]
    if unproven:
        notes.append(f"experimental: not yet validated on real Nsight Systems exports: {', '.join(unproven)}.")
    if not processes.device_names:
        notes.append("The file does not name its devices: it has no rows in TARGET_INFO_GPU.")
    if work.graphs[0]:
        count, ns = work.graphs
        notes.append(
            f"{count:,} launches of CUDA graphs were traced as a whole: their {units.show_time(ns)} cannot be divided "
            "into kernels. Profile with --cuda-graph-trace=node."
        )
    if work.page_faults[0]:
        count, ns = work.page_faults
        notes.append(f"Kernels stalled in {count:,} page faults in unified memory ({units.show_time(ns)} in total).")
    if idle:
        notes.append(f"{idle:,} processes without device work were left out.")
    return notes
