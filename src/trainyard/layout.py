"""The layout of a job: parallelism degrees, how ZeRO and FSDP shard, and the batch shares of replicas."""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec

from trainyard import batch_shares, limits, words
from trainyard.errors import BadJob

FACTORS = tuple(axis for axis in words.AXES if axis != "ep")
"""The axes whose product is the world size. `ep` is not one of them: it reuses ranks of the others."""


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parallelism degrees; their product is the world size, except `ep`, which reuses ranks of the other axes.

    `interleave`: pipeline stages per rank. `zero`: what `dp_shard` shards: optimizer state (1), also gradients (2),
    also parameters (3). `sequence_parallel`: `tp` also splits the activations between its matrices, along the sequence.
    `loss_parallel`: it also splits the logits, along the vocabulary. `cp_method`: how attention gets the keys and
    values of the other context-parallel ranks.

    `reshard_after_forward`: whether FSDP frees the gathered weights of the embedding and of each block after the
    forward pass, and gathers them again for the backward pass: `default` with ZeRO-3 and without pp; `never`: as
    ZeRO-2; `always`: also in a pipeline and for the norm and the head. `forward_prefetch`, `backward_prefetch`: number
    of units that FSDP gathers ahead of the current one; 0 forward: the host runs ahead instead. `bucket_cap_mb`: size
    of DDP's gradient buckets in MiB.

    `batch_shares`: the proportions of the micro-batches of the data-parallel replicas (`dp_replicate` x `dp_shard`), so
    that replicas on slower devices compute fewer. Each item is for an equal number of consecutive replicas: `[3, 1]`
    gives the first half of them 3 micro-batches for each one of the second half. Empty: equal shares.

    `first_stage_less_layers`, `last_stage_less_layers`: how many layers fewer the first and the last pipeline stage
    have, which have the embedding and the head: the layers and these two numbers together are divided evenly over the
    stages, the first ones have one more, and the two stages have as many fewer. Both or neither are set; without them,
    the framework divides the layers. Planned for Megatron Core and torchtitan.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    interleave: int = 1
    zero: Literal[1, 2, 3] = 3
    sequence_parallel: bool = False
    loss_parallel: bool = False
    cp_method: Literal["all_gather", "ulysses", "ring"] = "all_gather"
    reshard_after_forward: Literal["default", "always", "never"] = "default"
    forward_prefetch: int = 0
    backward_prefetch: int = 1
    bucket_cap_mb: int = 25
    batch_shares: tuple[int, ...] = ()
    first_stage_less_layers: int | None = None
    last_stage_less_layers: int | None = None

    def __post_init__(self) -> None:
        """Raises `BadJob` if a degree or number is out of range."""
        if self.forward_prefetch < 0:
            raise BadJob(f"forward_prefetch = {limits.show(self.forward_prefetch)} must not be negative.")
        for field in (*words.AXES, "interleave", "backward_prefetch", "bucket_cap_mb"):
            if getattr(self, field) < 1:
                raise BadJob(f"{field} = {limits.show(getattr(self, field))} must be at least 1.")
        limits.check(
            self,
            {
                "ranks": limits.DEVICES,
                "ep": limits.DEVICES,
                **dict.fromkeys(("interleave", "forward_prefetch", "backward_prefetch"), limits.LAYERS),
                "bucket_cap_mb": limits.WIDTH,
                "first_stage_less_layers": limits.LAYERS,
                "last_stage_less_layers": limits.LAYERS,
            },
        )
        batch_shares.check(self.batch_shares, self.batch_ranks)
        self._check_ends()

    def _check_ends(self) -> None:
        """Raises `BadJob` unless the layers fewer on the first and the last stage are both given, or neither is."""
        first, last = self.first_stage_less_layers, self.last_stage_less_layers
        given = f"first_stage_less_layers = {first}, last_stage_less_layers = {last}"
        if (first is None) != (last is None):
            raise BadJob(f"{given}: only one of them is set.", "Set the other one too; 0 takes no layer away.")
        if first is None or last is None:
            return
        if min(first, last) < 0:
            raise BadJob(f"{given}: neither may be negative.")
        if self.pp == 1:
            raise BadJob(f"{given}, but pp = 1: there is one stage.", "Leave them out, or set pp.")

    @property
    def ranks(self) -> int:
        return prod(getattr(self, axis) for axis in FACTORS)

    @property
    def only_axis(self) -> str:
        """The one axis that all ranks form, or empty when there are several or one rank."""
        wide = [axis for axis in FACTORS if getattr(self, axis) > 1]
        return wide[0] if len(wide) == 1 else ""

    @property
    def end_less_layers(self) -> tuple[int, int] | None:
        """How many layers fewer the first and the last stage have; None if the framework divides the layers."""
        first, last = self.first_stage_less_layers, self.last_stage_less_layers
        return None if first is None or last is None else (first, last)

    @property
    def batch_ranks(self) -> int:
        """Number of ranks that the samples of a step are divided over."""
        return self.dp_replicate * self.dp_shard

    def batch_rank(self, rank: int) -> int:
        """Index of the data-parallel replica of a rank. The axes in rank order are pp, dp_replicate, dp_shard, cp, tp,
        the last varying fastest."""
        return rank // (self.cp * self.tp) % self.batch_ranks

    @property
    def replica_shares(self) -> tuple[int, ...]:
        """The batch share of each data-parallel replica, in lowest terms."""
        shares = batch_shares.lowest_terms(self.batch_shares)
        return tuple(share for share in shares for _ in range(self.batch_ranks // len(shares)))

    @property
    def has_equal_shares(self) -> bool:
        """Whether all data-parallel replicas have the same number of micro-batches."""
        return len(set(self.batch_shares)) < 2

    @property
    def shard_groups_differ(self) -> bool:
        """Whether replicas that shard the same weights have different numbers of micro-batches."""
        if self.has_equal_shares:
            return False
        shares, size = self.replica_shares, self.dp_shard
        return any(len(set(shares[first : first + size])) > 1 for first in range(0, len(shares), size))

    @property
    def reshards(self) -> bool:
        """Whether FSDP frees the weights of the embedding and of each block between forward and backward pass."""
        if self.reshard_after_forward == "default":
            return self.zero == 3 and self.pp == 1
        return self.zero == 3 and self.reshard_after_forward == "always"

    @property
    def token_ranks(self) -> int:
        """Number of ranks that the tokens of a step are divided over: the ranks whose losses are averaged."""
        return self.batch_ranks * self.cp

    def __str__(self) -> str:
        """The degrees above 1 and the settings that differ from the default, such as `dp_shard 4 x tp 2, ZeRO-2`; the
        layers fewer on the first and the last pipeline stage as in `describe_ends`."""
        parts = [f"{field} {getattr(self, field)}" for field in (*words.AXES, "interleave") if getattr(self, field) > 1]
        text = " x ".join(parts) or "one rank"
        if self.dp_shard > 1 and self.zero != 3:
            text += f", ZeRO-{self.zero}"
        if self.cp > 1:
            text += f", {self.cp_method}"
        if self.reshard_after_forward != "default":
            text += f", resharded {self.reshard_after_forward}"
        if not self.has_equal_shares:
            text += f", batch shares {':'.join(map(str, batch_shares.lowest_terms(self.batch_shares)))}"
        if self.end_less_layers is not None:
            text += f", {describe_ends(*self.end_less_layers)}"
        return text + ", sequence parallel" * self.sequence_parallel + ", loss parallel" * self.loss_parallel


def describe_ends(first: int, last: int) -> str:
    """How many layers fewer the first and the last pipeline stage have, as in `ends 0/-2`."""
    return f"ends {-first}/{-last}"
