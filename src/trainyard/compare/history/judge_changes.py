"""The history of a series: each change with its verdict, possible cause, and whether it was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from trainyard.compare.history.accepted_changes import Accepted, AcceptedChange
from trainyard.compare.history.change_causes import Cause, find_cause
from trainyard.compare.history.detect_changes import detect
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.sources.series import Series, SeriesPoint
from trainyard.compare.history.statistics.levels import Level
from trainyard.record import Run


class JudgedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a series. `share`: its shift relative to the level before; None if that is 0. `point`: the first of
    the new level. `verdict`: by the metric's direction; `same` for a change that does not last."""

    change: SeriesChange
    share: Level | None
    point: SeriesPoint
    verdict: Literal["better", "worse", "same", "unknown"]
    cause: Cause | None = None
    accepted: AcceptedChange | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The judged changes of a series, whose points are counted from its beginning. `begin`: the first point after the
    last reset; `points`: their number from there on. `inflation`, `critical`: as in `DetectedChanges`."""

    series: Series
    changes: tuple[JudgedChange, ...]
    points: int
    inflation: float
    critical: float
    begin: int = 0
    notes: tuple[str, ...] = ()

    @property
    def newest(self) -> JudgedChange | None:
        """The most recent lasting change that was not accepted."""
        left = [judged for judged in self.changes if judged.change.lasting and not judged.accepted]
        return max(left, key=lambda judged: (judged.change.until, judged.change.at), default=None)

    @property
    def is_worse(self) -> bool:
        return self.newest is not None and self.newest.verdict == "worse"


def judge(series: Series, runs: Sequence[Run] = (), accepted: Accepted | None = None) -> History:
    """Detects and judges the changes of a series. `runs`: those of the series' points, if they are stored; `accepted`:
    the changes that users accepted. Raises what `detect` does."""
    accepted = accepted or Accepted()
    begin = accepted.find_begin(series.points, series.metric)
    detection = detect(series.values[begin:])  # positions are counted from `begin`
    changes = [_shift_positions(change, begin) for change in detection.changes]
    return History(
        series=series,
        points=detection.points,
        inflation=detection.inflation,
        critical=detection.critical,
        changes=tuple(
            JudgedChange(
                change=change,
                share=change.share,
                point=series.points[change.at],
                verdict=_judge_direction(change, series),
                cause=find_cause(change, runs) if runs and change.lasting else None,
                accepted=accepted.find_entry(change, series.points, series.metric),
            )
            for change in changes
        ),
        begin=begin,
        notes=(*series.notes, *accepted.list_unmatched(series.points, series.metric)),
    )


def _shift_positions(change: SeriesChange, by: int) -> SeriesChange:
    """The change with all positions increased by `by` points."""
    return replace(change, at=change.at + by, until=change.until + by, low=change.low + by, high=change.high + by)


def _judge_direction(change: SeriesChange, series: Series) -> Literal["better", "worse", "same", "unknown"]:
    """Better or worse by the direction of the shift and of the metric; same for a change that does not last."""
    if not change.lasting or not change.shift.value:
        return "same"
    up = change.shift.value > 0
    return "worse" if up == (series.about.better == "lower") else "better"
