"""Draws a gate's result on a terminal."""

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
    console.print(Text(plain(sentences.asked(gate)), style="dim"))
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
    for one in gate.differ:
        console.print(Text(f"differs: {plain(one.name)}: {plain(one.was)} against {plain(one.now)}", style="dim"))
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
    for one in gate.verdicts:
        figures = gate.figures[one.metric]
        table.add_row(
            Text(plain(words.metric(one.metric).label)),
            sentences.figure(one.metric, figures.base),
            sentences.figure(one.metric, figures.head),
            Text(sentences.percent(one.change), style=_STYLES[one.says]),
            Text(sentences.percent(one.low), style="dim"),
            Text(sentences.percent(one.high), style="dim"),
            str(one.pairs),
            Text(sentences.LABELS[one.says], style=_STYLES[one.says]),
        )
    return table


def _accounts(why: ChangedAccounts) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("account")
    for head in ("base ms", "head ms", "own change ms", "of it", "between", "", "chance"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in why.by_interest()[:_ROWS]:
        table.add_row(
            Text(plain(sentences.label(one)), no_wrap=True, overflow="ellipsis"),
            f"{one.before_ns / 1e6:,.3f}",
            f"{one.after_ns / 1e6:,.3f}",
            Text(f"{one.ns / 1e6:+,.3f}", style=_STYLES[one.verdict]),
            sentences.percent(one.change),
            Text(sentences.percent(one.low), style="dim"),
            Text(sentences.percent(one.high), style="dim"),
            Text(f"{one.chance:.2g}", style="dim"),
            Text("shifted" if one.shifted else words.VERDICTS[one.verdict].label, style=_STYLES[one.verdict]),
        )
    common = why.common
    if not common.chance < 1:
        return table
    table.add_section()
    table.add_row(
        Text("all accounts alike", style="dim"), "", "", "", sentences.percent(common.change),
        Text(sentences.percent(common.low), style="dim"), Text(sentences.percent(common.high), style="dim"),
        Text(f"{common.chance:.2g}", style="dim"), "",
    )  # fmt: skip
    return table
