"""Prints a gate's result: the verdict, the figures, the accounts that changed, and where to look next. A gate compares
the metrics of two revisions, BASE and HEAD, over pairs of runs; an account is a category of a step's time."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from rich.console import Console, RenderableType
from rich.text import Text

from trainyard import units, words
from trainyard.compare.gate.changed_accounts import ChangedAccount, ChangedAccounts
from trainyard.report.gate import sentences
from trainyard.report.gate.gate_report import GateReport
from trainyard.report.render.fitted_table import Part, fitted, plain
from trainyard.report.render.terminal import next_steps
from trainyard.report.render.unit_scale import Scale, scale_of

_STYLES = {"worse": "red", "not worse": "green", "unclear": "yellow", "better": "green", "same": "dim", "unknown": ""}
_MOST_ACCOUNTS = 6
"""Accounts in the default output."""
_MOST_NOTES = 3
"""Differences, and notes, in the default output."""


def print_gate(gate: GateReport, console: Console, full: bool = False) -> None:
    """Prints verdict, metrics, changed accounts, differences and next steps; without `full`, the first of each."""
    console.print(Text(plain(gate.headline), style=f"bold {_STYLES[gate.verdict]}"))
    console.print(Text(plain(gate.description), style="dim"))
    console.print()
    console.print(_draw_metrics(gate, console.width))
    if estimate := sentences.explain_estimate(gate):
        console.print(Text(estimate, style="dim"))
    if gate.changed_accounts:
        console.print()
        console.print(_draw_accounts(gate.changed_accounts, console.width, full))
        for note in _note_accounts(gate.changed_accounts, full):
            console.print(Text(note, style="dim"))
    for line in gate.explanations:
        console.print(Text(plain(line)))
    differences = [f"{item.name}: {item.before} against {item.after}" for item in gate.differences]
    print_some([*differences, *map(sentences.reading, gate.changed_readings)], "differs", console, full)
    print_some(gate.caveats, "note", console, full, style="yellow")
    console.print(*next_steps(gate.next_steps, console.width), sep="\n")


def print_some(lines: Iterable[str], label: str, console: Console, full: bool, style: str = "dim") -> None:
    """Prints lines of text, each after `label` and a colon: all if `full`, else the first three and the number of the
    others. `style`: Rich style of the text."""
    lines = list(lines)
    shown = lines if full else lines[:_MOST_NOTES]
    for line in shown:
        console.print(Text(f"{label}: {plain(line)}", style=style))
    if len(lines) > len(shown):
        console.print(Text(f"{label}: {len(lines) - len(shown)} more with --full", style=style))


def _draw_metrics(gate: GateReport, width: int) -> RenderableType:
    """The table of metrics, one per row: values of both sides in one unit, change with its bounds, pairs, verdict."""
    columns: list[list[Text]] = [[] for _ in range(8)]
    for verdict in gate.verdicts:
        metric, values = words.metric(verdict.metric), gate.values[verdict.metric]
        base, head = median(values.base), median(values.head)
        scale = scale_of(max(abs(base), abs(head)), metric.unit)
        style = _STYLES[verdict.outcome]
        cells = (
            Text(plain(f"{metric.label}, {scale.unit}" if scale.unit else metric.label)),
            Text(scale.show(base)),
            Text(scale.show(head)),
            Text(sentences.percent(verdict.change), style=style),
            Text(sentences.percent(verdict.low), style="dim"),
            Text(sentences.percent(verdict.high), style="dim"),
            Text(str(verdict.pairs)),
            Text(verdict.outcome, style=style),
        )
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    return fitted(
        [
            Part("metric", columns[0], name=True),
            Part("base", columns[1], right=True),
            Part("head", columns[2], right=True),
            Part("worse by", columns[3], right=True),
            Part("at least", columns[4], right=True, drop_order=2),
            Part("at most", columns[5], right=True, drop_order=2),
            Part("pairs", columns[6], right=True, drop_order=3),
            Part("", columns[7], drop_order=1, label="verdict"),
        ],
        width,
    )


def _draw_accounts(changed: ChangedAccounts, width: int, full: bool) -> RenderableType:
    """The table of the accounts, the changed ones first, fitted to `width` characters. By default the largest, and a
    row for the others."""
    rows = changed.by_interest()
    shown = rows if full or len(rows) <= _MOST_ACCOUNTS + 1 else rows[:_MOST_ACCOUNTS]
    scale = scale_of(max((max(row.before_ns, row.after_ns) for row in rows), default=0.0), "ns")
    lines = [_account_cells(row, scale) for row in shown]
    if others := rows[len(shown) :]:
        before, after, change = (sum(getattr(row, key) for row in others) for key in ("before_ns", "after_ns", "ns"))
        lines.append(
            [
                Text(f"{len(others)} other accounts", style="dim"), Text(scale.show(before)), Text(scale.show(after)),
                Text(scale.show(change, signed=True)), Text(""), Text(""), Text(""), Text(""),
            ]
        )  # fmt: skip
    columns = [list(column) for column in zip(*lines, strict=True)] or [[] for _ in range(8)]
    name, before, after, change, share, bounds, chance, verdict = columns
    return fitted(
        [
            Part("account", name, name=True),
            Part(f"base {scale.unit}", before, right=True, drop_order=1),
            Part(f"head {scale.unit}", after, right=True, drop_order=1),
            Part(f"change {scale.unit}", change, right=True),
            Part("change %", share, right=True),
            *(
                [Part("between", bounds, right=True, drop_order=3), Part("p", chance, right=True, drop_order=4)]
                if full
                else []
            ),
            Part("", verdict, drop_order=2, label="verdict"),
        ],
        width,
    )


def _account_cells(row: ChangedAccount, scale: Scale) -> list[Text]:
    """The cells of an account's row in the units of `scale`: name, before, after, change, bounds, p-value, verdict."""
    style = _STYLES[row.verdict]
    bounds = f"{sentences.percent(row.low)} to {sentences.percent(row.high)}"
    return [
        Text(plain(sentences.label(row))),
        Text(scale.show(row.before_ns)),
        Text(scale.show(row.after_ns)),
        Text(scale.show(row.ns, signed=True), style=style),
        Text(sentences.percent(row.change)),
        Text(bounds, style="dim"),
        Text(f"{row.p_value:.2g}", style="dim"),
        Text("shifted" if row.shifted else words.VERDICTS[row.verdict].label, style=style),
    ]


def _note_accounts(changed: ChangedAccounts, full: bool) -> list[str]:
    """Notes below the table of accounts: the change common to all of them and, if `full`, the accounts left out."""
    common = changed.common
    notes: list[str] = []
    if common.p_value < 1:
        bounds = f", between {sentences.percent(common.low)} and {sentences.percent(common.high)}" if full else ""
        notes.append(
            f"Changes are medians over the pairs, less the {sentences.percent(common.change)}{bounds} that all "
            "accounts share (clocks, load): they differ from head minus base."
        )
    if full and changed.small:
        notes.append(f"{units.counted(changed.small, 'account')} below 0.1 % of the step left out.")
    return notes
