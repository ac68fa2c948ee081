"""Decoding documents that this process did not write."""

from __future__ import annotations

import msgspec

from trainyard.errors import BadFile

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors from decoding an invalid document; the last is for one that is nested too deeply."""
_MOST_BITS = 64


def check_integers(value: object, shown: str) -> None:
    """Raises `BadFile` for an integer in the decoded JSON document that does not fit 64 bits: values are stored as
    floats or in 64-bit columns, so trainyard never wrote a larger one."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)
        elif isinstance(item, int) and item.bit_length() > _MOST_BITS:
            raise BadFile(f"{shown}: holds an integer of {item.bit_length()} bits, but at most {_MOST_BITS} are read.")
