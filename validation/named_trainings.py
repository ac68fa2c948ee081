"""Well-known trainings, predicted as their authors ran them: `python -m validation.named_trainings [FILE]` prints the
predicted step with its interval next to the measured one. Nothing is fitted to them.

FILE has the columns of the published rows; default: named_trainings.csv of the published data next to the checkout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from trainyard.errors import TrainyardError
from trainyard.predict.inputs import constant_sets
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation import fit, plan, rows
from validation.intervals import Prediction
from validation.rows import Row

NAMED = fit.PUBLISHED.parent / "named_trainings.csv"


class NamedTraining(NamedTuple):
    """A training with its predicted step. `seconds`: predicted, with the bounds `low` and `high`, which include what
    the source leaves open."""

    row: Row
    constants: str
    seconds: float
    low: float
    high: float
    prediction: Prediction


def predict(every: Sequence[Row]) -> Iterator[NamedTraining]:
    """The trainings that can be represented and have a step time."""
    for row in fit.usable(every):
        errors, (prediction,) = plan.errors([row])
        expected = float(row.seconds * (1 + errors[0]))
        low, high = (expected * float(np.exp(bound)) for bound in prediction.log_bounds)
        constants = constant_sets.choose(rows.machine_of(row), row.software).name
        yield NamedTraining(row, constants, expected, low, high, prediction)


def table(trainings: Sequence[NamedTraining]) -> Table:
    lines = [
        (
            f"{each.row.id}, {each.row.accelerator}", each.constants, each.seconds,
            f"{each.low:.3g} to {each.high:.3g}",
            "calibrated" if each.prediction.interval.calibrated else "not calibrated", each.row.seconds,
            each.row.seconds / each.seconds, "yes" if each.prediction.holds else "no",
        )
        for each in trainings
    ]  # fmt: skip
    columns = (
        Column(title="training"), Column(title="constants"), Column(title="predicted, s", digits=2),
        Column(title="80 % interval, s"), Column(title="interval"), Column(title="measured, s", digits=2),
        Column(title="measured / predicted", digits=2), Column(title="in interval"),
    )  # fmt: skip
    return Table(title="Published trainings", notes=(), columns=columns, rows=tuple(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=NAMED)
    console = Console(width=170)
    try:
        every = rows.read(parser.parse_args().file)
    except TrainyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print_table(table(list(predict(every))), console)
    for row in every:
        if row.reason:
            console.print(f"{row.id} is not predicted: {row.reason}.", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
