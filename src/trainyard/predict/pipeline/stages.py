"""A stage of a pipeline with unequal stages, as a case of its own: its memory, and its work once per step.

Under 1F1B a stage's in-flight micro-batches equal the number of stages from it on, so that its memory equals that of
the first stage of a pipeline of as many equal stages. Only the stages with the embedding or the head have a vocabulary.
A run is a contiguous sequence of layers; a case is one layout of a job, and a column has a value per case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.model import Model
from trainyard.predict.inputs.cases import Cases, Column, column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.memory import framework_memory
from trainyard.predict.memory.memory_parts import MemoryParts
from trainyard.predict.time import collective_time


class StageLayers(NamedTuple):
    """Numbers of layers of a stage without and with experts; dense layers come first."""

    dense: Column
    routed: Column

    @property
    def layers(self) -> Column:
        return self.dense + self.routed


def memory(cases: Cases, run: StageLayers, stages_left: Column, is_first: Column) -> MemoryParts:
    """Bytes by part on a rank of a stage, with a published framework. `run`: its layers; `stages_left`: stages from
    this one on; `is_first`: 1 if it is the first. These may be arrays of several stages; each field of the result then
    has a value per stage."""
    equal_stages, is_last, zero = np.maximum(stages_left, 2.0), stages_left == 1, column(0)
    vocab = np.where(is_first > 0, cases.vocab, 0.0)
    uniform = replace(cases, pp=equal_stages, layers=equal_stages * run.layers, first_less=zero, last_less=zero)
    first = replace(uniform, dense_layers=run.dense, vocab=vocab)
    last = replace(uniform, dense_layers=equal_stages * run.layers - run.routed)
    both_ends = framework_memory.of_stage(first, first=True), framework_memory.of_stage(last, first=False)
    return MemoryParts(
        *(np.where(is_last, last_bytes, first_bytes) for first_bytes, last_bytes in zip(*both_ends, strict=True))
    )


def alone(cases: Cases, run: StageLayers, has_end: Column) -> Cases:
    """The stage as one of two equal stages, for its work once per step. `run`: its layers; `has_end`: 1 if it has the
    embedding or the head."""
    vocab = np.where(has_end > 0, cases.vocab, 0.0)
    return replace(
        cases,
        pp=column(2),
        layers=2 * run.layers,
        dense_layers=2 * run.dense,
        first_less=column(0),
        last_less=column(0),
        vocab=vocab,
    )


def across(cases: Cases, source: tuple[RankHardware, Constants], target: tuple[RankHardware, Constants]) -> Column:
    """Seconds to send a micro-batch's activations, or their gradients, from one part of a cluster to another: the
    slower of the two links between nodes sets the rate. `source`, `target`: (hardware, constants) of each part."""
    size_bytes, internode = cases.tokens * cases.width * cases.width_bytes / cases.tp, column(np.inf)
    return np.maximum(
        collective_time.send(*source, size_bytes, internode), collective_time.send(*target, size_bytes, internode)
    )


def runs(model: Model) -> tuple[StageLayers, npt.NDArray[np.intp]]:
    """(runs, run index) of all contiguous runs of layers: the distinct numbers of dense and routed layers of a run, and
    a table [first layer, end] -> index of the run among them."""
    layer_ends = np.arange(model.layers + 1)
    dense_layers = model.dense_layers if model.experts else model.layers  # the first ones
    # [first layer, end]: layers and dense layers of the run; 0 if it ends before it begins.
    run_layers = np.maximum(layer_ends - layer_ends[:, None], 0)
    dense_before = np.minimum(layer_ends, dense_layers)
    run_dense_layers = np.clip(dense_before - dense_before[:, None], 0, None)
    # A code for each pair of numbers: dense x base + routed.
    code_base = model.layers + 1
    codes = run_dense_layers * code_base + run_layers - run_dense_layers
    distinct_codes, run_index = np.unique(codes, return_inverse=True)
    distinct_dense, distinct_routed = np.divmod(distinct_codes, code_base)
    distinct_runs = StageLayers(distinct_dense.astype(np.float64), distinct_routed.astype(np.float64))
    return distinct_runs, run_index.reshape(run_layers.shape)
