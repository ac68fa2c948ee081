"""Left-out rows with the rates of products that their sources measured: `python -m validation.with_rates`.

`left_out.py` predicts the rows of a left-out source as for a user who does not know the sustained rate of a machine,
and the prediction intervals are estimated from these. Here the same rows are predicted with the rates of sources.toml.
Needs the published data next to the checkout; two minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from rich.console import Console

from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from validation import fit, left_out


class WithRates(NamedTuple):
    """The left-out rows of an owner: their number, and the mean of their absolute relative errors without the rates and
    with them."""

    owner: str
    rows: int
    error_without: float
    error_with: float


def predict() -> Iterator[WithRates]:
    """Each owner of a source with sustained rates."""
    every = [row for row in fit.usable(fit.published()) if left_out.is_used(row)]
    whole = fit.fit_all(every)
    for owner in sorted({row.owner for row in every if row.differs.sustained}):
        errors = [
            [
                abs(float(np.expm1(-residual.log_ratio)))
                for residual in left_out.predict_left_out(every, whole, "owner", owner, with_rates=with_rates)
            ]
            for with_rates in (False, True)
        ]
        without, with_them = (float(np.mean(each)) for each in errors)
        yield WithRates(owner, len(errors[0]), without, with_them)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    columns = (
        Column(title="owner"), Column(title="rows", digits=0), Column(title="mean error without rates, %", digits=0),
        Column(title="with rates, %", digits=0),
    )  # fmt: skip
    lines = [(each.owner, each.rows, 100 * each.error_without, 100 * each.error_with) for each in predict()]
    print_table(Table(title="Left-out sources", notes=(), columns=columns, rows=tuple(lines)), Console(width=100))


if __name__ == "__main__":
    main()
