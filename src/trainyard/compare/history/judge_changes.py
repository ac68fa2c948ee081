"""The history of a series: each change with its verdict, possible cause, and whether it was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from trainyard.compare.history.accepted_changes import Accepted, AcceptedChange
from trainyard.compare.history.change_causes import Cause, cause
from trainyard.compare.history.detect_changes import detect
from trainyard.compare.history.series_changes import DetectedChanges, SeriesChange
from trainyard.compare.history.sources.series import Series
from trainyard.record import Run


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a series. `verdict`: by the metric's direction; `same` for a change that does not last."""

    change: SeriesChange
    verdict: Literal["better", "worse", "same", "unknown"]
    cause: Cause | None = None
    accepted: AcceptedChange | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """`begin`: index of the first point after the last reset; points are counted from the beginning of the series."""

    series: Series
    seen: DetectedChanges
    changes: tuple[Judged, ...]
    begin: int = 0
    notes: tuple[str, ...] = ()

    @property
    def newest(self) -> Judged | None:
        """The most recent lasting change that was not accepted."""
        left = [judged for judged in self.changes if judged.change.lasting and not judged.accepted]
        return max(left, key=lambda judged: (judged.change.until, judged.change.at), default=None)

    @property
    def worse(self) -> bool:
        return self.newest is not None and self.newest.verdict == "worse"


def judge(series: Series, runs: Sequence[Run] = (), accepted: Accepted | None = None) -> History:
    """Detect and judge the changes. `runs`: those of the series' points, if they are stored. Raises what `detect`
    does."""
    accepted = accepted or Accepted()
    begin = accepted.begin(series.points, series.metric)
    seen = detect(series.values[begin:])
    changes = [_moved(change, begin) for change in seen.changes]
    return History(
        series=series,
        seen=seen,
        changes=tuple(
            Judged(
                change=change,
                verdict=_verdict(change, series),
                cause=cause(change, runs) if runs and change.lasting else None,
                accepted=accepted.of(change, series.points, series.metric),
            )
            for change in changes
        ),
        begin=begin,
        notes=(*series.notes, *accepted.strangers(series.points, series.metric)),
    )


def _moved(change: SeriesChange, by: int) -> SeriesChange:
    return replace(change, at=change.at + by, until=change.until + by, low=change.low + by, high=change.high + by)


def _verdict(change: SeriesChange, series: Series) -> Literal["better", "worse", "same", "unknown"]:
    if not change.lasting or not change.shift.value:
        return "same"
    up = change.shift.value > 0
    return "worse" if up == (series.about.better == "lower") else "better"
