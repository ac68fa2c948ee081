"""Prints an analysis on one screen: the largest accounts and findings, and where to look next. Imports Rich."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainyard import units, words
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.report.render.fitted_table import Part, fitted, plain, shortened
from trainyard.report.render.rank_heat import rank_heat
from trainyard.report.render.step_strip import step_strip
from trainyard.report.render.terminal import (
    NextStep,
    figures_line,
    floating_bar,
    joined_line,
    next_steps,
    phases_line,
    print_parts,
    print_view,
    sentence,
)
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.build_view import view_of
from trainyard.report.view.price_text import explain_price
from trainyard.report.view.view import View

_MOST_ACCOUNTS, _MOST_FINDINGS, _MOST_NOTES, _MOST_RULES = 9, 3, 2, 4
"""Maximum number of rows of each kind, and of rules named in the row of small findings."""
_NOTE_LENGTH = 320
"""Maximum length of a note in characters."""
_SMALL_SAVING = 0.001
"""Fraction of the step below which a finding is folded with the others, if a replay priced it."""
_MOST_PATHS = 3
"""Paths in a suggested command."""
_SMALL_SHARE = 0.01
"""Fraction of the step below which an account is folded with the others."""
_PICTURE_WIDTH = 24
"""Width of the bars and of the heat map together, in characters."""
_LEAST_HEAT_WIDTH = 5
"""Width that the head of the heat map, `ranks 0-7`, takes on two lines."""
_MOST_RANKS = 12
"""Maximum number of columns of the heat map."""
_NAME_WIDTH = 30
"""Width of an account in characters from which the bars are left out before it is shortened."""


def print_analysis(
    analysis: Analysis,
    console: Console,
    full: bool = False,
    steps: Sequence[NextStep] = (),
    full_command: str = "--full",
) -> None:
    """Prints one screen, or everything if `full`: all kernels, and each part of the window of the ledgers. Names come
    from files: they are printed as text, never as markup.

    `steps`: suggested commands. `full_command`: the command or option that prints everything, not suggested if empty.
    """
    view = view_of(analysis)
    if full:
        print_view(view, console, kernels=sys.maxsize)
        print_parts(analysis.ledgers, console)
    else:
        console.print(
            Group(
                *_parts(view, analysis, console.width),
                *next_steps((*_omitted(view, full_command), *steps), console.width),
            )
        )


def what_if_step(analysis: Analysis, paths: Sequence[str]) -> tuple[NextStep, ...]:
    """The prediction of the step with the change that the first printed finding with one states; none without such a
    finding. `paths`: the profiler files or folders as the user typed them."""
    changes = [finding.change.text for finding in _worthwhile(analysis)[:_MOST_FINDINGS] if finding.change is not None]
    if not changes:
        return ()
    files = shlex.join(paths) if len(paths) <= _MOST_PATHS else "PATH..."
    command = f"trainyard trace what-if {files} --change {shlex.quote(changes[0])}"
    return (NextStep(command, "the step after this change, account by account"),)


def _worthwhile(analysis: Analysis | View) -> list[Finding]:
    """The findings, in their order, without those whose removal saves less than `_SMALL_SAVING` in a replay."""
    wall_ns = analysis.wall_ns if isinstance(analysis, View) else analysis.mean.wall_ns
    return [
        finding
        for finding in analysis.findings
        if finding.priced != "replayed" or finding.cost_ns >= _SMALL_SAVING * wall_ns
    ]


def _parts(view: View, analysis: Analysis, width: int) -> list[RenderableType]:
    """The content of one screen, in order: title, remedy, warnings, key figures, largest accounts, steps, findings and
    notes. `width`: in characters."""
    leading = view.findings[0] if view.findings and view.findings[0].summary == view.title else None
    parts: list[RenderableType] = [Text(plain(sentence(view.title)), style="bold")]
    if leading and leading.remedy:
        parts.append(Text(plain(leading.remedy.description)))
    if leading:
        parts.append(Text(plain(_price_line(leading)), style="dim"))
    parts.append(joined_line((view.subtitle, *view.chips)))
    parts.extend(Text(plain(warning), style="bold yellow") for warning in view.warnings)
    if view.figures:
        parts.append(figures_line(view.figures))
    if view.wall_ns:
        parts += ["", *_accounts(view, analysis.mean, width), phases_line(view)]
        if (strip := step_strip(analysis.ledgers, width)) is not None:
            parts.append(strip)
    worthwhile = _worthwhile(view)
    shown = [finding for finding in worthwhile[:_MOST_FINDINGS] if finding is not leading]
    folded = [finding for finding in view.findings if finding is not leading and finding not in worthwhile]
    if shown or folded:
        parts.append("")
    if shown:
        parts.append(_findings(shown))
    if folded:
        more = "more " * bool(shown or leading)
        counted = units.counted(len(folded), f"{more}finding")
        rules = units.listed(sorted({finding.rule for finding in folded}), _MOST_RULES)
        saving = f"would save less than {100 * _SMALL_SAVING:g} % of the step"
        parts.append(Text(f"{counted} {saving}: {rules}", style="dim"))
    notes = [shortened(plain(note), _NOTE_LENGTH) for note in view.notes[:_MOST_NOTES]]
    return [*parts, *(Text(f"note: {note}", style="dim") for note in notes)]


def _accounts(view: View, mean: Ledger, width: int) -> list[RenderableType]:
    """The table of the largest accounts of the mean step, with a row for the others, fitted to `width` characters: a
    waterfall, whose bars add up to the step and, of several ranks, their heat map with its legend."""
    accounts = sorted(((ns, account) for account, ns in mean.by_account().items() if ns), key=lambda row: -row[0])
    large = [row for row in accounts[:_MOST_ACCOUNTS] if row[0] >= _SMALL_SHARE * mean.wall_ns]
    folded = accounts[len(large) :]
    if len(folded) == 1:
        large, folded = accounts, []
    rows = [_Row(account.label, ns, account.colour, str(account)) for ns, account in large]
    if folded:
        rows.append(_Row(f"{len(folded)} more accounts", sum(ns for ns, _ in folded), "dim"))
    ends_ns = list(accumulate(row.ns for row in rows))
    rows.append(_Row(view.bars[-1].label, mean.wall_ns, "bold"))
    heat = rank_heat(view.heat, mean.wall_ns, _MOST_RANKS) if view.heat is not None else None
    bar_width = _PICTURE_WIDTH - (max(_LEAST_HEAT_WIDTH, len(next(iter(heat.cells.values()), ""))) if heat else 0)
    names = [Text(plain(row.label), style="" if row.account else row.style) for row in rows]
    bars = [
        floating_bar(end_ns - row.ns, row.ns, mean.wall_ns, bar_width, row.style) if row.account else Text("")
        for row, end_ns in zip(rows, [*ends_ns, mean.wall_ns])
    ]
    table = fitted(
        [
            Part("account", names, name=True, min_width=_NAME_WIDTH),
            Part("ms", [Text(f"{row.ns / 1e6:,.3f}") for row in rows], right=True),
            Part("share", [Text(units.show_share(row.ns, mean.wall_ns)) for row in rows], right=True),
            Part("", bars, drop_order=1),
            *([Part(heat.title, [heat.cells.get(row.account, Text()) for row in rows], drop_order=2)] if heat else []),
        ],
        width,
    )
    return [table, *([Text(heat.legend, style="dim")] if heat else [])]


class _Row(NamedTuple):
    """A row of the largest accounts. `account`: empty for a row that is not one account."""

    label: str
    ns: int
    style: str
    account: str = ""


def _findings(findings: Sequence[Finding]) -> Table:
    """The table of findings: for each a row with its sentence, one with its remedy, and one with its price."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=1)
    table.add_column()
    for finding in findings:
        table.add_row(
            Text("▲", style=words.SEVERITIES[finding.severity].colour), Text(plain(sentence(finding.summary)))
        )
        if finding.remedy:
            table.add_row("", Text(plain(finding.remedy.description), style="dim"))
        table.add_row("", Text(plain(_price_line(finding)), style="dim"))
    return table


def _price_line(finding: Finding) -> str:
    """How the price was computed, and the confidence: `Recovered in a replay, 80 % interval ...; 90 % sure.`"""
    text = explain_price(finding)
    return f"{text[:1].upper()}{text[1:]}; {100 * finding.confidence:.0f} % sure."


def _omitted(view: View, full_command: str) -> tuple[NextStep, ...]:
    """The command that shows the rest, with the numbers of findings, tables and notes left out."""
    counts = {
        "more finding": len(view.findings) - len(_worthwhile(view)[:_MOST_FINDINGS]),
        "table": len(view.tables) + bool(view.kernels) + bool(view.modules),
        "note": len(view.notes[_MOST_NOTES:]),
    }
    listed = [units.counted(count, noun) for noun, count in counts.items() if count]
    evidence = ["evidence of each finding"] if view.findings else []
    contents = ", ".join([*evidence, *listed])
    return (NextStep(full_command, contents),) if contents and full_command else ()
