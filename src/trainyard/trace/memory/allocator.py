"""How the caching allocator sizes blocks (c10/cuda/CUDACachingAllocator.cpp): requests are rounded up, and the free
block that serves one is split unless what would be left over is too small to be worth keeping."""

from __future__ import annotations

from typing import Any, NamedTuple

SMALLEST = 512
"""Bytes: requests are rounded up to a multiple of it."""
SMALL = 1 << 20
"""Bytes: up to here a request is served from the small pool; a large block is split only if more than this is left."""


class AllocatorSettings(NamedTuple):
    """The settings that decide sizes. `divisions[k]` is for requests from 2**k MiB (0 or 1: plain rounding)."""

    max_split: int = 2**63 - 1
    divisions: tuple[int, ...] = ()
    expandable: bool = False
    exact: bool = False

    @classmethod
    def of(cls, settings: dict[str, Any], allocator: bool) -> AllocatorSettings:
        """From a snapshot's `allocator_settings`; a snapshot that no allocator wrote rounds nothing (`exact`)."""
        limit = settings.get("max_split_size")
        table = settings.get("roundup_power2_divisions")
        steps = [table.get(str(1 << place), 0) for place in range(16)] if isinstance(table, dict) else []
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
        place = min(max(size.bit_length() - 1 - 20, 0), len(self.divisions) - 1)
        divisions = self.divisions[place]
        if divisions <= 1 or size <= SMALLEST * divisions:
            return SMALLEST
        return (1 << (size.bit_length() - 1)) >> (divisions.bit_length() - 1)

    def taken(self, rounded: int, free: int) -> int:
        """Bytes of the block that serves `rounded` bytes out of a free block of `free` bytes: the rest is split off."""
        left = free - rounded
        if self.exact or left < 0:
            return rounded
        if rounded <= SMALL or self.expandable:
            split = left >= SMALLEST
        else:
            split = rounded < self.max_split and left > SMALL
        return rounded if split else free
