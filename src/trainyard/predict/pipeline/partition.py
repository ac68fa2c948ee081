"""Partition of layers over the stages of a pipeline, as columns.

Layers are divided as evenly as possible, and the first stages have one more: so do trainyard's own trainer and
DeepSpeed's `uniform`. Or the embedding and the head count as a layer each (`ends`): so does torchtitan, and Megatron
Core with an explicit pipeline layout if layers do not divide evenly (Llama 3 405B's 126 on 16 ranks: 7, 14 times 8, 7;
arXiv:2407.21783, section 3.3.2). Or the first and the last stage have any other number of layers fewer: so do
torchtitan's `first_stage_less_layers` and `last_stage_less_layers`, and an explicit layout of Megatron Core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from trainyard.errors import BadJob
from trainyard.predict.inputs.cases import Column

Ends = Literal["never", "uneven", "always"]
"""When the embedding and the head count as a layer each: `uneven`, if layers alone do not divide evenly."""


def counted(ends: Ends, layers: Column | float, stages: Column | float) -> Column:
    """1 if the embedding and the head count as a layer each when `layers` are divided over `stages`, else 0."""
    is_uneven = np.mod(layers, stages) != 0
    counts = {"never": np.zeros_like(is_uneven), "uneven": is_uneven, "always": np.ones_like(is_uneven)}
    return np.where(counts[ends] & (np.asarray(stages) > 1), 1.0, 0.0)


class StagePartition(NamedTuple):
    """Layers over `stages`: each has `each` layers, the first `rest` stages have one more, and the first and the last
    stage have `first_less` and `last_less` fewer."""

    stages: Column | float
    each: Column | float
    rest: Column | float
    first_less: Column | float
    last_less: Column | float

    def before(self, stage: Column) -> Column:
        """Number of layers before stage number `stage`, counted from 0; all layers if `stage` is the number of
        stages."""
        end_layers = self.first_less * (stage > 0) + self.last_less * (stage >= self.stages)
        return stage * self.each + np.minimum(stage, self.rest) - end_layers

    def on_rank(self, rank: Column | float, pp: Column | float) -> Column:
        """Number of layers of all stages of a rank if stage s is on rank s % pp."""
        with_one_more = np.clip(np.ceil((self.rest - rank) / pp), 0, self.stages / pp)
        end_layers = self.first_less * (np.asarray(rank) == 0) + self.last_less * (np.asarray(rank) == pp - 1)
        return self.stages / pp * self.each + with_one_more - end_layers


def divided(
    layers: Column | float, stages: Column | float, first_less: Column | float, last_less: Column | float
) -> StagePartition:
    """Divide layers over stages, of which the first and the last have `first_less` and `last_less` layers fewer. Both
    are 1 if the embedding and the head count as a layer each."""
    each, rest = np.divmod(layers + first_less + last_less, stages)
    return StagePartition(stages=stages, each=each, rest=rest, first_less=first_less, last_less=last_less)


def layers_per_stage(layers: int, stages: int, first_less: int, last_less: int) -> list[int]:
    """Layers of each stage. Raises `BadJob` if the first or the last stage would have fewer than none."""
    counts = (
        np.diff(divided(layers, stages, first_less, last_less).before(np.arange(stages + 1.0))).astype(int).tolist()
    )
    if min(counts) < 0:
        raise BadJob(
            f"first_stage_less_layers = {first_less}, last_stage_less_layers = {last_less} at $.layout, but an even "
            f"stage has only {(layers + first_less + last_less) // stages} layers: {layers} layers on {stages} stages.",
            "Use smaller numbers, or fewer stages.",
        )
    return counts


def stage_sizes(layers: int, stages: int, first_less: int, last_less: int) -> tuple[int, int, int, int]:
    """Layers of the first stage, the last one and the second one, and the number of stages in between that have as
    many as that: equal for equal partitions."""
    each, rest = divmod(layers + first_less + last_less, stages)
    first, last = each + (rest > 0) - first_less, each - last_less
    if stages < 3:
        return first, last, 0, 0
    with_one_more = max(rest - 1, 0)  # of the stages in between
    return first, last, each + (with_one_more > 0), with_one_more or stages - 2


def find_less_layers(counts: Sequence[int]) -> tuple[int, int] | None:
    """How many layers fewer the first and the last of several stages have, so that `layers_per_stage` returns `counts`;
    the least sum of those that do. None if no such numbers exist: stages in between differ by more than one layer, or
    the later ones have more."""
    layers, stages = sum(counts), len(counts)
    matching: list[tuple[int, int]] = []
    for each in range(counts[-1], max(counts) + 1):
        last_less = each - counts[-1]
        for one_more in (0, 1):
            first_less = each + one_more - counts[0]
            rest = layers + first_less + last_less - stages * each
            if first_less >= 0 and 0 <= rest < stages and (rest > 0) == one_more:
                matching.append((first_less, last_less))
    matching.sort(key=lambda less: (sum(less), less))
    return next((less for less in matching if layers_per_stage(layers, stages, *less) == list(counts)), None)
