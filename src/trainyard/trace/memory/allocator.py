"""Block sizes of the caching allocator (c10/cuda/CUDACachingAllocator.cpp): requests are rounded up, and the free block
that serves a request is split unless the remainder would be too small. `replay_allocations` computes with them the size
of each block, which a snapshot's trace does not hold."""

from __future__ import annotations

from typing import Any, NamedTuple

BLOCK_BYTES = 512
"""Requests are rounded up to a multiple of this."""
SMALL_POOL_BYTES = 1 << 20
"""Requests up to this size use the small pool; a large block is split only if more than this remains."""


class AllocatorSettings(NamedTuple):
    """The settings that affect sizes. `max_split`: bytes from which blocks are not split; `divisions[k]`:
    `roundup_power2_divisions` for requests from 2**k MiB (0 or 1: plain rounding); `expandable`: segments grow;
    `exact`: nothing is rounded or split."""

    max_split: int = 2**63 - 1
    divisions: tuple[int, ...] = ()
    expandable: bool = False
    exact: bool = False

    @classmethod
    def from_snapshot(cls, settings: dict[str, Any], from_allocator: bool) -> AllocatorSettings:
        """Parses `settings`, a snapshot's `allocator_settings`; values of other types count as not set. Unless the
        snapshot is `from_allocator` (it was made from a profile), nothing is rounded (`exact`)."""
        max_split = settings.get("max_split_size")
        divisions_by_mib = settings.get("roundup_power2_divisions")
        # Its keys are sizes in MiB as text: "1", "2", "4" up to "32768".
        divisions = (
            [divisions_by_mib.get(str(1 << power), 0) for power in range(16)]
            if isinstance(divisions_by_mib, dict)
            else []
        )
        return cls(
            max_split=max_split if type(max_split) is int and max_split > 0 else cls._field_defaults["max_split"],
            divisions=tuple(count if type(count) is int else 0 for count in divisions),
            expandable=settings.get("expandable_segments") is True,
            exact=not from_allocator,
        )

    def round_up(self, size: int) -> int:
        """Bytes of the block that a request of `size` bytes needs."""
        if self.exact:
            return size
        if size < BLOCK_BYTES:
            return BLOCK_BYTES
        step = self._rounding_step(size)
        return -(-size // step) * step  # -(-a // b) is a / b, rounded up

    def _rounding_step(self, size: int) -> int:
        """Bytes to a multiple of which a request of `size` bytes is rounded up."""
        if not self.divisions:
            return BLOCK_BYTES
        # 2**exponent <= size < 2**(exponent + 1); 2**20 bytes are a MiB.
        exponent = size.bit_length() - 1
        divisions = self.divisions[min(max(exponent - 20, 0), len(self.divisions) - 1)]
        if divisions <= 1 or size <= BLOCK_BYTES * divisions:
            return BLOCK_BYTES
        # The sizes from 2**exponent to 2**(exponent + 1) are divided into `divisions` steps, a power of two.
        return (1 << exponent) >> (divisions.bit_length() - 1)

    def block_bytes(self, rounded: int, free: int) -> int:
        """Bytes of the block that serves `rounded` bytes from a free block of `free` bytes: all, or `rounded` if the
        remainder is split off."""
        remainder = free - rounded
        if self.exact or remainder < 0:
            return rounded
        if rounded <= SMALL_POOL_BYTES or self.expandable:
            is_split = remainder >= BLOCK_BYTES
        else:
            is_split = rounded < self.max_split and remainder > SMALL_POOL_BYTES
        return rounded if is_split else free
