"""Device work in a Nsight Systems database: kernels, CUDA graphs, copies, memsets and waits between streams.

A process is a number as `extract_process` makes it from the ids in the tables; a correlation id is that of a call,
which the device work that it launched repeats. `nsys.py` is the caller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from trainyard.errors import BadFile
from trainyard.events import COPY, KERNEL, MEMSET
from trainyard.trace.readers.annotate import copy_name
from trainyard.trace.readers.gather import Gather
from trainyard.trace.readers.nsys_processes import Processes
from trainyard.trace.readers.nsys_tables import Tables, extract_process

# CUpti_ActivityMemcpyKind; A is an array in device memory, P another device; 11 to 13 move unified memory.
_SIDES_BY_COPY_KIND = {1: "HD", 2: "DH", 3: "HD", 4: "DH", 5: "DD", 6: "DD", 7: "DD", 8: "DD", 9: "HH", 10: "DD",
                       11: "HD", 12: "DH", 13: "DD"}  # fmt: skip
_SIDES = {"H": "host", "D": "device"}
# CUpti_ActivityMemoryKind; unified memory may be on either side.
_SIDE_BY_MEMORY_KIND = {0: "H", 1: "H", 2: "D", 3: "D", 5: "D"}
_STREAM_WAIT = 2
"""CUpti_ActivitySynchronizationType: a stream waits for an event."""
_time_of = itemgetter(0)


class DeviceWork:
    """Adds the device rows of all processes. `graphs`: (number, total ns) of CUDA graphs traced as a whole;
    `page_faults`: (number, total ns) of the devices' page faults in unified memory."""

    def __init__(
        self,
        tables: Tables,
        processes: Processes,
        rows: defaultdict[int, Gather],
        convert_times: Callable[[Any, Any], tuple[Any, Any]],
        call_starts: Mapping[tuple[int, int], int],
    ) -> None:
        """Reads all tables of device work into `rows`: process -> its rows. `convert_times`: converts the start and end
        of a row to UTC; `call_starts`: (process, correlation id) -> start of the call in the file's time. Raises
        `BadFile` if a row's process cannot be determined."""
        self.tables, self.processes, self.rows = tables, processes, rows
        self.convert_times, self.call_starts = convert_times, call_starts
        self.graphs = self.page_faults = (0, 0)
        self.add_kernels()
        self.add_copies()
        self.add_waits()
        self.count_page_faults()

    def add_kernels(self) -> None:
        """Adds kernels, and CUDA graphs that were traced as a whole."""
        # `rows(table, columns, needed)` yields the columns of each row; a missing column that is needed is an error.
        columns = "start end deviceId streamId correlationId globalPid demangledName shortName"
        for start, end, device, stream, correlation, pid, long, short in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_KERNEL", columns, "start end deviceId streamId"
        ):
            name = self.tables.text(long) or self.tables.text(short) or "kernel"
            self.add_work(name, KERNEL, pid, device, stream, start, end, correlation)
        # With --cuda-graph-trace=graph a graph's kernels are one interval.
        columns = "start end deviceId streamId correlationId globalPid graphId"
        for start, end, device, stream, correlation, pid, graph in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns, "start end deviceId streamId"
        ):
            self.add_work(f"CUDA graph {graph}", KERNEL, pid, device, stream, start, end, correlation)
            self.graphs = _count(self.graphs, start, end)

    def add_copies(self) -> None:
        """Adds copies and memsets."""
        columns = "start end deviceId streamId correlationId globalPid bytes copyKind srcKind dstKind"
        for start, end, device, stream, correlation, pid, size, kind, source, target in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_MEMCPY", columns, "start end deviceId streamId"
        ):
            # Sides are two letters, source and target: by the kinds of memory if the kind of copy does not show them.
            sides_by_memory = _SIDE_BY_MEMORY_KIND.get(source, "D") + _SIDE_BY_MEMORY_KIND.get(target, "D")
            sides = _SIDES_BY_COPY_KIND.get(kind, sides_by_memory)
            name = copy_name(_SIDES[sides[0]], _SIDES[sides[1]])
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
        """Adds a device interval to its process. `kind`: `events.KERNEL`, `COPY` or `MEMSET`; `pid`: the column
        `globalPid`; `device`: the process's number of it; `start`, `end`: ns of the file's clock; `size`: bytes. Values
        are as in the table, of any type. The driver moves unified memory outside any stream (None)."""
        process = self.process_of(pid)
        lane = "unified memory" if stream is None else f"stream {stream}"
        gpu = self.processes.gpu(process, device)
        times = self.convert_times(start, end)
        self.rows[process].work(name, kind, lane, gpu, *times, correlation=correlation, size=size)

    def add_waits(self) -> None:
        """Adds stream waits: a wait for an event is a wait for the stream on which the event was last recorded."""
        # (process, event id) -> (start of the call that recorded the event, stream) of each record.
        records_of_event: defaultdict[tuple[int, Any], list[tuple[int, Any]]] = defaultdict(list)
        columns = "streamId correlationId globalPid eventId"
        for stream, correlation, pid, event in self.tables.rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT", columns):
            process = self.process_of(pid)
            if (process, correlation) in self.call_starts:
                records_of_event[process, event].append((self.call_starts[process, correlation], stream))
        for records in records_of_event.values():
            records.sort(key=_time_of)
        columns = "deviceId streamId correlationId globalPid syncType eventId"
        for device, stream, correlation, pid, kind, event in self.tables.rows(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns
        ):
            process = self.process_of(pid)
            if kind != _STREAM_WAIT or (process, correlation) not in self.call_starts:
                continue
            records = records_of_event[process, event]
            # Number of records up to the call that waits.
            earlier_count = bisect_right(records, self.call_starts[process, correlation], key=_time_of)
            if earlier_count:
                awaited_stream = records[earlier_count - 1][1]
                gpu = self.processes.gpu(process, device)
                self.rows[process].wait(correlation, gpu, f"stream {stream}", f"stream {awaited_stream}")

    def count_page_faults(self) -> None:
        """Counts the devices' page faults in unified memory in `page_faults`: kernels stall in them."""
        for start, end in self.tables.rows("CUDA_UM_GPU_PAGE_FAULT_EVENTS", "start end"):
            self.page_faults = _count(self.page_faults, start, end)

    def process_of(self, pid: Any) -> int:
        """The process of a device row, whose column `globalPid` is `pid`. Older exports do not have that column; then
        the file must hold only one process. Raises `BadFile` if it holds several."""
        if type(pid) is int:
            return extract_process(pid)
        if len(self.rows) > 1:
            raise BadFile(
                f"{self.tables.path}: kernels cannot be attributed to one of {len(self.rows)} processes: their table "
                "has no globalPid.",
                "Export it again with a newer nsys.",
            )
        return next(iter(self.rows), 0)


def _count(total: tuple[int, int], start: Any, end: Any) -> tuple[int, int]:
    """`total`, the (number, total ns) of intervals, with one more interval, if its times are valid."""
    is_valid = type(start) is int and type(end) is int and start <= end
    return (total[0] + 1, total[1] + end - start) if is_valid else total
