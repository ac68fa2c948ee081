"""Reads Kineto JSON (torch.profiler's chrome trace), plain or gzipped, CUDA, ROCm or CPU only.

`document.Walk` passes the events of a file to a scanner, which fills the tables of `tables.py`; this module checks
them, separates the ranks of a merged file, and has `assemble` build one `events.Events` per rank. A lane is a device
stream; a mark is an annotation (`ProfilerStep#4`) that delimits a training step.

Formats supported: 2021 (`Kernel`, `Memcpy`, integer µs, thread ids as text) to torch 2.13 (`kernel`, `gpu_memcpy`, µs
with three decimals over `baseTimeNanoseconds`). Timestamps are parsed from raw text to integers: a float64 cannot hold
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from trainyard.errors import BadFile
from trainyard.events import CALL, DRAWN, NOTE, OP, Events, MemoryEvents, OperandShape
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.recorded_stacks import MODULE_PREFIX, STACKS_KEY
from trainyard.redact import redact
from trainyard.trace.readers.assemble import assemble
from trainyard.trace.readers.kineto.document import Walk
from trainyard.trace.readers.kineto.header import Header
from trainyard.trace.readers.kineto.native import library
from trainyard.trace.readers.kineto.processes import MergedRank, Separation, separate_ranks
from trainyard.trace.readers.kineto.rows import Rows, Tables
from trainyard.trace.readers.kineto.scanner import CompiledScanner
from trainyard.trace.readers.kineto.stacks import Stacks, read_stacks
from trainyard.trace.readers.kineto.unknown_work import resolve_unknown_work
from trainyard.trace.readers.kineto.unpack import UnpackedText, no_collection, open_documents
from trainyard.trace.readers.recognise import recognise, recognise_text
from trainyard.trace.readers.tables import DeviceTable, FileFacts, HostTable
from trainyard.units import listed

_NO_GROUPS: Mapping[str, Any] = {}
_Table = TypeVar("_Table", HostTable, DeviceTable)

_LAUNCH = re.compile(r"(cuda|hip|cu)(\w*Launch|Memcpy|Memset)")
"""Names of driver calls that put work on a device."""


class Kineto:
    """The `Reader` of Kineto files."""

    def sniff(self, path: Path) -> bool:
        """Whether the file is a chrome trace, plain or packed; also if it is empty or damaged JSON, whose error this
        reader words best."""
        return recognise(path).reader == "kineto"

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` for each device that is a rank (`device_shares.py`; one of the host's spans without
        device work), for each rank of a merged file. `options`: the maximum size, and the prefix of the names of step
        annotations. Raises `BadFile`: missing, empty, not JSON, no events, larger than the limit.
        """
        with no_collection():
            documents = open_documents(path, options.limit)
            if len(documents) > 1:
                documents = [text for text in documents if recognise_text(text).reader == "kineto"] or documents
            return tuple(events for text in documents for events in _read(text, options.mark))


def _read(text: UnpackedText, mark: str, groups: Mapping[str, Any] = _NO_GROUPS) -> tuple[Events, ...]:
    """Reads one document into one `Events` per rank. `mark`: prefix of the names of step annotations; `groups`: name of
    a process group -> its description in the header, if already known. Raises `BadFile`."""
    walk = Walk(text)
    has_events = walk.read_header()
    groups = groups or Header(walk.header).groups
    native = library()
    scanner = CompiledScanner(groups, native) if native else Rows(groups)
    if has_events:
        walk.run(scanner)
    header = Header(walk.header)
    if header.groups != groups:  # stated after the events, which need them: read the document again
        return _read(text, mark, header.groups)
    tables, category_notes, accelerator_categories = resolve_unknown_work(scanner.tables())
    tables = _as_annotations(tables, mark)
    has_device_work = bool((tables.device.kind != DRAWN).any())
    if not len(tables.host.start) and not has_device_work:
        raise _no_events_error(text, walk, tables.dropped, category_notes)
    losses = _describe_losses(text, walk, tables.dropped, has_device_work)
    _check_launches(text, tables, bool(walk.lost and header.device_names), accelerator_categories)
    labels = [_lane_label(lane) for lane in tables.lanes]
    lanes = {label: index for index, label in enumerate(sorted(set(labels)))}
    lane_index = np.array([lanes[label] for label in labels], np.int32)  # from the number in the file's order
    tables = tables._replace(
        host=_add_base_time(tables.host, header.base),
        device=_add_base_time(tables.device._replace(lane=lane_index[tables.device.lane]), header.base),
        waits=tables.waits._replace(
            lane=lane_index[tables.waits.lane], awaited_lane=lane_index[tables.waits.awaited_lane]
        ),
    )
    memory = _sort_memory_events(tables.memory, header.base)
    separation = separate_ranks(tables, text.path)
    stacks = Stacks(None) if separation else read_stacks(walk.header.get(STACKS_KEY), tables.host, tables.names)
    facts = FileFacts(
        source=text.name,
        names=tables.names,
        lanes=tuple(lanes),
        shapes=[_decode_shape(shape) for shape in tables.shapes],
        rank=header.rank,
        world=header.world,
        device_names=header.device_names,
        host_name=header.host_name,
        backend=header.backend,
        group_sizes=header.group_sizes,
        notes=(*header.notes, *losses, *category_notes, *stacks.notes),
        cut_short=bool(walk.lost),
    )
    if separation is None:
        traces = assemble(facts, tables.host, tables.device, tables.waits, mark, is_whole_process=True)
        return tuple(
            msgspec.structs.replace(
                events, stacks=stacks.samples, memory=_memory_of_rank(memory, events, is_only=len(traces) == 1)
            )
            for events in traces
        )
    if len(memory):
        left_out = f"{len(memory):,} allocations and frees were left out: they are read from files of one rank only."
        facts = facts._replace(notes=(*facts.notes, left_out))
    return _assemble_ranks(facts, separation, mark)


def _assemble_ranks(facts: FileFacts, separation: Separation, mark: str) -> tuple[Events, ...]:
    """Builds one `Events` per rank of a merged file; the notes of the file are on the first. `mark`: prefix of the
    names of step annotations."""
    # The header is that of one of the merged files, or absent: facts about that rank alone are left out.
    # If no two ranks have the same device number, they are on one host.
    device_numbers = [number for rank in separation.ranks for number in np.unique(rank.device.device).tolist()]
    on_one_host = bool(device_numbers) and len(set(device_numbers)) == len(device_numbers)
    is_numbered = not any(rank.label for rank in separation.ranks)
    last_rank = separation.ranks[-1].rank
    world = facts.world if facts.world > last_rank else last_rank + 1 if is_numbered else 0
    traces: list[Events] = []
    for merged in separation.ranks:
        own = facts._replace(
            source=f"{facts.source}:{merged.label or f'rank {merged.rank}'}",
            rank=merged.rank,
            world=world,
            names=_names_of_rank(facts.names, merged),
            host_name=facts.host_name if on_one_host else "",
            notes=(*facts.notes, *separation.notes) if not traces else (),
        )
        traces.extend(assemble(own, merged.host, merged.device, merged.waits, mark, is_whole_process=True))
    world = max(events.world for events in traces)
    return tuple(msgspec.structs.replace(events, world=world) for events in traces)


def _names_of_rank(names: Sequence[str], merged: MergedRank) -> Sequence[str]:
    """The file's names; without `[R3] ` at their beginning if all names in the rows of rank 3 begin with it."""
    prefix = f"[R{merged.rank}] "
    used_names = np.union1d(merged.host.name, merged.device.name).tolist()  # positions in `names`
    if not all(names[int(name)].startswith(prefix) for name in used_names):
        return names
    return tuple(str(name).removeprefix(prefix) for name in names)


def _as_annotations(tables: Tables, mark: str) -> Tables:
    """Turns ops into annotations, in place: modules' forward passes, and the marks of steps (names with the prefix
    `mark`) if no annotation has that prefix, as in files of 2021. Returns the same tables."""
    is_module = np.array([name.startswith(MODULE_PREFIX) for name in tables.names] or [False], bool)
    is_mark = np.array([name.startswith(mark) for name in tables.names] or [False], bool)
    host = tables.host
    marks = np.flatnonzero(is_mark[host.name])
    is_annotation = is_module if (host.kind[marks] == NOTE).any() else is_module | is_mark
    rows = np.flatnonzero(is_annotation[host.name] & (host.kind == OP))
    host.kind[rows], host.backward[rows] = NOTE, 0
    for column in (host.external, host.seq, host.shape):
        column[rows] = -1
    return tables


def _add_base_time(table: _Table, base_ns: int) -> _Table:
    """Adds the file's base time to all times of the table, in place, and returns it."""
    if base_ns:
        for column in (table.start, table.stop):
            column += base_ns
    return table


def _sort_memory_events(memory: MemoryEvents, base_ns: int) -> MemoryEvents:
    """Allocations and frees by time, on the file's clock."""
    memory = memory.only(np.argsort(memory.time, kind="stable"))
    return msgspec.structs.replace(memory, time=memory.time + base_ns)


def _memory_of_rank(memory: MemoryEvents, events: Events, is_only: bool) -> MemoryEvents | None:
    """The allocations and frees on the device of a rank, or on the host if the rank has no device work; None without
    any. Those of the device that has the most if `is_only`, the only rank of its file, since the numbers of devices in
    memory events and in kernels may differ."""
    device = -1
    if len(events.work):
        device = events.device_index
        numbers, counts = np.unique(memory.device[memory.device >= 0], return_counts=True)
        if is_only and len(numbers) and device not in numbers:
            device = int(numbers[counts.argmax()])
    own = memory.only(memory.device == device)
    return own if len(own) else None


def _no_events_error(text: UnpackedText, walk: Walk, dropped: int, category_notes: Sequence[str]) -> BadFile:
    """The error for a document without host spans and device work; not raised here. `walk`: the pass over the document,
    which counted its entries; `dropped`: number of events without a readable time; `category_notes`: sentences on
    events of unknown categories."""
    reason = f" ({'; '.join(walk.lost)})" if walk.lost else ""
    if not walk.entries:
        return BadFile(
            f"{text.path}: 0 trace events in {text.size:,} bytes{reason}.", "Was the profiler's window ever active?"
        )
    if dropped:
        return BadFile(
            f"{text.path}: {dropped:,} of its {walk.entries:,} events have an unreadable or negative time, or one of "
            f"more than 73 years, and no other is a kernel, copy or host span{reason}.",
            "Times are microseconds. Were they scaled or written in another unit?",
        )
    return BadFile(
        f"{text.path}: none of its {walk.entries:,} events is a kernel, copy or host span{reason}.",
        " ".join((*category_notes, "trainyard reads torch.profiler's chrome traces here.")),
    )


def _check_launches(
    text: UnpackedText, tables: Tables, has_lost_devices: bool, accelerator_categories: Sequence[str]
) -> None:
    """Raises `BadFile` if the file has no device work although there was some, since the host ops of a GPU step must
    not be read as a CPU step. Evidence is launches, events of `accelerator_categories`, which are not read, or
    `has_lost_devices`: the header names devices and the file is cut short."""
    if (tables.device.kind != DRAWN).any():
        return
    is_launch = np.array([_LAUNCH.match(name) is not None for name in tables.names], bool)
    launch_count = int((is_launch[tables.host.name] & (tables.host.kind == CALL)).sum())
    if accelerator_categories:
        categories = listed(accelerator_categories, 4)
        raise BadFile(
            f"{text.path}: its device events are of categories that trainyard does not read: {categories}.",
            "Record with the profiler of the device's vendor, or report the format.",
        )
    if launch_count or has_lost_devices:
        problem = (
            f"{launch_count:,} calls launch work on a device" if launch_count else "it names devices and is cut short"
        )
        raise BadFile(
            f"{text.path}: {problem}, but the file holds no device work.",
            "Copy the complete file again, or record with the device's ProfilerActivity.",
        )


def _describe_losses(text: UnpackedText, walk: Walk, dropped: int, has_device_work: bool) -> Iterator[str]:
    """Yields a sentence for each kind of loss: truncated or damaged text, entries that are not events, and `dropped`
    events without a readable time. `has_device_work`: the events that were read include some of a device."""
    if walk.lost and not has_device_work:
        yield (
            f"{text.name} may have lost device events, which torch.profiler writes after those of the host: the "
            "figures are those of a step on a CPU, and are wrong if the job used an accelerator. Copy the complete "
            "file again."
        )
    for lost in walk.lost:
        yield f"{text.name}: {lost}. The complete events are analysed."
    if walk.unreadable_entries:
        yield f"{walk.unreadable_entries:,} entries of {text.name} are not readable events; they were left out."
    if dropped:
        yield f"{dropped:,} events with an unreadable or negative time were left out."


def _lane_label(lane: bytes) -> str:
    """The label of a stream, such as `stream 7`, from its JSON: `7` in an event's args, or `"stream 7"`, the thread id
    in files of 2021. At most 64 characters of the JSON are used."""
    lane_text = lane.decode("utf-8", "replace").strip('"')[:64]
    return lane_text if lane_text.startswith("stream") else f"stream {lane_text}"


def _decode_shape(raw: bytes) -> OperandShape:
    """Decodes the operands of an op from three JSON lists, separated by zero bytes: dimensions, types and values of
    each operand. A part that is not a list is left empty; texts are redacted and cut to a maximum length. The dims of
    a list of tensors are nested in its entry: `[[[3, 4], [5]], []]`."""
    dims, types, values = (_decode_list(part) for part in raw.split(b"\0"))
    lists = tuple(_decode_dims_of_list(entry) for entry in dims) if b"List" in raw else ()
    return OperandShape(
        dims=tuple(_decode_dims(entry) for entry in dims),
        lists=lists if any(lists) else (),
        types=tuple(redact(str(entry)[:256])[:64] for entry in types),
        values=tuple(redact(str(entry)[:1024])[:256] for entry in values),
    )


def _decode_list(raw: bytes) -> list[object]:
    """The JSON list in `raw`; an empty list if it is absent, damaged or not a list."""
    try:
        value = msgspec.json.decode(raw) if raw else []
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _decode_dims_of_list(entry: object) -> tuple[tuple[int, ...], ...]:
    """The dims of each tensor of a list; () if the entry is not a list of lists of lengths."""
    if not isinstance(entry, list) or not entry or not all(isinstance(dims, list) for dims in entry):
        return ()
    decoded = tuple(_decode_dims(dims) for dims in entry)
    return decoded if all(len(dims) == len(listed) for dims, listed in zip(decoded, entry)) else ()


def _decode_dims(entry: object) -> tuple[int, ...]:
    """The dimensions of one operand; empty unless `entry` is a list of integers from 0 to 2**62 - 1."""
    lengths = entry if isinstance(entry, list) else []
    return tuple(lengths) if all(type(length) is int and 0 <= length < 2**62 for length in lengths) else ()
