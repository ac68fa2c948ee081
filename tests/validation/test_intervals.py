"""Prediction intervals from left-out sources: their coverage on simulated sources, and on the published ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from validation import intervals, left_out
from validation.left_out import LeftOut

pytest.importorskip("scipy")

KINDS = {"dense": 0.08, "experts": 0.25}
BIASES = {"dense": 0.05, "experts": -0.03}
DOUBLING = 0.04
HOST = 0.5


def simulate(rng: np.random.Generator, sources: int) -> list[LeftOut]:
    """Rows of sources with an error in common and one of their own. Both grow with the distance and with the share of
    the step that its host bounds."""
    residuals: list[LeftOut] = []
    for source in range(sources):
        kind = ("dense", "experts")[source % 2]
        doublings = float(rng.integers(0, 4))
        share = float(rng.uniform(0, 0.3))
        scale = np.linalg.norm([KINDS[kind] * np.sqrt(1.5), DOUBLING * doublings, HOST * share])
        common = rng.normal(0, 0.9)
        for at in range(int(rng.integers(1, 30))):
            error = BIASES[kind] + scale * (common + rng.normal(0, 0.44))
            residuals.append(
                LeftOut(
                    id=f"{source}-{at}", split="owner", left_out=f"s{source}", owner=f"s{source}", machine="h100",
                    kind=kind, software="megatron", constants="x", same_family=True, same_software=True,
                    machine_fitted=True, rows_of_kind=20, owners_of_kind=2, outside={"ranks": doublings},
                    above_largest=0.0, host_share=share, attention_share=0.0, log_ratio=float(error), log_spread=0.0,
                )
            )  # fmt: skip
    return residuals


def mean_coverage(judged: Sequence[tuple[LeftOut, intervals.Prediction]]) -> float:
    """Mean over sources of the share of rows that are in their interval."""
    holds: dict[str, list[bool]] = {}
    for residual, prediction in judged:
        holds.setdefault(residual.owner, []).append(prediction.holds)
    return float(np.mean([np.mean(each) for each in holds.values()]))


def test_intervals_cover_80_per_cent_of_new_sources() -> None:
    rng = np.random.default_rng(0)
    coverage = [mean_coverage(intervals.judge(simulate(rng, 16))) for _ in range(12)]
    assert 0.75 < np.mean(coverage) < 0.9


def test_scales_are_found_again() -> None:
    scale = intervals.estimate(simulate(np.random.default_rng(1), 200))
    for kind, expected in KINDS.items():
        assert scale.kinds[kind] == pytest.approx(expected, rel=0.35)
        assert scale.biases[kind] == pytest.approx(BIASES[kind], abs=0.03)
    assert scale.doubling == pytest.approx(DOUBLING, rel=0.5)
    assert scale.host == pytest.approx(HOST, rel=0.5)
    assert 1.0 < scale.quantile < 1.6


def test_a_source_does_not_set_its_own_interval() -> None:
    residuals = simulate(np.random.default_rng(2), 8)
    changed = [
        msgspec.structs.replace(residual, log_ratio=3.0) if residual.owner == "s3" else residual
        for residual in residuals
    ]
    before, after = (
        {residual.id: prediction.interval for residual, prediction in intervals.judge(rows) if residual.owner == "s3"}
        for rows in (residuals, changed)
    )
    assert before == after


def test_the_interval_score_punishes_width_and_misses() -> None:
    near = intervals.Prediction(intervals.Interval(0.9, 1.1), 0.0, 0.0)
    assert near.holds
    assert near._replace(interval=intervals.Interval(0.8, 1.2)).score > near.score
    missed = near._replace(log_ratio=0.5)
    assert not missed.holds
    assert missed.score == pytest.approx(near.score + 10 * missed.log_excess)
    assert missed._replace(log_spread=0.5).holds


def test_published_sources_are_covered() -> None:
    """The stored residuals: rows whose source or device was left out, with intervals from the other sources."""
    judged = [
        (residual, prediction)
        for residual, prediction in intervals.judge(left_out.read())
        if prediction.interval.calibrated and residual.split == "owner"
    ]
    assert len(judged) > 100
    assert 0.7 < np.mean([prediction.holds for _, prediction in judged]) < 0.95
    assert np.median([prediction.width for _, prediction in judged]) < 1.8
