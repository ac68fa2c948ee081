"""Prints a gate's result."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard import words
from trainyard.compare.gate.changed_accounts import ChangedAccounts
from trainyard.compare.gate.gate_result import GateResult
from trainyard.report.gate import sentences
from trainyard.report.render.terminal import plain

_STYLES = {"worse": "red", "not worse": "green", "unclear": "yellow", "better": "green", "same": "dim", "unknown": ""}
_ROWS = 12


def print_gate(gate: GateResult, console: Console) -> None:
    console.print(Text(plain(sentences.headline(gate)), style=f"bold {_STYLES[gate.says]}"))
    console.print(Text(plain(sentences.description(gate)), style="dim"))
    console.print()
    console.print(_metrics(gate))
    if gate.why:
        console.print()
        console.print(_accounts(gate.why))
        if gate.why.small:
            console.print(Text(f"{gate.why.small} accounts below a thousandth of the step are left out.", style="dim"))
    for account, inside in gate.addresses.items():
        if line := sentences.address(account, inside):
            console.print(Text(plain(line)))
    if shifted := sentences.shifts(gate.why):
        console.print(Text(plain(shifted)))
    for difference in gate.differ:
        console.print(
            Text(
                f"differs: {plain(difference.name)}: {plain(difference.was)} against {plain(difference.now)}",
                style="dim",
            )
        )
    for reading in gate.moved:
        console.print(Text(plain(f"differs: {sentences.reading(reading)}"), style="dim"))
    for caveat in gate.caveats:
        console.print(Text(f"note: {plain(caveat)}", style="yellow"))


def _metrics(gate: GateResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("metric")
    for head in ("base", "head", "worse by", "at least", "at most", "pairs"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for verdict in gate.verdicts:
        figures = gate.figures[verdict.metric]
        table.add_row(
            Text(plain(words.metric(verdict.metric).label)),
            sentences.figure(verdict.metric, figures.base),
            sentences.figure(verdict.metric, figures.head),
            Text(sentences.percent(verdict.change), style=_STYLES[verdict.says]),
            Text(sentences.percent(verdict.low), style="dim"),
            Text(sentences.percent(verdict.high), style="dim"),
            str(verdict.pairs),
            Text(sentences.LABELS[verdict.says], style=_STYLES[verdict.says]),
        )
    return table


def _accounts(why: ChangedAccounts) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("account")
    for head in ("base ms", "head ms", "own change ms", "of it", "between", "", "chance"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for account in why.by_interest()[:_ROWS]:
        table.add_row(
            Text(plain(sentences.label(account)), no_wrap=True, overflow="ellipsis"),
            f"{account.before_ns / 1e6:,.3f}",
            f"{account.after_ns / 1e6:,.3f}",
            Text(f"{account.ns / 1e6:+,.3f}", style=_STYLES[account.verdict]),
            sentences.percent(account.change),
            Text(sentences.percent(account.low), style="dim"),
            Text(sentences.percent(account.high), style="dim"),
            Text(f"{account.chance:.2g}", style="dim"),
            Text(
                "shifted" if account.shifted else words.VERDICTS[account.verdict].label, style=_STYLES[account.verdict]
            ),
        )
    common = why.common
    if not common.chance < 1:
        return table
    table.add_section()
    table.add_row(
        Text("all accounts equally", style="dim"), "", "", "", sentences.percent(common.change),
        Text(sentences.percent(common.low), style="dim"), Text(sentences.percent(common.high), style="dim"),
        Text(f"{common.chance:.2g}", style="dim"), "",
    )  # fmt: skip
    return table
