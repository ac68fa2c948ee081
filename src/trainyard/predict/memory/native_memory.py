"""Bytes on a rank of trainyard's own trainer at the moments of a step that may be its peak, as columns.

The moments, and the tensors that exist at each, were derived from fake runs of the training code
(`train/fake_run/fake_rank.py`), against which this is tested: the loss, the gathering of the tables, the
backward pass of a layer, its end, and the update. `native_stage.py` has the sizes of a stage. A column has a value per
case (layout), of shape [case]. The tables are the embedding and the head's matrix; a cast is a float32 weight's copy in
the compute dtype. `first` selects the first or the last pipeline stage.
"""

from __future__ import annotations

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.memory.memory_parts import MemoryParts, fullest
from trainyard.predict.memory.native_stage import NativeStage, build_stage, set_bottom_layer, uses_fsdp
from trainyard.predict.pipeline import schedules
from trainyard.predict.time import shapes

_FLOAT32 = 4.0
_ACTIVE_STAGES = 3.0
"""Stages of a rank that are gathered at a time (torch.distributed.pipelining's `max_active_stages`)."""


def peak(cases: Cases, first: bool) -> MemoryParts:
    """Bytes by part at the peak of the first or the last stage: the moment with most bytes, among those of cases with a
    pipeline, with FSDP, or with replicated weights."""
    count = len(cases)
    is_sharded, is_pipeline = (np.broadcast_to(mask, count) for mask in (uses_fsdp(cases) > 0, cases.pp > 1))
    peak_parts = MemoryParts(*np.zeros((len(MemoryParts._fields), count)))
    for mask, moments in (
        (is_pipeline, _pipeline_moments),
        (is_sharded & ~is_pipeline, _fsdp_moments),
        (~is_sharded & ~is_pipeline, _replicated_moments),
    ):
        if mask.any():
            for part, values in zip(peak_parts, fullest(moments(build_stage(cases.take(mask), first))), strict=True):
                part[mask] = values
    return peak_parts


def _cast_bytes(stage: NativeStage) -> tuple[Column, Column]:
    """(bytes of the mean layer's weights, bytes of the head's weights), cast from float32 to the compute dtype; 0 if
    that is float32 or if FSDP gathers them in it. The head's are 0 on a stage without logits."""
    cases = stage.cases
    is_cast = (cases.width_bytes < _FLOAT32) & (uses_fsdp(cases) == 0)
    cast_value_bytes = np.where(is_cast, cases.width_bytes, 0.0)
    head_weights = np.where(stage.logit_count > 0, shapes.weights(cases).table, 0.0)
    return stage.mean_layer_weights * cast_value_bytes, head_weights * cast_value_bytes


def _replicated_moments(stage: NativeStage) -> list[MemoryParts]:
    """Bytes at the moments of a step without FSDP: each rank has its weights in float32; their cast lives until the
    backward pass used it. In order: the loss, the head's backward pass, that of a layer, the embedding's, the update,
    and, for a vision model, the first layer's backward pass."""
    cases, value_bytes = stage.cases, stage.cases.width_bytes
    gradients_persist = (cases.accumulate > 1) | (cases.ranks > cases.tp)  # buckets of gradients are always allocated
    gradients_before = np.where(gradients_persist, stage.parameter_bytes, 0.0)
    layer_cast_bytes, head_cast_bytes = _cast_bytes(stage)
    kept_cast_bytes = np.where(cases.activation_checkpoint > 0, 0.0, layer_cast_bytes)
    layer_activations = stage.layer_count * stage.layer.kept
    head_gradients = np.where(gradients_persist, 0.0, _FLOAT32 * stage.head_weights)
    return [
        stage.moment(
            gradients=gradients_before,
            activations=layer_activations + stage.end_bytes,
            logits=stage.loss_bytes,
            gathered=stage.layer_count * kept_cast_bytes + head_cast_bytes,
        ),
        stage.moment(
            gradients=gradients_before,
            activations=layer_activations,
            # Two tensors of the head's size, in the compute dtype and in float32.
            gathered=stage.layer_count * kept_cast_bytes + stage.head_weights * (value_bytes + _FLOAT32),
        ),
        stage.moment(
            gradients=gradients_before + head_gradients,
            activations=layer_activations + _workspace_bytes(stage),
            gathered=stage.layer_count * kept_cast_bytes + layer_cast_bytes - kept_cast_bytes,
        ),
        stage.moment(
            gradients=stage.parameter_bytes,
            activations=np.zeros(1),
            gathered=np.where(gradients_persist, _FLOAT32 * stage.embedding_weights, 0.0),
        ),
        stage.update,
        *_vision_moments(
            stage,
            stage.moment(
                gradients=np.where(
                    gradients_persist,
                    stage.parameter_bytes,
                    stage.parameter_bytes - _FLOAT32 * (stage.mean_layer_weights + stage.embedding_weights),
                ),
                activations=stage.layer.kept + _workspace_bytes(set_bottom_layer(stage)),
                gathered=layer_cast_bytes,
            ),
        ),
    ]


def _vision_moments(stage: NativeStage, vision_moment: MemoryParts) -> list[MemoryParts]:
    """`vision_moment` as a list for vision models, whose peak it may be; empty without any. Decoders have their update
    instead, because their logits are larger than this moment."""
    is_vision = stage.cases.lead_parameters > 0
    parts = zip(vision_moment, stage.update, strict=True)
    return (
        [MemoryParts(*(np.where(is_vision, moment_bytes, update_bytes) for moment_bytes, update_bytes in parts))]
        if is_vision.any()
        else []
    )


def _workspace_bytes(stage: NativeStage) -> Column:
    """Bytes of a layer's backward pass: recomputed activations, temporaries and the gradient of a matrix before it is
    accumulated; or, near its end under FSDP, the gradients of all its weights and attention's remaining activations."""
    layer, value_bytes, is_sharded = stage.layer, stage.cases.width_bytes, uses_fsdp(stage.cases) > 0
    cast_value_bytes = np.where(value_bytes < _FLOAT32, value_bytes, 0.0)
    # With tp, four more tensors of the layer's width (tokens x width) exist near its end.
    split_gradient_bytes = np.where(stage.cases.tp > 1, 4 * value_bytes * stage.cases.tokens * stage.cases.width, 0.0)
    near_end_bytes = (
        stage.matrix_weights * value_bytes
        + split_gradient_bytes
        + np.where(layer.recomputed > 0, layer.attention, -layer.kept)
    )
    matrix_gradient_bytes = np.where(
        is_sharded | (stage.cases.lead_parameters > 0),
        0.0,
        stage.largest_matrix_weights * (cast_value_bytes + _FLOAT32),
    )
    return np.maximum(
        layer.recomputed + np.maximum(stage.temporary_bytes, matrix_gradient_bytes),
        np.where(is_sharded, near_end_bytes, 0.0),
    )


def _fsdp_moments(stage: NativeStage) -> list[MemoryParts]:
    """Bytes at the moments of a step under FSDP. Units are the embedding, each layer, the norm and the head together,
    and the rest (root): a unit's weights are gathered in the compute dtype, the next units' are prefetched, and its
    gradients are reduced in float32 during the next unit. Norm and head stay gathered between forward and backward
    pass, the root and tied tables for the whole step, the latter with the head's gradient. In order: the loss; the
    head's backward pass, and the reduction of its gradients; the backward passes of the last layer, the one before it,
    the second and the first; that of the embedding; the reduction of the last gradients; the update."""
    cases, value_bytes, bottom = stage.cases, stage.cases.width_bytes, set_bottom_layer(stage)
    gradients_persist, weights_persist = cases.accumulate > 1, cases.zero < 3
    gradients_before = np.where(gradients_persist, stage.parameter_bytes, 0.0)
    layer_gradients = stage.mean_layer_weights / stage.all_weights * stage.parameter_bytes
    last_gradients = stage.head_weights / stage.all_weights * stage.parameter_bytes
    gradients_after = np.where(
        gradients_persist, stage.parameter_bytes, stage.layer_count * layer_gradients + last_gradients
    )
    layer_activations = stage.layer_count * stage.layer.kept
    first_bytes, last_bytes, root_bytes = (
        value_bytes * weights for weights in (stage.first_unit_weights, stage.head_weights, stage.root_weights)
    )
    tied_gradient_bytes = value_bytes * stage.tied_weights
    ahead = 1 + cases.extra_prefetch

    def persistent_bytes(layers: Column) -> Column:
        """Bytes of the weights that stay gathered while `layers` layers have not gone through the backward pass."""
        layer_bytes = layers * stage.mean_layer_weights * value_bytes
        return root_bytes + np.where(weights_persist, layer_bytes + first_bytes, 0.0)

    def prefetched_bytes(at: NativeStage, below: Column) -> Column:
        """Bytes of the units gathered ahead if `below` layers are left, with the sizes of `at`; 0 if weights
        persist."""
        bytes_ahead = np.minimum(ahead, below) * at.matrix_weights * value_bytes
        return np.where(weights_persist, 0.0, bytes_ahead + np.where(ahead > below, first_bytes, 0.0))

    def at_layer(at: NativeStage, below: Column, is_last: bool = False) -> MemoryParts:
        """Bytes by part in the backward pass of a layer with the sizes of `at` and `below` layers below it. `is_last`:
        it is the last layer, during which the gradients of norm and head are reduced; else those of a layer are."""
        layers_above = np.maximum(stage.layer_count - 2 - below, 0.0)
        gradients_above = np.where(
            gradients_persist, stage.parameter_bytes, layers_above * layer_gradients + last_gradients
        )
        # Experts divided by ep are reduced separately, and copied to another order: twice their size.
        reduced_gradients = layer_gradients + _FLOAT32 * np.where(
            cases.ep > 1, 2 * stage.split_expert_weights, at.matrix_weights
        )
        current_bytes = np.where(weights_persist, 0.0, at.matrix_weights * value_bytes)
        return stage.moment(
            gradients=gradients_above,
            activations=(below + 1) * stage.layer.kept + _workspace_bytes(at),
            gathered=persistent_bytes(below + 1)
            + tied_gradient_bytes
            + current_bytes
            + prefetched_bytes(at, below)
            + (_FLOAT32 * stage.head_weights if is_last else reduced_gradients),
        )

    before_layers = (
        persistent_bytes(stage.layer_count) + prefetched_bytes(stage, stage.layer_count) + tied_gradient_bytes
    )
    return [
        stage.moment(
            gradients=gradients_before,
            activations=layer_activations + stage.end_bytes,
            logits=stage.loss_bytes,
            gathered=persistent_bytes(stage.layer_count) + np.where(cases.reshards_last > 0, 0.0, last_bytes),
        ),
        stage.moment(
            gradients=gradients_before,
            activations=layer_activations + stage.end_bytes,
            logits=value_bytes * stage.logit_count,
            gathered=before_layers + 2 * last_bytes,
        ),
        stage.moment(
            gradients=np.where(gradients_persist, stage.parameter_bytes, last_gradients),
            activations=layer_activations + stage.end_bytes,
            gathered=before_layers + last_bytes + _FLOAT32 * stage.head_weights,
        ),
        at_layer(stage, stage.layer_count - 1, is_last=True),
        at_layer(stage, np.maximum(stage.layer_count - 2, 0.0)),
        at_layer(bottom, np.clip(stage.layer_count - 2, 0.0, 1.0)),
        at_layer(bottom, np.zeros(1)),
        stage.moment(
            gradients=gradients_after,
            activations=np.zeros(1),
            gathered=2 * (root_bytes + first_bytes) + tied_gradient_bytes + _FLOAT32 * bottom.matrix_weights,
        ),
        stage.moment(
            gradients=stage.parameter_bytes,
            activations=np.zeros(1),
            gathered=root_bytes + first_bytes + _FLOAT32 * (stage.root_weights + stage.first_unit_weights),
        ),
        stage.update,
    ]


def _pipeline_moments(stage: NativeStage) -> list[MemoryParts]:
    """Bytes at the moments of a step in a pipeline: buffers to receive every micro-batch are allocated at the
    beginning; under FSDP a stage is gathered once, and its gradients are unsharded and in float32 until the last
    micro-batch. In order: the loss; a backward pass with all micro-batches in flight; a later one; that of the
    embedding in the last micro-batch; and the update."""
    cases, value_bytes, stages_per_rank = stage.cases, stage.cases.width_bytes, stage.cases.interleave
    is_sharded = uses_fsdp(cases) > 0
    gathered_weights = np.where(
        is_sharded, stage.all_weights * value_bytes * np.minimum(_ACTIVE_STAGES / stages_per_rank, 1.0), 0.0
    )
    has_one_round = (stages_per_rank > 1) & (cases.accumulate == cases.pp)  # one stage at a time, with its gradients
    gradients = np.where(
        is_sharded, _FLOAT32 * stage.all_weights / np.where(has_one_round, stages_per_rank, 1.0), stage.parameter_bytes
    )
    layer_cast_bytes, head_cast_bytes = _cast_bytes(stage)
    kept_cast_bytes = np.where(cases.activation_checkpoint > 0, 0.0, layer_cast_bytes)
    stage_activations = stage.layer_count * stage.layer.kept
    kept_casts = stage.in_flight * stage.layer_count * kept_cast_bytes
    receive_buffers = cases.accumulate * value_bytes * cases.residual_tokens * cases.width * (2 * stages_per_rank - 1)
    constant_activations = stage.end_bytes + receive_buffers
    has_steady_state = cases.accumulate > stage.in_flight
    gradients_before = np.where(cases.accumulate > 1, gradients, 0.0)
    is_breadth_first = schedules.among(cases.schedule, ("looped_bfs",))  # one stage at a time, for all micro-batches
    gradients_before = np.where(is_breadth_first, gradients_before / stages_per_rank, gradients_before)
    other_micro_batches = np.maximum(stage.in_flight - 1 / stages_per_rank, 0.0)  # all but one stage's micro-batch
    backward_micro_batches = np.where(has_steady_state, stage.in_flight, other_micro_batches)
    delayed_gradients = stage.layer_count * stage.product_gradient_bytes + np.where(
        stage.logit_count > 0, head_cast_bytes, 0.0
    )
    workspace = _workspace_bytes(stage) + stage.delayed_micro_batches * delayed_gradients
    waiting_loss_bytes = stage.waiting_losses * (
        stage.logit_count * value_bytes + head_cast_bytes + value_bytes * cases.residual_tokens * cases.width
    )
    gathered_in_backward = gathered_weights + layer_cast_bytes - kept_cast_bytes + stage.head_weights * value_bytes
    embedding_gradients = stage.embedding_weights * np.where(is_sharded, value_bytes, _FLOAT32)
    last_micro_batches = np.where(is_breadth_first, other_micro_batches / stages_per_rank, other_micro_batches)
    activations_at_loss = (
        stage.in_flight * stage_activations
        + constant_activations
        + np.maximum(stage.delayed_micro_batches - 1 / stages_per_rank, 0.0) * delayed_gradients
    )
    return [
        stage.moment(
            gradients=np.where((stage.logit_count > 0) & (stage.waiting_losses == 0), gradients_before, 0.0),
            activations=activations_at_loss,
            logits=waiting_loss_bytes + stage.loss_bytes,
            gathered=gathered_weights + kept_casts + head_cast_bytes,
        ),
        stage.moment(
            gradients=np.where(has_steady_state, gradients, 0.0),
            activations=stage.in_flight * stage_activations + workspace + constant_activations,
            gathered=gathered_in_backward + kept_casts,
        ),
        stage.moment(
            gradients=gradients_before,
            activations=backward_micro_batches * stage_activations + workspace + constant_activations,
            gathered=gathered_in_backward + backward_micro_batches * stage.layer_count * kept_cast_bytes,
        ),
        stage.moment(
            gradients=gradients,
            activations=last_micro_batches * stage_activations + constant_activations,
            gathered=gathered_weights + last_micro_batches * stage.layer_count * kept_cast_bytes + embedding_gradients,
        ),
        stage.update,
    ]
