"""Determines the format of a profiler's file, and with it the reader, from the file's contents.

A file is looked at once, plain, as gzip or as zip: SQLite by its magic bytes, JSON by its top-level keys in any order
and at any distance from the beginning, protocol buffers by the fields of the first messages. The formats exclude each
other, so the order of the readers does not matter. Files that are known not to be profiles are refused with the reason.

A reader is named as among the entry points (`kineto`, `nsys`, `xplane`, ...). A decisive key is a top-level key that
only one format has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from trainyard.errors import BadFile
from trainyard.formats.protobuf import LENGTH, VARINT, as_message, as_text, fields, first_message
from trainyard.trace.readers.json_keys import TopLevelKeys
from trainyard.trace.readers.kineto.unpack import ZIP, UnpackedText, open_documents, peek
from trainyard.units import listed

_HEAD_BYTES = 1 << 16
"""Bytes that are enough for most files; of others, more is read."""
_MAX_SCANNED_BYTES = 4 << 30
"""Unpacked bytes of a document that are read for its keys, at most."""
_MAX_FIELDS = 64
"""Fields at the beginning of protocol buffers that are looked at."""
_MAX_KEPT_KEYS = 256
"""Keys of a JSON object that are kept for the decision, at most."""
_SHOWN_KEYS = 6
"""Keys or formats that a message lists, at most."""
REDUCED_PROFILE_MAGIC = b"\x89trainyard profile 1\n"
"""The first bytes of a reduced profile (`columns.py`)."""
_SQLITE_MAGIC = b"SQLite format 3\x00"
_ROCPD_TABLE = re.compile(rb"CREATE TABLE\W{1,4}rocpd_", re.I)
_PLANE_NAME = re.compile(r"/(host|device):|Task Environment|#Chip")
# The fields of a TracePacket that every packet of a Perfetto trace has: the time, or the number of its sequence.
_PACKET_FIELDS = {(8, VARINT), (10, VARINT)}

# A top-level key that only one format has, and the first byte of its value -> the format's reader.
_DECISIVE_KEYS = {
    ("traceEvents", b"["): "kineto",
    ("rocprofiler-sdk-tool", b"["): "rocprof",
    ("rocprofiler-sdk-tool", b"{"): "rocprof",
    ("instruction", b"["): "neuron",
    ("trace_events", b"["): "neuron",
}
# Other top-level keys of each format, for files that end before a decisive key or lack it.
_OTHER_KEYS = {
    "neuron": "active_time dma dma_queues_info dma_throughput ham instruction_usage layer_summary model_info "
    "nc_mem_usage neff_header neff_node pending_dma profile_info semaphore_update summary_group_order summary_groups "
    "terminology",
    "kineto": "schemaVersion deviceProperties distributedInfo baseTimeNanoseconds displayTimeUnit traceName with_flops "
    "record_shapes with_stack profile_memory with_modules cupti_version cuda_runtime_version host_name trace_id",
}
_READER_OF_KEY = {key: reader for reader, keys in _OTHER_KEYS.items() for key in keys.split()}
_MIN_OTHER_KEYS = 2
"""Such keys that a complete object must have: one of them alone may occur in any file."""


class Recognised(NamedTuple):
    """The `reader` of a file: its name among the entry points, empty if there is none. Then `reason` (without a full
    stop at its end) and `next_step` are those of the error. `is_certain`: the contents show the format; False for empty
    and damaged text, which has the reader that words the error best."""

    reader: str = ""
    reason: str = "no reader knows this kind of file"
    next_step: str = ""
    is_certain: bool = True


class _OtherFile(NamedTuple):
    """A kind of file that is not a profile, or not in a form that is read: its JSON `keys` or the `ending` of its
    name."""

    refusal: Recognised
    keys: frozenset[str] = frozenset()
    ending: str = ""


_NSYS_EXPORT = "nsys export --type sqlite --output {stem}.sqlite {name}"
_OTHER_FILES = (
    _OtherFile(
        Recognised(
            reason="it is a metric store of the Neuron compiler (sums, averages and counts), not a device profile",
            next_step="Capture one with neuron-profile capture, and pass the JSON of "
            "`neuron-profile view --output-format json`.",
        ),
        keys=frozenset({"Average", "Count", "Sum"}),
    ),
    _OtherFile(
        Recognised(
            reason="it is an execution trace of PyTorch, which holds operators without the times of device work",
            next_step="Pass the file that torch.profiler's export_chrome_trace writes.",
        ),
        keys=frozenset({"schema", "nodes"}),
    ),
    *(
        _OtherFile(
            Recognised(
                reason="it is a report of Nsight Systems, which only nsys reads",
                next_step=f"Export it as SQLite and pass that file: `{_NSYS_EXPORT}`.",
            ),
            ending=ending,
        )
        for ending in (".nsys-rep", ".qdrep")
    ),
    _OtherFile(
        Recognised(
            reason="it is a raw capture of neuron-profile, which only neuron-profile reads",
            next_step="Pass the JSON of `neuron-profile view --output-format json -n FILE.neff -s {name}`.",
        ),
        ending=".ntff",
    ),
)
UNREADABLE_ENDINGS = tuple(other.ending for other in _OTHER_FILES if other.ending)
"""Ends of the names of profilers' reports that have to be exported first."""
_ROCPD_REFUSAL = Recognised(
    reason="it is a rocpd database of rocprofv3, which is not read",
    next_step="Record with `rocprofv3 --output-format json`, or convert it: "
    "`rocpd convert -i {name} --output-format pftrace`.",
)
_EMPTY_OR_DAMAGED = Recognised("kineto", is_certain=False)


def recognise(path: Path) -> Recognised:
    """The reader of a file, or why it has none. Does not raise: a file that cannot be opened has no reader."""
    try:
        head = peek(path, _HEAD_BYTES)
        if reader := _decisive_reader(TopLevelKeys([head]), {}):
            return Recognised(reader)  # most files, without reading more of them
        status = path.stat()
        return _recognise_file(path, status.st_ino, status.st_size, status.st_mtime_ns, crc32(head))
    except (BadFile, OSError, ValueError):
        return Recognised()


@lru_cache(maxsize=256)
def _recognise_file(path: Path, *_: int) -> Recognised:
    """As `recognise`, by all of the file. `*_`: the file's inode, size, time of change and checksum of its beginning;
    the result is cached until one of them changes. Raises `BadFile`."""
    if peek(path, 4, packed=True) == ZIP:
        members = [recognise_text(member) for member in _members(path)]
        readers = sorted({member.reader for member in members if member.reader and member.is_certain})
        if len(readers) > 1:
            reason = f"the archive holds files of several formats ({listed(readers, _SHOWN_KEYS)})"
            return Recognised(reason=reason, next_step="Unpack it and pass the files of one profiler.")
        return Recognised(readers[0]) if readers else (members or [_EMPTY_OR_DAMAGED])[0]
    (text,) = open_documents(path, _MAX_SCANNED_BYTES)
    return recognise_text(text)


def _members(path: Path) -> list[UnpackedText]:
    """The documents in a zip archive; none if it is damaged."""
    try:
        return open_documents(path, _MAX_SCANNED_BYTES)
    except BadFile:
        return []


def recognise_text(text: UnpackedText) -> Recognised:
    """Choose the reader for one document (a file, or a member of an archive) by its first bytes, or give the reason why
    it has none. Reads only as much as is needed."""
    pieces, name = _bounded(text), Path(text.name).name.removesuffix(".gz")
    head = b""
    while len(head) < _HEAD_BYTES and (piece := next(pieces, None)) is not None:
        head += piece
    # Commas count as white space, as in `TopLevelKeys` and the JSON readers.
    content = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n,")
    if content[:1] == b"[":  # a list of events without a header, or another list
        return Recognised("kineto", is_certain=content[1:].lstrip(b" \t\r\n")[:1] == b"{")
    if content[:1] == b"{":
        return _recognise_json(chain([head], pieces), name)
    if head.startswith(REDUCED_PROFILE_MAGIC):
        return Recognised("columns")  # trainyard's own reduced profile
    if head.startswith(_SQLITE_MAGIC):
        return _with_name(_ROCPD_REFUSAL, name) if _ROCPD_TABLE.search(head) else Recognised("nsys")
    if reader := _recognise_protobuf(memoryview(head)):
        return Recognised(reader)
    if other := next((other for other in _OTHER_FILES if other.ending and name.endswith(other.ending)), None):
        return _with_name(other.refusal, name)
    if not content:
        return _EMPTY_OR_DAMAGED
    shown = head[:8].hex(" ")
    return Recognised(
        reason=f"no reader knows this kind of file: its first bytes ({shown}) are neither JSON, SQLite nor a trace in "
        "protocol buffers"
    )


def _bounded(text: UnpackedText) -> Iterator[bytes]:
    """Yields the pieces of a document as far as it can be read within its limit of bytes."""
    try:
        yield from text
    except BadFile:
        return


def _with_name(refusal: Recognised, name: str) -> Recognised:
    """A refusal whose next step names the file."""
    return refusal._replace(next_step=refusal.next_step.format(name=name, stem=name.rpartition(".")[0] or name))


def _recognise_json(pieces: Iterator[bytes], name: str) -> Recognised:
    """The reader of a JSON object: that of its first decisive key, else of most of its other known keys; or why it has
    none. `pieces`: the object's text; `name`: the document's, for messages."""
    scan, kept_keys = TopLevelKeys(pieces), dict[str, None]()  # a dict keeps the keys in order
    if reader := _decisive_reader(scan, kept_keys):
        return Recognised(reader)
    other = next((other for other in _OTHER_FILES if other.keys and other.keys <= kept_keys.keys()), None)
    if other:
        return _with_name(other.refusal, name)
    # A decisive key with a value of another type belongs to the same format, whose reader refuses it.
    mistyped = (reader for (key, _), reader in _DECISIVE_KEYS.items() if key in kept_keys and key != "instruction")
    readers = Counter(_READER_OF_KEY[key] for key in kept_keys if key in _READER_OF_KEY).most_common(1)
    if reader := next(mistyped, ""):
        return Recognised(reader)
    if readers and (readers[0][1] >= _MIN_OTHER_KEYS or not scan.complete):
        return Recognised(readers[0][0], is_certain=readers[0][1] >= _MIN_OTHER_KEYS)
    if not scan.complete:
        return _EMPTY_OR_DAMAGED
    keys = listed(list(kept_keys), _SHOWN_KEYS) or "none"
    return Recognised(reason=f"no reader knows this kind of file: a JSON object with other keys ({keys})")


def _decisive_reader(scan: TopLevelKeys, kept_keys: dict[str, None]) -> str:
    """The reader of the first decisive key; empty if there is none. `scan` yields (key, first byte of its value), and
    is advanced. Adds the keys before the decisive one to `kept_keys`."""
    for key, first_byte in scan:
        if reader := _DECISIVE_KEYS.get((key, first_byte)):
            return reader
        if len(kept_keys) < _MAX_KEPT_KEYS:
            kept_keys[key] = None
    return ""


def _recognise_protobuf(head: memoryview) -> str:
    """The reader of protocol buffers: `xplane` if one of the first messages has a plane's name, `pftrace` if one has
    the fields of a packet; else empty. Unknown fields between the messages are skipped. `head`: the file's beginning;
    both formats consist of messages in field 1."""
    messages = [value for field, wire, value in islice(fields(head, []), _MAX_FIELDS) if (field, wire) == (1, LENGTH)]
    for message in messages or [first_message(head, 1)]:  # the first may be longer than the head
        parts = {(field, wire): value for field, wire, value in fields(as_message(message or memoryview(b"")), [])}
        if _PACKET_FIELDS & parts.keys():
            return "pftrace"
        if _PLANE_NAME.match(as_text(parts.get((2, LENGTH), 0))):
            return "xplane"
    return ""
