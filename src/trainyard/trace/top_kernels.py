"""Top kernels and modules of a trace: ns per step, averaged over ranks and full steps.

An interval is a kernel or copy of a device, or a stretch of a CPU op. Its key is the number of its account (such as
`compute/matmul`) and phase in `rank.keys.pairs`. A module is an `nn.Module` or a user's annotation.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from trainyard.recorded_stacks import MODULE_PREFIX
from trainyard.trace.align.steps import in_full
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.classify.context import PHASES
from trainyard.trace.measured_trace import MeasuredTrace


class Busy(NamedTuple):
    """One kernel or module: `ns` for which it ran per step and rank (overlapped or not), `count` per step and rank."""

    name: str
    account: str
    phase: str
    ns: int
    count: int


def top_work(measured: MeasuredTrace, by: Literal["kernels", "modules"], most: int = 20) -> list[Busy]:
    """The kernels (on a CPU: ops) that ran longest, or the modules by the time of the work launched from them.

    At most `most` rows, by decreasing ns. Kernels are listed per account and phase, modules per kind of account and
    phase. Times are divided by the number of full steps of all ranks (of all parts, if a rank has no full step).
    """
    totals: dict[tuple[str, str, str], list[int]] = {}
    full_steps = 0
    for rank in measured.ranks:
        full_steps += sum(not part.partial for part in rank.parts) or len(rank.parts)
        _add_rank(rank, by, totals)
    rows = [
        Busy(*row_key, ns // max(1, full_steps), -(-count // max(1, full_steps)))
        for row_key, (ns, count) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row.ns)[:most]


def _add_rank(rank: RankTrace, by: str, totals: dict[tuple[str, str, str], list[int]]) -> None:
    """Adds the work of a rank's full steps to `totals`, in place.

    `by`: `kernels` or `modules`; `totals`: (name, account for kernels or kind of account for modules, phase) ->
    [ns that the work ran, number of calls].
    """
    classified = rank.classified
    names = classified.name if by == "kernels" else classified.module
    rows = np.flatnonzero((names >= 0) & in_full(rank.parts, classified.start))
    if not len(rows):
        return
    pair = np.stack([names[rows].astype(np.int64), classified.key[rows].astype(np.int64)])
    # `unique`: [2, k], a name number and a key for each distinct pair; `inverse`: the pair of each interval.
    unique, inverse = np.unique(pair, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    ns = np.bincount(inverse, weights=(classified.stop - classified.start)[rows]).astype(np.int64)
    count = np.bincount(inverse, weights=classified.begins[rows]).astype(np.int64)
    for (name, key), total_ns, calls in zip(unique.T.tolist(), ns.tolist(), count.tolist()):
        account, phase = rank.keys.pairs[key]
        if account.kind == "launch_gap" and by == "kernels":
            continue
        text = rank.events.names[name]
        row_key = (
            (text, str(account), PHASES[phase])
            if by == "kernels"
            else (text.removeprefix(MODULE_PREFIX), account.kind, PHASES[phase])
        )
        row = totals.setdefault(row_key, [0, 0])
        row[0] += total_ns
        row[1] += calls
