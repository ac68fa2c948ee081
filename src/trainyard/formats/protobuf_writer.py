"""Protocol buffers' wire format, written without their library (formats/protobuf_reader.py reads it).

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def varint(value: int) -> bytes:
    """Seven bits a byte, low bits first; negative numbers as 64 bits of two's complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """An integer field."""
    return varint(field << 3 | _VARINT) + varint(value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def message(field: int, *parts: bytes) -> bytes:
    """A message of these fields."""
    inner = b"".join(parts)
    return varint(field << 3 | _LENGTH) + varint(len(inner)) + inner


def text(field: int, value: str) -> bytes:
    return message(field, value.encode("utf-8", "replace"))


def varints(values: NDArray[np.int64]) -> list[bytes]:
    """Each of many integers from 0, all as wide as the widest: the format allows leading zeros."""
    if not len(values):
        return []
    width = max(1, -(-int(values.max()).bit_length() // 7))
    groups = values[:, None] >> (np.arange(width, dtype=np.int64) * 7) & 127
    groups[:, :-1] |= 128
    data = groups.astype(np.uint8).tobytes()
    return [data[at : at + width] for at in range(0, len(data), width)]
