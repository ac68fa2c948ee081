"""Mechanisms of published trainings, switched on one after another: `python -m validation.ladders`.

Each step of a ladder adds one setting that the authors state, to those above it; the last is the training as they ran
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


class Rung(NamedTuple):
    """A setting of a training, and the columns of `Cases` that it changes."""

    setting: str
    columns: Mapping[str, float]


LADDERS: Mapping[str, Sequence[Rung]] = {
    "deepseek-v3": (
        Rung("full recomputation, 1F1B", _schedule("1f1b", 1) | {
            "activation_checkpoint": _FULL, "recompute_modules": 0.0, "n_group": 0.0, "topk_group": 0.0,
            "dispatch_bytes": 0.0, "overlaps_dispatch": 0.0,
        }),
        Rung("recomputes norms and the expansion of latent attention only", {
            "activation_checkpoint": _SELECTIVE, "recompute_modules": module_bits(["layernorm", "mla_up_proj"]),
        }),
        Rung("experts of 4 of 8 groups (node-limited routing)", {"n_group": 8.0, "topk_group": 4.0}),
        Rung("dispatch in float8", {"dispatch_bytes": 1.0}),
        Rung("dispatch during the compute of another micro-batch", {"overlaps_dispatch": 1.0}),
        Rung("DualPipe: two stages per rank, forward and backward in pairs", _schedule("dualpipev", 2)),
    ),
    "mixtral-8x7b-mcore": (
        Rung("1F1B", _schedule("1f1b", 1)),
        Rung("8 stages per rank", _schedule("interleaved", 8)),
    ),
    "tt-405b-512-1f1b-fp8": (
        Rung("32 micro-batches of a sequence", {"micro_batch_size": 1.0}),
        Rung("8 micro-batches, as many as pipeline ranks", {"micro_batch_size": 4.0}),
    ),
    "tt-405b-512-int-fp8": (
        Rung("1F1B, 8 micro-batches", _schedule("1f1b", 1) | {"micro_batch_size": 4.0}),
        Rung("2 stages per rank", _schedule("interleaved", 2)),
    ),
}  # fmt: skip
"""Name of a training -> its settings, each in addition to those above it."""


def climb(row: Row, rungs: Sequence[Rung]) -> list[float]:
    """Predicted seconds of a step after each rung."""
    columns, steps = dict(row.columns), []
    tuned = constant_sets.choose(rows.machine_of(row), row.software).values()
    for rung in rungs:
        columns |= rung.columns
        steps.append(float(fit.predicted([replace(row, columns=columns)], tuned)[0][0]))
    return steps


def table(every: Mapping[str, Row]) -> Table:
    """The ladders of the trainings that the data have, with the measured step at the last rung."""
    lines: list[tuple[str, str, float, str]] = []
    for name, rungs in LADDERS.items():
        if name not in every:
            continue
        row = every[name]
        for index, (rung, seconds) in enumerate(zip(rungs, climb(row, rungs), strict=True)):
            is_last = index == len(rungs) - 1
            measured = f"{row.seconds:.2f} ({row.seconds / seconds:.2f})" if is_last else ""
            lines.append((name if index == 0 else "", rung.setting, seconds, measured))
    columns = (
        Column(title="training"), Column(title="setting, in addition to those above"),
        Column(title="predicted, s", digits=2), Column(title="measured, s (over predicted)"),
    )  # fmt: skip
    return Table(title="Settings of published trainings", notes=(), columns=columns, rows=tuple(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print_table(table({row.id: row for row in rows.read(NAMED)}), Console(width=140))


if __name__ == "__main__":
    main()
