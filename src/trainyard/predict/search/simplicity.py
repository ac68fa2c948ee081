"""The order of layouts by simplicity: which of several equally fast ones an engineer would try first.

Compared are, in this order: the number of axes besides data parallelism (tp, cp, pp, ep, and offloading), the number of
data-parallel axes, the ZeRO stage (the highest that the framework offers first: 3 is FSDP), activation checkpointing
(none first), the pipeline schedule (1F1B, then interleaved, then those with a split backward pass), and the step time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.job import Job
from trainyard.predict.inputs.layout_space import LayoutSpace
from trainyard.predict.pipeline import schedules

_MODEL_AXES = ("tp", "cp", "pp", "ep")
_DATA_AXES = ("dp_replicate", "dp_shard")
_RADIX = 8
"""More than each of the numbers that make up a level."""

Integers = npt.NDArray[np.int64]


class Levels(NamedTuple):
    """The complexity of layouts apart from their pipeline schedules: a number that is less for a simpler layout.
    `highest_zero`: the highest ZeRO stage that the search has of a sharded layout, without and with a pipeline."""

    highest_zero: tuple[int, int]

    def of(self, axes: Mapping[str, Integers]) -> Integers:
        """The level of each layout. `axes`: axis -> its value in each layout."""
        model_axes = sum((axes[axis] > 1).astype(np.int64) for axis in _MODEL_AXES)
        data_axes = sum((axes[axis] > 1).astype(np.int64) for axis in _DATA_AXES)
        highest = np.where(axes["pp"] > 1, self.highest_zero[1], self.highest_zero[0])
        zero = np.where(_is_sharded(axes), highest - axes["zero"], 0)
        result = model_axes + axes["offload"]
        for digit in (data_axes, zero, axes["activation_checkpoint"]):
            result = _RADIX * result + digit
        return result


def levels_for(layouts: LayoutSpace) -> Levels:
    """The levels of the layouts of a search."""
    axes = layouts.columns
    zero = np.where(_is_sharded(axes), axes["zero"], 0)
    without, with_pipeline = (int(np.max(zero[mask], initial=0)) for mask in (axes["pp"] == 1, axes["pp"] > 1))
    return Levels((without, with_pipeline))


def _is_sharded(axes: Mapping[str, Integers]) -> npt.NDArray[np.bool_]:
    """Whether the optimizer's state is sharded over several ranks, in each layout."""
    return axes["dp_shard"] * axes["cp"] > 1


def schedule_complexity(job: Job) -> int:
    """0 without interleaving, 1 with several stages per rank, 2 with a split backward pass."""
    return 2 if job.recipe.schedule in schedules.SPLIT else int(job.layout.interleave > 1)
