"""Partition of layers over the stages of a pipeline, as columns.

Layers are divided as evenly as possible, and the first stages have one more: so do trainyard's own trainer and
DeepSpeed's `uniform`. Or the embedding and the head count as a layer each (`ends`): so does torchtitan, and Megatron
Core with an explicit pipeline layout if layers do not divide evenly (Llama 3 405B's 126 on 16 ranks: 7, 14 times 8, 7;
arXiv:2407.21783, section 3.3.2).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Column

Ends = Literal["never", "uneven", "always"]
"""When the embedding and the head count as a layer each: `uneven`, if layers alone do not divide evenly."""


def counted(ends: Ends, layers: Column | float, stages: Column | float) -> Column:
    """1 if the embedding and the head count as a layer each when `layers` are divided over `stages`, else 0."""
    is_uneven = np.mod(layers, stages) != 0
    counts = {"never": np.zeros_like(is_uneven), "uneven": is_uneven, "always": np.ones_like(is_uneven)}
    return np.where(counts[ends] & (np.asarray(stages) > 1), 1.0, 0.0)


class StagePartition(NamedTuple):
    """Layers over `stages`: each has `each` layers, the first `rest` stages have one more, and the first and last stage
    have `ends` fewer."""

    stages: Column | float
    each: Column | float
    rest: Column | float
    ends: Column | float

    def before(self, stage: Column) -> Column:
        """Number of layers before stage number `stage`, counted from 0; all layers if `stage` is the number of
        stages."""
        end_layers = self.ends * ((stage > 0) * 1.0 + (stage >= self.stages))
        return stage * self.each + np.minimum(stage, self.rest) - end_layers


def divided(layers: Column | float, stages: Column | float, ends: Column | float) -> StagePartition:
    """Divide layers over stages. `ends`: 1 if the embedding and the head count as a layer each."""
    each, rest = np.divmod(layers + 2 * ends, stages)
    return StagePartition(stages=stages, each=each, rest=rest, ends=ends)
