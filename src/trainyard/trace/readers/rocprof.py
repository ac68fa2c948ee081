"""Reads rocprofv3's JSON (`rocprofv3 --output-format json`).

Schema: the "JSON output" section of rocprofiler-sdk's "Using rocprofv3",
https://rocm.docs.amd.com/projects/rocprofiler-sdk/. Timestamps are integer ns of one clock. A kernel has the
correlation id of the call that launched it. One file may hold several processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, KERNEL, Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import whole_files
from trainyard.trace.readers.annotate import add_call, add_range, copy_name
from trainyard.trace.readers.gather import Gather, experimental
from trainyard.trace.readers.recognise import recognise

NOTES = experimental(
    "rocprofv3 profiles",
    "Unproven: that a kernel's correlation id is always its HIP call's (with HSA tracing on too), and how streams are "
    "numbered before ROCm 7.",
)
_CPU_AGENT, _GPU_AGENT = 1, 2
_APIS = ("hip_api", "hsa_api", "rccl_api")
_Raw = msgspec.Raw


class _Handle(msgspec.Struct, frozen=True):
    """Id of an agent, queue or stream; -1 if absent."""

    handle: int = -1


class _Correlation(msgspec.Struct):
    """`internal`: id that a call shares with the work it launched."""

    internal: int = -1


class _Dispatch(msgspec.Struct):
    """A kernel's device (`agent_id`), queue and symbol (`kernel_id`)."""

    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = -1


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


class _Process(msgspec.Struct):
    """A process. `buffer_records`: kind -> its records, which are decoded one by one."""

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

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` for each process and device with work. Raises `BadFile`."""
        document = whole_files.decode(path, how.limit, _RocprofDocument, "rocprofv3")
        processes = document.processes if isinstance(document.processes, list) else [document.processes]
        readings = [_RocprofRows(path, process, how.mark) for process in processes]
        return events_of(path, [(reading.rows, reading.device_names) for reading in readings], NOTES)


def events_of(path: Path, processes: Sequence[tuple[Gather, Mapping[int, str]]], note: str) -> tuple[Events, ...]:
    """The events of each process with device work; a note counts the processes without. Raises `BadFile`."""
    working = [(rows, device_names) for rows, device_names in processes if len(rows)]
    if not working:
        raise BadFile(
            f"{path}: the file holds no kernel and no copy.", "Record with --kernel-trace --memory-copy-trace."
        )
    idle = len(processes) - len(working)
    notes = [note, *([f"{idle:,} processes without device work were left out."] if idle else [])]
    return tuple(events for rows, device_names in working for events in rows.events(notes, device_names))


class _RocprofRows:
    """The rows of one process."""

    def __init__(self, path: Path, process: _Process, marks: str) -> None:
        """Read all records of one process. `marks`: prefix of the markers that mark steps."""
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
        for api in _APIS:
            for record in self.records(api):
                times = record.start_timestamp, record.end_timestamp
                correlation = record.correlation_id.internal
                add_call(self.rows, self.operation(record), record.thread_id, *times, correlation)
        for record in self.records("marker_api"):
            self.add_marker(record)
        for record in self.records("kernel_dispatch"):
            self.add_kernel(record)
        for record in self.records("memory_copy"):
            self.add_copy(record)

    def records(self, kind: str) -> Iterator[_Record]:
        """Yields the records of one kind; counts unreadable ones as dropped."""
        for raw in self.process.buffer_records.get(kind) or ():
            try:
                yield whole_files.record(_decode_record, raw)
            except (msgspec.MsgspecError, RecursionError):
                self.rows.dropped += 1

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
        stream, queue = record.stream_id.handle, info.queue_id.handle
        self.rows.work(
            self.symbols.get(info.kernel_id) or f"kernel {info.kernel_id}",
            KERNEL,
            f"stream {stream}" if stream >= 0 else f"queue {queue}",
            self.numbers.get(info.agent_id.handle, -1),
            record.start_timestamp,
            record.end_timestamp,
            correlation=record.correlation_id.internal,
        )

    def add_copy(self, record: _Record) -> None:
        """Adds a copy on its stream; its device is the target's, else the source's."""
        source, target = record.src_agent_id.handle, record.dst_agent_id.handle
        stream = record.stream_id.handle
        self.rows.work(
            copy_name(self.side(source), self.side(target)),
            COPY,
            f"stream {stream}" if stream >= 0 else "copies",
            self.numbers.get(target, self.numbers.get(source, -1)),
            record.start_timestamp,
            record.end_timestamp,
            correlation=record.correlation_id.internal,
            size=record.bytes,
        )

    def side(self, handle: int) -> str:
        return "host" if self.types.get(handle) == _CPU_AGENT else "device"


def _symbol_name(symbol: _Symbol) -> str:
    return symbol.formatted_kernel_name or symbol.demangled_kernel_name or symbol.kernel_name
