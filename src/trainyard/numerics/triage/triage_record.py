"""Diagnoses the record of a training that has a spike of the loss, values that are not finite, or other results in each
run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from pathlib import Path
from statistics import median
from typing import NamedTuple

from trainyard.errors import BadInput
from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.losses import is_loss
from trainyard.numerics.compare.read_run import RecordedRun, read_run
from trainyard.numerics.record_files import variants
from trainyard.numerics.triage.check_determinism import check_determinism
from trainyard.numerics.triage.find_nonfinite import find_nonfinite
from trainyard.numerics.triage.find_spikes import find_spikes
from trainyard.numerics.triage.loss_scale import StepScale, loss_scale_history, step_scales, unscaled_loss
from trainyard.numerics.triage.triage_result import GradientGrowth, Spike, StepTotals, Triage


def triage_record(folder: Path, again: Path | None = None) -> Triage:
    """Diagnoses the plain run of a record. `again`: the folder of a second record of the same command, for the report
    on reproducibility. Raises `BadInput` for records of different steps or ranks, `BadFile` for one that cannot be
    read."""
    run = read_run(folder, "plain", variants(folder))
    tensors = run.tensors.tensors
    determinism = None
    if again is not None:
        second = read_run(again, "plain", variants(again))
        _check_same_extent(folder, run, again, second)
        determinism = check_determinism(tensors, second.tensors.tensors, run.header.device)
    scaled = step_scales(tensors)
    losses = _losses(tensors, scaled)
    scale = loss_scale_history(tensors, scaled, losses.scaled)
    steps = _steps(run, losses.values, scaled)
    return Triage(
        folder=str(folder),
        command=run.header.command,
        device=run.header.device,
        steps=steps,
        spikes=spikes_of(steps),
        nonfinite=find_nonfinite(tensors, () if scale is None else scale.handled_steps),
        gradients=_gradient_growth(tensors, run.steps),
        determinism=determinism,
        loss_scale=scale,
    )


def spikes_of(steps: Sequence[StepTotals]) -> tuple[Spike, ...]:
    """The spikes of the loss and of the gradient norm, in order."""
    numbers = [step.step for step in steps]
    spikes = (
        *find_spikes("loss", numbers, [step.loss for step in steps]),
        *find_spikes("gradient norm", numbers, [None if step.skipped else step.gradient_norm for step in steps]),
    )
    return tuple(sorted(spikes, key=lambda spike: spike.step))


def _check_same_extent(first: Path, a: RecordedRun, second: Path, b: RecordedRun) -> None:
    for name, of_a, of_b in (
        ("ranks", a.header.ranks, b.header.ranks),
        ("steps", a.steps, b.steps),
        ("level", a.header.level, b.header.level),
    ):
        if of_a != of_b:
            raise BadInput(
                f"{first} and {second} have other {name}: {of_a} and {of_b}.", "Record the same command twice."
            )


class _Losses(NamedTuple):
    """`values`: by step, None if it is not finite. `scaled`: products of losses and their scales."""

    values: dict[int, float | None]
    scaled: frozenset[LogicalKey]


def _losses(tensors: Tensors, scaled: Mapping[int, StepScale]) -> _Losses:
    """The loss of each step: the last scalar before the first backward pass, without its scale."""
    keys: dict[int, LogicalKey] = {}
    in_backward: set[int] = set()
    for key, record in tensors.items():
        if record.phase == "backward":
            in_backward.add(record.step)
        elif record.step not in in_backward and is_loss(key, record):
            keys[record.step] = key
    by_index = {(record.step, key.rank, record.index): key for key, record in tensors.items()} if scaled else {}
    values: dict[int, float | None] = {}
    products: set[LogicalKey] = set()
    for step, key in keys.items():
        loss = tensors[key]
        values[step] = None if loss.nonfinite else loss.mean
        if step in scaled:
            values[step], products_of_step = unscaled_loss(key, tensors, by_index, scaled[step].factor)
            products.update(products_of_step)
    return _Losses(values, frozenset(products))


def _steps(
    run: RecordedRun, losses: Mapping[int, float | None], scaled: Mapping[int, StepScale]
) -> tuple[StepTotals, ...]:
    """Loss, gradient norm, batch and scale of each step."""
    squares: dict[int, float] = defaultdict(float)
    batches: dict[int, list[str]] = defaultdict(list)
    for record in run.tensors.tensors.values():
        step = record.step
        if record.role == "gradient" and record.name and record.phase == "optimizer":
            squares[step] += record.norm**2 if isfinite(record.norm) else 0.0
        if record.role == "data":
            batches[step].append(record.hash)
    seen: dict[tuple[str, ...], int] = {}
    totals: list[StepTotals] = []
    for step in run.steps:
        batch, scale = tuple(batches[step]), scaled.get(step)
        norm = sqrt(squares.get(step, 0.0))
        is_skipped = scale is not None and scale.skipped
        totals.append(
            StepTotals(
                step=step,
                loss=losses.get(step),
                gradient_norm=None if is_skipped and step not in squares else norm,
                batch=batch,
                repeats=seen.get(batch) if batch and all(batch) else None,
                skipped=is_skipped,
                loss_scale=None if scale is None else scale.scale,
            )
        )
        seen.setdefault(batch, step)
    return tuple(totals)


def _gradient_growth(tensors: Tensors, steps: tuple[int, ...]) -> tuple[GradientGrowth, ...]:
    """The gradient norms of each module, the fastest growing first."""
    squares: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for key, record in tensors.items():
        if key.tensor.role == "gradient" and key.tensor.name and key.tensor.phase == "optimizer":
            squares[key.tensor.module][record.step] += record.norm**2
    growth: list[GradientGrowth] = []
    for module, by_step in squares.items():
        norms = tuple(sqrt(by_step[step]) for step in steps)
        ratios = [(norms[at] / before, steps[at]) for at in range(2, len(norms)) if (before := median(norms[:at])) > 0]
        largest, step = max(ratios, default=(0.0, 0))
        growth.append(GradientGrowth(module=module, norms=norms, growth=largest, step=step))
    return tuple(sorted(growth, key=lambda module: -module.growth))
