"""Makes a long trace of a short one: `python -m benchmarks.replicate FILE COPIES OUT`.

The copies follow one another in time as so many recordings on one host would: stamps shifted by whole nanoseconds,
numbers that tie events together (correlation, External id, flow ids, autograd's) distinct in each copy, and
`ProfilerStep#` counted on. Layout, order of fields and spacing stay the recording's own. One copy is held in memory.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

MARGIN_NS = 1_000_000
"""Between the end of one copy and the start of the next."""
_EVENTS = re.compile(rb'"traceEvents":\s*\[\s*')
_STAMP, _STEP = b"ts", b"ProfilerStep#"
_SLOTS = re.compile(
    rb'"(ts)":\s*(\d+(?:\.\d+)?)'
    rb'|"(id|External id|external id|correlation|Record function id|Ev Idx|Sequence number)":\s*(\d+)'
    rb"|(ProfilerStep#)(\d+)"
)
_LENGTH = re.compile(rb'"ts":\s*(\d+(?:\.\d+)?),\s*"dur":\s*(\d+(?:\.\d+)?)')


class Slot(NamedTuple):
    """A number of the text that differs from copy to copy, and the text before it. A stamp is in ns."""

    before: bytes
    field: bytes
    value: int


class Body(NamedTuple):
    """The events' text, cut at its slots; `after` follows the last one. `window_ns`: first stamp to last end."""

    slots: list[Slot]
    after: bytes
    window_ns: int


def replicate(source: Path, copies: int, out: Path) -> int:
    """Writes `copies` copies of the gzipped trace `source` to `out`, gzipped; returns the unpacked bytes.

    Raises `ValueError` for a file without a list of events in Kineto's layout.
    """
    head, body, foot = _apart(gzip.decompress(source.read_bytes()))
    stride = _strides(body)
    size = 0
    with out.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        for piece in (head, *_between(body, stride, copies), foot):
            size += _write(file, piece)
    return size


def _between(body: Body, stride: dict[bytes, int], copies: int) -> Iterator[bytes]:
    for copy in range(copies):
        yield b"".join(_shifted(body, {field: copy * step for field, step in stride.items()}))
        if copy < copies - 1:
            yield b",\n  "


def _write(file: gzip.GzipFile | BinaryIO, piece: bytes) -> int:
    file.write(piece)
    return len(piece)


def _apart(text: bytes) -> tuple[bytes, Body, bytes]:
    """Before the first event, the events, and from the list's end on."""
    match = _EVENTS.search(text)
    # The last event ends with a brace of its own; INFO's texts hold no such line.
    end = text.rfind(b"}\n  ]") + 1
    if match is None or end <= match.end():
        raise ValueError("no list of events in Kineto's layout")
    return text[: match.end()], _cut(text[match.end() : end]), text[end:]


def _cut(events: bytes) -> Body:
    slots: list[Slot] = []
    position = 0
    for match in _SLOTS.finditer(events):
        number = match.lastindex or 0
        field, digits = match[number - 1], match[number]
        slots.append(
            Slot(events[position : match.start(number)], field, _ns(digits) if field == _STAMP else int(digits))
        )
        position = match.end()
    stamps = [slot.value for slot in slots if slot.field == _STAMP]
    ends = [_ns(start) + _ns(length) for start, length in _LENGTH.findall(events)]
    return Body(slots, events[position:], max(*stamps, *ends) - min(stamps))


def _strides(body: Body) -> dict[bytes, int]:
    """How much each field grows from copy to copy: beyond all its numbers, so that no two copies share one."""
    largest: dict[bytes, int] = {}
    for slot in body.slots:
        largest[slot.field] = max(largest.get(slot.field, 0), slot.value)
    stride = {field: value + 1 for field, value in largest.items()}
    # A flow's id is the correlation of the launch it starts from, and that is its External id.
    ties = (b"id", b"External id", b"external id", b"correlation")
    stride |= dict.fromkeys(ties, max(stride.get(field, 1) for field in ties))
    steps = {slot.value for slot in body.slots if slot.field == _STEP}
    return stride | {_STAMP: body.window_ns + MARGIN_NS, _STEP: max(steps, default=0) - min(steps, default=0) + 1}


def _shifted(body: Body, by: dict[bytes, int]) -> Iterator[bytes]:
    for before, field, value in body.slots:
        yield before
        value += by[field]
        yield b"%d.%03d" % divmod(value, 1000) if field == _STAMP else b"%d" % value
    yield body.after


def _ns(us: bytes) -> int:
    whole, _, part = us.partition(b".")
    return int(whole) * 1000 + int((part + b"000")[:3])


if __name__ == "__main__":
    print(f"{replicate(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])):,} bytes unpacked")
