"""MLPerf reference convergence points: whether runs need about as many epochs as the reference.

The rule is that of MLPerf Training (training_rules, "Reference Convergence Points") as mlcommons/logging's
`mlperf_logging/rcp_checker` applies it: the mean of the runs without the fastest and the slowest ("olympic"; four of
each of unet3d) must not be below what a one-sided t-test at 5 % lets pass, with the reference's spread on both sides;
between two batch sizes the reference is interpolated. The rule refuses runs that converge too fast. To find out whether
a change broke the training, runs that converge too slowly matter too: the same bound is applied on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, sqrt
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from trainyard.errors import BadFile, BadInput
from trainyard.formats import mllog
from trainyard.formats.decoding import UNREADABLE
from trainyard.formats.regular_files import unreadable
from trainyard.stats.student_t import quantile

_ALPHA = 0.05
_LEFT_OUT_PER_END = {"unet3d": 4}
"""Benchmark -> runs left out at each end; 1 for all others."""
_UNITS = {"samples to converge": "samples_count", "Epochs to converge": "epoch_num"}
"""Key of a reference point's file -> unit: the key of an evaluation's metadata in a log."""


class Result(NamedTuple):
    """A run, from its log. `batch`: the global batch size in samples. `needed`: unit (a value of `_UNITS`) -> epochs or
    samples to the target, as logged; empty if the run missed the target."""

    benchmark: str
    batch: int
    needed: dict[str, float]


class ReferencePoint(NamedTuple):
    """A reference at one batch size: mean and spread of its runs, in `unit` (a key of an evaluation's metadata)."""

    benchmark: str
    batch: int
    unit: str
    mean: float
    spread: float
    runs: int
    """Number of runs in the mean, without those left out at the ends."""


class ReferenceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """`mean` of the runs, None if too many missed the target, against `reference`, with the rule's bounds `fastest` and
    `slowest`. `mlperf`: whether MLPerf's rule passes. `scale`: the factor by which MLPerf multiplies the score."""

    verdict: Literal["same", "faster", "slower"]
    mlperf: Literal["pass", "fail"]
    benchmark: str
    batch: int
    unit: str
    runs: int
    missed: int
    mean: float | None
    reference: float
    fastest: float
    slowest: float
    scale: float
    how: str


def read_result(path: Path) -> Result:
    """Reads a training run's log. The epochs or samples to the target are those of the last evaluation before the end
    of a successful run. Raises `BadFile`, or `BadInput` if it lacks the benchmark or batch size."""
    benchmark, batch, last_evaluation, needed = "", None, {}, {}
    for entry in mllog.read(path):  # an entry has a key, a value and metadata
        if entry.key == "submission_benchmark" and isinstance(entry.value, str):
            benchmark = entry.value
        elif entry.key == "global_batch_size":
            batch = entry.number()
        elif entry.key in ("eval_accuracy", "eval_error"):
            values = {unit: entry.number(unit) for unit in _UNITS.values()}
            last_evaluation = {unit: at for unit, at in values.items() if at is not None}
        elif entry.key == "run_stop":
            needed = last_evaluation if (entry.metadata or {}).get("status") == "success" else {}
    if not benchmark or batch is None:
        missing = "submission_benchmark" if not benchmark else "global_batch_size"
        raise BadInput(f"{path}: its MLLOG lines have no {missing}.", "Give the result log of a whole training run.")
    return Result(benchmark=benchmark, batch=int(batch), needed=needed)


def read_points(path: Path) -> list[ReferencePoint]:
    """Read reference points in the format of mlcommons/logging (`rcps_<benchmark>.json`). Raises `BadFile`."""
    try:
        records = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
        return sorted((_point(record) for record in records.values()), key=lambda point: (point.batch, point.benchmark))
    except OSError as error:
        raise unreadable(path, error) from error
    except (*UNREADABLE, KeyError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise BadFile(f"{path}: not a file of reference points: {reason}.") from error


def _point(record: dict[str, Any]) -> ReferencePoint:
    """The reference point of one record of the file: runs of a benchmark at batch size `BS`, with the units (epochs or
    samples) that each needed to converge."""
    key = next((key for key in _UNITS if key in record), "Epochs to converge")
    batch, needed = msgspec.convert(record["BS"], int), msgspec.convert(record[key], list[float])
    return _reference_from_runs(msgspec.convert(record["Benchmark"], str), batch, _UNITS[key], needed)


def point_of(results: Sequence[Result]) -> ReferencePoint:
    """A reference from the user's own logs, in the first unit that all of them report. Raises `BadInput` if there is
    none."""
    benchmark, batch = _benchmark_and_batch(results)
    unit = next((unit for unit in _UNITS.values() if all(unit in result.needed for result in results)), "")
    if not unit:
        raise BadInput("a run of the reference did not reach its target, or does not say when.", "Leave it out.")
    return _reference_from_runs(benchmark, batch, unit, [result.needed[unit] for result in results])


def _reference_from_runs(benchmark: str, batch: int, unit: str, needed: Sequence[float]) -> ReferencePoint:
    """The reference point of the runs whose `needed` epochs or samples (`unit`) are given."""
    kept = _olympic(benchmark, needed, "the reference")
    return ReferencePoint(
        benchmark=benchmark,
        batch=batch,
        unit=unit,
        mean=float(np.mean(kept)),
        spread=float(np.std(needed)),
        runs=len(kept),
    )


def _olympic(benchmark: str, needed: Sequence[float], side: str) -> list[float]:
    """Epochs or samples to convergence, increasing, without the best and the worst runs, as many as the benchmark's
    rule requires. `side`: the name of the runs (`the reference`, `HEAD`), for the message. Raises `BadInput` if too few
    remain."""
    left_out_per_end = _LEFT_OUT_PER_END.get(benchmark, 1)
    if len(needed) <= 2 * left_out_per_end:
        raise BadInput(
            f"{side} has {len(needed)} runs, of which the rule leaves out {2 * left_out_per_end}.",
            f"Give {2 * left_out_per_end + 1} or more.",
        )
    return sorted(needed)[left_out_per_end : len(needed) - left_out_per_end]


def _benchmark_and_batch(results: Sequence[Result]) -> tuple[str, int]:
    """The benchmark and batch size that all results share. Raises `BadInput` if there are several."""
    kinds = sorted({(result.benchmark, result.batch) for result in results})
    if len(kinds) != 1:
        listed = ", ".join(f"{benchmark} at batch {batch}" for benchmark, batch in kinds)
        raise BadInput(
            f"the {len(results)} logs have {len(kinds)} combinations of benchmark and batch size: {listed or 'none'}.",
            "Give logs of one benchmark and batch size.",
        )
    return kinds[0]


def judge(results: Sequence[Result], points: Sequence[ReferencePoint]) -> ReferenceComparison:
    """Apply the rule. `results`: of the submission; `points`: the references, of any benchmarks. Raises `BadInput` if
    there is no reference for the benchmark and batch size."""
    benchmark, batch = _benchmark_and_batch(results)
    references = _pruned([point for point in points if point.benchmark == benchmark], len(results))
    if not references:
        raise BadInput(
            f"the logs are of {benchmark}, the reference of "
            f"{', '.join(sorted({point.benchmark for point in points})) or 'nothing'}."
        )
    point, reference_text = _reference_at(batch, references, len(results))
    unit = point.unit
    if unit == "epoch_num" and not any(unit in result.needed for result in results):
        unit = "samples_count"  # newer references are labelled epochs but count samples
    needed = [result.needed.get(unit, inf) for result in results]  # infinite for a run that missed the target
    missed, left_out_per_end = needed.count(inf), _LEFT_OUT_PER_END.get(benchmark, 1)
    mean_units = float(np.mean(_olympic(benchmark, needed, "HEAD")))
    allowed_distance = _allowed_distance(point, len(needed))
    slowest, fastest = point.mean + allowed_distance, point.mean - allowed_distance
    misses_too_many = missed > left_out_per_end
    fails = mean_units < fastest or misses_too_many
    return ReferenceComparison(
        verdict="slower" if mean_units > slowest or misses_too_many else "faster" if mean_units < fastest else "same",
        mlperf="fail" if fails else "pass",
        benchmark=benchmark,
        batch=batch,
        unit=unit,
        runs=len(results),
        missed=missed,
        mean=mean_units if isfinite(mean_units) else None,
        reference=point.mean,
        fastest=fastest,
        slowest=slowest,
        scale=max(1.0, point.mean / mean_units),
        how=reference_text,
    )


def _allowed_distance(point: ReferencePoint, runs: int) -> float:
    """Largest distance of the mean of `runs` runs from the reference's mean, in the reference's unit, by the t-test.
    `runs`: with those that the rule leaves out."""
    kept = runs - 2 * _LEFT_OUT_PER_END.get(point.benchmark, 1)
    # Standard error of the difference of two means with the same spread.
    return quantile(1 - _ALPHA, kept + point.runs - 2) * point.spread * sqrt(1 / kept + 1 / point.runs)


def _pruned(points: list[ReferencePoint], runs: int) -> list[ReferencePoint]:
    """Drops batch sizes below that of the fastest convergence, and points that need more than the interpolation of
    their neighbours: a larger batch is assumed never to converge in fewer samples. `points`: of one benchmark, by batch
    size; `runs`: of the submission."""
    if not points:
        return points
    fastest = min(points, key=lambda point: point.mean)
    kept_points = [point for point in points if point.batch >= fastest.batch]
    index = 1
    while index < len(kept_points) - 1:
        interpolated = _interpolate(kept_points[index].batch, kept_points[index - 1], kept_points[index + 1], runs)
        if kept_points[index].mean > interpolated.mean:
            del kept_points[index]
            index = max(index - 1, 1)
        else:
            index += 1
    return kept_points


def _interpolate(batch: int, low: ReferencePoint, high: ReferencePoint, runs: int) -> ReferencePoint:
    """The point at `batch` between two references, counted as twice as many runs as the submission has (`runs`), as
    required for references."""
    mean, spread = (
        float(np.interp(batch, [low.batch, high.batch], ends))
        for ends in ([low.mean, high.mean], [low.spread, high.spread])
    )
    return ReferencePoint(benchmark=low.benchmark, batch=batch, unit=low.unit, mean=mean, spread=spread, runs=2 * runs)


def _reference_at(batch: int, points: Sequence[ReferencePoint], runs: int) -> tuple[ReferencePoint, str]:
    """The reference at a batch size: listed, interpolated between its neighbours, or the smallest above; and a text
    that names it. `points`: by batch size; `runs`: of the submission. Raises `BadInput` above all listed sizes."""
    for point in points:
        if point.batch == batch:
            return point, f"the reference at batch {batch}"
    below = [point for point in points if point.batch < batch]
    above = [point for point in points if point.batch > batch]
    if below and above:
        low, high = below[-1], above[0]
        return _interpolate(batch, low, high, runs), f"between the references at batch {low.batch} and {high.batch}"
    if above:
        return above[0], f"the reference at batch {above[0].batch}, the smallest"
    raise BadInput(
        f"batch {batch} is larger than that of any reference ({below[-1].batch} at most), which no rule judges.",
        f"Add a reference at batch {batch}.",
    )
