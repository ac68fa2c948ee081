"""Reads rocprofv3's JSON (`rocprofv3 --output-format json`).

Schema: the "JSON output" section of rocprofiler-sdk's "Using rocprofv3",
https://rocm.docs.amd.com/projects/rocprofiler-sdk/. Timestamps are integer ns of one clock. A kernel has the
correlation id of the call that launched it. One file may hold several processes. roctx ranges are annotations and
steps; their texts are listed by the correlation id of the record. An agent is a CPU or a GPU, its handle an id in the
file. Rows are collected in a `Gather`: `work` adds a row of device work, `span` one of the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, KERNEL, Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import whole_files
from trainyard.trace.readers.annotate import add_call, add_range, copy_name
from trainyard.trace.readers.gather import Gather
from trainyard.trace.readers.recognise import recognise

_CPU_AGENT, _GPU_AGENT = 1, 2
_MARKERS = "marker_api"
_MAX_ID = 2**62
_Raw = msgspec.Raw


class _Handle(msgspec.Struct, frozen=True):
    """Id of an agent, queue or stream; -1 if absent."""

    handle: int = -1


class _Correlation(msgspec.Struct):
    """`internal`: id that a call shares with the work it launched."""

    internal: int = -1


class _Dispatch(msgspec.Struct):
    """A kernel's device (`agent_id`), queue, symbol (`kernel_id`) and number among the process's dispatches."""

    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = -1
    dispatch_id: int = -1


class _Record(msgspec.Struct):
    """A record of any kind: the fields that all kinds share, then those of single kinds.
    Timestamps are ns; `kind` and `operation` index the strings of `_Kind`."""

    start_timestamp: int
    end_timestamp: int
    kind: int = -1
    operation: int = -1
    thread_id: int = -1
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    dispatch_info: _Dispatch = msgspec.field(default_factory=_Dispatch)
    stream_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()
    dst_agent_id: _Handle = _Handle()
    bytes: int = -1


class _Agent(msgspec.Struct):
    """A CPU or GPU (`type`). `logical_node_type_id`: its number among those of its type, -1 if absent."""

    id: _Handle = _Handle()
    type: int = 0
    node_id: int = -1
    logical_node_type_id: int = -1
    name: str = ""
    product_name: str = ""


class _Symbol(msgspec.Struct):
    """A kernel's names, from mangled to formatted; empty if absent."""

    kernel_id: int = -1
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Kind(msgspec.Struct):
    """A kind of records and the names of its operations by number."""

    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct):
    """The text of a marker: id -> text."""

    key: int
    value: str


class _Strings(msgspec.Struct):
    """The text that records refer to by number."""

    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Node(msgspec.Struct):
    """The host."""

    hostname: str = ""


class _Metadata(msgspec.Struct):
    """The facts of a process that are read."""

    node: _Node | None = None


class _Process(msgspec.Struct):
    """A process. `buffer_records`: kind -> its records, which are decoded one by one."""

    metadata: _Metadata | None = None
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    buffer_records: dict[str, list[_Raw] | None] = {}


class _RocprofDocument(msgspec.Struct):
    # The first releases wrote one process, without the list.
    processes: list[_Process] | _Process = msgspec.field(name="rocprofiler-sdk-tool")


_decode_record = msgspec.json.Decoder(_Record).decode


class Rocprof:
    """The `Reader` of rocprofv3's JSON. `ReadOptions.mark` is the prefix of the roctx ranges that are steps."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "rocprof"

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` for each process and device with work. Raises `BadFile`."""
        document = whole_files.decode(path, options.limit, _RocprofDocument, "rocprofv3")
        processes = document.processes if isinstance(document.processes, list) else [document.processes]
        readings = [_RocprofRows(path, process, options.mark) for process in processes]
        working = [reading for reading in readings if len(reading.rows)]
        if not working:
            raise BadFile(
                f"{path}: the file holds no kernel and no copy.", "Record with --kernel-trace --memory-copy-trace."
            )
        idle = len(readings) - len(working)
        notes = [f"{idle:,} processes without device work were left out."] if idle else []
        return tuple(events for reading in working for events in reading.build_events(notes))


class _RocprofRows:
    """The rows of one process.

    `kinds`: number of a kind of records -> the names of its operations by number; `messages`: correlation id -> text of
    a marker; `symbols`: kernel id -> name; `types`, `numbers`: handle of an agent -> type, and device number (GPUs
    only); `device_names`: device number -> name; `dispatch_ids`: dispatch ids of the kernels; `call_count`: number of
    API calls.
    """

    def __init__(self, path: Path, process: _Process, marks: str) -> None:
        """Reads all records of one process and adds their rows. `marks`: prefix of the markers that mark steps."""
        self.process = process
        self.rows = Gather(path.name, marks)
        self.kinds = process.strings.buffer_records
        self.messages = {message.key: message.value for message in process.strings.marker_api}
        self.symbols = {symbol.kernel_id: _symbol_name(symbol) for symbol in process.kernel_symbols}
        self.types = {agent.id.handle: agent.type for agent in process.agents}
        gpus = sorted((agent for agent in process.agents if agent.type == _GPU_AGENT), key=lambda agent: agent.node_id)
        # The device number: as stated in the file, else by the order of the nodes.
        self.numbers = {
            agent.id.handle: agent.logical_node_type_id if agent.logical_node_type_id >= 0 else index
            for index, agent in enumerate(gpus)
        }
        self.device_names = {self.numbers[agent.id.handle]: agent.product_name or agent.name for agent in gpus}
        node = process.metadata.node if process.metadata else None
        self.host_name = node.hostname if node else ""
        self.dispatch_ids: set[int] = set()
        self.call_count = 0
        for api in sorted(kind for kind in process.buffer_records if kind.endswith("_api") and kind != _MARKERS):
            for record in self.records(api):
                self.call_count += 1
                times = record.start_timestamp, record.end_timestamp
                add_call(self.rows, self.operation(record), record.thread_id, *times, _correlation(record))
        for record in self.records(_MARKERS):
            self.add_marker(record)
        for record in self.records("kernel_dispatch"):
            self.add_kernel(record)
        for record in self.records("memory_copy"):
            self.add_copy(record)

    def build_events(self, notes: Sequence[str]) -> tuple[Events, ...]:
        """One `Events` for each device of the process. `notes`: those of the file, to which those of the process are
        added."""
        ids = self.dispatch_ids
        missing = max(ids) - min(ids) + 1 - len(ids) if ids else 0
        if missing:
            notes = [
                *notes,
                f"{missing:,} kernels are missing: their dispatch ids are skipped between the first and the last of "
                f"{len(ids):,} recorded dispatches. rocprofv3 lost them, or a filter left them out.",
            ]
        if not self.call_count:
            notes = [
                *notes,
                "The file holds no HIP call, so idle time has no cause. Record with rocprofv3 --runtime-trace.",
            ]
        return self.rows.events(notes, self.device_names, self.host_name)

    def records(self, kind: str) -> Iterator[_Record]:
        """Yields the records of one kind; counts unreadable ones and those without a time as dropped."""
        for raw in self.process.buffer_records.get(kind) or ():
            try:
                record = whole_files.record(_decode_record, raw)
            except (msgspec.MsgspecError, RecursionError):
                record = None
            if record is None or record.start_timestamp == record.end_timestamp == 0:
                self.rows.dropped += 1
            else:
                yield record

    def operation(self, record: _Record) -> str:
        """The name of the record's operation (`hipLaunchKernel`): the file numbers operations within kinds."""
        if 0 <= record.kind < len(self.kinds) and 0 <= record.operation < len(self.kinds[record.kind].operations):
            return self.kinds[record.kind].operations[record.operation]
        return f"operation {record.kind}.{record.operation}"

    def add_marker(self, record: _Record) -> None:
        """Adds a roctx range with the message of its correlation id; without a message it is a call of the library."""
        times = record.start_timestamp, record.end_timestamp
        message = self.messages.get(record.correlation_id.internal)
        if message is not None:
            add_range(self.rows, message, record.thread_id, *times)
        else:
            self.rows.span(self.operation(record), CALL, record.thread_id, *times)

    def add_kernel(self, record: _Record) -> None:
        """Adds a kernel, on its stream, else its queue."""
        info = record.dispatch_info
        if 0 <= info.dispatch_id < _MAX_ID:
            self.dispatch_ids.add(info.dispatch_id)
        stream, queue = record.stream_id.handle, info.queue_id.handle
        self.rows.work(
            self.symbols.get(info.kernel_id) or f"kernel {info.kernel_id}",
            KERNEL,
            f"stream {stream}" if stream >= 0 else f"queue {queue}",
            self.numbers.get(info.agent_id.handle, -1),
            record.start_timestamp,
            record.end_timestamp,
            correlation=_correlation(record),
        )

    def add_copy(self, record: _Record) -> None:
        """Adds a copy on its stream; its device is the target's, else the source's. Its direction is that of its
        agents, or of its operation (`MEMORY_COPY_HOST_TO_DEVICE`) if the file does not list them."""
        source, target = record.src_agent_id.handle, record.dst_agent_id.handle
        stream = record.stream_id.handle
        stated_source, _, stated_target = self.operation(record).removeprefix("MEMORY_COPY_").lower().partition("_to_")
        self.rows.work(
            copy_name(self.side(source, stated_source), self.side(target, stated_target)),
            COPY,
            f"stream {stream}" if stream >= 0 else "copies",
            self.numbers.get(target, self.numbers.get(source, -1)),
            record.start_timestamp,
            record.end_timestamp,
            correlation=_correlation(record),
            size=record.bytes,
        )

    def side(self, handle: int, stated: str) -> str:
        """`host` or `device`: by the type of the agent with this handle; for an agent that is not listed, `host` if
        that is `stated`, else `device`."""
        if handle in self.types:
            return "host" if self.types[handle] == _CPU_AGENT else "device"
        return "host" if stated == "host" else "device"


def _correlation(record: _Record) -> int:
    """The id that a call shares with the work it launched; -1 if there is none (the SDK writes 0)."""
    return record.correlation_id.internal or -1


def _symbol_name(symbol: _Symbol) -> str:
    return symbol.formatted_kernel_name or symbol.demangled_kernel_name or symbol.kernel_name
