"""Tables of the prediction intervals of rows whose whole source or device was left out; printed by `make validate`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from trainyard.predict.inputs.fitted_range import features
from trainyard.report.view.view import Column, Table
from validation import fit
from validation.intervals import Prediction
from validation.left_out import LeftOut
from validation.rows import Row

Judged = Sequence[tuple[LeftOut, Prediction]]
WORST = 20
_DOUBLINGS = (0.0, 1.0, 3.0, 6.0, np.inf)
"""Limits of the classes of distance."""
_OPEN = 0.03
"""Spread of a prediction over unstated settings that is named as a reason."""
_LARGE_BEYOND = 0.5
"""Doublings outside of a fitted range that are named as a reason."""


def coverage_table(title: str, judged: Judged, name_of: Callable[[LeftOut], str]) -> Table:
    """Coverage, width and score of the calibrated intervals by `name_of` each row. The standard error is over groups,
    whose rows share their error."""
    parts: dict[str, list[tuple[LeftOut, Prediction]]] = defaultdict(list)
    for residual, prediction in judged:
        parts[name_of(residual)].append((residual, prediction))
    names = (
        "left out",
        "n",
        "mean error, %",
        "calibrated",
        "in interval, %",
        "± %",
        "width",
        "score",
        "not calibrated, in",
    )
    lines = [(name, *_figures(parts[name])) for name in sorted(parts)]
    return Table(
        title=title,
        notes=(),
        columns=tuple(Column(title=title, digits=2 if title in ("width", "score") else 0) for title in names),
        rows=(*lines, ("all", *_figures(judged))),
    )


def _figures(judged: Judged) -> tuple[float | None, ...]:
    """The cells of a row of `coverage_table` after its name."""
    calibrated = [(residual, prediction) for residual, prediction in judged if prediction.interval.calibrated]
    others = [prediction.holds for _, prediction in judged if not prediction.interval.calibrated]
    mean = 100 * float(np.mean([abs(np.expm1(-residual.log_ratio)) for residual, _ in judged]))
    outside = 100 * float(np.mean(others)) if others else None
    if not calibrated:
        return len(judged), mean, 0, None, None, None, None, outside
    by_group: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    for residual, prediction in calibrated:
        by_group[residual.group].append(prediction.holds)
    shares = [float(np.mean(holds)) for holds in by_group.values()]
    deviation = 100 * float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else None
    return (
        len(judged), mean, len(calibrated), 100 * float(np.mean([prediction.holds for _, prediction in calibrated])),
        deviation, float(np.median([prediction.width for _, prediction in calibrated])),
        float(np.mean([prediction.score for _, prediction in calibrated])), outside,
    )  # fmt: skip


def distance_class(residual: LeftOut) -> str:
    """A description of the distance of a row from the fitted ones."""
    if not residual.rows_of_kind:
        return f"no rows of {residual.kind}"
    if not residual.same_family:
        return "constants of other software"
    upper = next(limit for limit in _DOUBLINGS if residual.distance.doublings <= limit)
    size = "within the range" if not upper else f"at most {upper:g} doublings outside" if upper < np.inf else "farther"
    machine = "" if residual.machine_fitted else ", other machine"
    release = "" if residual.same_software else ", other release"
    number_format = "" if residual.distance.format_fitted else ", other format"
    return f"{size}{number_format}{machine}{release}"


def worst_rows(judged: Judged, every: Mapping[str, Row], fitted: Sequence[Row]) -> Iterator[str]:
    """A line on each of the rows with the largest errors of those left out with their source. `every`: rows by id;
    `fitted`: those that constants are fitted to."""
    left = [(residual, prediction) for residual, prediction in judged if residual.split == "owner"]
    left.sort(key=lambda entry: -abs(entry[0].log_ratio))
    for residual, prediction in left[:WORST]:
        position = "in the interval" if prediction.holds else "outside of the interval"
        why = "; ".join(reasons(residual, every[residual.id], fitted)) or "within the range of the fitted rows"
        yield f"{residual.id} ({residual.machine}): {np.expm1(-residual.log_ratio):+.0%}, {position}. {why}."


def reasons(residual: LeftOut, row: Row, fitted: Sequence[Row]) -> Iterator[str]:
    """How a row differs from those that its constants were fitted to."""
    if not residual.same_family:
        yield f"no constants for {residual.software} on this device without this source, those of {residual.constants}"
    elif not residual.same_software:
        yield f"no rows of this release ({residual.software})"
    if not residual.rows_of_kind:
        yield f"no rows of a model with {residual.kind}"
    if not residual.machine_fitted:
        yield "no rows of this machine"
    yield from _features_outside(residual, row, fitted)
    if residual.log_spread > _OPEN:
        yield f"settings that the source leaves open: {residual.log_spread:.0%}"
    if residual.owners_of_kind == 1:
        yield "constants of a single source"


def _features_outside(residual: LeftOut, row: Row, fitted: Sequence[Row]) -> Iterator[str]:
    """The features of a row that are outside of the range of its set of constants."""
    target = next((target for target in fit.FITS if target.name == residual.constants), None)
    rest = [
        other for other in fitted
        if target and target.wanted(other) and getattr(other, residual.split) != residual.left_out
    ]  # fmt: skip
    same_kind = [other for other in rest if other.kind == row.kind] or rest
    if not same_kind:
        return
    ranges = fit.range_of_rows(same_kind)
    for name, values in features(fit.columns([row])[0]).items():
        value, least, most = float(np.ravel(values)[0]), ranges.least[name], ranges.most[name]
        if np.log2(max(value / most, least / value)) > _LARGE_BEYOND:
            yield f"{name} {value:,g}, fitted {least:,g} to {most:,g}"
