"""Protocol buffers' wire format without the protobuf library: reads and writes fields; reading is bounded by the
message's own bytes.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types. No schema read here uses groups (3 and 4)."""
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
Value = int | memoryview
"""Integers are unsigned (fixed-size integers and doubles as their bits); messages, texts and bytes are views of the
data."""


class Malformed(ValueError):
    """The bytes are not a valid message."""


def fields(data: memoryview, errors: list[str] | None = None) -> Iterator[tuple[int, int, Value]]:
    """Yields (field number, wire type, value) of one message, in the file's order. If the bytes end early or are
    invalid, raises `Malformed`, or, if `errors` is given, appends the reason to it and stops. A field is a tag (8 x
    field number + wire type) and a value: an integer, 8 or 4 bytes, or a length and that many bytes."""
    position, end = 0, len(data)
    try:
        while position < end:
            tag = data[position]
            if tag < 128:  # most integers are one byte: a call for each would take half of the time
                position += 1
            else:
                tag, position = read_varint(data, position, end)
            wire_type = tag & 7
            if wire_type == VARINT:
                size = 0  # bytes of the value that are not read yet
                if position < end and data[position] < 128:
                    value = data[position]
                    position += 1
                else:
                    value, position = read_varint(data, position, end)
            elif wire_type == LENGTH:
                if position < end and data[position] < 128:
                    size = data[position]
                    position += 1
                else:
                    size, position = read_varint(data, position, end)
                value = data[position : position + size]
            elif wire_type in _FIXED_BYTES:
                size = _FIXED_BYTES[wire_type]
                value = int.from_bytes(data[position : position + size], "little")
            else:
                raise Malformed(f"wire type {wire_type} at byte {position:,}")
            if size > end - position:
                raise Malformed(
                    f"a field of {size:,} bytes begins at byte {position:,}, but only {end - position:,} are left"
                )
            if tag < 8:
                raise Malformed(f"field number 0 at byte {position:,}")
            position += size
            yield tag >> 3, wire_type, value
    except Malformed as error:
        if errors is None:
            raise
        errors.append(str(error))


def read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Decodes the unsigned integer at byte `position` of `data[:end]`: (value, position after it). Raises
    `Malformed`."""
    if position < end and data[position] < 128:  # most are one byte
        return data[position], position + 1
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift > 63:
            raise Malformed(f"an integer of more than 64 bits ends at byte {position:,}")
    raise Malformed(f"an integer is cut off at byte {position:,}")


def as_text(value: Value) -> str:
    """A string field; bytes that are not UTF-8 are replaced, a field of another type is empty."""
    return str(value, "utf-8", "replace") if isinstance(value, memoryview) else ""


def as_int64(value: Value) -> int:
    """An int64 field; a field of another type is 0."""
    if isinstance(value, memoryview):
        return 0
    return value - (1 << 64) if value >> 63 else value


def as_double(value: Value) -> float:
    return struct.unpack("<d", value.to_bytes(8, "little"))[0] if isinstance(value, int) else 0.0


def as_message(value: Value) -> memoryview:
    """A nested message. Raises `Malformed` for a field of another type."""
    if not isinstance(value, memoryview):
        raise Malformed("an integer instead of a message")
    return value


def first_message(data: memoryview, field: int) -> memoryview | None:
    """The bytes of the message in field `field` (below 16) if it is the first of the data, complete or truncated; None
    for other data."""
    if not len(data) or data[0] != field << 3 | LENGTH:
        return None
    try:
        size, position = read_varint(data, 1, len(data))
    except Malformed:
        return None
    return data[position : position + size]


def varint(value: int) -> bytes:
    """Encodes an integer with seven bits per byte, low bits first; negative ones as 64-bit two's complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def int_field(field: int, value: int) -> bytes:
    """Encodes an integer field."""
    return varint(field << 3 | VARINT) + varint(value)


def double_field(field: int, value: float) -> bytes:
    return varint(field << 3 | FIXED64) + struct.pack("<d", value)


def message_field(field: int, *parts: bytes) -> bytes:
    """Encodes a message field that consists of `parts`."""
    inner = b"".join(parts)
    return varint(field << 3 | LENGTH) + varint(len(inner)) + inner


def text_field(field: int, value: str) -> bytes:
    return message_field(field, value.encode("utf-8", "replace"))


def padded_varints(values: NDArray[np.int64]) -> list[bytes]:
    """Encodes many non-negative integers, all with as many bytes as the largest: the format allows leading zeros."""
    if not len(values):
        return []
    width_bytes = max(1, -(-int(values.max()).bit_length() // 7))
    septets = values[:, None] >> (np.arange(width_bytes, dtype=np.int64) * 7) & 127  # [value, byte]: seven bits each
    septets[:, :-1] |= 128  # all bytes but the last have the high bit
    data = septets.astype(np.uint8).tobytes()
    return [data[start : start + width_bytes] for start in range(0, len(data), width_bytes)]


def packed_varints(values: NDArray[np.uint64]) -> bytes:
    """Encodes unsigned integers in LEB128: seven bits per byte, low bits first, high bit set on all but the last."""
    if not len(values):
        return b""
    lengths = np.ones(len(values), np.int64)  # bytes of each value
    for bits in range(7, int(values.max()).bit_length(), 7):
        lengths += values >> np.uint64(bits) != 0
    output = np.empty(int(lengths.sum()), np.uint8)
    # One byte of all values that have it at a time; few values have a third one.
    index, rest = np.cumsum(lengths) - lengths, values
    while len(rest):
        has_more = rest > 0x7F
        output[index] = (rest & np.uint64(0x7F)).astype(np.uint8) | (has_more.astype(np.uint8) << 7)
        index, rest = index[has_more] + 1, rest[has_more] >> np.uint64(7)
    return output.tobytes()
