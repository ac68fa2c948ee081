"""Published fine-tunings (SFT and LoRA), predicted as their authors ran them: `python -m validation.fine_tuning [FILE]`
prints the measured tokens/s per device next to the predicted ones.

FILE has the columns of `training_runs.csv.gz`; default: that file. Constants were fitted to some of the rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console

from trainyard.errors import TrainyardError
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation import fit, plan, rows
from validation.rows import Row


class PublishedFineTuning(NamedTuple):
    """A published fine-tuning with its prediction. `measured`, `predicted`: tokens/s of a device; `holds`: whether the
    80 % interval contains the measured step."""

    row: Row
    method: str
    measured: float
    predicted: float
    holds: bool

    @property
    def ratio(self) -> float:
        """Predicted over measured tokens/s."""
        return self.predicted / self.measured


def predict(every: Sequence[Row]) -> list[PublishedFineTuning]:
    """The rows of fine-tunings that can be represented and have a step time."""
    return [_predict(row) for row in fit.usable(every) if _method(row)]


def _method(row: Row) -> str:
    """`lora`, `sft`, or empty for other trainings."""
    return "lora" if row.kind == "adapters" else "sft" if "SFT" in row.notes else ""


def _predict(row: Row) -> PublishedFineTuning:
    """The prediction of one row."""
    (error,), (prediction,) = plan.errors([row])
    columns = row.columns
    devices = columns["dp_replicate"] * columns["dp_shard"] * columns["tp"] * columns["cp"] * columns["pp"]
    measured = columns["samples"] * columns["seq_len"] / row.seconds / devices
    return PublishedFineTuning(row, _method(row), measured, measured / (1 + float(error)), prediction.holds)


def table(trainings: Sequence[PublishedFineTuning]) -> Table:
    """A row for each training, and the median ratio of each method."""
    lines = [
        (
            f"{each.row.id}, {each.row.accelerator}", each.method, "yes" if fit.is_fitted(each.row) else "no",
            each.measured, each.predicted, each.ratio, "yes" if each.holds else "no",
        )
        for each in trainings
    ]  # fmt: skip
    ratios = {
        method: median(each.ratio for each in trainings if each.method == method)
        for method in sorted({each.method for each in trainings})
    }
    columns = (
        Column(title="training"), Column(title="method"), Column(title="fitted"),
        Column(title="measured, tokens/s/device", digits=0), Column(title="predicted", digits=0),
        Column(title="predicted / measured", digits=2), Column(title="in interval"),
    )  # fmt: skip
    notes = tuple(f"Median of predicted / measured, {method}: {ratio:.2f}." for method, ratio in ratios.items())
    return Table(title="Published fine-tunings", notes=notes, columns=columns, rows=tuple(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="default: all published rows")
    try:
        file = parser.parse_args().file
        every = rows.read(file) if file else fit.published()
    except TrainyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print_table(table(predict(every)), Console(width=130))
    return 0


if __name__ == "__main__":
    sys.exit(main())
