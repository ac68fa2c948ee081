"""Bytes on a rank of trainyard's own trainer at the moments of a step that may be its peak, as columns.

The moments, and the tensors that exist at each, were derived from fake runs of the training code
(`train/fake_run/fake_rank.py`), against which this is tested: the loss, the gathering of the tables, the
backward pass of a layer, its end, and the update.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.memory import native_vision_memory
from trainyard.predict.memory.memory_parts import MemoryParts, fullest
from trainyard.predict.memory.native_vision_memory import VisionLayerBytes
from trainyard.predict.pipeline import in_flight, schedules
from trainyard.predict.time import shapes
from trainyard.predict.time.shapes import Weights

_FLOAT32 = 4.0
_BACKWARD_TEMPORARIES = 3.0
"""Temporary tensors of the MLP's inner width in a layer's backward pass."""

_ACTIVE_STAGES = 3.0
"""Stages of a rank that are gathered at a time (torch.distributed.pipelining's `max_active_stages`)."""


class KeptActivations(NamedTuple):
    """Bytes of one layer and micro-batch. `kept`: saved for the backward pass, under the case's recomputation; `again`:
    recomputed in it; `attention`: attention's part without recomputation."""

    kept: Column
    again: Column
    attention: Column


def peak(cases: Cases, first: bool) -> MemoryParts:
    """The peak of the first or the last stage."""
    count = len(cases)
    gathers, piped = (np.broadcast_to(mask, count) for mask in (sharded(cases) > 0, cases.pp > 1))
    most = MemoryParts(*np.zeros((len(MemoryParts._fields), count)))
    for mask, moments in (
        (piped, _pipeline_moments),
        (gathers & ~piped, _fsdp_moments),
        (~gathers & ~piped, _replicated_moments),
    ):
        if mask.any():
            for part, values in zip(most, fullest(moments(_stage(cases.take(mask), first))), strict=True):
                part[mask] = values
    return most


def sharded(cases: Cases) -> Column:
    """1 if FSDP wraps the weights and gathers them, else 0. FSDP also replicates if there are other axes."""
    replicated = (cases.dp == cases.ranks) & (cases.ep == 1) & ((cases.dp_shard == 1) | (cases.zero == 1))
    return np.where((cases.dp * cases.cp > 1) & ~replicated, 1.0, 0.0)


def kept_activations(cases: Cases, dense: Column, routed: Column) -> KeptActivations:
    """Activations of the mean layer of a stage with `dense` and `routed` layers."""
    value, tp, tokens, between = cases.width_bytes, cases.tp, cases.tokens, cases.between
    latent = cases.kv_lora_rank > 0
    pairs = np.where(latent, cases.queries, cases.kv_heads * cases.head_dim)
    values = np.where(latent, cases.kv_heads * (cases.head_dim + cases.value_dim), cases.kv_heads * cases.head_dim)
    heads = tokens / tp * (cases.queries + pairs + values + cases.values)
    narrow = np.where(latent, tokens * (2 * cases.q_lora_rank + 2 * cases.kv_lora_rank + cases.rope_dim), 0.0)
    normed = cases.normed_heads * tokens / tp * (cases.queries + pairs)
    rows = tokens / tp * _FLOAT32 * (cases.heads + cases.normed_heads * (cases.heads + cases.kv_heads))
    rows = rows + 2 * between * _FLOAT32
    attention = value * (between * cases.width + tokens * cases.width + heads + narrow + normed) + rows
    inner = 2 + 2 * cases.gated
    mlp = value * (between * cases.width + tokens * cases.width + inner * tokens * cases.ffn / tp)
    sent = cases.active * tokens
    experts = value * (between * cases.width + sent * (2 * cases.width + inner * cases.moe_ffn_hidden_size))
    experts = experts + tokens * (cases.width * _FLOAT32 + 3 * cases.experts * _FLOAT32) + sent * 4 * 8
    shared = value * tokens * (cases.width + inner * cases.shared_experts * cases.moe_ffn_hidden_size)
    experts = experts + np.where(cases.shared_experts > 0, shared, 0.0)
    here = dense + routed
    whole = attention + (dense * mlp + routed * experts) / here
    inputs = value * between * cases.width
    ffn = (
        dense * cases.ffn / tp * tokens + routed * (sent + tokens * cases.shared_experts) * cases.moe_ffn_hidden_size
    ) / here
    back = value * (2 * tokens * cases.width + routed / here * sent * cases.width)
    products = value * (heads + narrow + (1 + cases.gated) * ffn) + back
    selective = inputs + products
    recomputed = np.where(
        cases.activation_checkpoint == 2,
        whole,
        np.where(cases.activation_checkpoint == 1, whole - inputs - products + back, 0.0),
    )
    saved = np.where(
        cases.activation_checkpoint == 2, inputs, np.where(cases.activation_checkpoint == 1, selective, whole)
    )
    return KeptActivations(
        (saved + (cases.activation_checkpoint_every - 1) * whole) / cases.activation_checkpoint_every,
        recomputed,
        attention,
    )


class NativeStage(NamedTuple):
    """The quantities from which all moments of a stage are computed.

    Numbers of weights on this rank, before data parallelism shards them: `matrices` of the largest kind of layer (with
    experts, if any has them) and of the `mean` layer; `spread`: the experts among `matrices`, if ep divides them;
    `embedding` and `head`, if this stage has their weights; `whole`: all weights; `largest`: of one matrix.
    `parameters`: bytes of the sharded float32 weights, and equally of their gradients; `state`: of the optimizer.

    `layers`: layers of the stage. `in_flight`: in-flight micro-batches, in units of whole stages; `delayed`: those of
    them whose weight gradients are delayed, each with `products` bytes of output gradients per layer; `ahead`: those
    whose loss exists in addition to the current one. `ends`: bytes of the rotary table and of tensors around the head.
    `temporaries`: bytes of a layer's backward pass. `logits`: number of logits. `samples`: bytes of a step's samples.
    """

    cases: Cases
    layer: KeptActivations
    layers: Column
    matrices: Column
    mean: Column
    spread: Column
    embedding: Column
    head: Column
    whole: Column
    parameters: Column
    state: Column
    in_flight: Column
    delayed: Column
    products: Column
    ahead: Column
    ends: Column
    temporaries: Column
    largest: Column
    logits: Column
    samples: Column

    @property
    def tables(self) -> Column:
        return self.embedding + self.head

    def moment(
        self, gradients: Column, activations: Column, logits: Column | float = 0.0, gathered: Column | float = 0.0
    ) -> MemoryParts:
        """Bytes at one moment: those that always exist, with these bytes of gradients, activations, logits and gathered
        weights."""
        parts = (self.parameters, gradients, self.state, activations + self.samples, logits, gathered)
        count = len(self.cases)
        return MemoryParts(*(np.broadcast_to(part, count) for part in parts))

    @property
    def loss(self) -> Column:
        """Bytes of the loss and its gradient: 3 float32 copies of the logits, 4 if the vocabulary is divided."""
        split = (self.cases.tp > 1) & (self.cases.loss_parallel > 0)
        return np.where(split, 4, 3) * _FLOAT32 * self.logits

    @property
    def update(self) -> MemoryParts:
        return self.moment(self.parameters, np.zeros(1))


def _stage(cases: Cases, first: bool) -> NativeStage:
    """The quantities of the first or last stage of each case."""
    alone, v = cases.pp == 1, schedules.among(cases.schedule, schedules.V_SHAPED)
    has_head = alone | v if first else ~v | alone
    has_embedding = np.ones(len(cases), bool) if first else alone
    here = np.ceil(cases.layers / cases.pp) if first else np.maximum(np.floor(cases.layers / cases.pp), 1.0)
    dense, routed = shapes.kinds_of(cases, here, first)
    weights, norms, tokens = shapes.weights(cases), 2 * cases.width, cases.tokens
    layers, expert = here * weights.shared + dense * weights.dense + routed * weights.routed, routed * weights.expert
    embedding = np.where(has_embedding, weights.table + cases.learned * cases.seq_len * cases.width / cases.tp, 0.0)
    head = np.where(has_head & ~((cases.tied > 0) & alone), weights.table, 0.0)
    common = layers + embedding + head + np.where(has_head, cases.width, 0.0)
    gathers = sharded(cases) > 0
    shards = np.where(gathers, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(gathers, np.maximum(cases.dp_shard * cases.cp / cases.ep, 1.0), 1.0)
    mine = common / shards + expert / owners
    divided = np.where(~gathers & (cases.zero == 1), cases.dp_shard, 1.0)
    sent = cases.active + cases.shared_experts
    inner = (dense * cases.ffn / cases.tp + routed * sent * cases.moe_ffn_hidden_size) / here
    turned = np.where(cases.kv_lora_rank > 0, cases.rope_dim, cases.head_dim)
    rotary = np.where(cases.learned > 0, 0.0, 2 * _FLOAT32 * cases.seq_len / cases.cp * turned)
    channels = cases.queries + 2 * cases.kv_heads * cases.head_dim + cases.values
    micro_batches = in_flight.native_in_flight(cases, first)
    layer, there = kept_activations(cases, dense, routed), _on_device(cases)
    heaviest = kept_activations(cases, np.where(routed > 0, 0.0, dense), routed)
    stage = NativeStage(
        cases=cases,
        layer=layer._replace(again=heaviest.again, attention=heaviest.attention),
        layers=here,
        matrices=weights.shared + np.where(routed > 0, weights.routed + weights.expert, weights.dense) - norms,
        mean=(layers + expert) / here - norms,
        spread=np.where(cases.ep > 1, weights.expert, 0.0),
        embedding=embedding,
        head=head,
        whole=common + expert,
        parameters=there * _FLOAT32 * mine,
        state=there * cases.state_bytes * mine / divided,
        in_flight=micro_batches,
        delayed=in_flight.native_delayed_weight_gradients(cases, first),
        products=cases.width_bytes * tokens * (4 * cases.width + 2 * channels / cases.tp + (1 + cases.gated) * inner),
        ahead=np.where(has_head & schedules.among(cases.schedule, ("gpipe", "looped_bfs")), cases.accumulate - 1, 0.0),
        ends=micro_batches * rotary + np.where(has_head, 2 * cases.width_bytes * cases.between * cases.width, 0.0),
        temporaries=cases.width_bytes
        * tokens
        * (_BACKWARD_TEMPORARIES * inner + np.where(cases.tp > 1, 2 * cases.width, 0.0)),
        largest=np.where(routed > 0, cases.experts / cases.ep * cases.moe_ffn_hidden_size, cases.ffn / cases.tp)
        * cases.width,
        logits=np.where(has_head, tokens * cases.vocab / np.where(cases.loss_parallel > 0, cases.tp, 1.0), 0.0),
        samples=np.zeros(1),
    )
    return _replace_vision_cases(stage, weights) if (cases.lead > 0).any() else stage


def _on_device(cases: Cases) -> Column:
    """1 if weights, gradients and state are on the device, 0 if they are offloaded."""
    return np.where(cases.offload > 1, 0.0, 1.0)


def _replace_vision_cases(stage: NativeStage, layer_weights: Weights) -> NativeStage:
    """The stage with the cases of vision and diffusion models replaced; these have a single stage."""
    cases, value_bytes, is_on_device = stage.cases, stage.cases.width_bytes, _on_device(stage.cases)
    mean = native_vision_memory.mean(cases)
    saved = np.where(
        cases.activation_checkpoint == 2,
        mean.inputs,
        np.where(cases.activation_checkpoint == 1, mean.products, mean.whole),
    )
    kept = (saved + (cases.activation_checkpoint_every - 1) * mean.whole) / cases.activation_checkpoint_every
    rows, weights = shapes.head_rows(cases), stage.layers * (layer_weights.shared + layer_weights.dense)
    whole = weights + cases.lead + cases.tail + layer_weights.table
    own_weights = whole / np.where(sharded(cases) > 0, cases.dp_shard, 1.0)
    state_shards = np.where((sharded(cases) == 0) & (cases.zero == 1), cases.dp_shard, 1.0)
    cast_samples = np.where(
        (value_bytes < _FLOAT32) | (cases.modulated > 0), value_bytes * cases.micro_batch_size * cases.entry, 0.0
    )
    forward_copies = np.where(cases.tp > 1, 4.0, 1.0)  # sums being reduced, and the patches, during the forward pass
    vision = stage._replace(
        layer=stage.layer._replace(kept=kept),
        embedding=cases.lead,
        head=layer_weights.table + cases.tail,
        whole=whole,
        parameters=is_on_device * _FLOAT32 * own_weights,
        state=is_on_device * cases.state_bytes * own_weights / state_shards,
        mean=weights / stage.layers,
        ends=value_bytes * ((1 + forward_copies) * cases.tokens * cases.width + rows * cases.width),
        logits=rows * cases.vocab,
        samples=_FLOAT32 * cases.samples / cases.dp * cases.given + cast_samples,
    )
    return _select_stage(cases.lead > 0, _use_layer_bytes(vision, native_vision_memory.last(cases)), stage)


def _use_layer_bytes(stage: NativeStage, vision_layer: VisionLayerBytes) -> NativeStage:
    """The stage during the backward pass of this layer."""
    recomputed = np.where(stage.cases.activation_checkpoint > 0, vision_layer.again, 0.0)
    layer = stage.layer._replace(again=recomputed, attention=vision_layer.attention)
    return stage._replace(
        layer=layer, matrices=vision_layer.matrices, temporaries=vision_layer.work + _last_matrix(stage)
    )


def _select_stage(mask: npt.NDArray[np.bool_], if_true: NativeStage, if_false: NativeStage) -> NativeStage:
    """Selects the columns of `if_true` for the cases in `mask`, and those of `if_false` for the rest."""
    layer = KeptActivations(
        *(np.where(mask, mine, theirs) for mine, theirs in zip(if_true.layer, if_false.layer, strict=True))
    )
    rest = (np.where(mask, mine, theirs) for mine, theirs in zip(if_true[2:], if_false[2:], strict=True))
    return NativeStage(if_true.cases, layer, *rest)


def _set_bottom_layer(stage: NativeStage) -> NativeStage:
    """The stage during the backward pass of the first layer, whose sizes differ in vision models."""
    is_vision = stage.cases.lead > 0
    return (
        _select_stage(is_vision, _use_layer_bytes(stage, native_vision_memory.first(stage.cases)), stage)
        if is_vision.any()
        else stage
    )


def _last_matrix(stage: NativeStage) -> Column:
    """Bytes of the gradient of a layer's last matrix, without its cast."""
    cases = stage.cases
    alone = np.where(cases.width_bytes < _FLOAT32, _FLOAT32 - cases.width_bytes, _FLOAT32)
    return stage.largest * np.where(sharded(cases) > 0, cases.width_bytes, alone)


def _cast_bytes(stage: NativeStage) -> tuple[Column, Column]:
    """Bytes of a layer's weights and of the head's, cast from float32 to the compute dtype."""
    cases = stage.cases
    casts = (cases.width_bytes < _FLOAT32) & (sharded(cases) == 0)
    head = np.where(stage.logits > 0, shapes.weights(cases).table, 0.0)
    return np.where(casts, stage.mean * cases.width_bytes, 0.0), np.where(casts, head * cases.width_bytes, 0.0)


def _replicated_moments(stage: NativeStage) -> list[MemoryParts]:
    """Moments without FSDP: each rank has its weights in float32; their cast lives until the backward pass used it."""
    cases, value = stage.cases, stage.cases.width_bytes
    stays = (cases.accumulate > 1) | (cases.ranks > cases.tp)  # buckets of gradients are always allocated
    before = np.where(stays, stage.parameters, 0.0)
    cast, cast_head = _cast_bytes(stage)
    later = np.where(cases.activation_checkpoint > 0, 0.0, cast)
    layers = stage.layers * stage.layer.kept
    head = np.where(stays, 0.0, _FLOAT32 * stage.head)
    return [
        stage.moment(before, layers + stage.ends, stage.loss, stage.layers * later + cast_head),
        stage.moment(before, layers, 0.0, stage.layers * later + stage.head * (value + _FLOAT32)),
        stage.moment(before + head, layers + _workspace_bytes(stage), 0.0, stage.layers * later + cast - later),
        stage.moment(stage.parameters, np.zeros(1), 0.0, np.where(stays, _FLOAT32 * stage.embedding, 0.0)),
        stage.update,
        *_vision_moments(
            stage,
            stage.moment(
                np.where(stays, stage.parameters, stage.parameters - _FLOAT32 * (stage.mean + stage.embedding)),
                stage.layer.kept + _workspace_bytes(_set_bottom_layer(stage)),
                0.0,
                cast,
            ),
        ),
    ]


def _vision_moments(stage: NativeStage, moment: MemoryParts) -> list[MemoryParts]:
    """A moment that may be the peak of vision models only; the logits of decoders are larger."""
    pictures = stage.cases.lead > 0
    both = zip(moment, stage.update, strict=True)
    return [MemoryParts(*(np.where(pictures, its, other) for its, other in both))] if pictures.any() else []


def _workspace_bytes(stage: NativeStage) -> Column:
    """Bytes of a layer's backward pass: recomputed activations, temporaries and the gradient of a matrix before it is
    accumulated; or, near its end under FSDP, the gradients of all its weights and attention's remaining activations."""
    layer, value, gathers = stage.layer, stage.cases.width_bytes, sharded(stage.cases) > 0
    cast = np.where(value < _FLOAT32, value, 0.0)
    split = np.where(stage.cases.tp > 1, 4 * value * stage.cases.tokens * stage.cases.width, 0.0)
    near_end = stage.matrices * value + split + np.where(layer.again > 0, layer.attention, -layer.kept)
    matrix_gradient = np.where(gathers | (stage.cases.lead > 0), 0.0, stage.largest * (cast + _FLOAT32))
    return np.maximum(layer.again + np.maximum(stage.temporaries, matrix_gradient), np.where(gathers, near_end, 0.0))


def _fsdp_moments(stage: NativeStage) -> list[MemoryParts]:
    """Moments under FSDP: a layer's weights are gathered in the compute dtype, the next layer's are prefetched, and its
    gradients are reduced in float32 during the next layer; the tables stay gathered for the whole backward pass, and
    their gradients stay until its end."""
    cases, value_bytes, bottom = stage.cases, stage.cases.width_bytes, _set_bottom_layer(stage)
    gradients_persist = cases.accumulate > 1
    gradients_before = np.where(gradients_persist, stage.parameters, 0.0)
    weights_persist = cases.zero < 3
    table_bytes = stage.tables * value_bytes
    gathered_layers = np.where(weights_persist, stage.layers * stage.mean * value_bytes, 0.0)
    layer_activations = stage.layers * stage.layer.kept
    layer_gradients = stage.mean / stage.whole * stage.parameters
    gradients_after = np.where(gradients_persist, stage.parameters, stage.layers * layer_gradients)
    float_tables = _FLOAT32 * stage.tables
    sharded_tables = stage.tables / stage.whole * stage.parameters

    def gathered_bytes(at: NativeStage, layer_count: float) -> Column:
        """Bytes of the gathered weights of `layer_count` layers."""
        return np.where(weights_persist, 0.0, layer_count * at.matrices * value_bytes)

    def at_layer(at: NativeStage, below: Column, gathered: Column) -> MemoryParts:
        """Backward pass of a layer with `below` layers below it. `gathered`: bytes of gathered layers."""
        gradients_above = np.where(
            gradients_persist, stage.parameters, np.maximum(stage.layers - 2 - below, 0.0) * layer_gradients
        )
        activations = (below + 1) * stage.layer.kept + _workspace_bytes(at)
        remaining_weights = gathered_layers * (below + 1) / stage.layers
        # Experts divided by ep are reduced separately, and copied to another order: twice their size.
        reduced_gradients = layer_gradients + _FLOAT32 * np.where(cases.ep > 1, 2 * stage.spread, at.matrices)
        return stage.moment(
            gradients_above,
            activations,
            0.0,
            remaining_weights + table_bytes + stage.head * value_bytes + gathered + reduced_gradients,
        )

    return [
        stage.moment(
            gradients_before,
            layer_activations + stage.ends,
            stage.loss,
            gathered_layers + np.where(weights_persist, table_bytes, 0.0),
        ),
        stage.moment(
            gradients_before,
            layer_activations + stage.ends,
            value_bytes * stage.logits,
            gathered_layers + np.where(weights_persist, table_bytes, 2 * table_bytes),
        ),
        at_layer(stage, np.maximum(stage.layers - 2, 0.0), gathered_bytes(stage, 2)),
        at_layer(bottom, np.clip(stage.layers - 2, 0.0, 1.0), gathered_bytes(bottom, 2)),
        at_layer(bottom, np.zeros(1), gathered_bytes(bottom, 1)),
        stage.moment(gradients_after, np.zeros(1), 0.0, 2 * table_bytes + _FLOAT32 * bottom.matrices),
        stage.moment(
            gradients_after, np.zeros(1), 0.0, np.maximum(table_bytes + float_tables, float_tables + sharded_tables)
        ),
        stage.update,
        *_vision_moments(
            stage,
            stage.moment(
                gradients_before,
                layer_activations + _workspace_bytes(stage),
                0.0,
                gathered_layers + table_bytes + stage.head * value_bytes + gathered_bytes(stage, 2),
            ),
        ),
    ]


def _pipeline_moments(stage: NativeStage) -> list[MemoryParts]:
    """Moments in a pipeline: buffers to receive every micro-batch are allocated at the beginning; under FSDP a stage is
    gathered once, and its gradients are unsharded and in float32 until the last micro-batch."""
    cases, value, rounds = stage.cases, stage.cases.width_bytes, stage.cases.interleave
    gathers = sharded(cases) > 0
    own = np.where(gathers, stage.whole * value * np.minimum(_ACTIVE_STAGES / rounds, 1.0), 0.0)
    through = (rounds > 1) & (cases.accumulate == cases.pp)  # one stage at a time, with its gradients
    gradients = np.where(gathers, _FLOAT32 * stage.whole / np.where(through, rounds, 1.0), stage.parameters)
    cast, cast_head = _cast_bytes(stage)
    later = np.where(cases.activation_checkpoint > 0, 0.0, cast)
    stage_activations = stage.layers * stage.layer.kept
    casts = stage.in_flight * stage.layers * later
    handed = cases.accumulate * value * cases.between * cases.width * (2 * rounds - 1)
    always = stage.ends + handed
    steady, begun = cases.accumulate > stage.in_flight, np.where(cases.accumulate > 1, gradients, 0.0)
    looped = schedules.among(cases.schedule, ("looped_bfs",))  # one stage at a time, for all micro-batches
    begun = np.where(looped, begun / rounds, begun)
    others = np.maximum(stage.in_flight - 1 / rounds, 0.0)
    more = np.where(steady, stage.in_flight, others)
    delayed_gradients = stage.layers * stage.products + np.where(stage.logits > 0, cast_head, 0.0)
    work = _workspace_bytes(stage) + stage.delayed * delayed_gradients
    losses = stage.ahead * (stage.logits * (value + _FLOAT32) + cast_head + value * cases.between * cases.width)
    gathered = own + cast - later + stage.head * value
    embedding = stage.embedding * np.where(gathers, value, _FLOAT32)
    last = np.where(looped, others / rounds, others)
    at_loss = (
        stage.in_flight * stage_activations + always + np.maximum(stage.delayed - 1 / rounds, 0.0) * delayed_gradients
    )
    return [
        stage.moment(
            np.where((stage.logits > 0) & (stage.ahead == 0), begun, 0.0),
            at_loss,
            losses + stage.loss + value * stage.logits,
            own + casts + cast_head,
        ),
        stage.moment(
            np.where(steady, gradients, 0.0), stage.in_flight * stage_activations + work + always, 0.0, gathered + casts
        ),
        stage.moment(begun, more * stage_activations + work + always, 0.0, gathered + more * stage.layers * later),
        stage.moment(gradients, last * stage_activations + always, 0.0, own + last * stage.layers * later + embedding),
        stage.update,
    ]
