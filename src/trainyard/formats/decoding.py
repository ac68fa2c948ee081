"""Decoding documents that this process did not write."""

from __future__ import annotations

import msgspec

from trainyard.errors import BadFile

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors from decoding an invalid document; the last is for one that is nested too deeply."""
_MAX_INTEGER_BITS = 64


def check_integers(value: object, shown: str) -> None:
    """Raises `BadFile` for an integer in the decoded JSON document that does not fit 64 bits: values are stored as
    floats or in 64-bit columns, so trainyard never wrote a larger one. `shown`: the name of the document in
    messages."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
        elif isinstance(part, int) and part.bit_length() > _MAX_INTEGER_BITS:
            raise BadFile(
                f"{shown}: holds an integer of {part.bit_length()} bits, but at most {_MAX_INTEGER_BITS} are read."
            )
