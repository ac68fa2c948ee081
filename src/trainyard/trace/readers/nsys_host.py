"""Host activity in a Nsight Systems database: CUDA calls, NVTX ranges, MPI, OpenACC and calls of the operating system.

The device's idle time under them gets different accounts: a call of CUDA or OpenACC is launch code, unless its name
shows a wait or an allocation; a call of MPI waits for peers; a call of the operating system is other host activity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from trainyard.events import CALL, NOTE
from trainyard.trace.readers.annotate import add_call, add_mpi_call, add_range
from trainyard.trace.readers.gather import SYSTEM, Gather
from trainyard.trace.readers.nsys_tables import Tables, extract_process

_RANGES = (59, 60)
"""Event types of NVTX: a range pushed and popped on one thread, and one started and ended anywhere."""
_DOMAIN_CREATED = 75
_BACKTRACE_CLASS = 67
"""Class of the rows that repeat a CUDA call with the time of its backtrace."""
OPENACC_TABLES = ("CUPTI_ACTIVITY_KIND_OPENACC_DATA", "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH",
                   "CUPTI_ACTIVITY_KIND_OPENACC_OTHER")  # fmt: skip
_OPENACC_WAITS = (7, 8)
"""CUpti_OpenAccEventKind: an explicit and an implicit wait."""
MPI_TABLES = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
_LIBRARY_TABLES = ("CUBLAS_EVENTS", "CUDNN_EVENTS")
_LOADING = (2, 6, 7)
"""CUpti_ActivityOverheadKind: the driver compiles, loads a module or a function."""


class HostActivity:
    """Adds the host rows of all processes. `rows`: process -> its rows, added to; `convert_times`: converts the start
    and end of a row of a table to UTC; `call_starts`: (process, correlation id) -> start of the call in the file's
    time. A correlation id is that of a call, which the device work that it launched repeats."""

    def __init__(
        self, tables: Tables, rows: defaultdict[int, Gather], convert_times: Callable[[Any, Any], tuple[Any, Any]]
    ) -> None:
        """Reads all tables of host activity into `rows`."""
        self.tables, self.rows, self.convert_times = tables, rows, convert_times
        self.call_starts: dict[tuple[int, int], int] = {}
        self.add_calls()
        self.add_ranges()
        self.add_mpi()
        self.add_openacc()
        self.add_system_calls()

    def add_calls(self) -> None:
        """Adds the calls of the CUDA runtime, the driver and CUDA's libraries, and loading of code at first use."""
        # `rows(table, columns, needed)` yields the columns of each row; a missing column that is needed is an error.
        columns = "start end globalTid correlationId nameId"
        for start, end, thread, correlation, name, kind in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_RUNTIME", f"{columns} eventClass", columns
        ):
            if kind == _BACKTRACE_CLASS:
                continue
            process = extract_process(thread)
            # cudaLaunchKernel_v7000: the suffix is the version that introduced it.
            text = self.tables.text(name).partition("_v")[0] or "call"
            add_call(self.rows[process], text, thread, *self.convert_times(start, end), correlation)
            if type(start) is int and type(correlation) is int:
                self.call_starts[process, correlation] = start
        for table in _LIBRARY_TABLES:
            for start, end, thread, name in self.tables.rows(table, "start end globalTid nameId"):
                self.rows[extract_process(thread)].span(
                    self.tables.text(name, "call"), CALL, thread, *self.convert_times(start, end)
                )
        for start, end, thread, kind in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_OVERHEAD", "start end globalTid overheadType"
        ):
            if kind in _LOADING:
                self.rows[extract_process(thread)].span(
                    "cuModuleLoad (lazy)", CALL, thread, *self.convert_times(start, end)
                )

    def add_ranges(self) -> None:
        """Adds NVTX ranges. In older exports the calls of MPI are the ranges of a domain of that name. A text is in the
        row, or its id in the table of strings."""
        domains = self.tables.rows("NVTX_EVENTS", "text textId globalTid domainId", only=("eventType", _DOMAIN_CREATED))
        mpi_domains = {
            (extract_process(thread), domain)
            for text, ident, thread, domain in domains
            if (text if isinstance(text, str) else self.tables.text(ident)) == "MPI"
        }
        columns = "start end eventType text textId globalTid domainId"
        for start, end, kind, text, ident, thread, domain in self.tables.rows(
            "NVTX_EVENTS", columns, "start end globalTid"
        ):
            if kind in (*_RANGES, None) and end is not None:
                name = text if isinstance(text, str) else self.tables.text(ident)
                add = add_mpi_call if (extract_process(thread), domain) in mpi_domains else add_range
                add(self.rows[extract_process(thread)], name, thread, *self.convert_times(start, end))

    def add_mpi(self) -> None:
        """Adds the calls of MPI."""
        for table in MPI_TABLES:
            for start, end, thread, name in self.tables.rows(table, "start end globalTid textId"):
                if end is not None:
                    rows = self.rows[extract_process(thread)]
                    add_mpi_call(rows, self.tables.text(name, "MPI"), thread, *self.convert_times(start, end))

    def add_openacc(self) -> None:
        """Adds OpenACC's constructs, transfers, launches and waits, with their source line."""
        columns = "start end globalTid nameId eventKind srcFile lineNo"
        for table in OPENACC_TABLES:
            for start, end, thread, name, kind, file, line in self.tables.rows(table, columns):
                location = f" {self.tables.text(file).rpartition('/')[2]}:{line}" if self.tables.text(file) else ""
                prefix = "OpenACC wait" if kind in _OPENACC_WAITS else "OpenACC"
                text = f"{prefix}: {self.tables.text(name, 'event')}{location}"
                self.rows[extract_process(thread)].span(text, CALL, thread, *self.convert_times(start, end))

    def add_system_calls(self) -> None:
        """Adds calls of the operating system by processes with CUDA or NVTX activity; the table holds those of all
        processes."""
        for start, end, thread, name in self.tables.rows("OSRT_API", "start end globalTid nameId"):
            if (rows := self.rows.get(extract_process(thread))) is not None:
                rows.span(f"{SYSTEM}{self.tables.text(name, 'call')}", NOTE, thread, *self.convert_times(start, end))
