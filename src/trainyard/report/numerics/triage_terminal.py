"""Prints the diagnosis of a recorded training."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from trainyard import units
from trainyard.numerics.triage.triage_result import (
    Determinism,
    LossScaleHistory,
    NonFiniteOrigin,
    SkippedStep,
    Spike,
    StepTotals,
    Triage,
    TriagedTensor,
)
from trainyard.report.numerics.sentences import show
from trainyard.report.render.fitted_table import plain
from trainyard.report.render.terminal import next_steps, print_table
from trainyard.report.view.next_step import NextStep
from trainyard.report.view.view import Column, Table

_MOST_MODULES, _MOST_STEPS, _MOST_OPERATIONS, _MOST_SPIKES, _MOST_SKIPPED = 8, 12, 8, 4, 4
_STEPS_BEFORE = 3
"""Steps shown before the first fault."""


def triage_headline(triage: Triage) -> str:
    """The diagnosis in one sentence."""
    parts: list[str] = []
    if triage.nonfinite is not None:
        parts.append(f"The first values that are not finite are in {_tensor(triage.nonfinite.tensor)}")
    elif triage.nonfinite_loss_step is not None:
        parts.append(f"The loss is not finite in step {triage.nonfinite_loss_step}, the first such step")
    elif triage.is_run:
        parts.append(f"All losses of {units.counted(len(triage.steps), 'step')} are finite")
    else:
        handled = triage.loss_scale is not None and triage.loss_scale.handled_steps
        skipped = " and skipped steps" if handled else ""
        parts.append(f"All values are finite, apart from masks{skipped}")
    if triage.loss_scale is not None:
        parts.append(_scale(triage.loss_scale))
    if triage.spikes:
        parts.append(f"{units.counted(len(triage.spikes), 'spike')}, the first in step {triage.spikes[0].step}")
    elif triage.is_run:
        parts.append("no spike")
    if triage.determinism is not None:
        parts.append(_determinism(triage.determinism))
    return "; ".join(parts) + "."


def print_triage(triage: Triage, console: Console, full: bool = False) -> None:
    """Prints the first non-finite tensor, steps, modules with growing gradients, and operations that do not repeat."""
    style = "red" if triage.exit_code else "green"
    console.print(Text(plain(triage_headline(triage)), style=f"bold {style}"))
    if triage.nonfinite is not None:
        for line in _origin(triage.nonfinite):
            console.print(Text(plain(line)))
    if triage.loss_scale is not None:
        skipped = triage.loss_scale.skipped
        for step in skipped if full else skipped[:_MOST_SKIPPED]:
            console.print(Text(plain(f"skipped    {_skipped(step)}")))
        if len(skipped) > _MOST_SKIPPED and not full:
            console.print(Text(f"{len(skipped) - _MOST_SKIPPED:,} more skipped steps with --full", style="dim"))
    for spike in triage.spikes if full else triage.spikes[:_MOST_SPIKES]:
        console.print(Text(f"spike      {_spike(spike)}"))
    if len(triage.spikes) > _MOST_SPIKES and not full:
        console.print(Text(f"{len(triage.spikes) - _MOST_SPIKES:,} more spikes with --full", style="dim"))
    if triage.is_finite_in_replay:
        text = "The replay is finite: the batches and the weights do not explain the fault. Check the device."
        console.print(Text(text, style="yellow"))
    console.print()
    print_table(_step_table(triage, full), console, None if full else _MOST_STEPS)
    if any(module.growth for module in triage.gradients):
        console.print()
        print_table(_module_table(triage), console, None if full else _MOST_MODULES)
    if triage.determinism is not None and triage.determinism.operations:
        console.print()
        operations = triage.determinism.operations
        for operation in operations if full else operations[:_MOST_OPERATIONS]:
            calls = units.counted(operation.count, "call")
            text = f"{operation.operation}, {calls}, first {_phase(operation.tensor)}: {operation.reason}."
            console.print(Text(plain(text)))
            console.print(Text(plain(f"  switch: {operation.switch}"), style="dim"))
    if triage.replay:
        for line in next_steps([NextStep(shlex.join(triage.replay), "record the steps around the first fault")]):
            console.print(line, soft_wrap=True)


def _scale(history: LossScaleHistory) -> str:
    """The course of the loss scale, as part of a sentence."""
    steps = units.counted(len(history.skipped), "skipped step")
    of_scale = all(step.is_of_scale for step in history.skipped)
    match history.trend:
        case "steady":
            return "no step was skipped by the scaler of the loss"
        case "fell once":
            return f"the scale of the loss fell once, with {steps}{', which is normal' if of_scale else ''}"
        case "fell repeatedly":
            cause = "" if of_scale else "; values overflow before they are scaled, which no lower scale removes"
            return f"the scale of the loss fell repeatedly, with {steps}: the training diverges{cause}"


def _skipped(step: SkippedStep) -> str:
    """A skipped step with its scale and its first overflow."""
    overflow = "no record of the overflow" if step.overflow is None else f"first overflow in {_tensor(step.overflow)}"
    code = f" ({step.overflow.location})" if step.overflow is not None and step.overflow.location else ""
    return f"step {step.step} at scale {step.scale:,g}: {overflow}{code}"


def _determinism(result: Determinism) -> str:
    if result.identical == result.compared:
        unused = "" if result.random_state_step is None else ", which depend on no generator that is without a seed"
        return f"both runs have the same bits in {units.counted(result.compared, 'tensor')}{unused}"
    differing = result.compared - result.identical
    text = f"the runs differ in {differing:,} of {units.counted(result.compared, 'tensor')}"
    if result.data_step is not None:
        return f"{text}, and have other batches from step {result.data_step} on: seed the data loader"
    if result.random_state_step is not None:
        return f"{text}, and other random numbers from step {result.random_state_step} on: seed the generators"
    if not result.operations:
        return f"{text}, though no recorded operation is the origin: initial weights or other code"
    return f"{text}, which begins in {units.counted(len(result.operations), 'operation')}"


def _origin(origin: NonFiniteOrigin) -> Iterator[str]:
    """Lines on the first non-finite tensor, its inputs and its effects."""
    counts = (
        ("NaN", origin.tensor.nan),
        ("+Inf", origin.tensor.positive_infinities),
        ("-Inf", origin.tensor.negative_infinities),
    )
    listed = ", ".join(f"{count:,} {name}" for name, count in counts if count)
    yield f"values     {listed} of {list(origin.tensor.shape)} {origin.tensor.dtype}"
    if origin.tensor.location:
        yield f"code       {origin.tensor.location}"
    for source in origin.inputs:
        wrong = source.nan + source.positive_infinities + source.negative_infinities
        state = f"{wrong:,} not finite" if wrong else f"norm {show(source.norm)}, largest {show(source.maximum)}"
        yield f"input      {_tensor(source)}: {list(source.shape)}, {state}"
    for name, tensor in (
        ("loss", origin.first_loss),
        ("gradient", origin.first_gradient),
        ("weight", origin.first_weight),
    ):
        if tensor is not None:
            yield f"{name:10} not finite from {_tensor(tensor)} on"
    yield f"in all     {units.counted(origin.affected + 1, 'tensor')} not finite"


def _tensor(tensor: TriagedTensor) -> str:
    owner = ".".join(filter(None, (tensor.module, tensor.name)))
    return f"{tensor.operation or tensor.role.replace('_', ' ')}{f' of {owner}' if owner else ''} {_phase(tensor)}"


def _phase(tensor: TriagedTensor) -> str:
    rank = f" on rank {tensor.rank}" if tensor.rank > 0 else ""
    return f"in the {tensor.phase} {'step' if tensor.phase == 'optimizer' else 'pass'} of step {tensor.step}{rank}"


def _spike(spike: Spike) -> str:
    last = "" if spike.last_step == spike.step else f" to {spike.last_step}"
    return (
        f"{spike.curve} in step {spike.step}{last}: {show(spike.value)}, {show(spike.ratio)} times the median before it"
    )


def _shown_steps(triage: Triage, full: bool) -> Sequence[StepTotals]:
    """All steps, or those from shortly before the first fault on."""
    faults = [spike.step for spike in triage.spikes]
    faults += [triage.nonfinite_loss_step] if triage.nonfinite_loss_step is not None else []
    if full or not faults:
        return triage.steps
    return [step for step in triage.steps if step.step >= min(faults) - _STEPS_BEFORE]


def _step_table(triage: Triage, full: bool) -> Table:
    has_scale = triage.loss_scale is not None
    return Table(
        title="steps",
        notes=(),
        columns=(
            Column(title="step", digits=0),
            Column(title="loss", id=True),
            Column(title="gradient norm", id=True),
            *([Column(title="loss scale", id=True)] if has_scale else []),
            Column(title="batch", id=True),
            Column(title="update", id=True),
        ),
        rows=tuple(
            (
                step.step,
                "–" if step.loss is None else f"{step.loss:.5g}",
                show(step.gradient_norm),
                *(["–" if step.loss_scale is None else f"{step.loss_scale:,g}"] if has_scale else []),
                "" if step.repeats is None else f"as in step {step.repeats}",
                "not applied" if step.skipped else "",
            )
            for step in _shown_steps(triage, full)
        ),
    )


def _module_table(triage: Triage) -> Table:
    return Table(
        title="modules",
        notes=("Growth: gradient norm of a step over the median of those before it.",),
        columns=(
            Column(title="module"),
            Column(title="growth", id=True),
            Column(title="in step", digits=0),
            Column(title="norms", id=True, optional=True),
        ),
        rows=tuple(
            (module.module, show(module.growth), module.step, " ".join(show(norm) for norm in module.norms[-6:]))
            for module in triage.gradients
        ),
    )
