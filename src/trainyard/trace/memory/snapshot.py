"""Reads and validates memory snapshots of torch's caching allocator and converts them to columns.

The file is written by `torch.cuda.memory._dump_snapshot` or an out-of-memory observer (a pickle, plain or gzipped), or
is the same structure as JSON, or `torch.cuda.memory_snapshot()`'s list of segments. Fields, from torch 1.13 to 2.13:
https://docs.pytorch.org/docs/stable/torch_cuda_memory.html and torch/csrc/cuda/memory_snapshot.cpp. A snapshot made
from a profile (`torch.cuda._memory_viz.profile_plot`) has the same shape and a category for each allocation.

Paths in error messages are JSONPath: `$.segments[2].blocks[0]`. Files are untrusted: a small one may share lists and
texts any number of times, so shared parts are decoded once and totals are bounded by the size of the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadFile, DamagedFile
from trainyard.formats.plain_pickle import loads
from trainyard.plugins import AS_WRITTEN
from trainyard.redact import redact
from trainyard.trace.readers.kineto.unpack import no_collection, open_documents

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "user_defined",
)
"""Actions in the allocator's trace; columns hold the index."""
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM = range(8)
USER_DEFINED = ACTIONS.index("user_defined")

DEFAULT_MAX_BYTES = 4 * 2**30
"""Default limit of an unpacked file; smaller than that of traces, since the file is held in memory completely."""
_MAX_NUMBER = 2**62
_MAX_TEXT_LENGTH = 500
"""Characters kept of a path's end and of a text's beginning: patterns are searched in them, and texts shared by many
entries are compared many times."""
_PROFILED_FRAME = re.compile(r"(.+)\((\d+)\): (.+)\Z", re.DOTALL)


class Frame(NamedTuple):
    """A line of a stack; `file` is empty if only a name is known (a built-in, C++ without symbols)."""

    file: str
    line: int
    name: str


class AllocatorBlock(NamedTuple):
    """A piece of a segment. `requested`: bytes requested of its `size`; `stack`: index into `Snapshot.stacks`."""

    address: int
    size: int
    requested: int
    allocated: bool
    active: bool
    stack: int


class Segment(NamedTuple):
    """Memory the allocator got from the driver (reserved); its blocks fill it exactly."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[AllocatorBlock, ...]


class Trace(NamedTuple):
    """The allocator's events, oldest first, as columns. `action` is an index into ACTIONS; `size` is the requested
    bytes (of an `oom`: rounded); `address` of an `oom` is the device's free bytes. `stack` and `label` are indices into
    `Snapshot.stacks` and `Snapshot.labels`; `ns` counts events unless `timed`."""

    action: NDArray[np.int8]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    ns: NDArray[np.int64]
    stack: NDArray[np.int32]
    label: NDArray[np.int32]
    timed: bool


class SnapshotDevice(NamedTuple):
    """A device of a snapshot: its number, the segments that it has at the end, and the trace of its allocator."""

    index: int
    segments: tuple[Segment, ...]
    trace: Trace


class SnapshotAnnotation(NamedTuple):
    """An annotation of a moment by the program; `ns`: by the allocator's clock."""

    ns: int
    device: int
    text: str


class Snapshot(NamedTuple):
    """A decoded snapshot. `stacks[0]` is the empty stack and `labels[0]` the empty label: the categories of a profile
    or those that the program set. `settings`: the allocator's, as written; `marks`: annotations, by time;
    `unreadable_count`: number of entries of traces and annotations that could not be read.

    `allocator` is False for a snapshot made from a profile, whose sizes are not rounded by an allocator."""

    source: str
    devices: tuple[SnapshotDevice, ...]
    stacks: tuple[tuple[Frame, ...], ...]
    labels: tuple[str, ...]
    settings: dict[str, Any]
    marks: tuple[SnapshotAnnotation, ...]
    unreadable_count: int
    allocator: bool


def load(path: Path, limit: int = AS_WRITTEN.limit) -> Snapshot:
    """Loads a snapshot. `limit`: maximum of its unpacked bytes; the default limit of traces stands for the lower
    DEFAULT_MAX_BYTES. Raises `BadFile`: missing, damaged, larger than the limit, not plain data, not a snapshot."""
    with no_collection():
        return _decode(str(path), _unpack(path, DEFAULT_MAX_BYTES if limit == AS_WRITTEN.limit else limit))


def _decode(source: str, data: bytes) -> Snapshot:
    """Decodes an unpacked file, a pickle or JSON. Raises `BadFile`; `source` names the file."""
    if data[:1] == b"\x80":
        plain = loads(data, source, "memory snapshot")
    elif data.lstrip()[:1] in (b"{", b"["):
        try:
            plain = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise DamagedFile(
                f"{source}: not JSON, or cut short: {error} ({len(data):,} bytes).", "Dump the snapshot again."
            ) from error
    else:
        raise BadFile(
            f"{source}: neither a pickle of protocol 2 or later nor JSON.",
            "Write it with torch.cuda.memory._dump_snapshot.",
        )
    return _SnapshotDecoder(source, len(data)).decode_snapshot(plain)


def _unpack(path: Path, limit: int) -> bytes:
    """The content of a file, decompressed, of at most `limit` bytes. Raises `BadFile`."""
    # A document per file of an archive, else one; each is an iterator over the chunks of its content.
    file_chunks, *other_files = open_documents(path, limit)
    if other_files:
        raise BadFile(f"{path}: an archive of {len(other_files) + 1:,} files.", "Pass one snapshot at a time.")
    data = b"".join(file_chunks)
    if file_chunks.lost:
        raise DamagedFile(f"{path}: {file_chunks.lost}.", "Was the copy cut short?")
    return data


class _SnapshotDecoder:
    """Converts one file of `size` bytes to columns; reads stacks and labels that several entries share once.

    `frames`: (file, line, name) as written -> frame; `stacks`, `labels`: stack or label -> its index in Snapshot;
    `stack_numbers`: id of a list of frames -> index of its stack; `unreadable_count`: number of entries that could not
    be read; `profiled`: whether an entry has a category, so that the file was made from a profile. Methods that decode
    a part add to these.
    """

    def __init__(self, source: str, size: int) -> None:
        """`source`: the file's name, for messages; `size`: its bytes."""
        self.source = source
        self.size = size
        self.frames: dict[tuple[str, int, str], Frame] = {}
        self.stacks: dict[tuple[Frame, ...], int] = {(): 0}
        self.stack_numbers: dict[int, int] = {}
        self.labels: dict[str, int] = {"": 0}
        self.unreadable_count = 0
        self.profiled = False

    def decode_snapshot(self, plain: Any) -> Snapshot:
        """Decodes the whole file, already parsed into dicts and lists. Raises `BadFile`."""
        document = {"segments": plain} if isinstance(plain, list) else plain
        if not isinstance(document, dict) or not isinstance(document.get("segments"), list):
            raise self.bad_snapshot("$.segments", "missing or not a list: this is not a memory snapshot")
        traces = document.get("device_traces") or []
        if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
            raise self.bad_snapshot("$.device_traces", "not a list of lists")
        # A small file can hold any number of entries by sharing lists; real entries take at least a byte each.
        if sum(map(len, traces)) > self.size:
            raise self.bad_snapshot("$.device_traces", f"more entries than the file has bytes ({self.size:,})")
        segments = self.decode_segments(document["segments"])
        columns = [self.decode_trace(trace) for trace in traces]  # by device index
        devices = sorted(set(segments) | {index for index, trace in enumerate(columns) if len(trace.action)})
        empty_trace = self.decode_trace([])
        settings = document.get("allocator_settings")
        return Snapshot(
            source=self.source,
            devices=tuple(
                SnapshotDevice(
                    index, tuple(segments.get(index, ())), columns[index] if index < len(columns) else empty_trace
                )
                for index in devices
            ),
            stacks=tuple(self.stacks),
            labels=tuple(self.labels),
            settings=settings if isinstance(settings, dict) else {},
            marks=self.decode_annotations(document.get("external_annotations")),
            unreadable_count=self.unreadable_count,
            allocator=not self.profiled,
        )

    def decode_segments(self, plain: list[Any]) -> dict[int, list[Segment]]:
        """Device index -> its segments. `plain`: the file's list of segments, as dicts. Raises `BadFile`."""
        by_device: dict[int, list[Segment]] = {}
        total = 0
        for number, segment in enumerate(plain):
            where = f"$.segments[{number}]"
            blocks = segment.get("blocks") if isinstance(segment, dict) else None
            if not isinstance(blocks, list):
                raise self.bad_snapshot(where, "blocks is missing or not a list")
            total += len(blocks)
            if total > self.size:
                raise self.bad_snapshot(where, f"more blocks than the file has bytes ({self.size:,})")
            address, size = self.decode_int(segment, "address", where), self.decode_int(segment, "total_size", where)
            parts = self.decode_blocks(blocks, address, where)
            if sum(block.size for block in parts) != size:
                raise self.bad_snapshot(
                    where, f"total_size is {size:,}, its blocks sum to {sum(b.size for b in parts):,}"
                )
            parsed = Segment(
                address=address,
                size=size,
                stream=self.decode_int(segment, "stream", where, 0),
                small=segment.get("segment_type") == "small",
                expandable=segment.get("is_expandable") is True,
                blocks=parts,
            )
            by_device.setdefault(self.decode_int(segment, "device", where, 0), []).append(parsed)
        return by_device

    def decode_blocks(self, plain: list[Any], address: int, where: str) -> tuple[AllocatorBlock, ...]:
        """The blocks of the segment that begins at `address`; `where`: its path in the file, for error messages."""
        parts = []
        for number, block in enumerate(plain):
            block_where = f"{where}.blocks[{number}]"
            if not isinstance(block, dict):
                raise self.bad_snapshot(block_where, "not a dict")
            size = self.decode_int(block, "size", block_where)
            # `active_allocated`, `inactive`, or a state of freed blocks that another stream still uses.
            state = block.get("state")
            allocated = state == "active_allocated"
            # Before torch 2.1 a block's requested size and stack were in its history, newest first.
            history = block.get("history")
            past = history[0] if isinstance(history, list) and history and isinstance(history[0], dict) else {}
            requested_size = block.get("requested_size", past.get("real_size", size))
            requested = requested_size if type(requested_size) is int and 0 < requested_size <= size else size
            stack = self.stack_index(block.get("frames", past.get("frames")))
            parts.append(
                AllocatorBlock(
                    address=address,
                    size=size,
                    requested=requested,
                    allocated=allocated,
                    active=allocated or state != "inactive",
                    stack=stack,
                )
            )
            address += size
        return tuple(parts)

    def decode_trace(self, plain: list[Any]) -> Trace:
        """The events of a device; entries that cannot be read are counted in `unreadable_count`."""
        # Rows with the columns of `Trace`, except `timed`.
        rows: list[tuple[int, int, int, int, int, int, int]] = []
        codes = {action: code for code, action in enumerate(ACTIONS)}
        for entry in plain:
            try:
                # Hashing nested tuples takes exponential time: only text is looked up.
                code = codes[_require_text(entry["action"])]
                address = entry["device_free"] if code == OOM else entry.get("addr", 0)
                row = (
                    code,
                    _require_int(address),
                    # Only allocations and frees (the codes below SEGMENT_ALLOC) must have a size.
                    _require_int(entry["size"] if code < SEGMENT_ALLOC else entry.get("size", 0)),
                    _require_int(entry.get("stream", 0)),
                    _require_int(_require_int(entry.get("time_us", 0)) * 1000),
                    self.stack_index(entry.get("frames")),
                    self.label_index(entry),
                )
            except (KeyError, TypeError, AttributeError, ValueError):
                self.unreadable_count += 1
            else:
                rows.append(row)
        columns = zip(*rows) if rows else [()] * 7
        action, address, size, stream, ns, stack, label = (np.array(column, np.int64) for column in columns)
        timed = bool(len(ns)) and bool((np.diff(ns) >= 0).all()) and int(ns[-1]) > int(ns[0])
        event_numbers = np.arange(len(ns), dtype=np.int64)
        return Trace(
            action=action.astype(np.int8),
            address=address,
            size=size,
            stream=stream,
            ns=ns if timed else event_numbers,
            stack=stack.astype(np.int32),
            label=label.astype(np.int32),
            timed=timed,
        )

    def label_index(self, entry: dict[str, Any]) -> int:
        """The index in `labels` of an entry's category from a profile, else of the one set with `_set_memory_metadata`;
        adds it if it is new. Raises `TypeError` if it is not a text."""
        category = entry.get("category")
        self.profiled |= category is not None
        text = _require_text(category if category is not None else entry.get("user_metadata", ""))
        return self.labels.setdefault(_truncate_end(text), len(self.labels))

    def stack_index(self, frames: Any) -> int:
        """The index in `stacks` of a list of frames; adds the stack if it is new. 0, the empty stack, for anything
        else. Entries share their lists of frames, so each list is read once."""
        if not frames or not isinstance(frames, list):
            return 0
        index = self.stack_numbers.get(id(frames))
        if index is None:
            stack = tuple(self.decode_frame(frame) for frame in frames if isinstance(frame, dict))
            index = self.stack_numbers[id(frames)] = self.stacks.setdefault(stack, len(self.stacks))
        return index

    def decode_frame(self, plain: dict[str, Any]) -> Frame:
        """A line of a stack, with secrets in it redacted; `?` if it cannot be read."""
        file, line, name = plain.get("filename"), plain.get("line"), plain.get("name")
        if not (type(file) is str and type(line) is int and type(name) is str and abs(line) < _MAX_NUMBER):
            return Frame(file="", line=0, name="?")
        file, name = file[-_MAX_TEXT_LENGTH:].replace("\\", "/"), name[: 2 * _MAX_TEXT_LENGTH]
        key = file, line, name
        if key not in self.frames:
            if file in ("none", "??"):
                # A frame made from a profile has all three in its name: `model.py(12): forward`.
                match = _PROFILED_FRAME.match(name)
                file, line, name = (match[1], int(match[2][:9]), match[3]) if match else ("", 0, name)
            self.frames[key] = Frame(_truncate_start(file), line, _truncate_end(name))
        return self.frames[key]

    def decode_annotations(self, plain: Any) -> tuple[SnapshotAnnotation, ...]:
        """The program's annotations, by time; those that cannot be read are counted in `unreadable_count`."""
        annotations = []
        # Each entry once: a small file can hold any amount of text by sharing entries.
        for entry in {id(entry): entry for entry in plain}.values() if isinstance(plain, list) else ():
            try:
                ns, device = _require_int(_require_int(entry["time_us"]) * 1000), _require_int(entry.get("device", 0))
                text = " ".join(value[:_MAX_TEXT_LENGTH] for value in entry.values() if type(value) is str and value)
            except (KeyError, TypeError, AttributeError, ValueError):
                self.unreadable_count += 1
            else:
                annotations.append(SnapshotAnnotation(ns, device, redact(text)))
        return tuple(sorted(annotations))

    def decode_int(self, plain: dict[str, Any], field: str, where: str, default: int | None = None) -> int:
        """The number in `plain[field]`, `default` if the field is missing; `where`: the path of `plain` in the file.
        Raises `BadFile` if it is not a whole number, or missing without a default."""
        value = plain.get(field, default)
        try:
            return _require_int(value)
        except (TypeError, ValueError) as error:
            kind = type(value).__name__
            raise self.bad_snapshot(
                f"{where}.{field}", f"not a whole number from 0 to below 2**62 (of type {kind})"
            ) from error

    def bad_snapshot(self, where: str, problem: str) -> BadFile:
        return BadFile(
            f"{self.source}: bad snapshot at {where}: {problem}.", "Write it with torch.cuda.memory._dump_snapshot."
        )


def _truncate_end(text: str) -> str:
    """The redacted beginning of a text. Twice as much is redacted before the cut, since a truncated secret is not
    recognized; not the full text, since many entries may share a long one."""
    return redact(text[: 2 * _MAX_TEXT_LENGTH])[:_MAX_TEXT_LENGTH]


def _truncate_start(text: str) -> str:
    """The redacted end of a text; more is redacted than kept, as in `_truncate_end`."""
    return redact(text[-2 * _MAX_TEXT_LENGTH :])[-_MAX_TEXT_LENGTH:]


def _require_text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _require_int(value: Any) -> int:
    """The value, if it is a whole number from 0 to below 2**62. Raises `TypeError`, `ValueError`."""
    if type(value) is not int:
        raise TypeError
    if not 0 <= value < _MAX_NUMBER:
        raise ValueError
    return value
