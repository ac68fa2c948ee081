"""Bytes on a rank of trainyard's own trainer at the moments of a step that may be its peak, as columns.

The moments, and the tensors that exist at each, were derived from fake runs of the training code
(`train/fake_run/fake_rank.py`), against which this is tested: the loss, the gathering of the tables, the
backward pass of a layer, its end, and the update. A column has a value per case (layout), of shape [case]. Layers are
dense or routed (with experts); the tables are the embedding and the head's matrix; a cast is a float32 weight's copy in
the compute dtype. `first` selects the first or the last pipeline stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.cases import FULL, SELECTIVE, Cases, Column
from trainyard.predict.memory import native_vision_memory
from trainyard.predict.memory.memory_parts import MemoryParts, fullest
from trainyard.predict.memory.native_vision_memory import VisionLayerBytes
from trainyard.predict.pipeline import in_flight, schedules
from trainyard.predict.time import offload, shapes
from trainyard.predict.time.shapes import Weights

_FLOAT32 = 4.0
_INT64 = 8.0
_INDICES_PER_ROW = 4
"""Integers kept per row that is sent to an expert, such as its expert and its place in the order of the rows."""
_BACKWARD_TEMPORARIES = 3.0
"""Temporary tensors of the MLP's inner width in a layer's backward pass."""

_ACTIVE_STAGES = 3.0
"""Stages of a rank that are gathered at a time (torch.distributed.pipelining's `max_active_stages`)."""


class KeptActivations(NamedTuple):
    """Bytes of one layer and micro-batch. `kept`: saved for the backward pass, under the case's recomputation;
    `recomputed`: recomputed in it; `attention`: attention's part without recomputation."""

    kept: Column
    recomputed: Column
    attention: Column


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
            for part, values in zip(peak_parts, fullest(moments(_stage(cases.take(mask), first))), strict=True):
                part[mask] = values
    return peak_parts


def uses_fsdp(cases: Cases) -> Column:
    """1 if FSDP wraps the weights and gathers them, else 0. FSDP also replicates if there are other axes."""
    replicated = (cases.dp == cases.ranks) & (cases.ep == 1) & ((cases.dp_shard == 1) | (cases.zero == 1))
    return np.where((cases.dp * cases.cp > 1) & ~replicated, 1.0, 0.0)


def kept_activations(cases: Cases, dense: Column, routed: Column) -> KeptActivations:
    """Bytes of activations of the mean layer of a stage with `dense` layers and `routed` (MoE) layers, their numbers in
    each case. Elements of attention: `head_elements` of queries, keys, values and its output; `latent_elements` of
    MLA's low-rank projections; `normed_elements` of normalized queries and keys."""
    value_bytes, tp, tokens = cases.width_bytes, cases.tp, cases.tokens
    rows_between = cases.residual_tokens  # tokens between matrix products, which sequence parallelism divides
    has_latent_attention = cases.kv_lora_rank > 0
    key_width = np.where(has_latent_attention, cases.queries, cases.kv_heads * cases.head_dim)
    value_width = np.where(
        has_latent_attention, cases.kv_heads * (cases.head_dim + cases.v_head_dim), cases.kv_heads * cases.head_dim
    )
    head_elements = tokens / tp * (cases.queries + key_width + value_width + cases.values)
    latent_elements = np.where(
        has_latent_attention, tokens * (2 * cases.q_lora_rank + 2 * cases.kv_lora_rank + cases.qk_rope_head_dim), 0.0
    )
    normed_elements = cases.qk_norm * tokens / tp * (cases.queries + key_width)
    statistics_bytes = tokens / tp * _FLOAT32 * (cases.heads + cases.qk_norm * (cases.heads + cases.kv_heads))
    statistics_bytes = statistics_bytes + 2 * rows_between * _FLOAT32  # of the two norms of a layer
    # The norm's input and output, then the tensors of attention.
    attention_bytes = (
        value_bytes
        * (rows_between * cases.width + tokens * cases.width + head_elements + latent_elements + normed_elements)
        + statistics_bytes
    )
    inner_tensors = 2 + 2 * cases.gated  # of the MLP's inner width: around the activation function, and of the gate
    mlp_bytes = value_bytes * (
        rows_between * cases.width + tokens * cases.width + inner_tensors * tokens * cases.ffn / tp
    )
    routed_rows = cases.active_experts * tokens
    expert_bytes = value_bytes * (
        rows_between * cases.width + routed_rows * (2 * cases.width + inner_tensors * cases.moe_ffn_hidden_size)
    )
    # The router: its input and three tensors with a value per expert, in float32; and indices of the rows.
    expert_bytes = (
        expert_bytes
        + tokens * (cases.width * _FLOAT32 + 3 * cases.experts * _FLOAT32)
        + routed_rows * _INDICES_PER_ROW * _INT64
    )
    shared_expert_bytes = (
        value_bytes * tokens * (cases.width + inner_tensors * cases.shared_experts * cases.moe_ffn_hidden_size)
    )
    expert_bytes = expert_bytes + np.where(cases.shared_experts > 0, shared_expert_bytes, 0.0)
    # The mean layer: all that it saves, its input, and the results of its matrix products and attention, of which
    # `result_bytes` are those of the last products of attention and of the MLP.
    layers = dense + routed
    all_bytes = attention_bytes + (dense * mlp_bytes + routed * expert_bytes) / layers
    input_bytes = value_bytes * rows_between * cases.width
    ffn_elements = (
        dense * cases.ffn / tp * tokens
        + routed * (routed_rows + tokens * cases.shared_experts) * cases.moe_ffn_hidden_size
    ) / layers
    result_bytes = value_bytes * (2 * tokens * cases.width + routed / layers * routed_rows * cases.width)
    product_bytes = value_bytes * (head_elements + latent_elements + (1 + cases.gated) * ffn_elements) + result_bytes
    selective_bytes = input_bytes + product_bytes
    recomputed_bytes = np.where(
        cases.activation_checkpoint == FULL,
        all_bytes,
        np.where(cases.activation_checkpoint == SELECTIVE, all_bytes - input_bytes - product_bytes + result_bytes, 0.0),
    )
    saved_bytes = np.where(
        cases.activation_checkpoint == FULL,
        input_bytes,
        np.where(cases.activation_checkpoint == SELECTIVE, selective_bytes, all_bytes),
    )
    return KeptActivations(
        (saved_bytes + (cases.activation_checkpoint_every - 1) * all_bytes) / cases.activation_checkpoint_every,
        recomputed_bytes,
        attention_bytes,
    )


class NativeStage(NamedTuple):
    """The quantities from which all moments of a stage are computed.

    Numbers of weights on this rank, before data parallelism shards them: `matrix_weights` of the largest kind of layer
    (with experts, if any has them); `mean_layer_weights`; `split_expert_weights`: experts among `matrix_weights`, if ep
    divides them; `embedding_weights`, `head_weights`: 0 if another stage has them; `all_weights` of the stage;
    `largest_matrix_weights`: of one matrix.
    `parameter_bytes`: of the sharded float32 weights, and equally of their gradients; `state_bytes`: of the optimizer.

    `in_flight`: in-flight micro-batches, in units of whole stages; `delayed_micro_batches`: those of them whose weight
    gradients are delayed, each with `product_gradient_bytes` of output gradients per layer; `waiting_losses`: number of
    losses that exist in addition to the current one. `end_bytes`: the rotary table and tensors around the head.
    `temporary_bytes`: of a layer's backward pass. `sample_bytes`: of a step's samples.
    """

    cases: Cases
    layer: KeptActivations
    layer_count: Column
    matrix_weights: Column
    mean_layer_weights: Column
    split_expert_weights: Column
    embedding_weights: Column
    head_weights: Column
    all_weights: Column
    parameter_bytes: Column
    state_bytes: Column
    in_flight: Column
    delayed_micro_batches: Column
    product_gradient_bytes: Column
    waiting_losses: Column
    end_bytes: Column
    temporary_bytes: Column
    largest_matrix_weights: Column
    logit_count: Column
    sample_bytes: Column

    @property
    def table_weights(self) -> Column:
        return self.embedding_weights + self.head_weights

    def moment(
        self, gradients: Column, activations: Column, logits: Column | float = 0.0, gathered: Column | float = 0.0
    ) -> MemoryParts:
        """Bytes by part, [case], at one moment: those that always exist (weights, optimizer state, samples), with these
        bytes of gradients, activations, logits and gathered weights."""
        parts = (self.parameter_bytes, gradients, self.state_bytes, activations + self.sample_bytes, logits, gathered)
        count = len(self.cases)
        return MemoryParts(*(np.broadcast_to(part, count) for part in parts))

    @property
    def loss_bytes(self) -> Column:
        """Bytes of the loss and its gradient: 3 float32 copies of the logits, 4 if the vocabulary is divided."""
        split = (self.cases.tp > 1) & (self.cases.loss_parallel > 0)
        return np.where(split, 4, 3) * _FLOAT32 * self.logit_count

    @property
    def update(self) -> MemoryParts:
        return self.moment(gradients=self.parameter_bytes, activations=np.zeros(1))


def _stage(cases: Cases, first: bool) -> NativeStage:
    """The quantities of the first or last stage of each case. In a V-shaped schedule the first rank has the model's
    last stage too, and so the head."""
    is_only_stage, is_v_shaped = cases.pp == 1, schedules.among(cases.schedule, schedules.V_SHAPED)
    has_head = is_only_stage | is_v_shaped if first else ~is_v_shaped | is_only_stage
    has_embedding = np.ones(len(cases), bool) if first else is_only_stage
    layer_count = np.ceil(cases.layers / cases.pp) if first else np.maximum(np.floor(cases.layers / cases.pp), 1.0)
    dense, routed = shapes.stage_layer_kinds(cases, layer_count, first)
    weights, norms, tokens = shapes.weights(cases), 2 * cases.width, cases.tokens
    layer_weights, expert_weights = (
        layer_count * weights.shared + dense * weights.dense + routed * weights.routed,
        routed * weights.expert,
    )
    embedding_weights = np.where(
        has_embedding, weights.table + cases.learned_positions * cases.seq_len * cases.width / cases.tp, 0.0
    )
    head_weights = np.where(has_head & ~((cases.tie_word_embeddings > 0) & is_only_stage), weights.table, 0.0)
    common_weights = layer_weights + embedding_weights + head_weights + np.where(has_head, cases.width, 0.0)
    is_sharded = uses_fsdp(cases) > 0
    shards = np.where(is_sharded, cases.dp_shard * cases.cp, 1.0)
    expert_shards = np.where(is_sharded, np.maximum(cases.dp_shard * cases.cp / cases.ep, 1.0), 1.0)
    own_weights = common_weights / shards + expert_weights / expert_shards
    state_shards = np.where(~is_sharded & (cases.zero == 1), cases.dp_shard, 1.0)  # ZeRO-1 shards the state only
    active_experts = cases.active_experts + cases.shared_experts
    inner_width = (dense * cases.ffn / cases.tp + routed * active_experts * cases.moe_ffn_hidden_size) / layer_count
    rotary_width = np.where(cases.kv_lora_rank > 0, cases.qk_rope_head_dim, cases.head_dim)
    rotary_bytes = np.where(cases.learned_positions > 0, 0.0, 2 * _FLOAT32 * cases.seq_len / cases.cp * rotary_width)
    channels = cases.queries + 2 * cases.kv_heads * cases.head_dim + cases.values
    micro_batches = in_flight.native_in_flight(cases, first)
    layer, is_on_device = kept_activations(cases, dense, routed), _on_device(cases)
    # The layer whose backward pass needs most: one with experts, if the stage has any.
    heaviest = kept_activations(cases, np.where(routed > 0, 0.0, dense), routed)
    stage = NativeStage(
        cases=cases,
        layer=layer._replace(recomputed=heaviest.recomputed, attention=heaviest.attention),
        layer_count=layer_count,
        matrix_weights=weights.shared + np.where(routed > 0, weights.routed + weights.expert, weights.dense) - norms,
        mean_layer_weights=(layer_weights + expert_weights) / layer_count - norms,
        split_expert_weights=np.where(cases.ep > 1, weights.expert, 0.0),
        embedding_weights=embedding_weights,
        head_weights=head_weights,
        all_weights=common_weights + expert_weights,
        parameter_bytes=is_on_device * _FLOAT32 * own_weights,
        state_bytes=is_on_device * cases.state_bytes * own_weights / state_shards,
        in_flight=micro_batches,
        delayed_micro_batches=in_flight.native_delayed_weight_gradients(cases, first),
        product_gradient_bytes=cases.width_bytes
        * tokens
        * (4 * cases.width + 2 * channels / cases.tp + (1 + cases.gated) * inner_width),
        waiting_losses=np.where(
            has_head & schedules.among(cases.schedule, ("gpipe", "looped_bfs")), cases.accumulate - 1, 0.0
        ),
        end_bytes=micro_batches * rotary_bytes
        + np.where(has_head, 2 * cases.width_bytes * cases.residual_tokens * cases.width, 0.0),
        temporary_bytes=cases.width_bytes
        * tokens
        * (_BACKWARD_TEMPORARIES * inner_width + np.where(cases.tp > 1, 2 * cases.width, 0.0)),
        largest_matrix_weights=np.where(
            routed > 0, cases.experts / cases.ep * cases.moe_ffn_hidden_size, cases.ffn / cases.tp
        )
        * cases.width,
        logit_count=np.where(has_head, tokens * cases.vocab / np.where(cases.loss_parallel > 0, cases.tp, 1.0), 0.0),
        sample_bytes=np.zeros(1),
    )
    return _replace_vision_cases(stage, weights) if (cases.lead_parameters > 0).any() else stage


def _on_device(cases: Cases) -> Column:
    """1 if weights, gradients and state are on the device, 0 if they are offloaded."""
    return np.where(cases.offload == offload.ALL, 0.0, 1.0)


def _replace_vision_cases(stage: NativeStage, layer_weights: Weights) -> NativeStage:
    """The stage with the columns of vision and diffusion cases replaced by theirs; they have a single stage.
    `layer_weights`: numbers of weights by kind (`shapes.weights`)."""
    cases, value_bytes, is_on_device = stage.cases, stage.cases.width_bytes, _on_device(stage.cases)
    mean_layer = native_vision_memory.mean(cases)
    saved_bytes = np.where(
        cases.activation_checkpoint == FULL,
        mean_layer.inputs,
        np.where(cases.activation_checkpoint == SELECTIVE, mean_layer.products, mean_layer.whole),
    )
    kept_bytes = (
        saved_bytes + (cases.activation_checkpoint_every - 1) * mean_layer.whole
    ) / cases.activation_checkpoint_every
    head_rows = shapes.head_rows(cases)  # rows of a micro-batch that the head is applied to
    layers_weights = stage.layer_count * (layer_weights.shared + layer_weights.dense)
    all_weights = layers_weights + cases.lead_parameters + cases.tail_parameters + layer_weights.table
    own_weights = all_weights / np.where(uses_fsdp(cases) > 0, cases.dp_shard, 1.0)
    state_shards = np.where((uses_fsdp(cases) == 0) & (cases.zero == 1), cases.dp_shard, 1.0)
    cast_samples = np.where(
        (value_bytes < _FLOAT32) | (cases.modulation_vectors > 0),
        value_bytes * cases.micro_batch_size * cases.entry_values,
        0.0,
    )
    forward_copies = np.where(cases.tp > 1, 4.0, 1.0)  # sums being reduced, and the patches, during the forward pass
    vision = stage._replace(
        layer=stage.layer._replace(kept=kept_bytes),
        embedding_weights=cases.lead_parameters,
        head_weights=layer_weights.table + cases.tail_parameters,
        all_weights=all_weights,
        parameter_bytes=is_on_device * _FLOAT32 * own_weights,
        state_bytes=is_on_device * cases.state_bytes * own_weights / state_shards,
        mean_layer_weights=layers_weights / stage.layer_count,
        end_bytes=value_bytes * ((1 + forward_copies) * cases.tokens * cases.width + head_rows * cases.width),
        logit_count=head_rows * cases.vocab,
        sample_bytes=_FLOAT32 * cases.samples / cases.dp * cases.input_values + cast_samples,
    )
    return _select_stage(cases.lead_parameters > 0, _use_layer_bytes(vision, native_vision_memory.last(cases)), stage)


def _use_layer_bytes(stage: NativeStage, vision_layer: VisionLayerBytes) -> NativeStage:
    """The stage during the backward pass of a layer with the sizes `vision_layer`."""
    recomputed_bytes = np.where(stage.cases.activation_checkpoint > 0, vision_layer.recomputed, 0.0)
    layer = stage.layer._replace(recomputed=recomputed_bytes, attention=vision_layer.attention)
    return stage._replace(
        layer=layer,
        matrix_weights=vision_layer.matrix_weights,
        temporary_bytes=vision_layer.temporaries + _last_matrix(stage),
    )


def _select_stage(mask: npt.NDArray[np.bool_], if_true: NativeStage, if_false: NativeStage) -> NativeStage:
    """Selects the columns of `if_true` for the cases in `mask`, and those of `if_false` for the rest."""
    layer = KeptActivations(
        *(
            np.where(mask, if_true_part, if_false_part)
            for if_true_part, if_false_part in zip(if_true.layer, if_false.layer, strict=True)
        )
    )
    other_fields = (
        np.where(mask, if_true_part, if_false_part)
        for if_true_part, if_false_part in zip(if_true[2:], if_false[2:], strict=True)
    )
    return NativeStage(if_true.cases, layer, *other_fields)


def _set_bottom_layer(stage: NativeStage) -> NativeStage:
    """The stage during the backward pass of the first layer, whose sizes differ in vision models."""
    is_vision = stage.cases.lead_parameters > 0
    return (
        _select_stage(is_vision, _use_layer_bytes(stage, native_vision_memory.first(stage.cases)), stage)
        if is_vision.any()
        else stage
    )


def _last_matrix(stage: NativeStage) -> Column:
    """Bytes of the gradient of a layer's last matrix, less those of its cast."""
    cases = stage.cases
    bytes_less_cast = np.where(cases.width_bytes < _FLOAT32, _FLOAT32 - cases.width_bytes, _FLOAT32)
    return stage.largest_matrix_weights * np.where(uses_fsdp(cases) > 0, cases.width_bytes, bytes_less_cast)


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
                activations=stage.layer.kept + _workspace_bytes(_set_bottom_layer(stage)),
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
    """Bytes at the moments of a step under FSDP: a layer's weights are gathered in the compute dtype, the next layer's
    are prefetched, and its gradients are reduced in float32 during the next layer; the tables stay gathered for the
    whole backward pass, and their gradients stay until its end. In order: the loss; the head's backward pass; the
    backward passes of the layer before the last, the second and the first; the end of the backward pass, before and
    while the gradients of the tables are reduced; the update; and, for a vision model, the last layer's backward
    pass."""
    cases, value_bytes, bottom = stage.cases, stage.cases.width_bytes, _set_bottom_layer(stage)
    gradients_persist = cases.accumulate > 1
    gradients_before = np.where(gradients_persist, stage.parameter_bytes, 0.0)
    weights_persist = cases.zero < 3
    table_bytes = stage.table_weights * value_bytes
    gathered_layers = np.where(weights_persist, stage.layer_count * stage.mean_layer_weights * value_bytes, 0.0)
    layer_activations = stage.layer_count * stage.layer.kept
    layer_gradients = stage.mean_layer_weights / stage.all_weights * stage.parameter_bytes
    gradients_after = np.where(gradients_persist, stage.parameter_bytes, stage.layer_count * layer_gradients)
    float_tables = _FLOAT32 * stage.table_weights
    sharded_tables = stage.table_weights / stage.all_weights * stage.parameter_bytes

    def gathered_bytes(at: NativeStage, layer_count: float) -> Column:
        """Bytes of the gathered weights of `layer_count` layers with the sizes of `at`; 0 if weights stay gathered,
        which are counted in `gathered_layers`."""
        return np.where(weights_persist, 0.0, layer_count * at.matrix_weights * value_bytes)

    def at_layer(at: NativeStage, below: Column, gathered: Column) -> MemoryParts:
        """Bytes by part in the backward pass of a layer with the sizes of `at` and `below` layers below it. `gathered`:
        bytes of gathered layers."""
        gradients_above = np.where(
            gradients_persist, stage.parameter_bytes, np.maximum(stage.layer_count - 2 - below, 0.0) * layer_gradients
        )
        activations = (below + 1) * stage.layer.kept + _workspace_bytes(at)
        remaining_weights = gathered_layers * (below + 1) / stage.layer_count
        # Experts divided by ep are reduced separately, and copied to another order: twice their size.
        reduced_gradients = layer_gradients + _FLOAT32 * np.where(
            cases.ep > 1, 2 * stage.split_expert_weights, at.matrix_weights
        )
        return stage.moment(
            gradients=gradients_above,
            activations=activations,
            gathered=remaining_weights + table_bytes + stage.head_weights * value_bytes + gathered + reduced_gradients,
        )

    return [
        stage.moment(
            gradients=gradients_before,
            activations=layer_activations + stage.end_bytes,
            logits=stage.loss_bytes,
            gathered=gathered_layers + np.where(weights_persist, table_bytes, 0.0),
        ),
        stage.moment(
            gradients=gradients_before,
            activations=layer_activations + stage.end_bytes,
            logits=value_bytes * stage.logit_count,
            gathered=gathered_layers + np.where(weights_persist, table_bytes, 2 * table_bytes),
        ),
        at_layer(stage, np.maximum(stage.layer_count - 2, 0.0), gathered_bytes(stage, 2)),
        at_layer(bottom, np.clip(stage.layer_count - 2, 0.0, 1.0), gathered_bytes(bottom, 2)),
        at_layer(bottom, np.zeros(1), gathered_bytes(bottom, 1)),
        stage.moment(
            gradients=gradients_after,
            activations=np.zeros(1),
            gathered=2 * table_bytes + _FLOAT32 * bottom.matrix_weights,
        ),
        stage.moment(
            gradients=gradients_after,
            activations=np.zeros(1),
            gathered=np.maximum(table_bytes + float_tables, float_tables + sharded_tables),
        ),
        stage.update,
        *_vision_moments(
            stage,
            stage.moment(
                gradients=gradients_before,
                activations=layer_activations + _workspace_bytes(stage),
                gathered=gathered_layers + table_bytes + stage.head_weights * value_bytes + gathered_bytes(stage, 2),
            ),
        ),
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
        stage.logit_count * (value_bytes + _FLOAT32)
        + head_cast_bytes
        + value_bytes * cases.residual_tokens * cases.width
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
            logits=waiting_loss_bytes + stage.loss_bytes + value_bytes * stage.logit_count,
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
