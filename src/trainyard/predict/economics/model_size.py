"""Parameters, FLOPs per token and checkpoint bytes of a model, from its sizes.

A case is a row of the cost model's input, `Cases`; here it has one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from trainyard import words
from trainyard.job import Job
from trainyard.predict.economics.step_cost import model_flops
from trainyard.predict.inputs import cases
from trainyard.predict.inputs.cases import Cases, column
from trainyard.predict.time import shapes
from trainyard.predict.time.shapes import Weights


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters`: of the whole model; `active_parameters`: those that a token uses, fewer with experts;
    `trained_parameters`: those of adapters, None if all parameters are trained. `flops_per_token`: model FLOPs of a
    training step, forward and backward without recomputation, per token of a sequence of the step's length (per image
    for models of images)."""

    parameters: int
    active_parameters: int
    flops_per_token: float
    trained_parameters: int | None = None


def measure_model(job: Job, adapters: Mapping[str, float] = {}) -> ModelSize:
    """The size of a job's model, whatever its layout. `adapters`: columns of `Cases` of the adapters, if only these are
    trained, as `Keeps.columns`."""
    case = _on_one_rank(cases.of_jobs([job]))
    case = replace(case, **{name: column(value) for name, value in adapters.items()})
    weights = shapes.weights(case)
    parameters = count_parameters(case, weights)
    used_share = np.where(case.experts > 0, case.active_experts / np.maximum(case.experts, 1.0), 1.0)
    active = count_parameters(case, weights._replace(expert=weights.expert * used_share))
    return ModelSize(
        parameters=round(parameters),
        active_parameters=round(active),
        flops_per_token=float(model_flops(case)[0]) / job.recipe.tokens_per_step,
        trained_parameters=round(_count_trained(case)) if adapters else None,
    )


def checkpoint_bytes(case: Cases) -> float:
    """Bytes of a checkpoint of a single case: the trained weights with their optimizer state."""
    case = _on_one_rank(case)
    trained = _count_trained(case)
    table_bytes = float((case.vocab * case.width * case.extra_table_state_bytes)[0]) if case.muon_iterations[0] else 0.0
    tables = 1 if case.tie_word_embeddings[0] else 2
    return trained * float(case.weight_bytes[0]) + trained * float(case.state_bytes[0]) + tables * table_bytes


def _on_one_rank(case: Cases) -> Cases:
    """The case without parallelism."""
    return replace(case, **dict.fromkeys((*words.AXES, "interleave"), column(1.0)))


def _count_trained(case: Cases) -> float:
    """Number of trained weights of the whole model: all, or those of adapters."""
    if shapes.all_trained(case)[0]:
        return count_parameters(case, shapes.weights(case))
    dense_layers, _ = shapes.layer_kinds(case)
    adapters = shapes.adapter_weights(case)
    return float((case.layers * adapters.shared + dense_layers * adapters.dense)[0])


def count_parameters(case: Cases, weights: Weights) -> float:
    """Number of weights of the whole model, from those of one layer and of the vocabulary's table."""
    dense_layers, moe_layers = shapes.layer_kinds(case)
    has_embedding = case.lead_parameters == 0
    tables = np.where(has_embedding & (case.tie_word_embeddings == 0), 2.0, 1.0)
    ends = weights.table * tables + case.lead_parameters + case.tail_parameters
    final_norm = np.where(has_embedding, case.width, 0.0)
    layers = case.layers * weights.shared + dense_layers * weights.dense
    experts = moe_layers * (weights.routed + weights.expert)
    return float((layers + experts + ends + final_norm)[0])
