"""Draws the values of a shard of a logical tensor, without the rest of the tensor.

Element i of the logical tensor is value i % 4 of random block i // 4, whose counter consists of that number and a
digest of the tensor's name, and whose key is the seed. Every shard that has the element draws the same value.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from trainyard.train.model.distributions import Constant, Distribution, Normal, Uniform, sample
from trainyard.train.model.logical_shard import LogicalShard
from trainyard.train.model.philox import philox

_BLOCK = 4
"""Values of a random block."""
_MASK = 0xFFFFFFFF
_ATTEMPT_SHIFT = 24
"""The highest 8 bits of the block number's high word are the attempt number, so that blocks have 56 bits."""
_ELEMENTS_PER_THREAD = 1 << 17
"""Elements that a CPU draws at a time, for each thread: their words fit into its caches. torch gives a thread at least
32,768 blocks."""
_MAX_ELEMENTS = 1 << 22
"""Elements that an accelerator draws at a time, to amortise the launches of about 200 kernels."""


def draw(
    local: Tensor, shard: LogicalShard, distribution: Distribution, seed: int, name: str, device: torch.device
) -> None:
    """Writes the values of `shard` of the logical tensor `name` to `local`, which has the shard's shape.

    `seed`: the lowest 64 bits are used; `device`: computes the values, and may differ from that of `local`. Needs
    working memory for a limited number of elements at a time, whatever the size of the shard; of the whole shard if
    `local` is not contiguous. Raises `ValueError` if the shapes differ.
    """
    if local.shape != shard.local_shape:
        raise ValueError(f"{name}: the shard has the shape {shard.local_shape}, but its memory {tuple(local.shape)}")
    if isinstance(distribution, Constant):
        local.fill_(distribution.value)
    elif local.numel() and not local.is_contiguous():
        values = torch.empty(local.shape, dtype=local.dtype, device=local.device)
        _draw_runs(values, shard, distribution, seed, name, device)
        local.copy_(values)
    elif local.numel():
        _draw_runs(local, shard, distribution, seed, name, device)


def _draw_runs(
    local: Tensor, shard: LogicalShard, distribution: Uniform | Normal, seed: int, name: str, device: torch.device
) -> None:
    """Draws into the contiguous tensor `local`: pieces of long runs, or several short runs, at a time."""
    at_once = _MAX_ELEMENTS
    if device.type == "cpu":
        at_once = min(at_once, _ELEMENTS_PER_THREAD * max(2, torch.get_num_threads()))
    length = shard.run_length
    runs_at_once = max(1, at_once // (length + 2 * _BLOCK))  # with the unused values of the first and last block
    stream = _stream(name)
    values_by_run = local.view(shard.run_count, length)
    for first in range(0, shard.run_count, runs_at_once):
        starts = shard.run_starts(first, min(first + runs_at_once, shard.run_count))
        for offset in range(0, length, at_once):
            piece = values_by_run[first : first + runs_at_once, offset : offset + at_once]
            piece.copy_(_values(starts + offset, piece.shape[1], distribution, seed, stream, device))


def _values(
    starts: Tensor, length: int, distribution: Uniform | Normal, seed: int, stream: int, device: torch.device
) -> Tensor:
    """The values (R, length) of the `length` logical elements from each of `starts` (R), which is on the host."""
    skipped = starts % _BLOCK  # values of the first block that precede the run
    blocks_per_run = -(-(length + int(skipped.max())) // _BLOCK)
    blocks = (starts // _BLOCK).to(device)[:, None] + torch.arange(blocks_per_run, device=device)
    low = (blocks & _MASK).flatten()
    needs_high = int(starts.max()) // _BLOCK + blocks_per_run > _MASK
    high = (blocks >> 32).flatten() if needs_high else 0

    def random_words(attempt: int) -> list[Tensor]:
        """The four words of each block."""
        counter = (low, high | attempt << _ATTEMPT_SHIFT, stream & _MASK, stream >> 32)
        return [word if isinstance(word, Tensor) else torch.full_like(low, word) for word in philox(counter, seed)]

    values = sample(distribution, random_words).view(len(starts), -1)
    skip = int(skipped[0])
    if bool((skipped == skip).all()):
        return values[:, skip : skip + length]
    return values.gather(1, skipped.to(device)[:, None] + torch.arange(length, device=device))


def _stream(name: str) -> int:
    """A 64-bit digest of the name, which distinguishes the counters of tensors of one seed."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
