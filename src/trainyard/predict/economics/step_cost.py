"""The cost that follows from a step time: tokens/s, MFU, and days, dollars and energy including failures.

A case is one layout of a job; each field of `Cases` is an array with a value per case, of shape [case]. Functions of
`shapes` return the matrix products of one micro-batch in one layer on one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from trainyard.errors import BadInput
from trainyard.machine import Claim, Machine
from trainyard.predict.economics.failures import Goodput, goodput
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.time import shapes, state_space

_SECONDS_PER_DAY = 86_400.0
OVERHEAD = Claim(
    value=1.65,
    unit="of the devices' power",
    date="2025",
    source="the most that a node of 8 H100 draws in training, 8.4 kW (Latif et al. 2025, IEEE Access 13), over "
    "8 x 700 W, times 1.1 for cooling (LLaMA, arXiv:2302.13971, section 6); switches beyond the node are in neither",
)
"""Total power of a machine relative to its devices, if its file does not give it."""


def model_flops(cases: Cases) -> Column:
    """Model FLOPs per step over all ranks, [case]: three times the forward pass, with the unmasked scores of causal
    attention and the recurrence of state spaces, without recomputation (Chowdhery et al. 2022, arXiv:2204.02311,
    appendix B)."""
    # Layers with a dense MLP and with experts, then with attention and with a state space.
    dense_layers, moe_layers = shapes.layer_kinds(cases)
    attention_layers, space_layers = (share * cases.layers for share in shapes.mixer_shares(cases))
    model_ranks = cases.dp * cases.tp * cases.cp
    attention_flops = (
        sum((product.flops for product in shapes.attention_products(cases)), np.zeros(1)) * attention_layers
    )
    mlp_flops = sum((product.flops for product in shapes.dense_products(cases)), np.zeros(1)) * dense_layers
    expert_products, shared_products = shapes.expert_products(cases)
    expert_flops = sum((product.flops for product in expert_products), np.zeros(1)) * moe_layers
    shared_flops = sum((product.flops for product in shared_products), np.zeros(1)) * moe_layers
    # Scores and weighted values of causal attention: 2 FLOPs for half of the pairs of tokens, so tokens^2 for each
    # channel of the queries and of the values. Without a mask (`unmasked` is 1) there are twice as many.
    score_flops = (
        cases.micro_batch_size
        * cases.seq_len**2
        / cases.cp
        * (cases.queries + cases.values)
        / cases.tp
        * attention_layers
    )
    space_flops = (
        sum((product.flops for product in shapes.space_products(cases)), state_space.recurrence_flops(cases))
        * space_layers
    )
    layer_flops = (
        attention_flops
        + mlp_flops
        + np.where(cases.experts > 0, expert_flops + shared_flops, 0.0)
        + score_flops * (1 + cases.unmasked)
    )
    entry_flops = shapes.entry_product(cases).flops + shapes.modulation_product(cases).flops * cases.layers
    end_flops = shapes.head_product(cases).flops + entry_flops / cases.tp
    # A backward pass has twice the products of a forward pass.
    return 3 * (layer_flops + space_flops + end_flops) * model_ranks * cases.accumulate


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """`mfu`: relative to the peak in the compute dtype. `days` and `dollars`: for the token budget, including failures
    (`goodput`); 0 and None without a budget, and dollars None if a machine has no price. `kwh`: likewise, with devices
    at full power plus hosts, networks and cooling; None if that power is unknown."""

    tokens_per_s: float
    mfu: float
    days: float = 0.0
    dollars: float | None = None
    kwh: float | None = None
    goodput: Goodput | None = None

    def __post_init__(self) -> None:
        """Raises `BadInput` for figures that are infinite or negative, or no tokens per second."""
        spent = (self.tokens_per_s, self.mfu, self.days, self.dollars or 0.0, self.kwh or 0.0)
        if not np.isfinite(spent).all() or min(spent) < 0 or not self.tokens_per_s:
            raise BadInput(
                f"{self.tokens_per_s:g} tokens/s, {self.days:g} days, {self.dollars} dollars: all must be finite and "
                "not negative, and tokens/s positive."
            )

    def slower(self, factor: float) -> Bill:
        """The bill of a step `factor` times as long on the same devices. The goodput is the same."""
        return Bill(
            tokens_per_s=self.tokens_per_s / factor,
            mfu=self.mfu / factor,
            days=self.days * factor,
            dollars=None if self.dollars is None else self.dollars * factor,
            kwh=None if self.kwh is None else self.kwh * factor,
            goodput=self.goodput,
        )


def bill(
    fleet: Sequence[tuple[Machine, int]], wall_s: float, tokens: float, flops: float, peak: float, budget: float
) -> Bill:
    """The bill of a step that takes `wall_s` seconds. `fleet`: (machine, number of ranks on machines of this kind).
    `tokens`, `flops`: per step over all devices; `peak`: FLOP/s of all devices; `budget`: tokens to train on; 0 for
    none, which gives a bill without days, dollars and energy."""
    tokens_per_s, mfu = tokens / wall_s, flops / wall_s / peak
    if not budget:
        return Bill(tokens_per_s=tokens_per_s, mfu=mfu)
    work_s = budget / tokens_per_s
    run_goodput = goodput(work_s, sum(-(-ranks // machine.ranks_per_node) for machine, ranks in fleet))
    days = work_s / run_goodput.share / _SECONDS_PER_DAY
    device_hours = [(machine, days * 24 * ranks / machine.device.ranks) for machine, ranks in fleet]
    dollars = _sum_if_all_known(
        hours * machine.price.value if machine.price else None for machine, hours in device_hours
    )
    kwh = _sum_if_all_known(energy(machine, hours) for machine, hours in device_hours)
    return Bill(tokens_per_s=tokens_per_s, mfu=mfu, days=days, dollars=dollars, kwh=kwh, goodput=run_goodput)


def _sum_if_all_known(values: Iterable[float | None]) -> float | None:
    """The sum of the values; None if one of them is None."""
    known = list(values)
    return sum(value for value in known if value is not None) if None not in known else None


def energy(machine: Machine, device_hours: float) -> float | None:
    """kWh of a number of device hours, including hosts, networks and cooling; None if the power is unknown."""
    power = machine.device.power
    return device_hours * power.value / 1e3 * (machine.power_overhead or OVERHEAD).value if power else None
