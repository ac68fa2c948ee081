"""Protocol buffers' wire format, read without their library: fields of a message, bounded by the message's own bytes.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types. Groups (3 and 4) are in no schema read here."""
_SIZES = {FIXED64: 8, FIXED32: 4}
Value = int | memoryview
"""Integers are unsigned (fixed ones and doubles as their bits); messages, texts and bytes are a view of the data."""


class Malformed(ValueError):
    """The bytes are no message."""


def fields(data: memoryview, lost: list[str] | None = None) -> Iterator[tuple[int, int, Value]]:
    """(field number, wire type, value) of one message, in the file's order. Where the bytes end early or make no
    sense, raises `Malformed`; given `lost`, appends the reason to it and stops."""
    position, end = 0, len(data)
    try:
        while position < end:
            tag = data[position]
            if tag < 128:  # most integers are one byte: a call for each would take half of the time
                position += 1
            else:
                tag, position = _varint(data, position, end)
            wire = tag & 7
            if wire == VARINT:
                size = 0
                if position < end and data[position] < 128:
                    value = data[position]
                    position += 1
                else:
                    value, position = _varint(data, position, end)
            elif wire == LENGTH:
                if position < end and data[position] < 128:
                    size = data[position]
                    position += 1
                else:
                    size, position = _varint(data, position, end)
                value = data[position : position + size]
            elif wire in _SIZES:
                size = _SIZES[wire]
                value = int.from_bytes(data[position : position + size], "little")
            else:
                raise Malformed(f"wire type {wire} at byte {position:,}")
            if size > end - position:
                raise Malformed(
                    f"at byte {position:,} a field of {size:,} bytes begins and {end - position:,} are left"
                )
            if tag < 8:
                raise Malformed(f"field number 0 at byte {position:,}")
            position += size
            yield tag >> 3, wire, value
    except Malformed as error:
        if lost is None:
            raise
        lost.append(str(error))


def _varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while place < end:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
        shift += 7
        if shift > 63:
            raise Malformed(f"an integer of more than 64 bits ends at byte {place:,}")
    raise Malformed(f"an integer is cut off at byte {place:,}")


def text(value: Value) -> str:
    """A string field; bytes that are no UTF-8 are replaced, a field of another type is empty."""
    return str(value, "utf-8", "replace") if isinstance(value, memoryview) else ""


def number(value: Value) -> int:
    """An int64 field; a field of another type is 0."""
    if isinstance(value, memoryview):
        return 0
    return value - (1 << 64) if value >> 63 else value


def double(value: Value) -> float:
    return struct.unpack("<d", value.to_bytes(8, "little"))[0] if isinstance(value, int) else 0.0


def message(value: Value) -> memoryview:
    """A nested message. Raises `Malformed` for a field of another type."""
    if not isinstance(value, memoryview):
        raise Malformed("an integer where a message belongs")
    return value


def opening(data: memoryview, number: int) -> memoryview | None:
    """What there is of the message in field `number` (under 16) that the data begins with, whole or not."""
    if not len(data) or data[0] != number << 3 | LENGTH:
        return None
    try:
        size, place = _varint(data, 1, len(data))
    except Malformed:
        return None
    return data[place : place + size]
