"""A history in words: its headline, its changes, and the differences between the runs at a change."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard import units, words
from trainyard.compare.history.judge_changes import History, JudgedChange
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.sources.series import SeriesPoint
from trainyard.compare.history.statistics.critical_values import ALPHA
from trainyard.report.render.unit_scale import scale_of
from trainyard.report.view.next_step import NextStep

_SMALLEST_SHOWN = 0.0005
"""Smallest change, as a fraction, that a percentage with one decimal shows."""
_NOTABLE_INFLATION = 1.2
"""Variance inflation from which the autocorrelation of the noise is mentioned."""


def headline(history: History) -> str:
    """The newest lasting change that was not accepted, or that there is none."""
    series, newest = history.series, history.newest
    is_metric = series.metric in words.METRICS
    subject = f"{series.name}: {series.about.label.lower() if is_metric else series.metric}"
    if not is_metric and series.metric.endswith(series.name):  # the metric of a benchmark holds its full name
        subject = series.metric
    if newest is None:
        accepted = sum(judged.change.lasting for judged in history.changes)
        exception = f" except {units.counted(accepted, 'accepted change')}" if accepted else ""
        return f"{subject}: no change in {units.counted(history.points, 'point')}{exception}"
    change, point = newest.change, newest.point
    since = f"since {point.name}" if point.name else f"since point {change.at}"
    ago = units.counted(len(series.points) - change.at, "point")
    moves = "drifts," if change.kind == "drift" else "is"
    return f"{subject} {moves} {newest.verdict} {since}, {ago} ago: {show_share(change)}"


def show_value(value: float, unit: str) -> str:
    """A value in its unit."""
    scale = scale_of(abs(value), unit)
    return f"{scale.show(value)} {scale.unit}".rstrip()


def show_share(change: SeriesChange) -> str:
    """The change of the level: `+3.1 %`; a dash if the level before was 0."""
    share = change.share
    if share is None:
        return "–"
    return "<0.1 %" if 0 < abs(share.value) < _SMALLEST_SHOWN else f"{100 * share.value:+.1f} %"


def show_interval(change: SeriesChange) -> str:
    """The 95 % interval of the change: `+2.6 to +3.5 %`; empty for a spike, which has no interval."""
    share = change.share
    if share is None or change.kind == "spike":
        return ""
    return f"{100 * share.low:+.1f} to {100 * share.high:+.1f} %"


def show_change(change: SeriesChange) -> str:
    """`+3.1 % (+2.6 to +3.5 %)`."""
    interval = show_interval(change)
    return f"{show_share(change)} ({interval})" if interval else show_share(change)


def explain_estimate(changes: Iterable[SeriesChange]) -> str:
    """How a change is estimated, in a sentence; empty if each change is, as printed, the ratio of its levels."""
    if not any(_differs_from_ratio(change) for change in changes):
        return ""
    return (
        "Change: the median of the differences between every point after and every point before, in % of the median "
        "before; the ratio of the two medians is less exact."
    )


def _differs_from_ratio(change: SeriesChange) -> bool:
    """Whether the change in percent differs from that of the levels by more than rounding."""
    if change.share is None:
        return False
    ratio = (change.after.value - change.before.value) / abs(change.before.value)
    return abs(ratio - change.share.value) >= _SMALLEST_SHOWN


def describe_evidence(history: History) -> str:
    """The number of points, the noise and the false alarm rate that the changes rest on."""
    since = f" since the reset at point {history.begin}" if history.begin else ""
    noise = (
        f", noise {history.inflation**0.5:.1f} times as wide as independent"
        if history.inflation > _NOTABLE_INFLATION
        else ""
    )
    return (
        f"{units.counted(history.points, 'point')}{since}{noise}. {100 * ALPHA:.0f} % of series without a change show "
        "one; intervals are 95 %."
    )


def suggest_commands(history: History, *, stored: bool) -> tuple[NextStep, ...]:
    """Commands that compare the runs, if they are `stored`, and the commits on either side of the newest change; none
    without a change."""
    newest = history.newest
    if newest is None:
        return ()
    points, first = history.series.points, newest.point
    last = points[max(0, newest.change.at - 1)]
    steps: list[NextStep] = []
    if stored and last.run and first.run:
        command = f"trainyard diff {last.run} {first.run}"
        steps.append(NextStep(command=command, purpose="the runs before and after, account by account"))
    if last.commit and first.commit and last.commit != first.commit:
        command = f"git log --oneline {last.commit[:10]}..{first.commit[:10]}"
        steps.append(NextStep(command=command, purpose="the commits between them"))
    return tuple(steps)


def name_point(history: History, at: int) -> str:
    """Index, name and date of the point at index `at`."""
    point = history.series.points[at]
    date = point.time[:10] if point.name != point.time[:16] else ""
    return " ".join(part for part in (str(at), point.name, date) if part)


def explain_change(judged: JudgedChange, history: History) -> list[str]:
    """The account that changed most and the differences between the runs at a change, one per line; the first line
    names the runs on either side."""
    points, change = history.series.points, judged.change
    last, first = points[max(0, change.at - 1)], points[change.at]
    lines: list[str] = []
    if last.name and first.name:
        lines.append(
            f"{words.CHANGES[change.kind].label} at {change.at}: last before {_identify(last)}, "
            f"first after {_identify(first)}"
        )
    if judged.cause is None:
        return lines
    for account in judged.cause.accounts[:1]:
        lines.append(
            f"largest change: {account.account.label} {units.show_time(account.before_ns)} → "
            f"{units.show_time(account.after_ns)}, {account.ns / 1e6:+,.3f} ms; profiled step "
            f"{judged.cause.wall_ns / 1e6:+,.3f} ms"
        )
    lines += [f"differs: {difference}" for difference in judged.cause.differences]
    if lines and not judged.cause.differences:
        lines.append("the records of the two runs do not differ")
    return lines


def _identify(point: SeriesPoint) -> str:
    """The run and the commit of a point, else its date."""
    commit = f"commit {point.commit[:10]}" if point.commit else ""
    run = f"run {point.run}" if point.run else ""
    return f"{run} ({commit})" if run and commit else run or commit or point.time
