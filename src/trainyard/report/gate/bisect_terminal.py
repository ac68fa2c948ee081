"""Prints the result of a bisection."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard.compare.gate.bisect_commits import Bisected
from trainyard.report.gate import sentences
from trainyard.report.render.terminal import plain


def print_bisected(bisection: Bisected, subjects: Mapping[str, str], console: Console) -> None:
    """Prints the suspects and every tested commit. `subjects`: commit -> the first line of its message."""
    console.print(Text(plain(_headline(bisection, subjects)), style="bold"))
    for commit in bisection.suspects if len(bisection.suspects) > 1 else ():
        console.print(Text(f"  {commit[:10]} {plain(subjects.get(commit, ''))}"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tested")
    for head in ("worse by", "at least", "at most", "pairs"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for step in bisection.steps:
        verdict = step.verdict
        table.add_row(
            Text(f"{step.commit[:10]} {plain(subjects.get(step.commit, ''))}", overflow="ellipsis", no_wrap=True),
            sentences.percent(verdict.change),
            sentences.percent(verdict.low),
            sentences.percent(verdict.high),
            str(verdict.pairs),
            sentences.LABELS[verdict.says],
        )
    console.print(table)


def _headline(bisection: Bisected, subjects: Mapping[str, str]) -> str:
    if len(bisection.suspects) > 1:
        return f"one of {len(bisection.suspects)} commits made it slower; the runs do not show which:"
    for culprit in bisection.suspects:
        step = next(step for step in reversed(bisection.steps) if step.commit == culprit)
        return f"{culprit[:10]} made it slower: {sentences.decided(step.verdict)}. {subjects.get(culprit, '')}"
    last = bisection.steps[0]
    return (
        f"{last.commit[:10]} against {bisection.good[:10]}: {sentences.LABELS[last.verdict.says]}; nothing to look for."
    )
