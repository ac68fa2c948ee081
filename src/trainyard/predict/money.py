"""What a step time comes to: tokens a second, model FLOPs utilisation, days and dollars, failures counted."""

from __future__ import annotations

import msgspec
import numpy as np

from trainyard.machine import Machine
from trainyard.predict import shapes
from trainyard.predict.cases import Cases, Column
from trainyard.predict.failures import Goodput, goodput

_DAY_S = 86_400.0


def model_flops(cases: Cases) -> Column:
    """FLOPs a step needs over all ranks: three times the forward pass, with the scores that are kept of causal
    attention, whatever is recomputed (Chowdhery et al. 2022, arXiv:2204.02311, appendix B)."""
    dense, routed = shapes.layer_kinds(cases)
    ranks = cases.dp * cases.tp * cases.cp
    around = sum((one.flops for one in shapes.attention_products(cases)), np.zeros(1)) * cases.layers
    mlp = sum((one.flops for one in shapes.dense_products(cases)), np.zeros(1)) * dense
    grouped, beside = shapes.expert_products(cases)
    experts = sum((one.flops for one in grouped), np.zeros(1)) * routed
    shared = sum((one.flops for one in beside), np.zeros(1)) * routed
    scores = cases.microbatch * cases.seq_len**2 / cases.cp * (cases.queries + cases.values) / cases.tp * cases.layers
    forward = around + mlp + np.where(cases.experts > 0, experts + shared, 0.0) + scores
    return 3 * (forward + shapes.head_product(cases).flops) * ranks * cases.accumulate


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """`mfu`: of the peak in the compute dtype. `days` and `dollars` are to the token budget, with what failures take
    (`goodput`); 0 and None without one, and dollars None where the machine states no price."""

    tokens_per_s: float
    mfu: float
    days: float = 0.0
    dollars: float | None = None
    goodput: Goodput | None = None


def bill(
    machine: Machine, wall_s: float, tokens: float, flops: float, peak: float, devices: int, budget: float
) -> Bill:
    """`tokens`, `flops`: of a step over all devices; `peak`: FLOP/s of one; `budget`: tokens to train on."""
    rate, mfu = tokens / wall_s, flops / wall_s / (peak * devices)
    if not budget:
        return Bill(tokens_per_s=rate, mfu=mfu)
    work_s = budget / rate
    found = goodput(work_s, -(-devices // machine.per_node))
    days = work_s / found.share / _DAY_S
    dollars = days * 24 * devices * machine.price.value if machine.price else None
    return Bill(tokens_per_s=rate, mfu=mfu, days=days, dollars=dollars, goodput=found)
