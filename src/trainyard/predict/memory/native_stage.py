"""Sizes of a pipeline stage with trainyard's own trainer, as columns: numbers of weights, bytes of activations, of
parameters and of state, and micro-batches in flight. `native_memory.py` computes the bytes at each moment from them.

A column has a value per case (layout), of shape [case]. Layers are dense or routed (with experts); the tables are the
embedding and the head's matrix. `first` selects the first or the last pipeline stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.cases import FULL, SELECTIVE, Cases, Column
from trainyard.predict.memory import native_vision_memory
from trainyard.predict.memory.memory_parts import MemoryParts
from trainyard.predict.memory.native_activations import KeptActivations, kept_activations
from trainyard.predict.memory.native_vision_memory import VisionLayerBytes
from trainyard.predict.pipeline import in_flight, schedules
from trainyard.predict.time import offload, shapes
from trainyard.predict.time.shapes import Weights

_FLOAT32 = 4.0
LOSS_CHUNK_VALUES = 2**24
"""Logits of a chunk of the loss (`CHUNK_VALUES` in `train/model/cross_entropy.py`)."""
GATHERED_ELEMENTS = 2**25
"""Elements of a bucket of ZeRO-1's all-gather on all ranks together (`train/parallel/all_gather_parts.py`)."""
_BACKWARD_TEMPORARIES = 3.0
"""Temporary tensors of the MLP's inner width in a layer's backward pass."""


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
    def first_unit_weights(self) -> Column:
        """Weights of the FSDP unit before the layers: the embedding, unless its table is the head's too."""
        return np.where(self._is_vision, 0.0, self.embedding_weights) - self.tied_weights

    @property
    def root_weights(self) -> Column:
        """Weights that FSDP gathers for the whole step: those before the layers of a vision model, and tied tables,
        whose unit ends with the embedding's backward pass."""
        return np.where(self._is_vision, self.embedding_weights, self.tied_weights)

    @property
    def tied_weights(self) -> Column:
        """Weights of the tables that the embedding and the head share; 0 if they do not."""
        is_tied = (self.cases.tie_word_embeddings > 0) & (self.cases.pp == 1) & ~self._is_vision
        return np.where(is_tied, self.embedding_weights, 0.0)

    @property
    def _is_vision(self) -> npt.NDArray[np.bool_]:
        return self.cases.lead_parameters > 0

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
        """Bytes of the logits and the loss. A decoder's loss keeps the logits in the compute dtype and has float32 ones
        of a chunk only, with their softmax (`train/model/cross_entropy.py`); that of a vision model has three float32
        copies of all logits."""
        classes = self.cases.vocab / np.where(self.cases.loss_parallel > 0, self.cases.tp, 1.0)
        chunk_count = np.minimum(np.maximum(np.floor(LOSS_CHUNK_VALUES / classes), 1.0) * classes, self.logit_count)
        copies = np.where(self.cases.width_bytes < _FLOAT32, 2.0, 1.0)
        chunked_bytes = self.cases.width_bytes * self.logit_count + copies * _FLOAT32 * chunk_count
        return np.where(self._is_vision, 3 * _FLOAT32 * self.logit_count, chunked_bytes)

    @property
    def update(self) -> MemoryParts:
        """Bytes by part during the optimizer step."""
        return self.moment(gradients=self.parameter_bytes, activations=np.zeros(1), gathered=_zero1_bucket_bytes(self))


def _zero1_bucket_bytes(stage: NativeStage) -> Column:
    """Bytes of the buckets in which ZeRO-1 all-gathers updated weights; 0 without ZeRO-1. A bucket has a send buffer of
    this rank's elements and a receive buffer of all ranks' elements. While the second bucket is gathered, the receive
    buffer of the first still exists."""
    ranks = _zero1_shards(stage.cases)
    part_elements = stage.parameter_bytes / _FLOAT32 / ranks
    first = np.minimum(part_elements, np.floor(GATHERED_ELEMENTS / ranks))
    second = np.minimum(part_elements - first, first)
    elements = np.maximum((ranks + 1) * first, ranks * first + (ranks + 1) * second)
    return np.where(ranks > 1, _FLOAT32 * elements, 0.0)


def _zero1_shards(cases: Cases) -> Column:
    """The number of ranks over which ZeRO-1 divides the optimizer state, but neither weights nor gradients; 1 without
    ZeRO-1."""
    return np.where((uses_fsdp(cases) == 0) & (cases.zero == 1), cases.dp_shard, 1.0)


def uses_fsdp(cases: Cases) -> Column:
    """1 if FSDP wraps the weights and gathers them, else 0. FSDP also replicates if there are other axes."""
    replicated = (cases.dp == cases.ranks) & (cases.ep == 1) & ((cases.dp_shard == 1) | (cases.zero == 1))
    return np.where((cases.dp * cases.cp > 1) & ~replicated, 1.0, 0.0)


def build_stage(cases: Cases, first: bool) -> NativeStage:
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
        state_bytes=is_on_device
        * (
            cases.state_bytes * own_weights
            + cases.extra_table_state_bytes * (embedding_weights + head_weights) / shards
        )
        / _zero1_shards(cases),
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
        state_bytes=is_on_device * cases.state_bytes * own_weights / _zero1_shards(cases),
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


def set_bottom_layer(stage: NativeStage) -> NativeStage:
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
