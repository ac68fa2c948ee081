"""Prints a comparison of two sides on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard import units, words
from trainyard.compare.comparison import ComparedAccount, Comparison
from trainyard.report.render.terminal import NextStep, Part, fitted, next_steps, plain

_STYLES = {"worse": "red", "better": "green", "same": "dim", "unknown": ""}
_ACCOUNTS, _NOTES = 10, 3
_SMALL = 0.001
"""Fraction of the step below which a change is folded with the others."""
_NAME = 34
"""Width of an account in characters from which columns are left out before it is shortened."""


def print_comparison(comparison: Comparison, console: Console, full: bool = False) -> None:
    """Prints the changes of all accounts if `full`, else of those that changed most."""
    before, after, tone = comparison.before, comparison.after, _tone(comparison)
    console.print(Text(plain(_title(comparison)), style=f"bold {tone}".strip()))
    for reason in comparison.reasons or comparison.doubts:
        console.print(Text(f"because: {plain(reason)}", style=tone))
    if before.timed_ns and after.timed_ns:
        change = comparison.wall_change_ns
        text = f"profiled step {_ms(change)} ms ({_percent(change, before.wall_ns)}), account by account:"
        console.print(Text(text, style="dim"))
    changes = sorted(comparison.changes, key=lambda change: -abs(change.ns))
    large = changes if full else _large(changes, before.wall_ns)
    console.print(_table(comparison, large, changes[len(large) :], console.width))
    shares = [
        f"{plain(side.name)} {units.show_share(side.wall_ns - side.unrecognised_ns, side.wall_ns)}"
        for side in (before, after)
    ]
    console.print(Text(f"coverage: {', '.join(shares)}", style="dim"))
    notes = comparison.caveats if full else comparison.caveats[:_NOTES]
    for caveat in notes:
        console.print(Text(f"note: {plain(caveat)}", style="dim"))
    if not full:
        console.print(*next_steps(_steps(comparison, len(changes) - len(large))), sep="\n")


def _large(changes: list[ComparedAccount], wall_ns: int) -> list[ComparedAccount]:
    """The first changes that matter; all if only one more would be left."""
    large = [change for change in changes[:_ACCOUNTS] if abs(change.ns) >= _SMALL * wall_ns]
    return large if len(changes) > len(large) + 1 else changes


def _steps(comparison: Comparison, folded: int) -> list[NextStep]:
    counts = {"more account": folded, "more note": len(comparison.caveats[_NOTES:])}
    listed = [units.counted(count, noun) for noun, count in counts.items() if count]
    steps = [NextStep("--full", ", ".join([*listed, "range over steps"]))]
    if comparison.before.timed_ns and comparison.after.timed_ns:
        command = f"trainyard gate {comparison.after.name} --base {comparison.before.name}"
        return [*steps, NextStep(command, "test for a slowdown with known error rates")]
    return [*steps, NextStep("trainyard trace PATH", "what each step spends its time on")]


def _title(comparison: Comparison) -> str:
    """The timed step if both sides have one, since the profiler's own cost is not part of it."""
    before, after = comparison.before, comparison.after
    if not comparison.comparable:
        return f"{before.name} and {after.name} are not comparable"
    timed = before.timed_ns and after.timed_ns
    was, now = (before.timed_ns, after.timed_ns) if timed else (before.wall_ns, after.wall_ns)
    step = "timed step" if timed else "step"
    unsure = "cannot tell: " if comparison.doubts else ""
    return (
        f"{before.name} → {after.name}: {unsure}{step} {units.show_time(was)} → {units.show_time(now)}, "
        f"{_ms(now - was)} ms ({_percent(now - was, was)})"
    )


def _tone(comparison: Comparison) -> str:
    return "yellow" if comparison.comparable and comparison.doubts else "" if comparison.comparable else "red"


def _table(comparison: Comparison, large: list[ComparedAccount], folded: list[ComparedAccount], width: int) -> Table:
    """In a narrow terminal the range is left out first, then the verdict, which the colour of the change shows too."""
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
        was, now = sum(change.before_ns for change in folded), sum(change.after_ns for change in folded)
        rows.append(
            (
                Text(units.counted(len(folded), "more account"), style="dim"), Text(f"{was / 1e6:,.3f}"),
                Text(f"{now / 1e6:,.3f}"), Text(_ms(now - was)), Text(""), Text(""),
            )
        )  # fmt: skip
    rows.append(
        (
            Text("step", style="bold"), Text(f"{before.wall_ns / 1e6:,.3f}"), Text(f"{after.wall_ns / 1e6:,.3f}"),
            Text(_ms(comparison.wall_change_ns), style="bold"), Text("", style="dim"), Text(""),
        )
    )  # fmt: skip
    account, was, now, by, spread, verdict = zip(*rows, strict=True)
    return fitted(
        [
            Part("account", account, name=True, least=_NAME), Part("before ms", was, spare=2, right=True),
            Part("after ms", now, spare=1, right=True), Part("change ms", by, right=True),
            Part("range over steps, ms", spread, spare=4, right=True), Part("", verdict, spare=3),
        ],
        width,
    )  # fmt: skip


def _ms(ns: int) -> str:
    return f"{ns / 1e6:+,.3f}"


def _percent(change: int, base: int) -> str:
    return f"{100 * change / base:+.1f} %" if base else "–"
