"""Allocated memory over time as plain data: its categories, and columns thinned out for drawing."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard import words

_MOMENTS_PER_BUCKET = 5
_BUCKETS = 400
"""Time intervals of the curve; of each, the extremes are kept."""


class MemoryKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of memory in the legend, with its meaning."""

    label: str
    means: str
    colour: str


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes over time, as step functions: each value holds until the next moment.

    `ns`: ns since the first event, or the number of events if `timed` is False. `kinds[k]`: bytes of kind k; they sum
    to the allocated bytes. `active`, `reserved`: empty if unknown. `moments`: number of moments before thinning.
    """

    ns: list[int]
    active: list[int]
    reserved: list[int]
    kinds: list[list[int]]
    peak: int
    timed: bool
    moments: int


def memory_kind(name: str) -> MemoryKind:
    """The legend's entry of a kind of memory, a key of words.MEMORY."""
    word = words.MEMORY[name]
    return MemoryKind(label=word.label, means=word.means, colour=word.colour)


def moments_kept(
    ns: NDArray[np.int64], allocated: NDArray[np.int64], reserved: NDArray[np.int64], bucket_count: int = _BUCKETS
) -> NDArray[np.int64]:
    """Indices of the moments to draw, at most 5 in each of `bucket_count` intervals of time: the first, the last, the
    minimum and the maximum of allocated bytes, the maximum of reserved bytes. `ns`, `allocated`, `reserved`: time and
    bytes of each moment. All indices if there are few moments."""
    if len(ns) <= _MOMENTS_PER_BUCKET * bucket_count:
        return np.arange(len(ns))
    # Index of the first moment of each bucket; the buckets divide the time from the first to the last moment equally.
    edges = np.searchsorted(ns, ns[0] + (np.arange(bucket_count + 1) * (int(ns[-1] - ns[0]) + 1)) // bucket_count)
    edges[0], edges[-1] = 0, len(ns)
    kept: set[int] = set()
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist()):
        if start < end:
            part = slice(start, end)
            kept |= {start, end - 1}
            kept |= {start + int(at) for at in (allocated[part].argmin(), allocated[part].argmax())}
            kept.add(start + int(reserved[part].argmax()))
    return np.array(sorted(kept), np.int64)
