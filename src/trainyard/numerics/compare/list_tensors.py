"""Lists the judged tensors that a reader of a comparison looks for, in a bounded number."""

from __future__ import annotations

from collections import defaultdict
from math import inf, isnan

from trainyard.numerics.compare.align_tensors import Alignment, Tensors
from trainyard.numerics.compare.comparison_result import TensorComparison, TensorPoint
from trainyard.numerics.compare.judge_tensors import Judgements

MOST_TENSORS = 5_000
"""Tensors listed of a comparison."""


def list_tensors(
    alignment: Alignment,
    judgements: Judgements,
    a: Tensors,
    b: Tensors,
    first: TensorPoint | None,
    most: int = MOST_TENSORS,
) -> tuple[TensorComparison, ...]:
    """At most `most` tensors, in order of execution. If there are more, those of the module of the `first` divergence
    in its step, and of each module as many as of the others: its first different one, then those with the largest
    errors relative to their limits."""
    rows = range(len(alignment.pairs))
    chosen = rows if len(rows) <= most else sorted(_by_relevance(alignment, judgements, first)[:most])
    return tuple(_describe(row, alignment, judgements, a, b) for row in chosen)


def _by_relevance(alignment: Alignment, judgements: Judgements, first: TensorPoint | None) -> list[int]:
    """All rows, the most relevant first."""
    of_module: dict[str, list[int]] = defaultdict(list)
    for row, pair in enumerate(alignment.pairs):
        of_module[pair.a.tensor.module].append(row)
    priority: dict[int, int] = {}
    for module, rows in of_module.items():
        priority.update({row: at for at, row in enumerate(_order_in_module(rows, judgements))})
        if first is not None and first.module == module:
            in_step = [row for row in rows if alignment.pairs[row].a.tensor.step == first.step]
            priority.update(dict.fromkeys(in_step, -1))
    return sorted(priority, key=lambda row: (priority[row], row))


def _order_in_module(rows: list[int], judgements: Judgements) -> list[int]:
    """The first different row, then the others by their errors relative to the limits."""
    different = next((row for row in rows if judgements.status[row] == "different"), None)

    def relevance(row: int) -> float:
        value = float(judgements.of_limit[row])
        if row == different or (isnan(value) and judgements.status[row] == "different"):
            return inf
        return 0.0 if isnan(value) else value

    return sorted(rows, key=lambda row: (row != different, -relevance(row), row))


def _describe(row: int, alignment: Alignment, judgements: Judgements, a: Tensors, b: Tensors) -> TensorComparison:
    pair = alignment.pairs[row]
    key = pair.a.tensor
    return TensorComparison(
        **key._asdict(),
        rank=pair.a.rank,
        status=judgements.status[row],
        kind=judgements.kinds[row],
        error=_rounded(float(judgements.error[row])),
        noise=_rounded(float(judgements.noise[row])),
        limit=_rounded(float(judgements.limit[row])),
        reason=judgements.reasons[row],
        location=a[pair.a].location or b[pair.b].location,
    )


def _rounded(value: float) -> float | None:
    """A number with four digits, which halves the size of the document; None for NaN and infinity."""
    return float(f"{value:.4g}") if abs(value) < inf else None
