"""Block sizes of the caching allocator (c10/cuda/CUDACachingAllocator.cpp): requests are rounded up, and the free block
that serves a request is split unless the remainder would be too small."""

from __future__ import annotations

from typing import Any, NamedTuple

SMALLEST = 512
"""Bytes; requests are rounded up to a multiple of this."""
SMALL = 1 << 20
"""Bytes. Requests up to this size use the small pool; a large block is split only if more than this remains."""


class AllocatorSettings(NamedTuple):
    """The settings that affect sizes. `divisions[k]` applies to requests from 2**k MiB (0 or 1: plain rounding)."""

    max_split: int = 2**63 - 1
    divisions: tuple[int, ...] = ()
    expandable: bool = False
    exact: bool = False

    @classmethod
    def of(cls, settings: dict[str, Any], allocator: bool) -> AllocatorSettings:
        """Parses a snapshot's `allocator_settings`; a snapshot not written by an allocator rounds nothing (`exact`)."""
        limit = settings.get("max_split_size")
        table = settings.get("roundup_power2_divisions")
        steps = [table.get(str(1 << power), 0) for power in range(16)] if isinstance(table, dict) else []
        return cls(
            limit if type(limit) is int and limit > 0 else cls._field_defaults["max_split"],
            tuple(step if type(step) is int else 0 for step in steps),
            settings.get("expandable_segments") is True,
            not allocator,
        )

    def rounded(self, size: int) -> int:
        """Bytes of the block that a request of `size` bytes needs."""
        if self.exact:
            return size
        if size < SMALLEST:
            return SMALLEST
        step = self._step(size)
        return -(-size // step) * step

    def _step(self, size: int) -> int:
        if not self.divisions:
            return SMALLEST
        power = min(max(size.bit_length() - 1 - 20, 0), len(self.divisions) - 1)
        divisions = self.divisions[power]
        if divisions <= 1 or size <= SMALLEST * divisions:
            return SMALLEST
        return (1 << (size.bit_length() - 1)) >> (divisions.bit_length() - 1)

    def taken(self, rounded: int, free: int) -> int:
        """Bytes of the block that serves `rounded` bytes from a free block of `free` bytes: all, or `rounded` if the
        remainder is split off."""
        left = free - rounded
        if self.exact or left < 0:
            return rounded
        if rounded <= SMALL or self.expandable:
            split = left >= SMALLEST
        else:
            split = rounded < self.max_split and left > SMALL
        return rounded if split else free
