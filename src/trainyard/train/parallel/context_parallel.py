"""Context parallelism: each sequence is split over ranks, which communicate only in attention.

With `all_gather` a rank gathers all keys and values; with `ring` it receives them from one rank after another. In both,
rank r of n has the chunks r and 2n - 1 - r of 2n, which balances the work of a causal mask (as Brandon et al. 2023,
arXiv:2311.09431, do for rings). With `ulysses` a rank has one chunk of n, and attends over full sequences with some of
the heads (Jacobs et al. 2023, arXiv:2309.14509).

Shapes: B sequences, t = T / n positions of this rank, H query heads, K key/value heads, C channels.
"""

from __future__ import annotations

from math import gcd

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.train.parallel.differentiable_collectives import exchange, gather
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.parallel.ring_attention import ring


def replace_attention(module: nn.Module, meshes: Meshes) -> None:
    """Replaces the submodule `core` of every attention layer, which computes softmax(q k^T) v over full sequences, by
    attention over the positions of all cp ranks, by the layout's `cp_method`."""
    group = meshes.sequence.get_group("cp")
    attention_type = {"all_gather": Gathered, "ulysses": Ulysses, "ring": Ring}[meshes.layout.cp_method]
    for part in list(module.modules()):
        core = getattr(part, "core", None)
        if isinstance(core, nn.Module):
            part.core = attention_type(core, group)


def positions(seq_len: int, meshes: Meshes) -> Tensor:
    """The positions of a sequence of `seq_len` tokens that this rank has, in its order."""
    layout = meshes.layout
    if layout.cp == 1:
        return torch.arange(seq_len)
    rank = meshes.sequence.get_local_rank("cp")
    if layout.cp_method == "ulysses":
        return torch.arange(seq_len).chunk(layout.cp)[rank]
    chunks = torch.arange(seq_len).chunk(2 * layout.cp)
    return torch.cat((chunks[rank], chunks[-1 - rank]))


class Gathered(nn.Module):
    """All-gathers keys and values; their gradients are reduce-scattered."""

    def __init__(self, core: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.core, self.group = core, group

    def forward(self, q_BHtC: Tensor, k_BKtC: Tensor, v_BKtC: Tensor) -> Tensor:
        """Attention of this rank's queries (B, H, t, C) to the keys and values (B, K, t, C) gathered from all ranks. A
        rank has an early and a late chunk of the sequence, of t / 2 positions each."""
        ranks, rank = self.group.size(), self.group.rank()
        kv_tBKE = torch.cat((k_BKtC, v_BKtC), dim=-1).movedim(2, 0)
        by_rank = gather(kv_tBKE, self.group)
        early_chunks, late_chunks = by_rank.unflatten(0, (ranks, 2, -1)).unbind(1)  # each (ranks, t / 2, B, K, E)
        kv_BKTE = torch.cat((early_chunks, late_chunks.flip(0))).flatten(0, 1).movedim(0, 2)
        k_BKTC, v_BKTC = kv_BKTE.split((k_BKtC.shape[-1], v_BKtC.shape[-1]), dim=-1)
        chunk = q_BHtC.shape[2] // 2
        # A chunk's queries only see keys up to its end, so that masked blocks are not computed.
        chunk_ends = ((rank + 1) * chunk, (2 * ranks - rank) * chunk)
        queries = q_BHtC.split(chunk, dim=2)
        return torch.cat(
            [self.core(q, k_BKTC[:, :, :end], v_BKTC[:, :, :end]) for q, end in zip(queries, chunk_ends)], dim=2
        )


class Ulysses(nn.Module):
    """Computes all positions of H / n heads on each rank, with an all-to-all before and after."""

    def __init__(self, core: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.core, self.group = core, group

    def forward(self, q_BHtC: Tensor, k_BKtC: Tensor, v_BKtC: Tensor) -> Tensor:
        """Attention of this rank's heads over the whole sequence: an all-to-all from positions to heads before, and
        back after. (B, H, t, C) to (B, H, t, C)."""
        ranks = self.group.size()
        # With fewer key/value heads than ranks, repeat them until each rank gets a whole number.
        repeats = ranks // gcd(ranks, k_BKtC.shape[1])
        k_BKtC, v_BKtC = (x.repeat_interleave(repeats, dim=1) if repeats > 1 else x for x in (k_BKtC, v_BKtC))
        q, k, v = (self._to_heads(x) for x in (q_BHtC, k_BKtC, v_BKtC))
        return self._to_positions(self.core(q, k, v))

    def _to_heads(self, x_BHtC: Tensor) -> Tensor:
        """All-to-all from all heads of this rank's positions, (B, H, t, C), to some heads of all positions, (B, H / n,
        T, C)."""
        n = self.group.size()
        by_rank = x_BHtC.unflatten(1, (n, -1)).movedim(1, 0)
        return exchange(by_rank, self.group).movedim(0, 2).flatten(2, 3)

    def _to_positions(self, x_BhTC: Tensor) -> Tensor:
        """The inverse of `_to_heads`: (B, H / n, T, C) to (B, H, t, C)."""
        n = self.group.size()
        by_rank = x_BhTC.unflatten(2, (n, -1)).movedim(2, 0)
        return exchange(by_rank, self.group).movedim(0, 1).flatten(1, 2)


class Ring(nn.Module):
    """Ring attention; no rank holds the keys and values of more than two ranks at a time."""

    def __init__(self, core: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, q_BHtC: Tensor, k_BKtC: Tensor, v_BKtC: Tensor) -> Tensor:
        """Attention of this rank's queries (B, H, t, C) to the keys and values of all ranks. Returns (B, H, t, value
        channels)."""
        # The fused kernels need values as wide as keys; those of latent attention are narrower.
        missing_channels = q_BHtC.shape[3] - v_BKtC.shape[3]
        y_BHtC = ring(q_BHtC, k_BKtC, F.pad(v_BKtC, (0, missing_channels)) if missing_channels else v_BKtC, self.group)
        return y_BHtC[..., : v_BKtC.shape[3]]
