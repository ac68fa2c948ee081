"""Thousands of decimal microsecond stamps to integer ns at once, exactly as `units.ns_from_us` does one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from trainyard import units
from trainyard.events import I64

_COMMA, _DOT = b",."
_PLAIN = np.zeros(256, bool)
_PLAIN[list(b"0123456789,.")] = True
_FEW = 8
"""Stamps that are read as fast one by one."""
_DIGITS = 17
"""Of a stamp: with them neither the stamp nor a thousand of its last unit leaves 64 bits."""


def ns_of(stamps: Sequence[Raw | bytes]) -> tuple[I64, NDArray[np.bool_]]:
    """(ns of each stamp, whether it is one); quotes around a stamp do not count."""
    quick = _plain_ns(stamps) if len(stamps) > _FEW else None
    if quick is not None:
        return quick, np.ones(len(quick), bool)
    ns, good = np.zeros(len(stamps), np.int64), np.zeros(len(stamps), bool)
    for row, stamp in enumerate(stamps):
        try:
            ns[row] = units.ns_from_us(bytes(stamp).strip(b'"'))
            good[row] = True
        except ValueError:
            pass
    return ns, good


def _plain_ns(stamps: Sequence[Raw | bytes]) -> I64 | None:
    """Where every stamp is digits with at most one point among them, and nothing else."""
    text = b",".join([*stamps, b""])
    chars = np.frombuffer(text, np.uint8)
    if not len(chars) or not _PLAIN[chars].all():
        return None
    ends = np.flatnonzero(chars == _COMMA)
    starts = np.concatenate([[0], ends[:-1] + 1])
    dots = np.flatnonzero(chars == _DOT)
    stamp = np.searchsorted(ends, dots)
    decimals = np.zeros(len(ends), np.int64)
    decimals[stamp] = ends[stamp] - dots - 1
    digits = ends - starts
    digits[stamp] -= 1
    pointed = bool((np.diff(stamp) > 0).all() and (decimals[stamp] > 0).all())
    if len(ends) != len(stamps) or not pointed or (digits > _DIGITS).any() or (digits <= decimals).any():
        return None
    units_ = np.fromstring(text.translate(None, b".")[:-1].decode(), np.int64, sep=",")
    short = decimals <= 3
    if (digits + np.where(short, 3 - decimals, 0) > 18).any():
        return None
    power = 10 ** np.abs(3 - decimals)
    return np.where(short, units_ * power, units_ // power)
