"""Tables of `trainyard plan rollout`: the modes with their parts, generation, and training."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.machine import Claim
from trainyard.report.plans.rollout_plan import MODES, GenerationPlan, RolloutMode, RolloutPlan, TrainingPlan
from trainyard.report.view.view import Cell, Column, Table
from trainyard.units import counted


class _Unit(NamedTuple):
    """A unit of time: the head of its column, its name after a number, and its length in ns."""

    title: str
    symbol: str
    ns: float


_UNITS = (_Unit("Seconds", "s", 1e9), _Unit("Hours", "h", 3600e9), _Unit("Days", "days", 86_400e9))
_MOST_OF_A_UNIT = 1e5
"""Amount from which times are in the next larger unit."""
_PARTS = {"generation": "generate", "log_probs": "log-probs", "training": "train", "transfer": "transfer"}


def headline(result: RolloutPlan) -> str:
    """The step, the fastest mode, and its assumed interval."""
    work, best = result.workload, result.best
    unit = _unit_of(result)
    step, low, high = (_show_in(ns or 0, unit) for ns in (best.step_ns, best.low_ns, best.high_ns))
    return (
        f"{result.model} on {result.devices:,} x {result.device}: {counted(work.prompts, 'prompt')} of "
        f"{counted(work.prompt_tokens, 'token')} x {counted(work.samples, 'sample')} of "
        f"{counted(work.response_tokens, 'token')} (mean; at most {work.max_response_tokens:,}).\n"
        f"Fastest: {MODES[best.name]}, {step} {unit.symbol} per step (not calibrated: {low} to {high} {unit.symbol} is "
        "assumed)."
    )


def modes(result: RolloutPlan) -> Table:
    """The modes with the parts of their steps."""
    unit = _unit_of(result)
    hidden = any(part.hidden_ns for mode in result.modes for part in mode.parts)
    return Table(
        title=unit.title,
        notes=(
            "Parts sum to the step"
            + ("; those in parentheses run during the others. " if hidden else ". ")
            + "busy: per cent of the devices' time outside transfers and waiting.",
        ),
        columns=(
            Column(title="", id=True), Column(title="step", id=True),
            *(Column(title=title, id=True) for title in _PARTS.values()),
            Column(title="tokens/s", digits=0, id=True), Column(title="busy", digits=0, id=True),
        ),
        rows=tuple(_mode_row(mode, unit) for mode in result.modes if mode.step_ns is not None),
    )  # fmt: skip


def _mode_row(mode: RolloutMode, unit: _Unit) -> tuple[Cell, ...]:
    """The row of a mode with a step, its times in `unit`."""
    by_name = {part.name: part for part in mode.parts}
    parts = []
    for name in _PARTS:
        part = by_name[name]
        parts.append(f"({_show_in(part.hidden_ns, unit)})" if part.hidden_ns else _show_in(part.ns, unit))
    step = _show_in(mode.step_ns or 0, unit)
    return (MODES[mode.name], step, *parts, mode.tokens_per_s, 100 * (mode.busy_share or 0))


def _unit_of(result: RolloutPlan) -> _Unit:
    """The unit in which the longest step has at most five digits before the point: seconds, hours or days."""
    longest_ns = max(mode.step_ns or 0 for mode in result.modes)
    return next((unit for unit in _UNITS if longest_ns < _MOST_OF_A_UNIT * unit.ns), _UNITS[-1])


def _show_in(ns: int, unit: _Unit) -> str:
    """The time in `unit` with one decimal, or none from 10,000 up; `<0.1` for less."""
    amount = ns / unit.ns
    return "<0.1" if 0 < amount < 0.05 else f"{amount:,.{0 if amount >= 10_000 else 1}f}"


def _show_seconds(ns: int) -> str:
    """As `_show_in` for seconds."""
    return _show_in(ns, _UNITS[0])


def generation(result: RolloutPlan) -> Table:
    """How each mode generates."""
    return Table(
        title="Generation",
        notes=(
            "most, mean: concurrent requests of a replica. tail: the end, with at most a quarter of the most. Weights "
            "and KV cache: of a rank, at its fullest.",
        ),
        columns=(
            Column(title="", id=True), Column(title="devices", digits=0, id=True),
            Column(title="tp x replicas", id=True), Column(title="most", digits=0, id=True),
            Column(title="mean", digits=0, id=True), Column(title="tail, s", digits=1, id=True),
            Column(title="weights, GB", digits=1, id=True), Column(title="cache, GB", digits=1, id=True),
        ),
        rows=tuple(_generation_row(mode, mode.generation) for mode in result.modes if mode.generation),
    )  # fmt: skip


def _generation_row(mode: RolloutMode, plan: GenerationPlan) -> tuple[Cell, ...]:
    return (
        MODES[mode.name], plan.devices, f"{plan.tp} x {plan.replicas:,}", plan.concurrent, plan.mean_concurrent,
        plan.tail_ns / 1e9, plan.weight_bytes / 1e9, plan.cache_bytes / 1e9,
    )  # fmt: skip


def training(result: RolloutPlan) -> Table:
    """How each mode trains."""
    plans = [mode.training for mode in result.modes if mode.training]
    offload = Column(
        title="offload, GB",
        digits=1,
        id=True,
        note="offload: weights and optimizer state on the host during generation.",
    )
    offloads = any(mode.offloaded_bytes for mode in result.modes)
    return Table(
        title="Training",
        notes=(
            f"{counted(plans[0].updates, 'optimizer update')} per step, of sequences packed into rows of "
            f"{plans[0].row_tokens:,} tokens. Memory: reserved on a rank.",
        ),
        columns=(
            Column(title="", id=True), Column(title="devices", digits=0, id=True),
            Column(title="layout", prose=True), Column(title="memory, GB", digits=1, id=True),
            *((offload,) if offloads else ()),
        ),
        rows=tuple(_training_row(mode, mode.training, offloads) for mode in result.modes if mode.training),
    )  # fmt: skip


def _training_row(mode: RolloutMode, plan: TrainingPlan, offloads: bool) -> tuple[Cell, ...]:
    offloaded = mode.offloaded_bytes / 1e9 if mode.offloaded_bytes else None
    return (
        MODES[mode.name], plan.devices, plan.layout, plan.reserved_bytes / 1e9, *((offloaded,) if offloads else ()),
    )  # fmt: skip


def reasons(result: RolloutPlan) -> tuple[str, ...]:
    """A sentence for each reason for which modes have no step."""
    names: dict[str, list[str]] = {}
    for mode in result.modes:
        if mode.reason:
            names.setdefault(mode.reason, []).append(MODES[mode.name])
    return tuple(f"{', '.join(modes).capitalize()}: {reason}" for reason, modes in names.items())


_OF_SOURCES = " measurements of "
"""Words between the number of measurements that a constant was fitted to and their sources."""


def assumptions(result: RolloutPlan) -> Table:
    """The constants of the prediction, with their sources: those of a fitted set once, below the table."""
    sources = {
        source.partition(",")[0]: measured
        for source, _, measured in (claim.source.partition(_OF_SOURCES) for claim in result.assumptions)
        if measured
    }
    return Table(
        title="Assumed",
        notes=(
            "Shares are of the rates in the machine file.",
            *(f"{name}: fitted to measurements of {measured}." for name, measured in sources.items()),
        ),
        columns=(Column(title="", id=True), Column(title="value", id=True), Column(title="source", prose=True)),
        rows=tuple(_claim_row(claim) for claim in result.assumptions),
    )


def _claim_row(claim: Claim) -> tuple[Cell, ...]:
    """The name of a constant, with which its unit begins, its value and its source."""
    name, _, unit = claim.unit.partition(" ")
    return name, f"{claim.value:g} {'s' * (unit == 's')}".strip(), claim.source.partition(_OF_SOURCES)[0]
