"""Tables of `trainyard plan design`: the gains, the trainings, and the layouts that a change makes the fastest."""

from __future__ import annotations

from trainyard.report.plans.design_comparison import Design, DesignComparison, DesignTraining, show_gain
from trainyard.report.view.view import Cell, Column, Table


def gains(result: DesignComparison) -> Table:
    """The gain of each change (row) in each training (column) in percent, with the mean, and the cost per token if a
    price is stated."""
    priced = any(design.cost_per_token is not None for design in result.designs)
    cost = Column(
        title="cost per token",
        digits=2,
        id=True,
        note="Cost per token: relative to the unchanged machine, from the mean and the stated price.",
    )
    return Table(
        title="Faster by, %",
        notes=(
            "Mean: geometric. A change pays if it raises the price of a device, with its share of hosts, links and "
            "power, by less than its mean.",
            *result.assumptions,
        ),
        columns=(
            Column(title="", prose=True),
            *(
                Column(title=training.name.replace("-", " "), digits=0, id=True, optional=True)
                for training in result.trainings
            ),
            Column(title="mean", digits=0, id=True),
            *((cost,) if priced else ()),
        ),
        rows=tuple(_gain_row(design, priced) for design in result.designs),
    )


def _gain_row(design: Design, priced: bool) -> tuple[Cell, ...]:
    """The row of one design, with its cost per token if `priced`."""
    shown = (*(show_gain(step.speedup) for step in design.steps), show_gain(design.mean_speedup))
    return (design.label, *shown, *((design.cost_per_token,) if priced else ()))


def trainings(result: DesignComparison) -> Table:
    """The trainings with their steps on the unchanged machine."""
    return Table(
        title="Training",
        notes=("Step: of the fastest layout on the unchanged machine. mbs: micro-batch size.",),
        columns=(
            Column(title="", id=True), Column(title="devices", digits=0, id=True),
            Column(title="batch", digits=0, id=True), Column(title="seq-len", digits=0, id=True),
            Column(title="step, s", digits=2, id=True),
            Column(title="layout", prose=True),
        ),
        rows=tuple(_training_row(training) for training in result.trainings),
    )  # fmt: skip


def _training_row(training: DesignTraining) -> tuple[Cell, ...]:
    """The row of one training."""
    return (
        training.name, training.devices, training.batch, training.seq_len if training.seq_len > 1 else None,
        training.step_ns / 1e9 if training.step_ns is not None else None, training.layout,
    )  # fmt: skip


def changed_layouts(result: DesignComparison) -> Table:
    """The layouts that are the fastest with a change, if others are without it."""
    return Table(
        title="Other fastest layout with",
        notes=("With all other changes the fastest layout stays the same.",),
        columns=(
            Column(title="", prose=True), Column(title="training", id=True), Column(title="step, s", digits=2, id=True),
            Column(title="layout", prose=True),
        ),
        rows=tuple(
            (design.label, training.name, step.step_ns / 1e9, step.layout)
            for design in result.designs
            for training, step in zip(result.trainings, design.steps, strict=True)
            if step.step_ns is not None and step.layout != training.layout
        ),
    )  # fmt: skip


def reasons(result: DesignComparison) -> tuple[str, ...]:
    """A sentence for each training, or change of one, without a layout."""
    missing = [f"{each.name}: {each.reason}" for each in result.trainings if each.reason]
    for design in result.designs:
        for training, step in zip(result.trainings, design.steps, strict=True):
            if step.reason and not training.reason:
                missing.append(f"{training.name} with {design.label}: {step.reason}")
    return tuple(missing)
