"""What a layer, the head and the optimizer take on one rank, as columns of seconds by account and phase."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time, shapes, state_space
from trainyard.predict.time.shapes import Product

_KERNELS = {"forward": 8.0, "backward": 12.0}
"""Kernels of a layer beside its products and attention."""
_FUSED_SOFTMAX = 4.0
"""Scores' matrices that one block of Megatron's fused softmax takes: more of them must be a multiple."""
_TOLD = 6.0
"""Widths more that a layer moves a token where each sample has scales, shifts and gates of its own: two norms are
scaled and shifted (two each), two gates are read beside what they gate."""
_TIMES = 3.0
"""Widths of every routed token moved to its expert and back."""


class Phase(NamedTuple):
    """Seconds of one layer in one phase of a micro-batch. `parallel`: what tensor and context parallelism exchange;
    `dispatch`: what expert parallelism does; `host`: what the host takes to start it all while the device works, and
    `launch` where the device is the host's own cores, and waits."""

    matmul: Column
    attention: Column
    elementwise: Column
    route: Column
    scan: Column
    parallel: Column
    context: Column
    dispatch: Column
    host: Column
    launch: Column

    @property
    def compute(self) -> Column:
        return self.matmul + self.attention + self.elementwise + self.route + self.scan

    @property
    def device(self) -> Column:
        return self.compute + self.parallel + self.context + self.dispatch

    @property
    def gap(self) -> Column:
        """How long the device waits for the host."""
        return np.maximum(self.host - self.device, 0.0) + self.launch

    @property
    def seconds(self) -> Column:
        return np.maximum(self.host, self.device) + self.launch

    def times(self, factor: Column | float) -> Phase:
        return Phase(*(value * factor for value in self))

    def plus(self, other: Phase) -> Phase:
        return Phase(*(mine + its for mine, its in zip(self, other, strict=True)))


def product(
    hardware: RankHardware, tuned: Constants, one: Product, low: Column | None = None, share: float = 1.0
) -> Column:
    """Seconds of a matrix product: arithmetic or memory, whichever takes longer. `low`: 1 where it runs in few bits."""
    rows, columns, depth = (np.maximum(size, 1e-9) for size in one[:3])
    if low is None:
        rate = hardware.peak * tuned.matmul
    else:
        rate = np.where(low > 0, hardware.low_peak * tuned.low_matmul, hardware.peak * tuned.matmul)
    reached = rate * share / ((1 + tuned.rows / rows) * (1 + tuned.columns / columns) * (1 + tuned.depth / depth))
    moved = 2 * (rows * columns + columns * depth + rows * depth) * one.count
    seconds = np.maximum(one.flops / reached, moved / (hardware.bandwidth * tuned.bandwidth)) + tuned.kernel_s
    return np.where(one.flops > 0, seconds, 0.0)


def products(
    hardware: RankHardware, tuned: Constants, many: list[Product], low: Column, trained: Column, share: float = 1.0
) -> tuple[Column, Column]:
    """Seconds forward, and backward."""
    back = [part for one in many for part in one.backward(trained)]
    forward, backward = (
        sum((product(hardware, tuned, one, low, share) for one in way), np.zeros(1)) for way in (many, back)
    )
    return forward, backward


def attention(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    """Seconds of attention itself, forward and backward, with half of the scores masked unless it sees all."""
    heads = cases.heads / cases.tp
    pairs = cases.microbatch * cases.seq_len * cases.seq_len / cases.cp
    flops = 2 * pairs * (cases.queries + cases.values) / cases.tp
    fused = flops * np.where(cases.whole > 0, 1.0, 0.5) / (hardware.peak * tuned.attention) + tuned.kernel_s
    written = pairs * heads * cases.width_bytes * tuned.scores / (hardware.bandwidth * tuned.bandwidth)
    plain = written + flops / (hardware.peak * tuned.matmul) + 4 * tuned.kernel_s
    forward = np.where(cases.flash > 0, fused, plain)
    return forward, np.where(cases.flash > 0, fused * tuned.attention_backward, 2 * plain)


def _elementwise(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    inner = (2 + cases.gated) * cases.tokens / cases.tp
    routed = np.where(cases.experts > 0, cases.active * cases.expert_ffn + cases.shared_experts * cases.expert_ffn, 0.0)
    dense, kinds = shapes.layer_kinds(cases)
    ffn = (dense * cases.ffn + kinds * routed) / cases.layers
    share = shapes.parts(cases) / 2
    passes = share * tuned.passes + np.where(cases.modulated > 0, _TOLD, 0.0)
    values = passes * cases.between * cases.width + inner * ffn
    moved = values * cases.width_bytes / (hardware.bandwidth * tuned.bandwidth)
    return (
        moved + share * _KERNELS["forward"] * tuned.kernel_s,
        moved * tuned.passes_backward + share * _KERNELS["backward"] * tuned.kernel_s,
    )


def _tensor(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """A sum over the ranks of tp for each part of a layer and direction, whole or in halves (sequence parallelism)."""
    size = cases.tokens * cases.width * cases.width_bytes
    return shapes.parts(cases) * collective_time.reduce(hardware, tuned, collective_time.tensor(cases, hardware), size)


def _context(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Keys and values of the other ranks."""
    channels = np.where(cases.kv_rank > 0, cases.queries + cases.values, 2 * cases.kv_heads * cases.head_dim)
    size = cases.microbatch * cases.seq_len * channels / cases.tp * cases.width_bytes
    return collective_time.gather(hardware, tuned, collective_time.context(cases, hardware), size)


def _dispatch(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Tokens to their experts, and what came of them back; our own runner sends one copy an expert."""
    who, each = collective_time.experts(cases, hardware), shapes.expert_width(cases) * cases.width_bytes
    sent = shapes.routed_tokens(cases) * each
    once = collective_time.dispatch(hardware, tuned, who, sent / np.maximum(cases.active, 1.0), cases.active)
    return 2 * np.where(cases.own > 0, collective_time.exchange(hardware, tuned, who, sent), once)


def layer(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Phase, Phase]:
    """The mean layer of a model, forward and backward: kinds of layers by their numbers."""
    dense, routed = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    attended, spaced = shapes.mixers(cases)
    low, trained = cases.low_precision, shapes.all_trained(cases)
    around = products(hardware, tuned, shapes.attention_products(cases), low, trained)
    if (cases.adapters > 0).any():
        beside = products(hardware, tuned, shapes.adapter_products(cases), np.zeros(1), np.ones(1))
        around = around[0] + beside[0], around[1] + beside[1]
    mlp = products(hardware, tuned, shapes.dense_products(cases), low, trained)
    slower = np.where(trained > 0, 1.0, tuned.adapted)
    scores, exposed = attention(cases, hardware, tuned), attended * _context(cases, hardware, tuned)
    between, parallel = _elementwise(cases, hardware, tuned), _tensor(cases, hardware, tuned)
    matmul = [slower * (attended * around[way] + dense * mlp[way]) for way in (0, 1)]
    if (cases.modulated > 0).any():
        told = products(hardware, tuned, [shapes.modulation_product(cases)], low, trained)
        matmul = [matmul[way] + told[way] for way in (0, 1)]
    scan, route = (np.zeros(1), np.zeros(1)), np.zeros(1)
    dispatch = route
    if (spaced > 0).any():
        inside = products(hardware, tuned, shapes.space_products(cases), low, trained)
        matmul = [matmul[way] + slower * spaced * inside[way] for way in (0, 1)]
        scan = state_space.scan(cases, hardware, tuned)
        exposed = exposed + spaced * state_space.exchanged(cases, hardware, tuned)
    if (cases.experts > 0).any():
        grouped, shared = shapes.expert_products(cases)
        experts = products(hardware, tuned, grouped, low, trained, tuned.grouped / tuned.imbalance)
        every = products(hardware, tuned, shared, low, trained)
        matmul = [matmul[way] + slower * routed * (experts[way] + every[way]) for way in (0, 1)]
        sent = shapes.routed_tokens(cases) * shapes.expert_width(cases) * cases.width_bytes
        route = routed * (2 * _TIMES * sent / (hardware.bandwidth * tuned.bandwidth) + 10 * tuned.kernel_s)
        dispatch = routed * _dispatch(cases, hardware, tuned)
    host, share = _host(cases, hardware, tuned) + routed * tuned.host_forward_s, shapes.parts(cases) / 2
    both = [
        Phase(
            matmul[way],
            attended * scores[way],
            between[way],
            route,
            spaced * scan[way],
            parallel,
            exposed,
            dispatch,
            host=(1 - hardware.host) * (host + share * own),
            launch=hardware.host * (host + share * own),
        )
        for way, own in ((0, tuned.host_forward_s), (1, tuned.host_backward_s))
    ]
    return both[0], both[1]


def _host(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds more that the host takes for a layer's collectives, in each direction; on cores that launch their own
    work it is what wraps them that counts: distributed tensors and the hooks that gather weights."""
    split, spread = np.where(cases.tp > 1, shapes.parts(cases), 0.0), np.where(cases.ep > 1, 2.0, 0.0)
    gathers = np.where((cases.divided > 0) & (cases.zero >= 2), 0.5, 0.0)
    others = np.where(hardware.host > 0, gathers, np.where(cases.cp > 1, 1.0, 0.0))
    odd = (cases.flash == 0) & (np.mod(cases.heads / cases.tp * cases.microbatch, _FUSED_SOFTMAX) != 0)
    return (split + spread + others) * tuned.host_collective_s + odd * tuned.host_plain_s


def recomputed(cases: Cases, forward: Phase) -> Phase:
    """What of the forward pass is done again: all of it, or the part that is cheap to do and large to keep: all but
    attention and most products, or where attention writes its scores, attention alone (Korthikanti et al. 2022,
    section 5)."""
    none, flash = np.zeros(1), cases.flash > 0
    some = Phase(
        matmul=np.where(flash, forward.matmul * cases.remade, 0.0),
        attention=np.where(flash, 0.0, forward.attention),
        elementwise=np.where(flash, forward.elementwise, 0.0),
        route=np.where(flash, forward.route, 0.0),
        scan=none,
        parallel=none,
        context=none,
        dispatch=none,
        host=forward.host / 2,
        launch=forward.launch / 2,
    )
    full, part = cases.remat == 2, cases.remat == 1
    share = 1 / cases.remat_every
    return forward.times(np.where(full, share, 0.0)).plus(some.times(np.where(part, share, 0.0)))


def head(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column, Column]:
    """Seconds of a micro-batch's head, and of what makes its data as wide as the model: the product forward, backward,
    and the loss with its gradient."""
    one, entry = shapes.head_product(cases), shapes.entry_product(cases)
    logits = one.rows * one.columns
    loss = logits * tuned.logits / (hardware.bandwidth * tuned.bandwidth) + 8 * tuned.kernel_s
    back = sum((product(hardware, tuned, part) for part in one.backward(shapes.all_trained(cases))), np.zeros(1))
    ahead = product(hardware, tuned, one)
    if (cases.entry > 0).any():
        ahead, back = ahead + product(hardware, tuned, entry), back + product(hardware, tuned, entry.backward()[1])
    return ahead, back, loss
