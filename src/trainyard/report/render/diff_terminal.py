"""Prints a comparison of two sides, and builds its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard import units, words
from trainyard.compare.comparable import Comparability
from trainyard.compare.side import Side
from trainyard.ledger import AccountChange, encode_hook
from trainyard.report.render.terminal import Part, fitted, plain

SCHEMA = "trainyard/diff/1"
_STYLES = {"worse": "red", "better": "green", "same": "dim", "unknown": ""}


def print_difference(
    before: Side, after: Side, changes: Sequence[AccountChange], judged: Comparability, console: Console
) -> None:
    console.print(Text(plain(_title(before, after, judged)), style=f"bold {_tone(judged)}".strip()))
    for reason in judged.reasons or _doubts(judged):
        console.print(Text(f"because: {plain(reason)}", style=_tone(judged)))
    if before.timed_ns and after.timed_ns:
        change = after.mean.wall_ns - before.mean.wall_ns
        summary = f"profiled step {_ms(change)} ms ({_percent(change, before.mean.wall_ns)}), account by account:"
        console.print(Text(summary, style="dim"))
    console.print(_table(before, after, changes, judged, console.width))
    for side in (before, after):
        share = units.show_share(side.mean.wall_ns - side.mean.unrecognised_ns, side.mean.wall_ns)
        console.print(Text(f"coverage of {plain(side.name)}: {share}", style="dim"))
    for caveat in judged.caveats:
        console.print(Text(f"note: {plain(caveat)}", style="dim"))


def _title(before: Side, after: Side, judged: Comparability) -> str:
    """Compares the timed steps if both sides have one, since they exclude the profiler's overhead."""
    if judged.reasons:
        return f"{before.name} and {after.name} are not comparable"
    timed = before.timed_ns and after.timed_ns
    was, now = (before.timed_ns, after.timed_ns) if timed else (before.mean.wall_ns, after.mean.wall_ns)
    step = "timed step" if timed else "step"
    unsure = "cannot tell: " if _doubts(judged) else ""
    return (
        f"{before.name} → {after.name}: {unsure}{step} {units.show_time(was)} → {units.show_time(now)}, "
        f"{_ms(now - was)} ms ({_percent(now - was, was)})"
    )


def _doubts(judged: Comparability) -> list[str]:
    return [*judged.doubts, *([judged.unsure] if judged.unsure else [])]


def _tone(judged: Comparability) -> str:
    return "red" if judged.reasons else "yellow" if _doubts(judged) else ""


def _table(before: Side, after: Side, changes: Sequence[AccountChange], judged: Comparability, width: int) -> Table:
    """On narrow terminals the range is left out first, then the verdict, which the colour of the change also shows."""
    wall = after.mean.wall_ns - before.mean.wall_ns
    rows: list[tuple[Text, ...]] = []
    for change in sorted(changes, key=lambda change: -abs(change.ns)):
        spread = "" if change.low_ns is None else f"{_ms(change.low_ns)} … {_ms(change.high_ns or 0)}"
        style = _STYLES[change.verdict]
        rows.append(
            (
                Text(plain(change.account.label)), Text(f"{change.before_ns / 1e6:,.3f}"),
                Text(f"{change.after_ns / 1e6:,.3f}"), Text(_ms(change.ns), style=style), Text(spread, style="dim"),
                Text("" if judged.reasons else words.VERDICTS[change.verdict].label, style=style),
            )
        )  # fmt: skip
    rows.append(
        (
            Text("step", style="bold"), Text(f"{before.mean.wall_ns / 1e6:,.3f}"),
            Text(f"{after.mean.wall_ns / 1e6:,.3f}"), Text(_ms(wall), style="bold"),
            Text(f"{wall:+,} ns, their sum", style="dim"), Text(""),
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


def as_plain(before: Side, after: Side, changes: Sequence[AccountChange], judged: Comparability) -> dict[str, Any]:
    """The comparison as plain data, for `--json`."""
    return {
        "schema": SCHEMA,
        "before": {"name": before.name, "wall_ns": before.mean.wall_ns, "timed_ns": before.timed_ns},
        "after": {"name": after.name, "wall_ns": after.mean.wall_ns, "timed_ns": after.timed_ns},
        "wall_change_ns": after.mean.wall_ns - before.mean.wall_ns,
        "comparable": not judged.reasons,
        "reasons": list(judged.reasons),
        "doubts": _doubts(judged),
        "caveats": list(judged.caveats),
        "changes": [
            {
                "account": encode_hook(change.account),
                "before_ns": change.before_ns,
                "after_ns": change.after_ns,
                "ns": change.ns,
                "low_ns": change.low_ns,
                "high_ns": change.high_ns,
                "verdict": change.verdict,
            }
            for change in changes
        ],
    }


def _ms(ns: int) -> str:
    return f"{ns / 1e6:+,.3f}"


def _percent(change: int, base: int) -> str:
    return f"{100 * change / base:+.1f} %" if base else "–"
