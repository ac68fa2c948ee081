"""How many bytes a rank of our own runner holds at the moments when it may hold most, as columns.

Which those are, and what is there at each, was read off fake runs of the training code
(`train/fake_run/fake_rank.py`), against which this is tested: the loss, the gathering of the tables, the
backward pass of a layer, the end of it, and the update.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.memory import native_vision_memory
from trainyard.predict.memory.memory_parts import MemoryParts, fullest
from trainyard.predict.memory.native_vision_memory import Pictured
from trainyard.predict.pipeline import in_flight, schedules
from trainyard.predict.time import shapes
from trainyard.predict.time.shapes import Weights

_FLOAT32 = 4.0
_ON_THE_WAY = 3.0
"""Tensors of the MLP's inner width that a layer's backward pass makes beside what was kept."""

_AT_ONCE = 3.0
"""Of a rank's stages as many are gathered at a time (torch.distributed.pipelining's `max_active_stages`)."""


class KeptActivations(NamedTuple):
    """Bytes of one layer and micro-batch. `kept`: for the backward pass, with recomputation as it is; `again`: that
    are made again in it; `attention`: what of a whole layer is attention's."""

    kept: Column
    again: Column
    attention: Column


def peak(cases: Cases, first: bool) -> MemoryParts:
    """The fullest moment of the first stage or of the last."""
    count = len(cases)
    gathers, piped = (np.broadcast_to(one, count) for one in (sharded(cases) > 0, cases.pp > 1))
    found = MemoryParts(*np.zeros((len(MemoryParts._fields), count)))
    for some, moments in ((piped, _piped), (gathers & ~piped, _gathered), (~gathers & ~piped, _whole)):
        if some.any():
            for part, values in zip(found, fullest(moments(_stage(cases.take(some), first))), strict=True):
                part[some] = values
    return found


def sharded(cases: Cases) -> Column:
    """Whether weights are gathered from where they lie: by FSDP, which replicates beside other axes too."""
    replicated = (cases.dp == cases.ranks) & (cases.ep == 1) & ((cases.dp_shard == 1) | (cases.zero == 1))
    return np.where((cases.dp * cases.cp > 1) & ~replicated, 1.0, 0.0)


def kept(cases: Cases, dense: Column, routed: Column) -> KeptActivations:
    """Of the mean layer of a stage with so many."""
    value, tp, tokens, between = cases.width_bytes, cases.tp, cases.tokens, cases.between
    latent = cases.kv_rank > 0
    pairs = np.where(latent, cases.queries, cases.kv_heads * cases.head_dim)
    values = np.where(latent, cases.kv_heads * (cases.head_dim + cases.value_dim), cases.kv_heads * cases.head_dim)
    heads = tokens / tp * (cases.queries + pairs + values + cases.values)
    narrow = np.where(latent, tokens * (2 * cases.q_rank + 2 * cases.kv_rank + cases.rope_dim), 0.0)
    normed = cases.normed_heads * tokens / tp * (cases.queries + pairs)
    rows = tokens / tp * _FLOAT32 * (cases.heads + cases.normed_heads * (cases.heads + cases.kv_heads))
    rows = rows + 2 * between * _FLOAT32
    attention = value * (between * cases.width + tokens * cases.width + heads + narrow + normed) + rows
    inner = 2 + 2 * cases.gated
    plain = value * (between * cases.width + tokens * cases.width + inner * tokens * cases.ffn / tp)
    sent = cases.active * tokens
    experts = value * (between * cases.width + sent * (2 * cases.width + inner * cases.expert_ffn))
    experts = experts + tokens * (cases.width * _FLOAT32 + 3 * cases.experts * _FLOAT32) + sent * 4 * 8
    beside = value * tokens * (cases.width + inner * cases.shared_experts * cases.expert_ffn)
    experts = experts + np.where(cases.shared_experts > 0, beside, 0.0)
    here = dense + routed
    whole = attention + (dense * plain + routed * experts) / here
    inputs = value * between * cases.width
    ffn = (dense * cases.ffn / tp * tokens + routed * (sent + tokens * cases.shared_experts) * cases.expert_ffn) / here
    back = value * (2 * tokens * cases.width + routed / here * sent * cases.width)
    products = value * (heads + narrow + (1 + cases.gated) * ffn) + back
    op = inputs + products
    again = np.where(cases.remat == 2, whole, np.where(cases.remat == 1, whole - inputs - products + back, 0.0))
    some = np.where(cases.remat == 2, inputs, np.where(cases.remat == 1, op, whole))
    return KeptActivations((some + (cases.remat_every - 1) * whole) / cases.remat_every, again, attention)


class NativeStage(NamedTuple):
    """What all moments of a stage are made of.

    Numbers of weights are of this rank before data parallelism divides them: `matrices` of a layer, with experts if any
    has, and of the `mean` layer; `spread`, those of the former that are experts divided over ep; `embedding` and
    `head`, where they have weights here; `whole`: all of them. `largest`: of one matrix. `parameters`: bytes of their
    float32 selves as they lie, as many as of their gradients; `state`: of the optimizer's.

    `given`: bytes of a step's samples. `layers`: how many; `way`: micro-batches kept at once, in whole stages, `late`:
    those of them of which the gradients of a layer's products, `products` bytes, wait for the weights' to be made, and
    `ahead`: those whose loss is there beside the one at work. `ends`: bytes of the rotary table, and of what is kept
    around the head. `making`: that a layer's backward pass takes beside what was kept. `logits`: their number.
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
    way: Column
    late: Column
    products: Column
    ahead: Column
    ends: Column
    making: Column
    largest: Column
    logits: Column
    given: Column

    @property
    def tables(self) -> Column:
        return self.embedding + self.head

    def moment(
        self, gradients: Column, activations: Column, logits: Column | float = 0.0, gathered: Column | float = 0.0
    ) -> MemoryParts:
        parts = (self.parameters, gradients, self.state, activations + self.given, logits, gathered)
        count = len(self.cases)
        return MemoryParts(*(np.broadcast_to(part, count) for part in parts))

    @property
    def loss(self) -> Column:
        """Bytes of the loss and its gradient: in float32, once more where the vocabulary is divided."""
        split = (self.cases.tp > 1) & (self.cases.loss_parallel > 0)
        return np.where(split, 4, 3) * _FLOAT32 * self.logits

    @property
    def update(self) -> MemoryParts:
        return self.moment(self.parameters, np.zeros(1))


def _stage(cases: Cases, first: bool) -> NativeStage:
    alone, v = cases.pp == 1, schedules.among(cases.schedule, schedules.V_SHAPED)
    has_head = alone | v if first else ~v | alone
    has_embedding = np.ones(len(cases), bool) if first else alone
    here = np.ceil(cases.layers / cases.pp) if first else np.maximum(np.floor(cases.layers / cases.pp), 1.0)
    dense, routed = shapes.kinds_of(cases, here, first)
    one, norms, tokens = shapes.weights(cases), 2 * cases.width, cases.tokens
    layers, expert = here * one.shared + dense * one.dense + routed * one.routed, routed * one.expert
    embedding = np.where(has_embedding, one.table + cases.learned * cases.seq_len * cases.width / cases.tp, 0.0)
    head = np.where(has_head & ~((cases.tied > 0) & alone), one.table, 0.0)
    common = layers + embedding + head + np.where(has_head, cases.width, 0.0)
    gathers = sharded(cases) > 0
    shards = np.where(gathers, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(gathers, np.maximum(cases.dp_shard * cases.cp / cases.ep, 1.0), 1.0)
    mine = common / shards + expert / owners
    divided = np.where(~gathers & (cases.zero == 1), cases.dp_shard, 1.0)
    sent = cases.active + cases.shared_experts
    inner = (dense * cases.ffn / cases.tp + routed * sent * cases.expert_ffn) / here
    turned = np.where(cases.kv_rank > 0, cases.rope_dim, cases.head_dim)
    rotary = np.where(cases.learned > 0, 0.0, 2 * _FLOAT32 * cases.seq_len / cases.cp * turned)
    channels = cases.queries + 2 * cases.kv_heads * cases.head_dim + cases.values
    way = in_flight.native_in_flight(cases, first)
    layer, there = kept(cases, dense, routed), _on_device(cases)
    heaviest = kept(cases, np.where(routed > 0, 0.0, dense), routed)
    made = NativeStage(
        cases=cases,
        layer=layer._replace(again=heaviest.again, attention=heaviest.attention),
        layers=here,
        matrices=one.shared + np.where(routed > 0, one.routed + one.expert, one.dense) - norms,
        mean=(layers + expert) / here - norms,
        spread=np.where(cases.ep > 1, one.expert, 0.0),
        embedding=embedding,
        head=head,
        whole=common + expert,
        parameters=there * _FLOAT32 * mine,
        state=there * cases.state_bytes * mine / divided,
        way=way,
        late=in_flight.native_delayed_weight_gradients(cases, first),
        products=cases.width_bytes * tokens * (4 * cases.width + 2 * channels / cases.tp + (1 + cases.gated) * inner),
        ahead=np.where(has_head & schedules.among(cases.schedule, ("gpipe", "looped_bfs")), cases.accumulate - 1, 0.0),
        ends=way * rotary + np.where(has_head, 2 * cases.width_bytes * cases.between * cases.width, 0.0),
        making=cases.width_bytes * tokens * (_ON_THE_WAY * inner + np.where(cases.tp > 1, 2 * cases.width, 0.0)),
        largest=np.where(routed > 0, cases.experts / cases.ep * cases.expert_ffn, cases.ffn / cases.tp) * cases.width,
        logits=np.where(has_head, tokens * cases.vocab / np.where(cases.loss_parallel > 0, cases.tp, 1.0), 0.0),
        given=np.zeros(1),
    )
    return _of_pictures(made, one) if (cases.lead > 0).any() else made


def _on_device(cases: Cases) -> Column:
    """1 where weights, gradients and state are not on the host."""
    return np.where(cases.offload > 1, 0.0, 1.0)


def _of_pictures(made: NativeStage, one: Weights) -> NativeStage:
    """The same where a model of pictures is trained: it has one stage."""
    cases, value, there = made.cases, made.cases.width_bytes, _on_device(made.cases)
    of = native_vision_memory.mean(cases)
    some = np.where(cases.remat == 2, of.inputs, np.where(cases.remat == 1, of.products, of.whole))
    kept = (some + (cases.remat_every - 1) * of.whole) / cases.remat_every
    rows, weights = shapes.head_rows(cases), made.layers * (one.shared + one.dense)
    whole = weights + cases.lead + cases.tail + one.table
    mine = whole / np.where(sharded(cases) > 0, cases.dp_shard, 1.0)
    divided = np.where((sharded(cases) == 0) & (cases.zero == 1), cases.dp_shard, 1.0)
    copied = np.where((value < _FLOAT32) | (cases.modulated > 0), value * cases.microbatch * cases.entry, 0.0)
    through = np.where(cases.tp > 1, 4.0, 1.0)  # sums on their way, and the patches, while the forward pass lasts
    found = made._replace(
        layer=made.layer._replace(kept=kept),
        embedding=cases.lead,
        head=one.table + cases.tail,
        whole=whole,
        parameters=there * _FLOAT32 * mine,
        state=there * cases.state_bytes * mine / divided,
        mean=weights / made.layers,
        ends=value * ((1 + through) * cases.tokens * cases.width + rows * cases.width),
        logits=rows * cases.vocab,
        given=_FLOAT32 * cases.samples / cases.dp * cases.given + copied,
    )
    return _where(cases.lead > 0, _in_layer(found, native_vision_memory.last(cases)), made)


def _in_layer(stage: NativeStage, of: Pictured) -> NativeStage:
    """While this layer's backward pass lasts."""
    again = np.where(stage.cases.remat > 0, of.again, 0.0)
    layer = stage.layer._replace(again=again, attention=of.attention)
    return stage._replace(layer=layer, matrices=of.matrices, making=of.work + _last_matrix(stage))


def _where(chosen: npt.NDArray[np.bool_], its: NativeStage, other: NativeStage) -> NativeStage:
    """Column by column, `its` where it is chosen."""
    layer = KeptActivations(*(np.where(chosen, one, two) for one, two in zip(its.layer, other.layer, strict=True)))
    rest = (np.where(chosen, one, two) for one, two in zip(its[2:], other[2:], strict=True))
    return NativeStage(its.cases, layer, *rest)


def _at_bottom(stage: NativeStage) -> NativeStage:
    """The stage with the first layer's sizes in the place of the last one's, where those differ."""
    pictures = stage.cases.lead > 0
    return (
        _where(pictures, _in_layer(stage, native_vision_memory.first(stage.cases)), stage) if pictures.any() else stage
    )


def _last_matrix(stage: NativeStage) -> Column:
    """Bytes of the gradient of the matrix that a layer ends with, less its cast."""
    cases = stage.cases
    alone = np.where(cases.width_bytes < _FLOAT32, _FLOAT32 - cases.width_bytes, _FLOAT32)
    return stage.largest * np.where(sharded(cases) > 0, cases.width_bytes, alone)


def _casts(stage: NativeStage) -> tuple[Column, Column]:
    """Bytes of a layer's weights in the dtype of what they multiply, and of the head's, where they lie in float32."""
    cases = stage.cases
    casts = (cases.width_bytes < _FLOAT32) & (sharded(cases) == 0)
    head = np.where(stage.logits > 0, shapes.weights(cases).table, 0.0)
    return np.where(casts, stage.mean * cases.width_bytes, 0.0), np.where(casts, head * cases.width_bytes, 0.0)


def _whole(stage: NativeStage) -> list[MemoryParts]:
    """Where each rank has its weights in float32: a cast of them lives until the backward pass has used it."""
    cases, value = stage.cases, stage.cases.width_bytes
    stays = (cases.accumulate > 1) | (cases.ranks > cases.tp)  # gradients in buckets are always there
    before = np.where(stays, stage.parameters, 0.0)
    cast, cast_head = _casts(stage)
    later = np.where(cases.remat > 0, 0.0, cast)
    layers = stage.layers * stage.layer.kept
    head = np.where(stays, 0.0, _FLOAT32 * stage.head)
    return [
        stage.moment(before, layers + stage.ends, stage.loss, stage.layers * later + cast_head),
        stage.moment(before, layers, 0.0, stage.layers * later + stage.head * (value + _FLOAT32)),
        stage.moment(before + head, layers + _work(stage), 0.0, stage.layers * later + cast - later),
        stage.moment(stage.parameters, np.zeros(1), 0.0, np.where(stays, _FLOAT32 * stage.embedding, 0.0)),
        stage.update,
        *_only_of_pictures(
            stage,
            stage.moment(
                np.where(stays, stage.parameters, stage.parameters - _FLOAT32 * (stage.mean + stage.embedding)),
                stage.layer.kept + _work(_at_bottom(stage)),
                0.0,
                cast,
            ),
        ),
    ]


def _only_of_pictures(stage: NativeStage, moment: MemoryParts) -> list[MemoryParts]:
    """A moment that is the fullest of no decoder, whose logits are more."""
    pictures = stage.cases.lead > 0
    both = zip(moment, stage.update, strict=True)
    return [MemoryParts(*(np.where(pictures, its, other) for its, other in both))] if pictures.any() else []


def _work(stage: NativeStage) -> Column:
    """Of a layer's backward pass: what it makes again and on the way, with the gradient of a matrix before it is added
    up; or near its end, where weights are gathered, all its weights' gradients, and what attention has left there."""
    layer, value, gathers = stage.layer, stage.cases.width_bytes, sharded(stage.cases) > 0
    cast = np.where(value < _FLOAT32, value, 0.0)
    split = np.where(stage.cases.tp > 1, 4 * value * stage.cases.tokens * stage.cases.width, 0.0)
    near_end = stage.matrices * value + split + np.where(layer.again > 0, layer.attention, -layer.kept)
    one = np.where(gathers | (stage.cases.lead > 0), 0.0, stage.largest * (cast + _FLOAT32))
    return np.maximum(layer.again + np.maximum(stage.making, one), np.where(gathers, near_end, 0.0))


def _gathered(stage: NativeStage) -> list[MemoryParts]:
    """Under FSDP: a layer's weights are gathered in the compute dtype, the next one's ahead of it, and its gradients
    leave in float32 while the next layer is at work; the tables stay gathered for all of the backward pass, and their
    gradients until its end."""
    cases, value, low = stage.cases, stage.cases.width_bytes, _at_bottom(stage)
    stays = cases.accumulate > 1
    before = np.where(stays, stage.parameters, 0.0)
    all_stay = cases.zero < 3
    tables = stage.tables * value
    left = np.where(all_stay, stage.layers * stage.mean * value, 0.0)
    layers = stage.layers * stage.layer.kept
    part = stage.mean / stage.whole * stage.parameters
    done = np.where(stays, stage.parameters, stage.layers * part)
    float_tables = _FLOAT32 * stage.tables
    shares = stage.tables / stage.whole * stage.parameters

    def streamed(at: NativeStage, layers: float) -> Column:
        """Bytes of so many layers that are gathered."""
        return np.where(all_stay, 0.0, layers * at.matrices * value)

    def at_layer(at: NativeStage, below: Column, whole: Column) -> MemoryParts:
        """Backward in a layer that has so many below it. `whole`: bytes of layers that are gathered then."""
        above = np.where(stays, stage.parameters, np.maximum(stage.layers - 2 - below, 0.0) * part)
        activations = (below + 1) * stage.layer.kept + _work(at)
        still = left * (below + 1) / stage.layers
        # Where experts are spread they leave by themselves, and in another order than they lie: once more as large.
        leaving = part + _FLOAT32 * np.where(cases.ep > 1, 2 * stage.spread, at.matrices)
        return stage.moment(above, activations, 0.0, still + tables + stage.head * value + whole + leaving)

    return [
        stage.moment(before, layers + stage.ends, stage.loss, left + np.where(all_stay, tables, 0.0)),
        stage.moment(before, layers + stage.ends, value * stage.logits, left + np.where(all_stay, tables, 2 * tables)),
        at_layer(stage, np.maximum(stage.layers - 2, 0.0), streamed(stage, 2)),
        at_layer(low, np.clip(stage.layers - 2, 0.0, 1.0), streamed(low, 2)),
        at_layer(low, np.zeros(1), streamed(low, 1)),
        stage.moment(done, np.zeros(1), 0.0, 2 * tables + _FLOAT32 * low.matrices),
        stage.moment(done, np.zeros(1), 0.0, np.maximum(tables + float_tables, float_tables + shares)),
        stage.update,
        *_only_of_pictures(
            stage,
            stage.moment(before, layers + _work(stage), 0.0, left + tables + stage.head * value + streamed(stage, 2)),
        ),
    ]


def _piped(stage: NativeStage) -> list[MemoryParts]:
    """In a pipeline: what is handed on has room for every micro-batch from the beginning; under FSDP a stage is
    gathered once, and its gradients are whole and in float32 until the last micro-batch."""
    cases, value, rounds = stage.cases, stage.cases.width_bytes, stage.cases.interleave
    gathers = sharded(cases) > 0
    own = np.where(gathers, stage.whole * value * np.minimum(_AT_ONCE / rounds, 1.0), 0.0)
    through = (rounds > 1) & (cases.accumulate == cases.pp)  # one stage after the other, and its gradients with it
    gradients = np.where(gathers, _FLOAT32 * stage.whole / np.where(through, rounds, 1.0), stage.parameters)
    cast, cast_head = _casts(stage)
    later = np.where(cases.remat > 0, 0.0, cast)
    one = stage.layers * stage.layer.kept
    casts = stage.way * stage.layers * later
    handed = cases.accumulate * value * cases.between * cases.width * (2 * rounds - 1)
    always = stage.ends + handed
    steady, begun = cases.accumulate > stage.way, np.where(cases.accumulate > 1, gradients, 0.0)
    looped = schedules.among(cases.schedule, ("looped_bfs",))  # one stage after the other, of all micro-batches
    begun = np.where(looped, begun / rounds, begun)
    others = np.maximum(stage.way - 1 / rounds, 0.0)
    more = np.where(steady, stage.way, others)
    one_late = stage.layers * stage.products + np.where(stage.logits > 0, cast_head, 0.0)
    work = _work(stage) + stage.late * one_late
    losses = stage.ahead * (stage.logits * (value + _FLOAT32) + cast_head + value * cases.between * cases.width)
    made = own + cast - later + stage.head * value
    embedding = stage.embedding * np.where(gathers, value, _FLOAT32)
    left = np.where(looped, others / rounds, others)
    at_loss = stage.way * one + always + np.maximum(stage.late - 1 / rounds, 0.0) * one_late
    return [
        stage.moment(
            np.where((stage.logits > 0) & (stage.ahead == 0), begun, 0.0),
            at_loss,
            losses + stage.loss + value * stage.logits,
            own + casts + cast_head,
        ),
        stage.moment(np.where(steady, gradients, 0.0), stage.way * one + work + always, 0.0, made + casts),
        stage.moment(begun, more * one + work + always, 0.0, made + more * stage.layers * later),
        stage.moment(gradients, left * one + always, 0.0, own + left * stage.layers * later + embedding),
        stage.update,
    ]
