"""Loads the compiled sums (`summarise.c`). `library()` is None if they were not built; torch computes them then."""

from __future__ import annotations

import os
from ctypes import CDLL, POINTER, Structure, c_double, c_int, c_int64, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path
from sys import byteorder

from trainyard.numerics.tensor_record import BUCKETS, SAMPLES

LIBRARY = Path(__file__).parent / "native.so"
_VERSION = 3
"""`native_version` of the compiled code must return the same."""


class Pools(Structure):
    """Addresses of pseudo-random numbers, as `summarise.c` reads them."""

    _fields_ = [
        ("signs", c_void_p),
        ("sign_count", c_int64),
        ("multipliers", c_void_p),
        ("multiplier_count", c_int64),
        ("factors", c_void_p),
    ]


class NativeSums(Structure):
    """The sums of a tensor, as `summarise.c` writes them."""

    _fields_ = [
        ("digest", c_uint64),
        ("total", c_double),
        ("squares", c_double),
        ("maximum", c_double),
        ("nan", c_int64),
        ("positive", c_int64),
        ("negative", c_int64),
        ("sketch", c_double * BUCKETS),
        ("sample", c_double * SAMPLES),
        ("samples", c_int64),
    ]


@lru_cache(maxsize=1)
def _load() -> CDLL | None:
    try:
        native = CDLL(str(LIBRARY))
        native.native_version.restype, native.native_version.argtypes = c_int, ()
        native.summarise.restype = None
        native.summarise.argtypes = (c_int, c_void_p, c_int64, POINTER(Pools), POINTER(NativeSums))
    except (OSError, AttributeError):  # not built, or built for another machine or an older version
        return None
    return native if native.native_version() == _VERSION and byteorder == "little" else None


def library() -> CDLL | None:
    """The compiled library; None if it was not built or if TRAINYARD_PURE is set."""
    return None if os.environ.get("TRAINYARD_PURE") else _load()
