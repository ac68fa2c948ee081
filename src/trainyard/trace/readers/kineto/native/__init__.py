"""Loads the compiled code: the scanner of Kineto's events (`scan.c`), the nesting of host spans and their inherited
classes (`nest.c`), and the replay of a dependency graph (`replay.c`).

`library()` is None if it was not built; everything works without it, more slowly.
"""

from __future__ import annotations

import os
from ctypes import CDLL, POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path

LIBRARY = Path(__file__).parent / "native.so"
VERSION = 6
"""Version of the functions below; `native_version` of the compiled code must return the same."""
NO_MEMORY = 3
"""Reason for which `scan_feed` stops, besides those of `document.StopReason`."""
SIZES, TEXTS = POINTER(POINTER(c_size_t)), POINTER(c_void_p)
"""Types of output arguments: an array of sizes, an address of texts."""


class NameFacts(Structure):
    """Classification of each name without context: addresses of five int8 arrays, indexed by the number of the name, as
    `nest.c` reads them. `classify/context.py` fills them."""

    _fields_ = [(field, c_void_p) for field in ("fixed", "engine", "module", "op_class", "cause")]


# (name, type of the result, types of the arguments) of each function of the library.
_FUNCTIONS = (
    ("native_version", c_int, ()),
    ("scan_new", c_void_p, ()),
    ("scan_free", None, (c_void_p,)),
    ("scan_feed", c_size_t, (c_void_p, c_char_p, c_size_t, c_size_t, POINTER(c_int), POINTER(c_int64))),
    ("scan_intern", c_int64, (c_void_p, c_int, c_char_p, c_size_t)),
    ("scan_push", c_int, (c_void_p, c_int, POINTER(c_int64))),
    ("scan_count", c_size_t, (c_void_p, c_int)),
    ("scan_column", c_void_p, (c_void_p, c_int, c_int)),
    ("scan_release", None, (c_void_p, c_int, c_int)),
    ("scan_texts", c_size_t, (c_void_p, c_int, TEXTS, SIZES)),
    ("scan_collectives", c_size_t, (c_void_p, POINTER(POINTER(c_int64)), TEXTS, SIZES)),
    ("nest", c_int, (c_size_t, c_void_p, c_void_p, c_void_p, c_int32, c_int64, c_void_p)),
    ("inherit", c_int, (c_size_t, *[c_void_p] * 7, POINTER(NameFacts), c_char_p, c_int, *[c_void_p] * 4)),
    ("replay", None, (c_size_t, c_int64, *[c_void_p] * 8)),
)


@lru_cache(maxsize=1)
def _load() -> CDLL | None:
    """Loads the compiled code and declares its functions' types; None if it was not built or is of another version."""
    try:
        native = CDLL(str(LIBRARY))
        for name, result, arguments in _FUNCTIONS:
            function = getattr(native, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # not built, or built for another machine or an older version
        return None
    return native if native.native_version() == VERSION else None


def library() -> CDLL | None:
    """The compiled library; None if it was not built or if TRAINYARD_PURE is set."""
    return None if os.environ.get("TRAINYARD_PURE") else _load()
