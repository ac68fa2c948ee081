"""Times of a layer and of the head on one rank, as columns of seconds by account and phase.

An account is a category of time, such as matrix products; a column has a value per case (layout), of shape [case].
`hardware` has the peaks and bandwidths of a rank, `tuned` the attainable shares of them. Products are those of one
micro-batch in one layer on one rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.fine_tuning import NF4_BYTES
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time, expert_routing, shapes, state_space
from trainyard.predict.time.shapes import Product

_KERNELS_PER_LAYER = {"forward": 8.0, "backward": 12.0}
"""Kernels of a layer in addition to its matrix products and attention."""
_FUSED_SOFTMAX = 4.0
"""Score matrices per block of Megatron's fused softmax, which only takes multiples of it."""
_MODULATION_WIDTHS = 6.0
"""Additional values, in units of `width`, that a modulated layer (adaLN) moves per token: two norms are scaled and
shifted (two each), and two gates are read next to their operands."""
_VALUE_BYTES = 2
"""Operands and results of products are in 16 bits."""
_LEAST_SIZE = 1e-9
"""Dimension of an empty product, to avoid a division by 0."""
_UNFUSED_KERNELS, _ROUTING_KERNELS, _LOSS_KERNELS = 4, 10, 8
"""Kernels of unfused attention, of routing tokens to experts and back, and of the loss with its gradient."""
CAUSAL_SHARE = 0.5
"""Share of the scores that attention computes with a causal mask."""
_REFERENCE_HEAD_CHANNELS = 128
"""Channels of a head with which attention attains the share `Constants.attention`."""
_SPLIT_ATTENTION_MATRICES = 4.0
"""Matrices of attention that are quantised separately: of queries, keys, values and the output."""
_PERMUTED_WIDTHS = 2.0
"""Values, in units of `width`, moved per routed token to permute it to its expert or back: read and written once."""


class Phase(NamedTuple):
    """Seconds of one layer in one phase of a micro-batch. `parallel`, `context`, `dispatch`: communication of tensor,
    context and expert parallelism; `hidden_dispatch`: the part of the latter that runs during the compute of another
    micro-batch, and is not a part of `device`; `host`: time of the host to launch the kernels while the device works.
    If the device is the host's own cores, which do nothing else meanwhile, the time to call the layer's operations is a
    part of `elementwise`, as in a trace, and `launch` is that of the wrappers of collectives."""

    matmul: Column
    attention: Column
    elementwise: Column
    route: Column
    scan: Column
    parallel: Column
    context: Column
    dispatch: Column
    hidden_dispatch: Column
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
    hardware: RankHardware,
    tuned: Constants,
    matmul: Product,
    is_low: Column | None = None,
    rate_share: Column | float = 1.0,
) -> Column:
    """Seconds of a matrix product: the longer of arithmetic and memory traffic; 0 if it is empty. Its rate reaches half
    of the peak if one of its dimensions is as large as `tuned.rows`, `tuned.columns` or `tuned.depth`, and the others
    are much larger. `is_low`: 1 if it runs below 16 bits; None: it never does. `rate_share`: fraction of the usual rate
    that it attains."""
    rows, columns, depth = (np.maximum(size, _LEAST_SIZE) for size in matmul[:3])
    peak_rate = hardware.peak * tuned.matmul * clock_ratio(hardware, tuned)
    if is_low is not None:
        low_rate = hardware.low_peak * tuned.low_matmul * clock_ratio(hardware, tuned)
        low_rate = np.where(hardware.low_sustained > 0, hardware.low_sustained, low_rate)
        peak_rate = np.where(is_low > 0, low_rate, peak_rate)
    attained_flops = (
        peak_rate * rate_share / ((1 + tuned.rows / rows) * (1 + tuned.columns / columns) * (1 + tuned.depth / depth))
    )
    traffic_bytes = _VALUE_BYTES * (rows * columns + columns * depth + rows * depth) * matmul.count
    seconds = (
        np.maximum(matmul.flops / attained_flops, traffic_bytes / (hardware.bandwidth * tuned.bandwidth))
        + tuned.kernel_s
    )
    ratio = hardware.product_ratio(rows, columns, depth)
    if is_low is not None:
        ratio = np.where(is_low > 0, 1.0, ratio)  # it was probed in the compute dtype
    return np.where(matmul.flops > 0, seconds * ratio, 0.0)


def clock_ratio(hardware: RankHardware, tuned: Constants) -> Column:
    """Rate of compute over that of the machines that the constants were fitted to: that of large matrix products, if it
    was measured. Power and cooling, which limit the clock, limit all kernels that use the same units."""
    return np.where(hardware.sustained > 0, hardware.sustained / (hardware.peak * tuned.matmul), 1.0)


def products(
    hardware: RankHardware,
    tuned: Constants,
    matmuls: list[Product],
    is_low: Column,
    trained: Column,
    rate_share: Column | float = 1.0,
) -> tuple[Column, Column]:
    """(forward, backward) seconds of several products of a micro-batch. `is_low`, `rate_share`: as in `product`;
    `trained`: 1 if the gradients of their weights are computed."""
    backward_matmuls = [part for matmul in matmuls for part in matmul.backward(trained)]
    forward, backward = (
        sum((product(hardware, tuned, matmul, is_low, rate_share) for matmul in direction), np.zeros(1))
        for direction in (matmuls, backward_matmuls)
    )
    return forward, backward


def _add_adapters(
    hardware: RankHardware, tuned: Constants, frozen_s: tuple[Column, Column], adapters: list[Product]
) -> tuple[Column, Column]:
    """(forward, backward) seconds of frozen products, `frozen_s`, with their adapters, which compute in 16 bits."""
    adapter_s = products(hardware, tuned, adapters, np.zeros(1), np.ones(1))
    return frozen_s[0] + adapter_s[0], frozen_s[1] + adapter_s[1]


def _dequantise_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds to dequantise the matrices of the mean layer from NF4, before the products of one direction; bound by
    memory. The products read the result again."""
    dense_layers, _ = shapes.layer_kinds(cases)
    matrices = shapes.quantised_weights(cases)
    values = matrices.shared + matrices.dense * dense_layers / cases.layers
    kernels = _SPLIT_ATTENTION_MATRICES + (2 + cases.gated)
    traffic_s = values * (NF4_BYTES + cases.width_bytes) / (hardware.bandwidth * tuned.bandwidth)
    return traffic_s + cases.quantised * kernels * tuned.kernel_s


def attention_share(tuned: Constants, seq_len: Column, head_channels: Column, computed_share: Column | float) -> Column:
    """Share of the peak that fused attention attains forward. `head_channels`: mean of a head's queries and values;
    `computed_share`: share of the scores that are computed, 1 or `CAUSAL_SHARE`."""
    length_factor = 1 + computed_share / CAUSAL_SHARE * tuned.attention_length / seq_len
    head_factor = (1 + tuned.attention_channels / head_channels) / (
        1 + tuned.attention_channels / _REFERENCE_HEAD_CHANNELS
    )
    return np.minimum(tuned.attention / (length_factor * head_factor), 1.0)


def attention(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    """(forward, backward) seconds of the attention kernel for a micro-batch; half of the scores are masked if attention
    is causal."""
    heads = cases.heads / cases.tp  # on a rank
    score_count = cases.micro_batch_size * cases.seq_len * cases.seq_len / cases.cp
    # Scores from queries and keys, and sums of the values weighted with them: 2 FLOPs for each score and channel.
    flops = 2 * score_count * (cases.queries + cases.values) / cases.tp
    peak_rate = hardware.peak * clock_ratio(hardware, tuned)
    computed_share = np.where(cases.unmasked > 0, 1.0, CAUSAL_SHARE)
    head_channels = (cases.queries + cases.values) / (2 * cases.heads)
    attained_share = attention_share(tuned, cases.seq_len, head_channels, computed_share)
    fused_s = flops * computed_share / (peak_rate * attained_share) + tuned.kernel_s
    score_traffic_s = score_count * heads * cases.width_bytes * tuned.scores / (hardware.bandwidth * tuned.bandwidth)
    unfused_s = score_traffic_s + flops / (peak_rate * tuned.matmul) + _UNFUSED_KERNELS * tuned.kernel_s
    forward = np.where(cases.flash > 0, fused_s, unfused_s)
    return forward, np.where(cases.flash > 0, fused_s * tuned.attention_backward, 2 * unfused_s)


def _elementwise_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    """(forward, backward) seconds of the operations outside matrix products and attention (norms, residuals, activation
    functions) in the mean layer, for a micro-batch."""
    # The activation function reads one or two values (with a gate) and writes one for each inner channel of the MLP.
    inner_tokens = (2 + cases.gated) * cases.tokens / cases.tp
    expert_channels = np.where(
        cases.experts > 0,
        cases.active_experts * cases.moe_ffn_hidden_size + cases.shared_experts * cases.moe_ffn_hidden_size,
        0.0,
    )
    dense_layers, moe_layers = shapes.layer_kinds(cases)
    mean_ffn = (dense_layers * cases.ffn + moe_layers * expert_channels) / cases.layers
    sublayer_share = shapes.sublayer_count(cases) / 2
    width_passes = sublayer_share * tuned.passes + np.where(cases.modulation_vectors > 0, _MODULATION_WIDTHS, 0.0)
    values = width_passes * cases.residual_tokens * cases.width + inner_tokens * mean_ffn
    traffic_s = values * cases.width_bytes / (hardware.bandwidth * tuned.bandwidth)
    return (
        traffic_s + sublayer_share * _KERNELS_PER_LAYER["forward"] * tuned.kernel_s,
        traffic_s * tuned.passes_backward + sublayer_share * _KERNELS_PER_LAYER["backward"] * tuned.kernel_s,
    )


def _tensor_parallel_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds of a layer's tensor-parallel communication in one direction: an all-reduce for each sublayer, or with
    sequence parallelism a reduce-scatter and an all-gather, which take as long."""
    size_bytes = cases.tokens * cases.width * cases.width_bytes
    return shapes.sublayer_count(cases) * collective_time.all_reduce(
        hardware, tuned, collective_time.tensor(cases, hardware), size_bytes, is_split=cases.sequence_parallel
    )


def _context_parallel_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds to all-gather keys and values over the ranks of cp."""
    channels = np.where(cases.kv_lora_rank > 0, cases.queries + cases.values, 2 * cases.kv_heads * cases.head_dim)
    size_bytes = cases.micro_batch_size * cases.seq_len * channels / cases.tp * cases.width_bytes
    return collective_time.gather(hardware, tuned, collective_time.context(cases, hardware), size_bytes)


def _dispatch_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds to dispatch tokens to their experts and to combine the results, in the forward pass, or their gradients
    in the backward pass. The rank whose experts get most tokens receives and returns most. trainyard's own trainer
    sends one copy per expert."""
    members = collective_time.experts(cases, hardware)
    sent_values = cases.rank_imbalance * shapes.routed_tokens(cases) * shapes.expert_width(cases)  # one copy each
    dispatch_bytes = np.where(cases.dispatch_bytes > 0, cases.dispatch_bytes, cases.width_bytes)
    # Other frameworks send a token once to each device with one of its experts.
    token_values, reach = sent_values / np.maximum(cases.active_experts, 1.0), expert_routing.reach(cases, members)
    seconds = np.zeros(1)
    for value_bytes in (dispatch_bytes, cases.width_bytes):  # results return in the compute dtype
        copies_s = collective_time.exchange(hardware, tuned, members, sent_values * value_bytes)
        deduplicated_s = collective_time.dispatch(hardware, tuned, members, token_values * value_bytes, *reach)
        seconds = seconds + np.where(cases.native > 0, copies_s, deduplicated_s)
    return seconds


def time_experts(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    """(forward, backward) seconds of the products of the routed experts for a micro-batch. Grouped products of several
    experts are slower than one, and the rank whose experts get most tokens sets the time."""
    grouped_share = np.where(cases.low_precision > 0, tuned.low_grouped, tuned.grouped)
    rate_share = np.where(shapes.local_experts(cases) > 1, grouped_share, 1.0) / cases.rank_imbalance
    return products(
        hardware, tuned, shapes.expert_products(cases), cases.low_precision, shapes.all_trained(cases), rate_share
    )


def layer(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Phase, Phase]:
    """(forward, backward) times of the mean layer of a model for a micro-batch: kinds of layers weighted by their
    numbers. Pairs in the body are (forward, backward) too."""
    dense_share, moe_share = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    attention_share, space_share = shapes.mixer_shares(cases)
    is_low, trained = cases.low_precision, shapes.all_trained(cases)
    projection_s = products(hardware, tuned, shapes.attention_products(cases), is_low, trained)
    mlp_s = products(hardware, tuned, shapes.dense_products(cases), is_low, trained)
    if (trained == 0).any():
        projection_s = _add_adapters(hardware, tuned, projection_s, shapes.attention_adapter_products(cases))
        mlp_s = _add_adapters(hardware, tuned, mlp_s, shapes.mlp_adapter_products(cases))
    adapter_slowdown = np.where(trained > 0, 1.0, tuned.adapted)
    attention_s = attention(cases, hardware, tuned)
    context_s = attention_share * _context_parallel_seconds(cases, hardware, tuned)
    elementwise_s = _elementwise_seconds(cases, hardware, tuned)
    if (cases.quantised > 0).any():
        dequantise_s = _dequantise_seconds(cases, hardware, tuned)
        elementwise_s = elementwise_s[0] + dequantise_s, elementwise_s[1] + dequantise_s
    tensor_s = _tensor_parallel_seconds(cases, hardware, tuned)
    matmul = [
        adapter_slowdown * (attention_share * projection_s[direction] + dense_share * mlp_s[direction])
        for direction in (0, 1)
    ]
    if (cases.modulation_vectors > 0).any():
        modulation_s = products(hardware, tuned, [shapes.modulation_product(cases)], is_low, trained)
        matmul = [matmul[direction] + modulation_s[direction] for direction in (0, 1)]
    scan, route = (np.zeros(1), np.zeros(1)), np.zeros(1)
    dispatch = route
    if (space_share > 0).any():
        space_s = products(hardware, tuned, shapes.space_products(cases), is_low, trained)
        matmul = [matmul[direction] + adapter_slowdown * space_share * space_s[direction] for direction in (0, 1)]
        scan = state_space.scan(cases, hardware, tuned)
        context_s = context_s + space_share * state_space.context_exchange_seconds(cases, hardware, tuned)
    if (cases.experts > 0).any():
        expert_s = time_experts(cases, hardware, tuned)
        shared_s = products(hardware, tuned, shapes.common_expert_products(cases), is_low, trained)
        matmul = [
            matmul[direction] + adapter_slowdown * moe_share * (expert_s[direction] + shared_s[direction])
            for direction in (0, 1)
        ]
        routed_tokens = cases.rank_imbalance * shapes.routed_tokens(cases)
        routed_bytes = routed_tokens * shapes.expert_width(cases) * cases.width_bytes
        route = moe_share * (
            2 * _PERMUTED_WIDTHS * routed_bytes / (hardware.bandwidth * tuned.bandwidth)
            + _ROUTING_KERNELS * tuned.kernel_s
        )
        dispatch = moe_share * _dispatch_seconds(cases, hardware, tuned)
    # A hybrid's layer, with one sublayer, takes half the time.
    host_extra_s = _host_collective_seconds(cases, hardware, tuned) + moe_share * tuned.host_experts_s
    sublayer_share = shapes.sublayer_count(cases) / 2
    calls_s = (sublayer_share * tuned.host_forward_s, sublayer_share * tuned.host_backward_s)
    phases = [
        Phase(
            matmul=matmul[direction],
            attention=attention_share * attention_s[direction],
            elementwise=elementwise_s[direction] + hardware.host * calls_s[direction],
            route=route,
            scan=space_share * scan[direction],
            parallel=tensor_s,
            context=context_s,
            dispatch=dispatch,
            hidden_dispatch=np.zeros(1),
            host=(1 - hardware.host) * (host_extra_s + calls_s[direction]),
            launch=hardware.host * host_extra_s,
        )
        for direction in (0, 1)
    ]
    return phases[0], phases[1]


def _host_collective_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Additional host seconds for a layer's collectives, in each direction. On CPU devices, which launch their own
    work, the wrappers dominate: distributed tensors and the hooks that gather weights."""
    # Collectives of a layer in one direction.
    tensor_collectives = np.where(cases.tp > 1, shapes.sublayer_count(cases), 0.0)
    expert_collectives = np.where(cases.ep > 1, 2.0, 0.0)  # dispatch and combine
    weight_gathers = np.where((cases.is_sharded > 0) & (cases.zero >= 2), 0.5, 0.0)
    other_collectives = np.where(hardware.host > 0, weight_gathers, np.where(cases.cp > 1, 1.0, 0.0))
    # Megatron's fused softmax takes only blocks of score matrices.
    misses_fused_softmax = (cases.flash == 0) & (
        np.mod(cases.heads / cases.tp * cases.micro_batch_size, _FUSED_SOFTMAX) != 0
    )
    return (
        tensor_collectives + expert_collectives + other_collectives
    ) * tuned.host_collective_s + misses_fused_softmax * tuned.host_plain_s


def head(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column, Column]:
    """(forward, backward, loss) seconds of a micro-batch's head and input projections: products forward, products
    backward, and the loss with its gradient."""
    logit_product, entry = shapes.head_product(cases), shapes.entry_product(cases)
    logit_count = logit_product.rows * logit_product.columns
    loss_s = logit_count * tuned.logits / (hardware.bandwidth * tuned.bandwidth) + _LOSS_KERNELS * tuned.kernel_s
    backward_s = sum(
        (product(hardware, tuned, part) for part in logit_product.backward(shapes.all_trained(cases))), np.zeros(1)
    )
    forward_s = product(hardware, tuned, logit_product)
    if (cases.entry_values > 0).any():
        _, entry_weight_gradient = entry.backward()  # the input of the model needs no gradient
        forward_s = forward_s + product(hardware, tuned, entry)
        backward_s = backward_s + product(hardware, tuned, entry_weight_gradient)
    return forward_s, backward_s, loss_s
