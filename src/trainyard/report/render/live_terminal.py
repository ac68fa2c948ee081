"""Prints the updates on a run that is followed: a line for each in a pipe, a panel on a terminal. Imports Rich.

Names in a run's files are printed as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from trainyard import units, words
from trainyard.ledger import Ledger
from trainyard.report.render.blocks import sparkline
from trainyard.report.render.fitted_table import Part, fitted, plain, shortened
from trainyard.run.live_run import LiveRun, LiveStep

_MOST_ACCOUNTS, _MOST_INCIDENTS, _MOST_WARNINGS = 6, 5, 3
"""Accounts, incidents and warnings in a panel."""
_LINE_ACCOUNTS = 3
"""Accounts in a line."""
_BAR_WIDTH = 20
"""Width of the bar of the largest account, in characters."""
_LABEL_WIDTH = 10
_STATES = {
    "starting": "starting: no step has ended yet",
    "running": "running",
    "finishing": "finishing: all steps have ended, and the run is being recorded",
    "stopped": "stopped: its process ended without finishing it",
    "complete": "complete",
    "failed": "failed",
    "damaged": "damaged",
}
"""State -> its description."""


class LiveLines:
    """Turns updates into lines: one for each update with new steps or another state, one for each event."""

    def __init__(self) -> None:
        self._state = ""
        self._incidents = 0
        self._warnings = 0
        self._ledger: Ledger | None = None

    def lines(self, update: LiveRun) -> Iterator[str]:
        """Yields the lines of an update. Call it once for each update, in order."""
        for incident in update.incidents[self._incidents :]:
            yield f"incident: {plain(incident.summary)}"
        self._incidents = max(self._incidents, len(update.incidents))
        for warning in update.warnings[self._warnings :]:
            yield f"warning: {plain(warning)}"
        self._warnings = max(self._warnings, len(update.warnings))
        if update.new_steps and update.last is not None:
            yield step_line(update, update.last)
        if update.ledger is not None and update.ledger != self._ledger:
            yield _ledger_line(update.ledger)
        self._ledger = update.ledger
        if update.state != self._state and (update.state != "running" or not update.new_steps):
            yield f"run {update.id} ({plain(update.job)}): {_describe_state(update)}"
        self._state = update.state


def step_line(update: LiveRun, step: LiveStep) -> str:
    """A line on a step: number, loss, time, throughput, slowest rank."""
    count = f"step {step.step + 1}" + (f"/{update.steps}" if update.steps else "")
    notes = [
        *([f"attempt {step.attempt + 1}"] if step.attempt else []),
        *(["warm-up"] if step.warmup else []),
        *(["profiled"] if step.profiled else []),
        *(["not applied"] if step.skipped else []),
    ]
    return "  ".join([count, *_figures(update, step), *([f"({', '.join(notes)})"] if notes else [])])


def live_panel(update: LiveRun, steps: Sequence[LiveStep], width: int) -> RenderableType:
    """The state of a run in about 20 lines of `width` characters. `steps`: the latest ones, in order."""
    memory = f"  peak memory {units.show_size(update.memory_bytes)}" if update.memory_bytes else ""
    head = f"run {update.id}  {plain(update.job)}  {_describe_state(update)}{memory}"
    parts: list[RenderableType] = [Text(shortened(head, max(width, 20)), style="bold")]
    last = update.last
    if last is not None:
        parts.append(Text(step_line(update, last), overflow="ellipsis", no_wrap=True))
        room = max(1, width - _LABEL_WIDTH - 30)
        timed = [step for step in steps if not step.warmup]
        parts.extend(_strip("step time", [step.wall_ns for step in timed], room, units.show_time))
        losses = [step.loss for step in steps if step.loss is not None]
        parts.extend(_strip("loss", losses, room, lambda loss: f"{loss:.4f}"))
    if update.goodput:
        total = sum(update.goodput.values())
        shares = sorted(update.goodput.items(), key=lambda item: -item[1])
        shown = "  ".join(f"{words.TIMES[cause].label.lower()} {units.show_share(s, total, 0)}" for cause, s in shares)
        parts.append(Text(f"{'time':<{_LABEL_WIDTH}}{shown}", style="dim", overflow="ellipsis", no_wrap=True))
    if update.ledger is not None:
        parts += [Text(), _ledger_table(update.ledger, width)]
    for incident in update.incidents[-_MOST_INCIDENTS:]:
        time = incident.time[11:19]
        parts.append(Text(f"▲ {time}  {plain(incident.summary)}", style=words.SEVERITIES["high"].colour))
    if len(update.incidents) > _MOST_INCIDENTS:
        parts.append(Text(f"{len(update.incidents) - _MOST_INCIDENTS} earlier incidents", style="dim"))
    parts.extend(Text(plain(warning), style="yellow") for warning in update.warnings[-_MOST_WARNINGS:])
    return Group(*parts)


def _describe_state(update: LiveRun) -> str:
    """The state of a run, with the reason if it failed."""
    reason = f": {plain(update.failure.splitlines()[0])}" if update.failure else ""
    return _STATES[update.state] + reason


def _figures(update: LiveRun, step: LiveStep) -> list[str]:
    """Loss, time, throughput and slowest rank of a step as texts."""
    return [
        *([f"loss {step.loss:.4f}"] if step.loss is not None else []),
        units.show_time(step.wall_ns),
        *([f"{units.show_count(step.tokens_per_s)} {update.unit}/s"] if step.tokens_per_s else []),
        *([f"slowest rank {step.slowest_rank} of {update.ranks}"] if update.ranks > 1 else []),
    ]


def _strip(label: str, values: Sequence[float], width: int, show: Callable[[float], str]) -> list[RenderableType]:
    """A line with the values as columns and their range; nothing for fewer than two values."""
    if len(values) < 2:
        return []
    picture = sparkline(values, width)
    return [Text(f"{label:<{_LABEL_WIDTH}}{picture}  {show(min(values))} to {show(max(values))}")]


def _largest(ledger: Ledger, most: int) -> list[tuple[str, int, str]]:
    """(label, ns, colour) of the largest accounts, with a row for the others."""
    accounts = sorted(((ns, account) for account, ns in ledger.by_account().items() if ns), key=lambda row: -row[0])
    rows = [(account.label, ns, account.colour) for ns, account in accounts[:most]]
    if len(accounts) > most:
        rows.append((f"{len(accounts) - most} more accounts", sum(ns for ns, _ in accounts[most:]), ""))
    return rows


def _ledger_line(ledger: Ledger) -> str:
    """A line on the mean step of the profiled window: its time and its largest accounts."""
    shares = [f"{label} {units.show_share(ns, ledger.wall_ns)}" for label, ns, _ in _largest(ledger, _LINE_ACCOUNTS)]
    return f"profiled step {units.show_time(ledger.wall_ns)}: {plain(', '.join(shares))}"


def _ledger_table(ledger: Ledger, width: int) -> RenderableType:
    """The largest accounts of the mean profiled step, with bars."""
    rows = _largest(ledger, _MOST_ACCOUNTS)
    longest = max((ns for _, ns, _ in rows), default=1) or 1
    return fitted(
        [
            Part(f"profiled step, {units.show_time(ledger.wall_ns)}", [Text(plain(row[0])) for row in rows], name=True),
            Part("ms", [Text(f"{ns / 1e6:,.3f}") for _, ns, _ in rows], right=True),
            Part("share", [Text(units.show_share(ns, ledger.wall_ns)) for _, ns, _ in rows], right=True),
            Part("", [Text("█" * round(_BAR_WIDTH * ns / longest), style=colour) for _, ns, colour in rows], 1),
        ],
        width,
    )
