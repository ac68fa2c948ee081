"""How layers are divided over the stages of a pipeline, as columns.

As evenly as they can be, the first stages having one more: as our own runner does it, and DeepSpeed's `uniform`. Or the
embedding and the head count as a layer each (`ends`): as torchtitan does it, and Megatron Core by a layout of its own
where layers do not divide (Llama 3 405B's 126 on 16 ranks: 7, 14 times 8, 7; arXiv:2407.21783, section 3.3.2).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Column

Ends = Literal["never", "uneven", "always"]
"""When the embedding and the head are counted: `uneven`, where layers alone do not divide."""


def counted(ends: Ends, layers: Column | float, stages: Column | float) -> Column:
    """1 where they are."""
    uneven = np.mod(layers, stages) != 0
    when = {"never": np.zeros_like(uneven), "uneven": uneven, "always": np.ones_like(uneven)}
    return np.where(when[ends] & (np.asarray(stages) > 1), 1.0, 0.0)


class Division(NamedTuple):
    """Of layers into so many `stages`: each has `each`, the first `rest` of them one more, and the outermost `ends`
    less."""

    stages: Column | float
    each: Column | float
    rest: Column | float
    ends: Column | float

    def before(self, stage: Column) -> Column:
        """Layers of the stages before this one; of as many stages as there are: all."""
        taken = self.ends * ((stage > 0) * 1.0 + (stage >= self.stages))
        return stage * self.each + np.minimum(stage, self.rest) - taken


def divided(layers: Column | float, stages: Column | float, ends: Column | float) -> Division:
    """`ends`: 1 where the embedding and the head count."""
    each, rest = np.divmod(layers + 2 * ends, stages)
    return Division(stages, each, rest, ends)
