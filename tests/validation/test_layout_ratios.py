"""Pairs of measured layouts, and the spread of their ratios."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainyard.predict.search.layout_ratio import SPREAD
from validation import fit, rows
from validation.fit import MEGATRON
from validation.layout_ratios import ENOUGH, LAYOUT, Pair, fit_spread, pairs_by_source, table

needs_data = pytest.mark.skipif(
    not fit.PUBLISHED.is_file(), reason="the published measurements are not next to the checkout"
)


def drawn_pairs(spread: float, count: int) -> list[Pair]:
    """Pairs without a common account, whose ratio is off by a normal error."""
    errors = np.random.default_rng(1).normal(0, spread, count)
    return [Pair(predicted=0.1, measured=0.1 + error, distance=100.0) for error in errors]


def test_spread_of_drawn_pairs_is_recovered() -> None:
    assert fit_spread([drawn_pairs(0.05, 4000)]) == pytest.approx(0.05, rel=0.05)


def test_source_with_the_largest_errors_decides() -> None:
    few, many = drawn_pairs(0.05, ENOUGH * 10), drawn_pairs(0.2, 4000)
    assert fit_spread([few, many]) == fit_spread([many]) > fit_spread([few])
    assert fit_spread([few, many[: ENOUGH - 1]]) == fit_spread([few]), "too few pairs of the second source"


def test_pairs_of_two_papers_differ_in_checkpointing_only() -> None:
    every = fit.usable(rows.read(MEGATRON))
    pairs = pairs_by_source(every)
    assert {source: len(own) for source, own in pairs.items()} == {"arXiv:2205.05198": 4}
    for pair in pairs["arXiv:2205.05198"]:
        assert pair.measured > 0.2, "full recomputation takes longer"
        assert abs(pair.error) < 0.03
        assert 0 < pair.distance < 0.1


def test_pair_is_covered_and_tied_by_its_own_spread() -> None:
    pair = Pair(predicted=0.05, measured=0.15, distance=100.0)
    assert [pair.is_covered(spread) for spread in (0.07, 0.08)] == [False, True]
    assert [pair.is_tied(spread) for spread in (0.035, 0.045)] == [False, True]


def test_rows_of_different_batches_or_models_are_not_pairs() -> None:
    row = fit.usable(rows.read(MEGATRON))[0]
    for name in ("samples", "layers", "low_precision"):
        other = replace(row, columns=row.columns | {name: row.columns[name] + 1, "micro_batch_size": 1.0})
        assert name not in LAYOUT
        assert pairs_by_source([row, other]) == {}


@needs_data
def test_spread_covers_the_published_pairs() -> None:
    every = [row for path in (fit.PUBLISHED, MEGATRON) for row in fit.usable(rows.read(path))]
    pairs = pairs_by_source(every)
    assert 0.9 * SPREAD < fit_spread(list(pairs.values())) <= SPREAD * 1.001
    *sources, all_pairs = table(pairs).rows
    assert len(sources) == len(pairs) >= 4
    order_if_tied, order_else = all_pairs[-2:]
    assert isinstance(order_if_tied, float)
    assert isinstance(order_else, float)
    assert order_if_tied < 80 < 95 < order_else
