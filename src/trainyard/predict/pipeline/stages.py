"""One stage of a pipeline whose stages are unlike, as a case of its own: what it holds, and what it does once a step.

A stage of 1F1B keeps as many micro-batches as stages are left from it on, so that it holds what the first stage of a
pipeline of as many like it holds. A vocabulary has only who has the embedding or the head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.job import Model
from trainyard.predict.inputs.cases import Cases, Column, column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.memory import framework_memory
from trainyard.predict.memory.memory_parts import MemoryParts
from trainyard.predict.time import collective_time


class StageLayers(NamedTuple):
    """Layers of a stage: dense ones come first."""

    dense: Column
    routed: Column

    @property
    def layers(self) -> Column:
        return self.dense + self.routed


def held(cases: Cases, run: StageLayers, left: Column, begins: Column) -> MemoryParts:
    """By a rank of a stage, of a published framework. `left`: stages from this one on; `begins`: 1 where it is the
    first."""
    depth, ends, none = np.maximum(left, 2.0), left == 1, column(0)
    vocab = np.where(begins > 0, cases.vocab, 0.0)
    like = replace(cases, pp=depth, layers=depth * run.layers, ends=none)
    first = replace(like, dense_layers=run.dense, vocab=vocab)
    last = replace(like, dense_layers=depth * run.layers - run.routed)
    both = framework_memory.of_stage(first, first=True), framework_memory.of_stage(last, first=False)
    return MemoryParts(*(np.where(ends, its, mine) for mine, its in zip(*both, strict=True)))


def alone(cases: Cases, run: StageLayers, ends: Column) -> Cases:
    """The stage as one of two like it, for what it does once a step. `ends`: 1 where it has the embedding or the
    head."""
    vocab = np.where(ends > 0, cases.vocab, 0.0)
    return replace(cases, pp=column(2), layers=2 * run.layers, dense_layers=2 * run.dense, ends=column(0), vocab=vocab)


def across(cases: Cases, one: tuple[RankHardware, Constants], other: tuple[RankHardware, Constants]) -> Column:
    """Seconds of a micro-batch's activations, or their gradients, from one part of a cluster to another: at the pace of
    the slower link between nodes."""
    size, far = cases.tokens * cases.width * cases.width_bytes / cases.tp, column(np.inf)
    return np.maximum(collective_time.send(*one, size, far), collective_time.send(*other, size, far))


def runs(model: Model) -> tuple[StageLayers, npt.NDArray[np.intp]]:
    """Every run of layers, each number of dense ones and of others once; and [first, end] -> its place there."""
    ends = np.arange(model.layers + 1)
    dense = model.dense_layers if model.experts else model.layers
    many = np.maximum(ends - ends[:, None], 0)
    plain = np.clip(np.minimum(ends, dense) - np.minimum(ends[:, None], dense), 0, None)
    codes, place = np.unique(plain * (model.layers + 1) + many - plain, return_inverse=True)
    return StageLayers(*(part.astype(np.float64) for part in np.divmod(codes, model.layers + 1))), place.reshape(
        many.shape
    )
