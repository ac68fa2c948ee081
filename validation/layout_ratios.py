"""Predicted ratios of two layouts against published measurements: `python -m validation.layout_ratios`.

A pair is two measured steps of the same source, software, machine, devices, model and batch that differ in the layout
only. Printed by source: how often the predicted order is right, and how many measured ratios are in the 80 % interval
of `trainyard plan` (`predict/search/layout_ratio.py`). The spread of each row of the table is fitted to the other
sources only, so that a source never judges itself; the last row is fitted to all. Sources with fewer than `ENOUGH`
pairs are judged, but nothing is fitted to them. Needs the published data next to the checkout.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from rich.console import Console

from trainyard.errors import TrainyardError
from trainyard.predict.inputs import constant_sets
from trainyard.predict.search import layout_ratio
from trainyard.predict.time import step
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Cell, Column, Table
from validation import fit, rows
from validation.intervals import COVERED
from validation.rows import Row

ENOUGH = 20
"""Pairs that a source needs for the spread to be fitted to it."""
LAYOUT = (
    "dp_replicate", "dp_shard", "tp", "cp", "pp", "ep", "zero", "interleave", "schedule", "micro_batch_size",
    "activation_checkpoint", "activation_checkpoint_every", "recompute_modules", "first_less", "last_less",
    "sequence_parallel", "loss_parallel", "is_sharded", "reduce_bytes",
)  # fmt: skip
"""Columns of a row that belong to its layout."""
_RELEASE = re.compile(r"(?:^|; )(\S+) NeMo Container")


class Pair(NamedTuple):
    """Two layouts. `predicted`, `measured`: logarithm of the ratio of their steps; `distance`: of their predicted
    ledgers."""

    predicted: float
    measured: float
    distance: float

    @property
    def error(self) -> float:
        return self.measured - self.predicted

    def is_covered(self, spread: float) -> bool:
        """Whether the measured ratio is in its 80 % interval."""
        return layout_ratio.needed_spread(self.error, self.distance) <= spread

    def is_tied(self, spread: float) -> bool:
        """Whether the interval of the ratio includes 1."""
        return layout_ratio.needed_spread(self.predicted, self.distance) <= spread


def pairs_by_source(every: Sequence[Row]) -> dict[str, list[Pair]]:
    """Source -> its pairs."""
    groups: dict[tuple[object, ...], dict[tuple[float, ...], Row]] = defaultdict(dict)
    for row in every:
        layout = tuple(row.columns.get(name, 0.0) for name in LAYOUT)
        groups[_same_work(row)].setdefault(layout, row)
    pairs_of: dict[str, list[Pair]] = defaultdict(list)
    for group in groups.values():
        chosen = list(group.values())
        pairs_of[chosen[0].source].extend(_pairs(chosen))
    return {source: pairs for source, pairs in sorted(pairs_of.items()) if pairs}


def _same_work(row: Row) -> tuple[object, ...]:
    """A key that rows share if they differ in the layout only."""
    release = _RELEASE.search(row.notes)
    ranks = np.prod([row.columns[axis] for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp")])
    work = tuple((name, round(value, 6)) for name, value in sorted(row.columns.items()) if name not in LAYOUT)
    return row.source, row.machine, row.software, row.precision, row.fabric, release and release[1], float(ranks), work


def _pairs(chosen: Sequence[Row]) -> Iterator[Pair]:
    """All pairs of rows that differ in the layout only."""
    if len(chosen) < 2:
        return
    constants = constant_sets.choose(rows.machine_of(chosen[0]), chosen[0].software).values()
    batch, where, seconds = fit.columns(chosen)
    times = step.step(batch, where, constants)
    steps: list[dict[str, float]] = [defaultdict(float) for _ in chosen]  # account -> seconds
    for line in times.lines:
        for accounts, value in zip(steps, np.broadcast_to(line.seconds, seconds.shape), strict=True):
            accounts[line.account] += float(value)
    walls = np.broadcast_to(times.wall, seconds.shape)
    for first, second in combinations(range(len(chosen)), 2):
        yield Pair(
            predicted=float(np.log(walls[first] / walls[second])),
            measured=float(np.log(seconds[first] / seconds[second])),
            distance=layout_ratio.share_distance(steps[first], steps[second]),
        )


def fit_spread(sources: Sequence[Sequence[Pair]]) -> float:
    """The least spread with which 80 % of the pairs are covered in each source that has enough of them. Sources differ,
    and there are too few to estimate by how much, so that the one with the largest errors decides."""
    large = [pairs for pairs in sources if len(pairs) >= ENOUGH]
    return max(
        float(
            np.quantile(
                [layout_ratio.needed_spread(pair.error, pair.distance) for pair in pairs], COVERED, method="higher"
            )
        )
        for pairs in large
    )


def _order_right(pairs: Sequence[Pair]) -> Cell:
    """Percentage of the pairs whose predicted order is the measured one; None without pairs."""
    return 100 * float(np.mean([pair.predicted * pair.measured > 0 for pair in pairs])) if pairs else None


def _row(name: str, pairs: Sequence[Pair], spread: float) -> tuple[Cell, ...]:
    tied = [pair for pair in pairs if pair.is_tied(spread)]
    apart = [pair for pair in pairs if not pair.is_tied(spread)]
    error = 100 * float(np.quantile([abs(pair.error) for pair in pairs], COVERED))
    covered = 100 * float(np.mean([pair.is_covered(spread) for pair in pairs]))
    return (
        name, len(pairs), error, spread, covered, 100 * len(tied) / len(pairs), _order_right(tied), _order_right(apart)
    )  # fmt: skip


def table(by_source: dict[str, list[Pair]]) -> Table:
    """The table by source, each with the spread fitted to the others."""
    lines = [
        _row(source, pairs, fit_spread([other for name, other in by_source.items() if name != source]))
        for source, pairs in by_source.items()
    ]
    everything = [pair for pairs in by_source.values() for pair in pairs]
    return Table(
        title="Ratios of two layouts",
        notes=(
            "Error: 80 % of the measured ratios differ less from the predicted one. Spread: fitted to the other "
            "sources.",
        ),
        columns=(
            Column(title="source"), Column(title="pairs", digits=0), Column(title="error, %", digits=1),
            Column(title="spread", digits=3), Column(title="in interval, %", digits=0),
            Column(title="tied, %", digits=0), Column(title="order right if tied, %", digits=0),
            Column(title="else, %", digits=0),
        ),
        rows=(*lines, _row("all", everything, fit_spread(list(by_source.values())))),
    )  # fmt: skip


def main() -> int:
    try:
        every = fit.usable(fit.published())
    except TrainyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print_table(table(pairs_by_source(every)), Console(width=160))
    return 0


if __name__ == "__main__":
    sys.exit(main())
