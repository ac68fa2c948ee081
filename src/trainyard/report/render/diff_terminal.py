"""Prints a comparison of two sides on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard import units, words
from trainyard.compare.comparison import Comparison
from trainyard.report.render.terminal import Part, fitted, plain

_STYLES = {"worse": "red", "better": "green", "same": "dim", "unknown": ""}


def print_comparison(comparison: Comparison, console: Console) -> None:
    before, after, tone = comparison.before, comparison.after, _tone(comparison)
    console.print(Text(plain(_title(comparison)), style=f"bold {tone}".strip()))
    for reason in comparison.reasons or comparison.doubts:
        console.print(Text(f"because: {plain(reason)}", style=tone))
    if before.timed_ns and after.timed_ns:
        change = comparison.wall_change_ns
        text = f"profiled step {_ms(change)} ms ({_percent(change, before.wall_ns)}), account by account:"
        console.print(Text(text, style="dim"))
    console.print(_table(comparison, console.width))
    for side in (before, after):
        share = units.show_share(side.wall_ns - side.unrecognised_ns, side.wall_ns)
        console.print(Text(f"coverage of {plain(side.name)}: {share}", style="dim"))
    for caveat in comparison.caveats:
        console.print(Text(f"note: {plain(caveat)}", style="dim"))


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


def _table(comparison: Comparison, width: int) -> Table:
    """In a narrow terminal the range is left out first, then the verdict, which the colour of the change shows too."""
    before, after = comparison.before, comparison.after
    rows: list[tuple[Text, ...]] = []
    for change in sorted(comparison.changes, key=lambda change: -abs(change.ns)):
        spread = "" if change.low_ns is None else f"{_ms(change.low_ns)} … {_ms(change.high_ns or 0)}"
        style = _STYLES[change.verdict]
        rows.append(
            (
                Text(plain(change.account.label)), Text(f"{change.before_ns / 1e6:,.3f}"),
                Text(f"{change.after_ns / 1e6:,.3f}"), Text(_ms(change.ns), style=style), Text(spread, style="dim"),
                Text(words.VERDICTS[change.verdict].label if comparison.comparable else "", style=style),
            )
        )  # fmt: skip
    rows.append(
        (
            Text("step", style="bold"), Text(f"{before.wall_ns / 1e6:,.3f}"), Text(f"{after.wall_ns / 1e6:,.3f}"),
            Text(_ms(comparison.wall_change_ns), style="bold"),
            Text(f"{comparison.wall_change_ns:+,} ns, their sum", style="dim"), Text(""),
        )
    )  # fmt: skip
    account, was, now, by, spread, verdict = zip(*rows, strict=True)
    return fitted(
        [
            Part("account", account, name=True), Part("before ms", was, right=True), Part("after ms", now, right=True),
            Part("change ms", by, right=True), Part("range over steps", spread, spare=2, right=True),
            Part("", verdict, spare=1),
        ],
        width,
    )  # fmt: skip


def _ms(ns: int) -> str:
    return f"{ns / 1e6:+,.3f}"


def _percent(change: int, base: int) -> str:
    return f"{100 * change / base:+.1f} %" if base else "–"
