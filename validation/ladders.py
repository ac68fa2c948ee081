"""Mechanisms of published trainings, switched on one after another: `python -m validation.ladders`.

Each row of a ladder adds one setting that the authors state, to those above it; the last is the training as they ran
it. Nothing is fitted to these trainings. Needs the published data next to the checkout.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Console

from trainyard.predict.inputs import constant_sets
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS, module_bits
from trainyard.predict.memory import framework_memory
from trainyard.predict.pipeline import schedules
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation import fit, rows
from validation.named_trainings import NAMED
from validation.rows import Row

_FULL = float(ACTIVATION_CHECKPOINTS.index("full"))
_SELECTIVE = float(ACTIVATION_CHECKPOINTS.index("selective"))


def _schedule(name: str, stages: float) -> dict[str, float]:
    """Columns of a pipeline schedule with `stages` stages per rank."""
    return {"schedule": float(schedules.SCHEDULES.index(name)), "interleave": stages}


class Setting(NamedTuple):
    """A setting of a training, and the columns of `Cases` that it changes."""

    name: str
    columns: Mapping[str, float]


LADDERS: Mapping[str, Sequence[Setting]] = {
    "deepseek-v3": (
        Setting("full recomputation, 1F1B", _schedule("1f1b", 1) | {
            "activation_checkpoint": _FULL, "recompute_modules": 0.0, "n_group": 0.0, "topk_group": 0.0,
            "dispatch_bytes": 0.0, "overlaps_dispatch": 0.0,
        }),
        Setting("recomputes norms and the expansion of latent attention only", {
            "activation_checkpoint": _SELECTIVE, "recompute_modules": module_bits(["layernorm", "mla_up_proj"]),
        }),
        Setting("experts of 4 of 8 groups (node-limited routing)", {"n_group": 8.0, "topk_group": 4.0}),
        Setting("dispatch in float8", {"dispatch_bytes": 1.0}),
        Setting("dispatch during the compute of another micro-batch", {"overlaps_dispatch": 1.0}),
        Setting("DualPipe: two stages per rank, forward and backward in pairs", _schedule("dualpipev", 2)),
    ),
    "mixtral-8x7b-mcore": (
        Setting("1F1B", _schedule("1f1b", 1)),
        Setting("8 stages per rank", _schedule("interleaved", 8)),
    ),
    "tt-405b-512-1f1b-fp8": (
        Setting("32 micro-batches of a sequence", {"micro_batch_size": 1.0}),
        Setting("8 micro-batches, as many as pipeline ranks", {"micro_batch_size": 4.0}),
    ),
    "tt-405b-512-int-fp8": (
        Setting("1F1B, 8 micro-batches", _schedule("1f1b", 1) | {"micro_batch_size": 4.0}),
        Setting("2 stages per rank", _schedule("interleaved", 2)),
    ),
}  # fmt: skip
"""Name of a training -> its settings, each in addition to those above it."""


def predict(row: Row, settings: Sequence[Setting]) -> list[tuple[float, float]]:
    """(seconds of a step, bytes reserved on the fullest rank) after each setting."""
    columns, predictions = dict(row.columns), []
    tuned = constant_sets.choose(rows.machine_of(row), row.software).values()
    for setting in settings:
        columns |= setting.columns
        changed = replace(row, columns=columns)
        case, _, _ = fit.columns([changed])
        reserved = float(framework_memory.memory(case).total[0]) * framework_memory.RESERVED
        predictions.append((float(fit.predicted([changed], tuned)[0][0]), reserved))
    return predictions


def table(every: Mapping[str, Row]) -> Table:
    """The ladders of the trainings that the data have, with the measured step in the last row of each."""
    lines: list[tuple[str, str, float, float, str]] = []
    for training, settings in LADDERS.items():
        if training not in every:
            continue
        row = every[training]
        for index, (setting, prediction) in enumerate(zip(settings, predict(row, settings), strict=True)):
            seconds, reserved = prediction
            is_last = index == len(settings) - 1
            measured = f"{row.seconds:.2f} ({row.seconds / seconds:.2f})" if is_last else ""
            lines.append(("" if index else training, setting.name, seconds, reserved / 2**30, measured))
    columns = (
        Column(title="training"), Column(title="setting, in addition to those above"),
        Column(title="predicted, s", digits=2), Column(title="reserved, GiB", digits=1),
        Column(title="measured, s (over predicted)"),
    )  # fmt: skip
    return Table(title="Settings of published trainings", notes=(), columns=columns, rows=tuple(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print_table(table({row.id: row for row in rows.read(NAMED)}), Console(width=160))


if __name__ == "__main__":
    main()
