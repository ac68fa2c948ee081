"""Left-out rows as predicted without the rates of products that their sources measured: `python -m
validation.without_rates`.

`left_out.py` predicts the rows of a source with its sustained rates (sources.toml), as for a user who measured them.
Here the same rows are predicted with the rates fitted to the other sources, and judged by the interval that these give.
Needs the published data next to the checkout; two minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from rich.console import Console

from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation import fit, intervals, left_out, rows
from validation.intervals import Prediction


class WithoutRates(NamedTuple):
    """The left-out rows of an owner. `mean_error`: mean of the absolute relative errors; `calibrated`: rows whose kind
    of model was fitted, and `held` those of them in their interval."""

    owner: str
    rows: int
    mean_error: float
    calibrated: int
    held: int


def predict() -> Iterator[WithoutRates]:
    """Each owner of a source with sustained rates."""
    published = fit.usable([*rows.read(fit.PUBLISHED), *rows.read(fit.MEGATRON)])
    every = [row for row in published if left_out.is_used(row)]
    whole = fit.fit_all(every)
    for owner in sorted({row.owner for row in every if row.sustained}):
        plain = [replace(row, sustained={}) if row.owner == owner else row for row in every]
        residuals = list(left_out.predict_left_out(plain, whole, "owner", owner))
        scale = intervals.estimate([residual for residual in left_out.read() if residual.owner != owner])
        predictions = [
            Prediction(scale.interval(residual.distance), residual.log_ratio, residual.log_spread)
            for residual in residuals
            if residual.is_comparable
        ]
        judged = [prediction for prediction in predictions if prediction.interval.calibrated]
        errors = np.abs(np.expm1([-residual.log_ratio for residual in residuals]))
        held = sum(prediction.holds for prediction in judged)
        yield WithoutRates(owner, len(residuals), float(np.mean(errors)), len(judged), held)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    columns = (
        Column(title="owner"), Column(title="rows", digits=0), Column(title="mean error, %", digits=0),
        Column(title="calibrated", digits=0), Column(title="in the interval", digits=0),
    )  # fmt: skip
    lines = [(each.owner, each.rows, 100 * each.mean_error, each.calibrated, each.held) for each in predict()]
    print_table(Table(title="Without its rates", notes=(), columns=columns, rows=tuple(lines)), Console(width=100))


if __name__ == "__main__":
    main()
