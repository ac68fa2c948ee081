"""Times of a layer and of the head on one rank, as columns of seconds by account and phase."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time, shapes, state_space
from trainyard.predict.time.shapes import Product

_KERNELS = {"forward": 8.0, "backward": 12.0}
"""Kernels of a layer in addition to its matrix products and attention."""
_FUSED_SOFTMAX = 4.0
"""Score matrices per block of Megatron's fused softmax, which only takes multiples of it."""
_MODULATION_WIDTHS = 6.0
"""Additional values, in units of `width`, that a modulated layer (adaLN) moves per token: two norms are scaled and
shifted (two each), and two gates are read next to their operands."""
_PERMUTED_WIDTHS = 3.0
"""Values, in units of `width`, moved per routed token to permute it to its expert and back."""


class Phase(NamedTuple):
    """Seconds of one layer in one phase of a micro-batch. `parallel`, `context`, `dispatch`: communication of tensor,
    context and expert parallelism; `host`: time of the host to launch the kernels while the device works; `launch`: the
    same if the device is the host's own cores, which do nothing else meanwhile."""

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
        """Seconds that the device waits for the host."""
        return np.maximum(self.host - self.device, 0.0) + self.launch

    @property
    def seconds(self) -> Column:
        return np.maximum(self.host, self.device) + self.launch

    def times(self, factor: Column | float) -> Phase:
        return Phase(*(value * factor for value in self))

    def plus(self, other: Phase) -> Phase:
        return Phase(*(mine + its for mine, its in zip(self, other, strict=True)))


def product(
    hardware: RankHardware, tuned: Constants, matmul: Product, low: Column | None = None, share: float = 1.0
) -> Column:
    """Seconds of a matrix product: the longer of arithmetic and memory traffic. `low`: 1 if it runs below 16 bits.
    `share`: fraction of the usual rate."""
    rows, columns, depth = (np.maximum(size, 1e-9) for size in matmul[:3])
    if low is None:
        rate = hardware.peak * tuned.matmul
    else:
        rate = np.where(low > 0, hardware.low_peak * tuned.low_matmul, hardware.peak * tuned.matmul)
    reached = rate * share / ((1 + tuned.rows / rows) * (1 + tuned.columns / columns) * (1 + tuned.depth / depth))
    moved = 2 * (rows * columns + columns * depth + rows * depth) * matmul.count
    seconds = np.maximum(matmul.flops / reached, moved / (hardware.bandwidth * tuned.bandwidth)) + tuned.kernel_s
    return np.where(matmul.flops > 0, seconds, 0.0)


def products(
    hardware: RankHardware, tuned: Constants, matmuls: list[Product], low: Column, trained: Column, share: float = 1.0
) -> tuple[Column, Column]:
    """Seconds of several products, forward and backward."""
    back = [part for matmul in matmuls for part in matmul.backward(trained)]
    forward, backward = (
        sum((product(hardware, tuned, matmul, low, share) for matmul in direction), np.zeros(1))
        for direction in (matmuls, back)
    )
    return forward, backward


def attention(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    """Seconds of the attention kernel, forward and backward; half of the scores are masked if attention is causal."""
    heads = cases.heads / cases.tp
    pairs = cases.micro_batch_size * cases.seq_len * cases.seq_len / cases.cp
    flops = 2 * pairs * (cases.queries + cases.values) / cases.tp
    fused = flops * np.where(cases.whole > 0, 1.0, 0.5) / (hardware.peak * tuned.attention) + tuned.kernel_s
    written = pairs * heads * cases.width_bytes * tuned.scores / (hardware.bandwidth * tuned.bandwidth)
    unfused = written + flops / (hardware.peak * tuned.matmul) + 4 * tuned.kernel_s
    forward = np.where(cases.flash > 0, fused, unfused)
    return forward, np.where(cases.flash > 0, fused * tuned.attention_backward, 2 * unfused)


def _elementwise(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    inner = (2 + cases.gated) * cases.tokens / cases.tp
    routed = np.where(
        cases.experts > 0,
        cases.active * cases.moe_ffn_hidden_size + cases.shared_experts * cases.moe_ffn_hidden_size,
        0.0,
    )
    dense, kinds = shapes.layer_kinds(cases)
    ffn = (dense * cases.ffn + kinds * routed) / cases.layers
    share = shapes.parts(cases) / 2
    passes = share * tuned.passes + np.where(cases.modulated > 0, _MODULATION_WIDTHS, 0.0)
    values = passes * cases.between * cases.width + inner * ffn
    moved = values * cases.width_bytes / (hardware.bandwidth * tuned.bandwidth)
    return (
        moved + share * _KERNELS["forward"] * tuned.kernel_s,
        moved * tuned.passes_backward + share * _KERNELS["backward"] * tuned.kernel_s,
    )


def _tensor(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds of tensor parallelism in one direction: an all-reduce for each part of a layer, or with sequence
    parallelism a reduce-scatter and an all-gather, which take as long."""
    size = cases.tokens * cases.width * cases.width_bytes
    return shapes.parts(cases) * collective_time.reduce(hardware, tuned, collective_time.tensor(cases, hardware), size)


def _context(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds to all-gather keys and values over the ranks of cp."""
    channels = np.where(cases.kv_lora_rank > 0, cases.queries + cases.values, 2 * cases.kv_heads * cases.head_dim)
    size = cases.micro_batch_size * cases.seq_len * channels / cases.tp * cases.width_bytes
    return collective_time.gather(hardware, tuned, collective_time.context(cases, hardware), size)


def _dispatch(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds to dispatch tokens to their experts and to combine the results. trainyard's own trainer sends one copy
    per expert."""
    members, token_bytes = collective_time.experts(cases, hardware), shapes.expert_width(cases) * cases.width_bytes
    sent = shapes.routed_tokens(cases) * token_bytes
    deduplicated = collective_time.dispatch(
        hardware, tuned, members, sent / np.maximum(cases.active, 1.0), cases.active
    )
    return 2 * np.where(cases.own > 0, collective_time.exchange(hardware, tuned, members, sent), deduplicated)


def layer(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Phase, Phase]:
    """The mean layer of a model, forward and backward: kinds of layers weighted by their numbers."""
    dense, routed = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    attended, spaced = shapes.mixers(cases)
    low, trained = cases.low_precision, shapes.all_trained(cases)
    projections = products(hardware, tuned, shapes.attention_products(cases), low, trained)
    if (cases.adapters > 0).any():
        adapters = products(hardware, tuned, shapes.adapter_products(cases), np.zeros(1), np.ones(1))
        projections = projections[0] + adapters[0], projections[1] + adapters[1]
    mlp = products(hardware, tuned, shapes.dense_products(cases), low, trained)
    slower = np.where(trained > 0, 1.0, tuned.adapted)
    scores, exposed = attention(cases, hardware, tuned), attended * _context(cases, hardware, tuned)
    elementwise, parallel = _elementwise(cases, hardware, tuned), _tensor(cases, hardware, tuned)
    matmul = [slower * (attended * projections[direction] + dense * mlp[direction]) for direction in (0, 1)]
    if (cases.modulated > 0).any():
        modulation = products(hardware, tuned, [shapes.modulation_product(cases)], low, trained)
        matmul = [matmul[direction] + modulation[direction] for direction in (0, 1)]
    scan, route = (np.zeros(1), np.zeros(1)), np.zeros(1)
    dispatch = route
    if (spaced > 0).any():
        inside = products(hardware, tuned, shapes.space_products(cases), low, trained)
        matmul = [matmul[direction] + slower * spaced * inside[direction] for direction in (0, 1)]
        scan = state_space.scan(cases, hardware, tuned)
        exposed = exposed + spaced * state_space.exchanged(cases, hardware, tuned)
    if (cases.experts > 0).any():
        grouped, shared = shapes.expert_products(cases)
        experts = products(hardware, tuned, grouped, low, trained, tuned.grouped / tuned.imbalance)
        shared_time = products(hardware, tuned, shared, low, trained)
        matmul = [
            matmul[direction] + slower * routed * (experts[direction] + shared_time[direction]) for direction in (0, 1)
        ]
        sent = shapes.routed_tokens(cases) * shapes.expert_width(cases) * cases.width_bytes
        route = routed * (2 * _PERMUTED_WIDTHS * sent / (hardware.bandwidth * tuned.bandwidth) + 10 * tuned.kernel_s)
        dispatch = routed * _dispatch(cases, hardware, tuned)
    host, share = _host(cases, hardware, tuned) + routed * tuned.host_forward_s, shapes.parts(cases) / 2
    phases = [
        Phase(
            matmul[direction],
            attended * scores[direction],
            elementwise[direction],
            route,
            spaced * scan[direction],
            parallel,
            exposed,
            dispatch,
            host=(1 - hardware.host) * (host + share * host_s),
            launch=hardware.host * (host + share * host_s),
        )
        for direction, host_s in ((0, tuned.host_forward_s), (1, tuned.host_backward_s))
    ]
    return phases[0], phases[1]


def _host(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Additional host seconds for a layer's collectives, in each direction. On CPU devices, which launch their own
    work, the wrappers dominate: distributed tensors and the hooks that gather weights."""
    split, spread = np.where(cases.tp > 1, shapes.parts(cases), 0.0), np.where(cases.ep > 1, 2.0, 0.0)
    gathers = np.where((cases.divided > 0) & (cases.zero >= 2), 0.5, 0.0)
    others = np.where(hardware.host > 0, gathers, np.where(cases.cp > 1, 1.0, 0.0))
    odd = (cases.flash == 0) & (np.mod(cases.heads / cases.tp * cases.micro_batch_size, _FUSED_SOFTMAX) != 0)
    return (split + spread + others) * tuned.host_collective_s + odd * tuned.host_plain_s


def recomputed(cases: Cases, forward: Phase) -> Phase:
    """Recomputation of the forward pass: all of it ("full"), or the part that is cheap to compute and large to keep
    ("selective"): all but attention and most products, or attention alone if it writes its scores (Korthikanti et al.
    2022, section 5)."""
    none, flash = np.zeros(1), cases.flash > 0
    selective = Phase(
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
    full, part = cases.activation_checkpoint == 2, cases.activation_checkpoint == 1
    share = 1 / cases.activation_checkpoint_every
    return forward.times(np.where(full, share, 0.0)).plus(selective.times(np.where(part, share, 0.0)))


def head(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column, Column]:
    """Seconds of a micro-batch's head and input projections: products forward, products backward, and the loss with its
    gradient."""
    logit_product, entry = shapes.head_product(cases), shapes.entry_product(cases)
    logits = logit_product.rows * logit_product.columns
    loss = logits * tuned.logits / (hardware.bandwidth * tuned.bandwidth) + 8 * tuned.kernel_s
    back = sum(
        (product(hardware, tuned, part) for part in logit_product.backward(shapes.all_trained(cases))), np.zeros(1)
    )
    ahead = product(hardware, tuned, logit_product)
    if (cases.entry > 0).any():
        ahead, back = ahead + product(hardware, tuned, entry), back + product(hardware, tuned, entry.backward()[1])
    return ahead, back, loss
