"""Draws what a bisection found on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard.compare.gate.bisect_commits import Bisected
from trainyard.report.gate import sentences
from trainyard.report.render.terminal import plain


def print_bisected(found: Bisected, subjects: Mapping[str, str], console: Console) -> None:
    """`subjects`: commit -> the first line of its message."""
    console.print(Text(plain(_headline(found, subjects)), style="bold"))
    for commit in found.suspects if len(found.suspects) > 1 else ():
        console.print(Text(f"  {commit[:10]} {plain(subjects.get(commit, ''))}"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("asked about")
    for head in ("worse by", "at least", "at most", "pairs"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for step in found.steps:
        one = step.verdict
        table.add_row(
            Text(f"{step.commit[:10]} {plain(subjects.get(step.commit, ''))}", overflow="ellipsis", no_wrap=True),
            sentences.percent(one.change), sentences.percent(one.low), sentences.percent(one.high), str(one.pairs),
            sentences.LABELS[one.says],
        )  # fmt: skip
    console.print(table)


def _headline(found: Bisected, subjects: Mapping[str, str]) -> str:
    if len(found.suspects) > 1:
        return f"one of {len(found.suspects)} commits made it slower; the runs do not tell which:"
    for culprit in found.suspects:
        step = next(one for one in reversed(found.steps) if one.commit == culprit)
        return f"{culprit[:10]} made it slower: {sentences.decided(step.verdict)}. {subjects.get(culprit, '')}"
    last = found.steps[0]
    return f"{last.commit[:10]} against {found.good[:10]}: {sentences.LABELS[last.verdict.says]}; nothing to look for."
