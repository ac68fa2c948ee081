"""Prints a comparison of two sides on a terminal."""

from __future__ import annotations

import shlex

from rich.console import Console, RenderableType
from rich.text import Text

from trainyard import units, words
from trainyard.report.render.fitted_table import Part, fitted, plain
from trainyard.report.render.operations_terminal import count_hidden, print_operations
from trainyard.report.render.terminal import NextStep, next_steps
from trainyard.report.view.comparison import ComparedAccount, Comparison, show_change

_STYLES = {"worse": "red", "better": "green", "same": "dim", "unknown": ""}
_MOST_ACCOUNTS, _MOST_NOTES = 10, 3
"""Accounts and notes in the default output."""
_SMALL_SHARE = 0.001
"""Fraction of the step below which a change is folded with the others."""
_NAME_WIDTH = 34
"""Width of an account in characters from which columns are left out before it is shortened."""


def print_comparison(comparison: Comparison, console: Console, full: bool = False, traces: str = "") -> None:
    """Prints the comparison of two sides: the changes of all accounts if `full`, else of those that changed most.
    `traces`: the path of the profiler files of the second side, empty if it is a run or a plan."""
    before, after, tone = comparison.before, comparison.after, _tone(comparison)
    console.print(Text(plain(comparison.headline), style=f"bold {tone}".strip()))
    # Reasons why the sides cannot be compared make doubts about which is faster irrelevant.
    for reason in comparison.reasons or comparison.doubts:
        console.print(Text(f"because: {plain(reason)}", style=tone))
    if before.timed_ns and after.timed_ns:  # the title then shows the steps timed without the profiler
        profiled_ns = comparison.wall_change_ns
        text = f"profiled step {_ms(profiled_ns)} ms ({show_change(profiled_ns, before.wall_ns)}), account by account:"
        console.print(Text(text, style="dim"))
    changes = sorted(comparison.changes, key=lambda change: -abs(change.ns))
    large = changes if full else _large(changes, before.wall_ns)
    console.print(_table(comparison, large, changes[len(large) :], console.width))
    coverages = [
        f"{plain(side.name)} {units.show_share(side.wall_ns - side.unrecognised_ns, side.wall_ns)}"
        for side in (before, after)
    ]
    console.print(Text(f"coverage: {', '.join(coverages)}", style="dim"))
    if comparison.operations and (full or comparison.comparable):
        print_operations(comparison.operations, console, full)
    notes = comparison.caveats if full else comparison.caveats[:_MOST_NOTES]
    for caveat in notes:
        console.print(Text(f"note: {plain(caveat)}", style="dim"))
    if full and comparison.no_operations:
        console.print(Text(f"note: {plain(comparison.no_operations)}", style="dim"))
    if not full:
        console.print(*next_steps(_suggest_commands(comparison, len(changes) - len(large), traces)), sep="\n")


def _large(changes: list[ComparedAccount], wall_ns: int) -> list[ComparedAccount]:
    """The largest changes, as many as one screen shows; all of them if only one would be folded."""
    large = [change for change in changes[:_MOST_ACCOUNTS] if abs(change.ns) >= _SMALL_SHARE * wall_ns]
    return large if len(changes) > len(large) + 1 else changes


def _suggest_commands(comparison: Comparison, folded: int, traces: str) -> list[NextStep]:
    """Commands that show the rest, of which `folded` is the number of accounts, and that look closer. `traces`: as in
    `print_comparison`."""
    counts = {
        "more account": folded,
        "more operation": count_hidden(comparison.operations),
        "more note": len(comparison.caveats[_MOST_NOTES:]),
    }
    listed = [units.counted(count, noun) for noun, count in counts.items() if count]
    if comparison.no_operations:
        listed.append("why operations are not compared")
    steps = [NextStep("--full", ", ".join(listed))] if listed else []
    if comparison.before.timed_ns and comparison.after.timed_ns:
        command = "trainyard gate run --base REVISION JOB.toml | -- COMMAND"
        return [*steps, NextStep(command, "test for a slowdown with known error rates")]
    if not traces:
        return steps
    return [*steps, NextStep(f"trainyard trace {shlex.quote(traces)}", "what each step spends its time on")]


def _tone(comparison: Comparison) -> str:
    """The headline's colour: red if the sides cannot be compared, yellow if in doubt, else none."""
    return "yellow" if comparison.comparable and comparison.doubts else "" if comparison.comparable else "red"


def _table(
    comparison: Comparison, large: list[ComparedAccount], folded: list[ComparedAccount], width: int
) -> RenderableType:
    """The accounts in ms: a row for each `large` change, one for all that are `folded`, one for the step. In a narrow
    terminal the range is left out first, then the two sides."""
    before, after = comparison.before, comparison.after
    rows: list[tuple[Text, ...]] = []
    for change in large:
        spread = "" if change.low_ns is None else f"{_ms(change.low_ns)} … {_ms(change.high_ns or 0)}"
        style = _STYLES[change.verdict]
        rows.append(
            (
                Text(plain(change.account.label)), Text(f"{change.before_ns / 1e6:,.3f}"),
                Text(f"{change.after_ns / 1e6:,.3f}"), Text(_ms(change.ns), style=style), Text(spread, style="dim"),
                Text(words.VERDICTS[change.verdict].label if comparison.comparable else "", style=style),
            )
        )  # fmt: skip
    if folded:
        before_ns, after_ns = sum(change.before_ns for change in folded), sum(change.after_ns for change in folded)
        rows.append(
            (
                Text(units.counted(len(folded), "more account"), style="dim"), Text(f"{before_ns / 1e6:,.3f}"),
                Text(f"{after_ns / 1e6:,.3f}"), Text(_ms(after_ns - before_ns)), Text(""), Text(""),
            )
        )  # fmt: skip
    rows.append(
        (
            Text("step", style="bold"), Text(f"{before.wall_ns / 1e6:,.3f}"), Text(f"{after.wall_ns / 1e6:,.3f}"),
            Text(_ms(comparison.wall_change_ns), style="bold"), Text("", style="dim"), Text(""),
        )
    )  # fmt: skip
    account, before_ms, after_ms, change_ms, spread, verdict = zip(*rows, strict=True)
    return fitted(
        [
            Part("account", account, name=True, min_width=_NAME_WIDTH),
            Part("before ms", before_ms, drop_order=3, right=True),
            Part("after ms", after_ms, drop_order=2, right=True), Part("change ms", change_ms, right=True),
            Part("range over steps, ms", spread, drop_order=4, right=True), Part("", verdict),
        ],
        width,
    )  # fmt: skip


def _ms(ns: int) -> str:
    """Signed milliseconds."""
    return f"{ns / 1e6:+,.3f}"
