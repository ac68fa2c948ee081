"""The activity of each rank in a hang, as a table."""

from __future__ import annotations

from trainyard import units
from trainyard.code_location import show_path
from trainyard.hangs.verdict import HangAnalysis, RankActivity
from trainyard.report.view.view import Column, Table

_ROWS_ON_SCREEN = 10
_LABELS = {
    "waits": "waits in it",
    "ended": "ended it",
    "not_entered": "did not enter",
    "left": "process ended",
    "stopped": "process stopped",
    "no_record": "no record",
}


def activity_table(result: HangAnalysis, full: bool = False) -> Table:
    """The members of the group with their activity, the culprits first; unless `full`, at most ten."""
    ordered = sorted(result.activities, key=lambda activity: (activity.rank not in result.ranks, activity.rank))
    shown = ordered if full else ordered[:_ROWS_ON_SCREEN]
    hidden = len(ordered) - len(shown)
    notes = [
        f"Collective {result.sequence} of group {result.group}. A rank that did not enter has its last collective."
    ]
    if hidden:
        notes.append(f"{units.counted(hidden, 'more rank')} with --full.")
    return Table(
        title="Rank",
        notes=tuple(notes),
        columns=(
            Column(title="rank", digits=0),
            Column(title="activity"),
            Column(title="collective"),
            Column(title="last ended", digits=0),
            Column(title="line of code"),
        ),
        rows=tuple(
            (
                activity.rank,
                _LABELS[activity.activity],
                _describe_call(activity),
                activity.last_ended if activity.last_ended >= 0 else "",
                _describe_line(activity),
            )
            for activity in shown
        ),
    )


def _describe_call(activity: RankActivity) -> str:
    elements = f"[{activity.elements:,}]" if activity.elements else ""
    return f"{activity.operation}{elements} {activity.dtype}".rstrip()


def _describe_line(activity: RankActivity) -> str:
    location = activity.location
    return f"{show_path(location.file, 24)}:{location.line} ({location.function})" if location else ""
