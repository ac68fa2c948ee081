"""Prints the result of a bisection."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from trainyard.compare.gate.bisect_commits import Bisection
from trainyard.report.gate import sentences
from trainyard.report.gate.gate_report import BisectReport
from trainyard.report.render.fitted_table import Part, fitted, plain
from trainyard.report.render.terminal import next_steps
from trainyard.report.view.next_step import NextStep

_SUSPECTS = 12
"""Suspects in the default output."""


def headline(bisection: Bisection, subjects: Mapping[str, str]) -> str:
    """The commit that made it slower, the number of suspects, or that the bad end is not worse. `subjects`: commit ->
    first line of its message."""
    if len(bisection.suspects) > 1:
        return f"One of {len(bisection.suspects)} commits made it slower; the runs do not show which."
    for culprit in bisection.suspects:
        step = next(step for step in reversed(bisection.steps) if step.commit == culprit)
        cause = f"{culprit[:10]} made it slower: {sentences.describe_verdict(step.verdict)}."
        return f"{cause} {subjects.get(culprit, '')}".rstrip()
    last = bisection.steps[0]
    label = sentences.LABELS[last.verdict.outcome]
    return f"{last.commit[:10]} against {bisection.good[:10]}: {label}, so there is no slowdown to locate."


def print_bisection(bisection: BisectReport, console: Console, full: bool = False) -> None:
    """Prints the headline, the suspects and every tested commit; without `full`, the first suspects only."""
    console.print(Text(plain(bisection.headline), style="bold"))
    suspects = bisection.suspects if len(bisection.suspects) > 1 else ()
    shown = suspects if full else suspects[:_SUSPECTS]
    for commit in shown:
        console.print(Text(f"  {commit[:10]} {plain(bisection.subjects.get(commit, ''))}", overflow="ellipsis"))
    if len(suspects) > len(shown):
        console.print(Text(f"  {len(suspects) - len(shown)} more with --full", style="dim"))
    console.print()
    verdicts = [step.verdict for step in bisection.steps]
    names = [f"{step.commit[:10]} {bisection.subjects.get(step.commit, '')}" for step in bisection.steps]
    console.print(
        fitted(
            [
                Part("tested commit", [Text(plain(name)) for name in names], name=True),
                Part("worse by", [Text(sentences.percent(verdict.change)) for verdict in verdicts], right=True),
                Part(
                    "at least", [Text(sentences.percent(verdict.low)) for verdict in verdicts], right=True, drop_order=1
                ),
                Part(
                    "at most", [Text(sentences.percent(verdict.high)) for verdict in verdicts], right=True, drop_order=1
                ),
                Part("pairs", [Text(str(verdict.pairs)) for verdict in verdicts], right=True, drop_order=2),
                Part("", [Text(verdict.outcome) for verdict in verdicts]),
            ],
            console.width,
        )
    )
    if len(bisection.suspects) == 1:
        step = NextStep(command=f"git show {bisection.suspects[0][:10]}", purpose="the commit")
        console.print(*next_steps([step], console.width), sep="\n")
