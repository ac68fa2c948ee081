"""A training budget in a few lines: the recommended layout, its step, days, dollars, energy and failures, and the next
best layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from trainyard.predict.economics.failures import Goodput
from trainyard.predict.economics.step_cost import Bill
from trainyard.report.plans import plan_tables as tables
from trainyard.report.plans.plans_file import PlanRecord, Plans
from trainyard.report.view.view import Table
from trainyard.units import SECONDS_PER_DAY, duration_unit, show_count, show_dollars, show_rate

_ALTERNATIVES = 3
_LEFT_OUT = ("MFU, %",)
"""Columns of the table of layouts that the alternatives lack, so that a layout needs fewer lines."""
_HOURS_PER_DAY = 24
_LEAST_LOST_DAYS = 2
"""Shortest lost time that is printed in days."""


def training(plans: Plans) -> str:
    """Duration with its interval, dollars and energy of the token budget, with the machine's unknown keys for these.
    With a power cap below full power, each with its upper bound."""
    plan, bill = plans.best.plan, plans.best.bill
    per_day, unit = duration_unit(bill.days)
    duration = per_day * bill.days
    low, high = (duration * bound / plan.ledger.wall_ns for bound in (plan.low, plan.high))
    ratio, cap = bill.longest_ratio, plans.claims.get("power_cap")
    parts = [f"{duration:,.1f} {unit} ({low:,.1f} to {high:,.1f})"]
    if cap and ratio > 1:
        parts = [f"{parts[0]}, or up to {duration * ratio:,.1f} {unit} with the power cap of {cap.value:,.0f} W"]
    parts.append("price unknown" if bill.dollars is None else _up_to(show_dollars, bill.dollars, ratio))
    parts.append("power unknown" if bill.kwh is None else _up_to(_show_energy, bill.kwh, ratio))
    tokens = f"{show_count(plans.tokens)} {tables.unit_of(plan.job)}"
    return f"{tokens}: {', '.join(parts)}.{_unknown_inputs(bill)}{_without_padding(plans, duration, unit)}"


def _up_to(show: Callable[[float], str], amount: float, ratio: float) -> str:
    """An amount, and its upper bound if `ratio` of both is above 1."""
    return show(amount) if ratio == 1 else f"{show(amount)} to {show(ratio * amount)}"


def _show_energy(kwh: float) -> str:
    """Energy in Wh with a prefix."""
    return show_rate(kwh * 1e3, "Wh")


def _unknown_inputs(bill: Bill) -> str:
    """The keys of a machine file that the dollars and the energy need; empty if both are known."""
    unknown = {"price (USD per hour and device)": bill.dollars is None, "power (W, of [device])": bill.kwh is None}
    keys = " and ".join(key for key, is_unknown in unknown.items() if is_unknown)
    return f" Add {keys} to a copy of the machine's TOML file." if keys else ""


def _without_padding(plans: Plans, duration: float, unit: str) -> str:
    """How long so many tokens take if padding is not counted; empty if the share of padding is unknown."""
    padding = plans.fine_tuning.padding if plans.fine_tuning else None
    if not padding:
        return ""
    return f" For so many tokens excluding {100 * padding:.3g} % padding: {duration / (1 - padding):,.1f} {unit}."


def failures(goodput: Goodput, days: float) -> str:
    """Expected number of failures in `days`, the time lost to them, and the checkpoint interval."""
    count = days * SECONDS_PER_DAY / goodput.mtbf_s
    lost_percent, lost_hours = 100 * (1 - goodput.share), days * (1 - goodput.share) * _HOURS_PER_DAY
    lost = (
        f"{_few(lost_hours)} h"
        if lost_hours < _LEAST_LOST_DAYS * _HOURS_PER_DAY
        else f"{lost_hours / _HOURS_PER_DAY:,.1f} days"
    )
    return (
        f"Failures: {_few(count)} expected; {_few(lost_percent)} % of the time ({lost}) is lost to them, restarts and "
        f"checkpoints. Checkpoint interval: {_duration(goodput.every_s)}."
    )


def power_cap(plans: Plans) -> str:
    """The effect of a power cap; empty without one."""
    cap, power, ratio = plans.claims.get("power_cap"), plans.claims.get("power"), plans.best.bill.longest_ratio
    if cap is None or power is None:
        return ""
    if ratio == 1:
        return f"The power cap of {cap.value:,.0f} W is not below the full {power.value:,.0f} W and has no effect."
    return (
        f"With the power cap of {cap.value:,.0f} W, days, dollars and energy are up to {ratio:.2f} times as large: an "
        "assumed bound, since the speed at this power is unknown. Other figures are without a loss of speed."
    )


def alternatives(layouts: Table, records: Sequence[PlanRecord]) -> Table:
    """The layouts after the first, from the table of layouts, without the columns of lesser use. `records`: the layout
    of each row."""
    alternative_records = records[1 : 1 + _ALTERNATIVES]
    kept = [at for at, column in enumerate(layouts.columns) if column.title not in _LEFT_OUT]
    return replace(
        layouts,
        title="Alternatives",
        notes=(*tables.ends_note(alternative_records), *tables.experts_note(alternative_records)),
        columns=tuple(layouts.columns[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in layouts.rows[1 : 1 + _ALTERNATIVES]),
    )


def _few(amount: float) -> str:
    """A positive amount with one decimal below ten."""
    return "<0.1" if 0 < amount < 0.05 else f"{amount:,.1f}" if amount < 10 else f"{amount:,.0f}"


def _duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
