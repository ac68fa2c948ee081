"""What a step time comes to: tokens a second, model FLOPs utilisation, days, dollars and energy, failures counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from trainyard.errors import BadInput
from trainyard.machine import Claim, Machine
from trainyard.predict.economics.failures import Goodput, goodput
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.time import shapes, state_space

_DAY_S = 86_400.0
OVERHEAD = Claim(
    value=1.65,
    unit="of the devices' power",
    date="2025",
    source="the most that a node of 8 H100 draws in training, 8.4 kW (Latif et al. 2025, IEEE Access 13), over "
    "8 x 700 W, times 1.1 for cooling (LLaMA, arXiv:2302.13971, section 6); switches beyond the node are in neither",
)
"""What a machine draws in all, where its own file does not say."""


def model_flops(cases: Cases) -> Column:
    """FLOPs a step needs over all ranks: three times the forward pass, with the scores that are kept of causal
    attention and the recurrence of state spaces, whatever is recomputed (Chowdhery et al. 2022, arXiv:2204.02311,
    appendix B)."""
    dense, routed = shapes.layer_kinds(cases)
    attended, spaced = (share * cases.layers for share in shapes.mixers(cases))
    ranks = cases.dp * cases.tp * cases.cp
    around = sum((one.flops for one in shapes.attention_products(cases)), np.zeros(1)) * attended
    mlp = sum((one.flops for one in shapes.dense_products(cases)), np.zeros(1)) * dense
    grouped, beside = shapes.expert_products(cases)
    experts = sum((one.flops for one in grouped), np.zeros(1)) * routed
    shared = sum((one.flops for one in beside), np.zeros(1)) * routed
    scores = cases.microbatch * cases.seq_len**2 / cases.cp * (cases.queries + cases.values) / cases.tp * attended
    spaces = sum((one.flops for one in shapes.space_products(cases)), state_space.needed(cases)) * spaced
    forward = around + mlp + np.where(cases.experts > 0, experts + shared, 0.0) + scores * (1 + cases.whole)
    alike = shapes.entry_product(cases).flops + shapes.modulation_product(cases).flops * cases.layers
    ends = shapes.head_product(cases).flops + alike / cases.tp
    return 3 * (forward + spaces + ends) * ranks * cases.accumulate


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """`mfu`: of the peak in the compute dtype. `days` and `dollars` are to the token budget, with what failures take
    (`goodput`); 0 and None without one, and dollars None where a machine states no price. `kwh` likewise: devices at
    their full power, with hosts, networks and cooling; None where that power is not known."""

    tokens_per_s: float
    mfu: float
    days: float = 0.0
    dollars: float | None = None
    kwh: float | None = None
    goodput: Goodput | None = None

    def __post_init__(self) -> None:
        spent = (self.tokens_per_s, self.mfu, self.days, self.dollars or 0.0, self.kwh or 0.0)
        if not np.isfinite(spent).all() or min(spent) < 0 or not self.tokens_per_s:
            raise BadInput(f"{self.tokens_per_s:g} tokens/s, {self.days:g} days, {self.dollars} dollars: no bill.")

    def slower(self, times: float) -> Bill:
        """Of steps that take so many times as long, on as many devices: what failures take is a share of any time."""
        return Bill(
            tokens_per_s=self.tokens_per_s / times,
            mfu=self.mfu / times,
            days=self.days * times,
            dollars=None if self.dollars is None else self.dollars * times,
            kwh=None if self.kwh is None else self.kwh * times,
            goodput=self.goodput,
        )


def bill(
    fleet: Sequence[tuple[Machine, int]], wall_s: float, tokens: float, flops: float, peak: float, budget: float
) -> Bill:
    """`fleet`: machines, and how many ranks of each. `tokens`, `flops`: of a step over all devices; `peak`: FLOP/s of
    all; `budget`: tokens to train on."""
    rate, mfu = tokens / wall_s, flops / wall_s / peak
    if not budget:
        return Bill(tokens_per_s=rate, mfu=mfu)
    work_s = budget / rate
    found = goodput(work_s, sum(-(-ranks // machine.ranks_per_node) for machine, ranks in fleet))
    days = work_s / found.share / _DAY_S
    hours = [(machine, days * 24 * ranks / machine.device.ranks) for machine, ranks in fleet]
    dollars = _all(many * machine.price.value if machine.price else None for machine, many in hours)
    kwh = _all(energy(machine, many) for machine, many in hours)
    return Bill(tokens_per_s=rate, mfu=mfu, days=days, dollars=dollars, kwh=kwh, goodput=found)


def _all(some: Iterable[float | None]) -> float | None:
    """Their sum; None where one is not known."""
    known = list(some)
    return sum(one for one in known if one is not None) if None not in known else None


def energy(machine: Machine, device_hours: float) -> float | None:
    """kWh of so many hours of a device, all that stands around it included; None where its power is not known."""
    power = machine.device.power
    return device_hours * power.value / 1e3 * (machine.overhead or OVERHEAD).value if power else None
