"""How many bytes a rank of our own runner holds at the moments when it may hold most, as columns.

Which those are, and what is there at each, was read off fake runs of the training code (`train/fake.py`), against which
this is tested: the loss, the gathering of the tables, the backward pass of a layer, the end of it, and the update.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict import shapes
from trainyard.predict.cases import Cases, Column

_FLOAT32 = 4.0
_ON_THE_WAY = 3.0
"""Tensors of the MLP's inner width that a layer's backward pass makes beside what was kept."""

_AT_ONCE = 3.0
"""Of a rank's stages as many are gathered at a time (torch.distributed.pipelining's `max_active_stages`)."""


class Moment(NamedTuple):
    """Bytes by part, as in `memory.Memory`. `gathered`: whole weights, and gradients that are leaving."""

    parameters: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    gathered: Column

    @property
    def total(self) -> Column:
        return sum(self, np.zeros(1))


class Kept(NamedTuple):
    """Bytes of one layer and micro-batch. `kept`: for the backward pass, with recomputation as it is; `again`: that
    are made again in it; `attention`: what of a whole layer is attention's."""

    kept: Column
    again: Column
    attention: Column


def peak(cases: Cases, first: bool) -> Moment:
    """The fullest moment of the first stage or of the last."""
    count = len(cases)
    gathers, piped = (np.broadcast_to(one, count) for one in (sharded(cases) > 0, cases.pp > 1))
    found = Moment(*np.zeros((len(Moment._fields), count)))
    for some, moments in ((piped, _piped), (gathers & ~piped, _gathered), (~gathers & ~piped, _whole)):
        if some.any():
            for part, values in zip(found, _fullest(moments(_stage(cases.take(some), first))), strict=True):
                part[some] = values
    return found


def _fullest(moments: list[Moment]) -> Moment:
    most = moments[0]
    for other in moments[1:]:
        more = other.total > most.total
        most = Moment(*(np.where(more, its, mine) for its, mine in zip(other, most, strict=True)))
    return most


def sharded(cases: Cases) -> Column:
    """Whether weights are gathered from where they lie: by FSDP, which replicates beside other axes too."""
    replicated = (cases.dp == cases.ranks) & (cases.ep == 1) & ((cases.dp_shard == 1) | (cases.zero == 1))
    return np.where((cases.dp * cases.cp > 1) & ~replicated, 1.0, 0.0)


def kept(cases: Cases, dense: Column, routed: Column) -> Kept:
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
    return Kept((some + (cases.remat_every - 1) * whole) / cases.remat_every, again, attention)


class Stage(NamedTuple):
    """What all moments of a stage are made of.

    Numbers of weights are of this rank before data parallelism divides them: `matrices` of a layer, with experts if any
    has, and of the `mean` layer; `spread`, those of the former that are experts divided over ep; `embedding` and
    `head`, where they have weights here; `whole`: all of them. `largest`: of one matrix. `parameters`: bytes of their
    float32 selves as they lie, as many as of their gradients; `state`: of the optimizer's.

    `layers`: how many; `way`: micro-batches kept at once, in whole stages. `ends`: bytes of the rotary table, and of
    what is kept around the head. `making`: that a layer's backward pass takes beside what was kept. `logits`: their
    number.
    """

    cases: Cases
    layer: Kept
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
    ends: Column
    making: Column
    largest: Column
    logits: Column

    @property
    def tables(self) -> Column:
        return self.embedding + self.head

    def moment(
        self, gradients: Column, activations: Column, logits: Column | float = 0.0, gathered: Column | float = 0.0
    ) -> Moment:
        parts = (self.parameters, gradients, self.state, activations, logits, gathered)
        return Moment(*(np.broadcast_to(part, len(self.cases)) for part in parts))

    @property
    def loss(self) -> Column:
        """Bytes of the loss and its gradient: in float32, once more where the vocabulary is divided."""
        split = (self.cases.tp > 1) & (self.cases.loss_parallel > 0)
        return np.where(split, 4, 3) * _FLOAT32 * self.logits

    @property
    def update(self) -> Moment:
        return self.moment(self.parameters, np.zeros(1))


def _stage(cases: Cases, first: bool) -> Stage:
    alone = cases.pp == 1
    has_head = alone if first else np.ones(len(cases), bool)
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
    way = _on_their_way(cases, first)
    layer = kept(cases, dense, routed)
    fullest = kept(cases, np.where(routed > 0, 0.0, dense), routed)
    return Stage(
        cases=cases, layer=layer._replace(again=fullest.again, attention=fullest.attention), layers=here,
        matrices=one.shared + np.where(routed > 0, one.routed + one.expert, one.dense) - norms,
        mean=(layers + expert) / here - norms, spread=np.where(cases.ep > 1, one.expert, 0.0),
        embedding=embedding, head=head, whole=common + expert, parameters=_FLOAT32 * mine,
        state=cases.state_bytes * mine / divided, way=way,
        ends=way * rotary + np.where(has_head, 2 * cases.width_bytes * cases.between * cases.width, 0.0),
        making=cases.width_bytes * tokens * (_ON_THE_WAY * inner + np.where(cases.tp > 1, 2 * cases.width, 0.0)),
        largest=np.where(routed > 0, cases.experts / cases.ep * cases.expert_ffn, cases.ffn / cases.tp) * cases.width,
        logits=np.where(has_head, tokens * cases.vocab / np.where(cases.loss_parallel > 0, cases.tp, 1.0), 0.0),
    )  # fmt: skip


def _casts(stage: Stage) -> tuple[Column, Column]:
    """Bytes of a layer's weights in the dtype of what they multiply, and of the head's, where they lie in float32."""
    cases = stage.cases
    casts = (cases.width_bytes < _FLOAT32) & (sharded(cases) == 0)
    head = np.where(stage.logits > 0, shapes.weights(cases).table, 0.0)
    return np.where(casts, stage.mean * cases.width_bytes, 0.0), np.where(casts, head * cases.width_bytes, 0.0)


def _whole(stage: Stage) -> list[Moment]:
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
    ]  # fmt: skip


def _work(stage: Stage) -> Column:
    """Of a layer's backward pass: what it makes again and on the way, with the gradient of a matrix before it is added
    up; or near its end, where weights are gathered, all its weights' gradients, and what attention has left there."""
    layer, value, gathers = stage.layer, stage.cases.width_bytes, sharded(stage.cases) > 0
    cast = np.where(value < _FLOAT32, value, 0.0)
    split = np.where(stage.cases.tp > 1, 4 * value * stage.cases.tokens * stage.cases.width, 0.0)
    near_end = stage.matrices * value + split + np.where(layer.again > 0, layer.attention, -layer.kept)
    one = np.where(gathers, 0.0, stage.largest * (cast + _FLOAT32))
    return np.maximum(layer.again + np.maximum(stage.making, one), np.where(gathers, near_end, 0.0))


def _gathered(stage: Stage) -> list[Moment]:
    """Under FSDP: a layer's weights are gathered in the compute dtype, the next one's ahead of it, and its gradients
    leave in float32 while the next layer is at work; the tables stay gathered for all of the backward pass, and their
    gradients until its end."""
    cases, value = stage.cases, stage.cases.width_bytes
    stays = cases.accumulate > 1
    before = np.where(stays, stage.parameters, 0.0)
    all_stay = cases.zero < 3
    tables, layer = stage.tables * value, stage.matrices * value
    left = np.where(all_stay, stage.layers * stage.mean * value, 0.0)
    layers = stage.layers * stage.layer.kept
    streamed = np.where(all_stay, 0.0, 2 * layer)
    part = stage.mean / stage.whole * stage.parameters
    # Where experts are spread they leave by themselves, and in another order than they lie: once more as large.
    leaving = part + _FLOAT32 * np.where(cases.ep > 1, 2 * stage.spread, stage.matrices)
    done = np.where(stays, stage.parameters, stage.layers * part)
    float_tables = _FLOAT32 * stage.tables
    shares = stage.tables / stage.whole * stage.parameters

    def at_layer(below: Column, streamed: Column) -> Moment:
        """Backward in a layer that has so many below it."""
        done = np.where(stays, stage.parameters, np.maximum(stage.layers - 2 - below, 0.0) * part)
        activations = (below + 1) * stage.layer.kept + _work(stage)
        still = left * (below + 1) / stage.layers
        return stage.moment(done, activations, 0.0, still + tables + stage.head * value + streamed + leaving)

    return [
        stage.moment(before, layers + stage.ends, stage.loss, left + np.where(all_stay, tables, 0.0)),
        stage.moment(before, layers + stage.ends, value * stage.logits, left + np.where(all_stay, tables, 2 * tables)),
        at_layer(np.maximum(stage.layers - 2, 0.0), streamed),
        at_layer(np.minimum(stage.layers - 1, 1.0), streamed),
        at_layer(np.zeros(1), streamed / 2),
        stage.moment(done, np.zeros(1), 0.0, 2 * tables + _FLOAT32 * stage.matrices),
        stage.moment(done, np.zeros(1), 0.0, np.maximum(tables + float_tables, float_tables + shares)),
        stage.update,
    ]  # fmt: skip


def _piped(stage: Stage) -> list[Moment]:
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
    others = np.maximum(stage.way - 1 / rounds, 0.0)
    more = np.where(steady, stage.way, others)
    work = _work(stage)
    made = own + cast - later + stage.head * value
    embedding = stage.embedding * np.where(gathers, value, _FLOAT32)
    return [
        stage.moment(
            np.where(stage.logits > 0, begun, 0.0), stage.way * one + always, stage.loss + value * stage.logits,
            own + casts + cast_head
        ),
        stage.moment(np.where(steady, gradients, 0.0), stage.way * one + work + always, 0.0, made + casts),
        stage.moment(begun, more * one + work + always, 0.0, made + more * stage.layers * later),
        stage.moment(gradients, others * one + always, 0.0, own + others * stage.layers * later + embedding),
        stage.update,
    ]  # fmt: skip


def _on_their_way(cases: Cases, first: bool) -> Column:
    """Micro-batches that are kept at once, in whole stages: under 1F1B as many as there are stages from here on."""
    depth = cases.pp - 1 if first else np.zeros(1)
    chunks = np.where(
        cases.interleave > 1, (2 * depth + (cases.interleave - 1) * cases.pp + 1) / cases.interleave, depth + 1
    )
    return np.where(cases.pp > 1, np.minimum(chunks, cases.accumulate), 1.0)
