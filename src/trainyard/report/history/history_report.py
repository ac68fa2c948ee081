"""The document of a history: what `api.history` returns and `trainyard history --json` prints."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import asdict

from trainyard.compare.history.judge_changes import History
from trainyard.compare.history.statistics.critical_values import ALPHA
from trainyard.report.history.sentences import describe_evidence, headline, suggest_commands
from trainyard.report.view.next_step import NextStep


class HistoryReport(History, frozen=True, kw_only=True):
    """Indices count from the first point of the series. `worse`: the newest lasting change that was not accepted is a
    regression. `alpha`: the share of series without a change that show one. `evidence`: number of points, noise and
    false alarms, in words. `next_steps`: commands."""

    headline: str
    worse: bool
    alpha: float
    evidence: str
    next_steps: tuple[NextStep, ...]
    schema: Literal["trainyard/history/2"] = "trainyard/history/2"

    @property
    def exit_code(self) -> int:
        return 1 if self.worse else 0

    def _repr_html_(self) -> str:
        """The page as a frame of a notebook."""
        from trainyard.report.history.history_page import page
        from trainyard.report.render.html import frame

        return frame(page(self))


def report_history(history: History, *, stored: bool = True) -> HistoryReport:
    """The report of a judged history: its data with the headline, the evidence and next steps in words. `stored`: its
    points are stored runs."""
    return HistoryReport(
        **asdict(history),
        headline=headline(history),
        worse=history.is_worse,
        alpha=ALPHA,
        evidence=describe_evidence(history),
        next_steps=suggest_commands(history, stored=stored),
    )
