"""Prices of findings: the time that a replay of the trace without a finding's cause recovers.

The causes with the largest upper bounds times confidence are replayed, `MAX_REPLAYED` at most. The others keep the time
that their rule attributes to the cause as an upper bound. A finding's weight is its recoverable time times the
confidence of its rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trainyard.change import Change, RowChange
from trainyard.detect.finding_text import describe_price
from trainyard.detect.run_rules import findings
from trainyard.errors import BadInput
from trainyard.finding import Finding, severity
from trainyard.ledger import Ledger
from trainyard.record import Run
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.rank_results import all_booked
from trainyard.trace.whatif.grid import count_events
from trainyard.trace.whatif.replay import Recovery, Replay

MAX_REPLAYED = 5
_MAX_EVENTS = 8_000_000
"""Events of all ranks up to which a trace is replayed: a replay needs all of them in memory at once."""


def diagnose(
    mean: Ledger, run: Run | None = None, measured: MeasuredTrace | None = None, replay: Replay | None = None
) -> list[Finding]:
    """The findings of all rules, priced and ordered by recoverable time times confidence. `mean`: the mean ledger of
    `run` or `measured`; without `measured`, all prices are upper bounds. `replay`: as in `price_findings`."""
    if measured is None:
        return [_without_rows(finding) for finding in findings(mean, run)]
    return price_findings(findings(mean, run, all_booked(measured)), measured, replay=replay)


def price_findings(
    unpriced: Sequence[Finding],
    measured: MeasuredTrace,
    max_replayed: int = MAX_REPLAYED,
    replay: Replay | None = None,
) -> list[Finding]:
    """Prices findings and orders them by recoverable time times confidence.

    The `max_replayed` heaviest that have a change are replayed, unless the trace has more than `_MAX_EVENTS` events.
    `replay`: of `measured`, if it is used elsewhere too.
    """
    priced = sorted(unpriced, key=lambda finding: -finding.weight)
    has_change = [finding.change is not None and finding.priced != "none" for finding in priced]
    candidates = [index for index, replayable in enumerate(has_change) if replayable][:max_replayed]
    if candidates and count_events(measured) <= _MAX_EVENTS:
        replay = replay or Replay(measured)
        for index in candidates:
            priced[index] = _replay_price(priced[index], replay)
    return sorted(map(_without_rows, priced), key=lambda finding: -finding.weight)


def _replay_price(finding: Finding, replay: Replay) -> Finding:
    """The finding with the price that a replay without its cause gives; unchanged if its change matches no work."""
    changes = () if finding.change is None else (finding.change,)
    try:
        since = replay.times((finding.beyond,)) if finding.beyond else None
        recovery = replay.recovery(replay.times(changes), since)
    except BadInput:
        return finding
    return _with_price(finding, recovery, replay.measured.mean)


def _with_price(finding: Finding, recovery: Recovery, mean: Ledger) -> Finding:
    """The finding with the recovered time as its price, and its severity and text accordingly. `mean`: the measured
    mean step."""
    cost_ns = max(0, recovery.ns)
    priced = replace(
        finding,
        cost_ns=cost_ns,
        severity=severity(cost_ns, mean.wall_ns),
        priced="replayed",
        interval_ns=recovery.interval_ns,
    )
    return replace(priced, summary=describe_price(priced, mean)) if finding.subject else priced


def _without_rows(finding: Finding) -> Finding:
    """The finding as results hold it: its change as text, without the rows that it selects."""
    if isinstance(finding.change, RowChange):
        return replace(finding, change=Change(text=finding.change.text))
    return finding
