"""The top kernels and modules beside a ledger: ns a step, averaged over ranks and full steps."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from trainyard.trace.align.steps import in_full
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.classify.context import PHASES
from trainyard.trace.measured_trace import MeasuredTrace


class Busy(NamedTuple):
    """One row: `ns` a step and rank while it ran (its own time, hidden or not), `count` a step and rank."""

    name: str
    account: str
    phase: str
    ns: int
    count: int


def top(measured: MeasuredTrace, what: Literal["kernels", "modules"], most: int = 20) -> list[Busy]:
    """The longest-running kernels (CPU: ops), or the modules by the work launched from them."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    full_steps = 0
    for rank in measured.ranks:
        full_steps += sum(not part.partial for part in rank.parts) or len(rank.parts)
        _add(rank, what, totals)
    rows = [
        Busy(*ident, ns // max(1, full_steps), -(-count // max(1, full_steps))) for ident, (ns, count) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row.ns)[:most]


def _add(rank: RankTrace, what: str, totals: dict[tuple[str, str, str], list[int]]) -> None:
    one = rank.classified
    names = one.name if what == "kernels" else one.module
    rows = np.flatnonzero((names >= 0) & in_full(rank.parts, one.start))
    if not len(rows):
        return
    # A module's rows differ by phase; a kernel's by account and phase, which its key holds.
    pair = np.stack([names[rows].astype(np.int64), one.key[rows].astype(np.int64)])
    unique, inverse = np.unique(pair, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    ns = np.bincount(inverse, weights=(one.stop - one.start)[rows]).astype(np.int64)
    count = np.bincount(inverse, weights=one.begins[rows]).astype(np.int64)
    for (name, key), total, times in zip(unique.T.tolist(), ns.tolist(), count.tolist()):
        account, phase = rank.keys.pairs[key]
        if account.kind == "launch_gap" and what == "kernels":
            continue
        text = rank.events.names[name]
        ident = (
            (text, str(account), PHASES[phase])
            if what == "kernels"
            else (text.removeprefix("nn.Module: "), account.kind, PHASES[phase])
        )
        row = totals.setdefault(ident, [0, 0])
        row[0] += total
        row[1] += times
