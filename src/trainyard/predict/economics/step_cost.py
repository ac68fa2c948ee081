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
from trainyard.predict.economics import power_cap
from trainyard.predict.economics.failures import Goodput, goodput
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.machine_model import ReferencePeak
from trainyard.predict.time import shapes, state_space

_SECONDS_PER_DAY = 86_400.0
_ROUNDING = 1e-9
"""Rounding error of an MFU of 1."""
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
    appendix B). Frozen matrices have twice the forward pass, since their gradients are not computed."""
    # Layers with a dense MLP and with experts, then with attention and with a state space.
    dense_layers, moe_layers = shapes.layer_kinds(cases)
    attention_layers, space_layers = (share * cases.layers for share in shapes.mixer_shares(cases))
    model_ranks = cases.dp * cases.tp * cases.cp
    attention_flops = (
        sum((product.flops for product in shapes.attention_products(cases)), np.zeros(1)) * attention_layers
    )
    mlp_flops = sum((product.flops for product in shapes.dense_products(cases)), np.zeros(1)) * dense_layers
    expert_flops = sum((product.flops for product in shapes.expert_products(cases)), np.zeros(1)) * moe_layers
    shared_flops = sum((product.flops for product in shapes.common_expert_products(cases)), np.zeros(1)) * moe_layers
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
    matrix_flops = attention_flops + mlp_flops + np.where(cases.experts > 0, expert_flops + shared_flops, 0.0)
    adapter_flops = attention_layers * sum(
        (product.flops for product in shapes.attention_adapter_products(cases)), np.zeros(1)
    ) + dense_layers * sum((product.flops for product in shapes.mlp_adapter_products(cases)), np.zeros(1))
    entry_flops = shapes.entry_product(cases).flops + shapes.modulation_product(cases).flops * cases.layers
    end_flops = shapes.head_product(cases).flops + entry_flops / cases.tp
    # A backward pass has twice the products of a forward pass, or as many for frozen matrices.
    frozen_flops = (1 - shapes.all_trained(cases)) * (matrix_flops + shapes.head_product(cases).flops)
    forward_flops = matrix_flops + adapter_flops + score_flops * (1 + cases.unmasked) + space_flops + end_flops
    return (3 * forward_flops - frozen_flops) * model_ranks * cases.accumulate


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """`mfu`: relative to `peak_flops_per_s`, the dense peak of all devices in `peak_dtype`. `days` and `dollars`: for
    the token budget, including failures (`goodput`); 0 and None without a budget, and dollars None if a machine has no
    price. `kwh`: likewise, with devices at full power, or at the power cap, plus hosts, networks and cooling; None if
    that power is unknown. `longest_ratio`: with a power cap, days, dollars and kWh are up to this many times as
    large."""

    tokens_per_s: float
    mfu: float
    peak_flops_per_s: float = 0.0
    peak_dtype: str = ""
    days: float = 0.0
    dollars: float | None = None
    kwh: float | None = None
    goodput: Goodput | None = None
    longest_ratio: float = 1.0

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
        return msgspec.structs.replace(
            self,
            tokens_per_s=self.tokens_per_s / factor,
            mfu=self.mfu / factor,
            days=self.days * factor,
            dollars=None if self.dollars is None else self.dollars * factor,
            kwh=None if self.kwh is None else self.kwh * factor,
        )


def bill(
    fleet: Sequence[tuple[Machine, int]],
    wall_s: float,
    *,
    tokens: float,
    flops: float,
    peak: ReferencePeak,
    budget: TrainingBudget,
    checkpoint_bytes: float = 0.0,
) -> Bill:
    """The bill of a step that takes `wall_s` seconds. `fleet`: (machine, number of ranks on machines of this kind).
    `tokens`, `flops`: per step over all devices; `peak`: of all devices; `budget`: without tokens, the bill has no
    days, dollars and energy. `checkpoint_bytes`: of all ranks. Raises `BadInput` for an MFU above 100 %, or a training
    that would not advance."""
    tokens_per_s = tokens / wall_s
    step_bill = Bill(
        tokens_per_s=tokens_per_s,
        mfu=_model_flops_utilization(flops / wall_s, peak),
        peak_flops_per_s=peak.flops_per_s,
        peak_dtype=peak.dtype,
    )
    if not budget.tokens:
        return step_bill
    machines, devices = [machine for machine, _ in fleet], sum(ranks / machine.device.ranks for machine, ranks in fleet)
    work_s = budget.tokens / tokens_per_s
    run_goodput = goodput(work_s, devices, budget.mtbf, budget.restart, budget.save_of(checkpoint_bytes))
    days = work_s / run_goodput.share / _SECONDS_PER_DAY
    device_hours = [(machine, days * 24 * ranks / machine.device.ranks) for machine, ranks in fleet]
    dollars = _sum_if_all_known(
        hours * machine.price.value if machine.price else None for machine, hours in device_hours
    )
    kwh = _sum_if_all_known(energy(machine, hours, budget) for machine, hours in device_hours)
    return msgspec.structs.replace(
        step_bill,
        days=days,
        dollars=dollars,
        kwh=kwh,
        goodput=run_goodput,
        longest_ratio=power_cap.longest_ratio(machines, budget.power_cap),
    )


def _model_flops_utilization(flops_per_s: float, peak: ReferencePeak) -> float:
    """Share of the peak. Raises `BadInput` above 100 %, which only a wrong peak or calibration can give."""
    mfu = flops_per_s / peak.flops_per_s
    if mfu > 1 + _ROUNDING:
        raise BadInput(
            f"The predicted step has {flops_per_s:.4g} model FLOP/s, more than the {peak.flops_per_s:.4g} FLOP/s that "
            f"its devices reach in {peak.dtype}.",
            "Correct the peak or the calibration in the machine file.",
        )
    return min(mfu, 1.0)


def _sum_if_all_known(values: Iterable[float | None]) -> float | None:
    """The sum of the values; None if one of them is None."""
    known = list(values)
    return sum(value for value in known if value is not None) if None not in known else None


def energy(machine: Machine, device_hours: float, budget: TrainingBudget = NO_BUDGET) -> float | None:
    """kWh of a number of device hours at full load, or at the budget's power cap, including hosts, networks and
    cooling; None if the power is unknown."""
    watts = power_cap.capped_watts(machine, budget.power_cap)
    return None if watts is None else device_hours * watts / 1e3 * (machine.power_overhead or OVERHEAD).value
