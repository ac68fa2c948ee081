"""One rank's events -> its ledgers: classified separately, then booked on the common clock, steps and groups.

`measure.py` calls `classify_rank`, aligns the ranks, and calls `book_rank` with the result. Terms of this file:

- interval: a piece of work (a kernel or copy; on a CPU, a stretch of a thread) with start and stop in ns; row i of the
  columns of `Classified`.
- key: the number of an (account, phase) pair in `Keys.pairs`.
- part: a labelled period of the rank's window, such as a step; the parts tile the window. There are p of them, with
  p + 1 `bounds` (ns).
- own: at each instant one of the active intervals owns the time, by the precedence of their accounts.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from trainyard import words
from trainyard.events import I8, I32, I64, Events
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.trace.align import steps
from trainyard.trace.align.alignment import Aligned
from trainyard.trace.align.between_steps import mark_warm_up, split_marks
from trainyard.trace.align.cross_rank import RankAgreement
from trainyard.trace.align.infer_steps import infer_steps
from trainyard.trace.align.steps import StepPart
from trainyard.trace.booking.idle import find_idle
from trainyard.trace.booking.intervals import Booking, Intervals, book
from trainyard.trace.booking.stragglers_and_bubbles import Waits, split_waits
from trainyard.trace.classify.context import PHASES, Context, build_context
from trainyard.trace.classify.cpu import classify_cpu
from trainyard.trace.classify.kernels import Classified, Keys, classify_device, key_collectives
from trainyard.trace.flops.attribution import Arithmetic, measure_arithmetic, sum_by_part_and_key
from trainyard.trace.flops.op_costs import BUILT_IN, Formulas

_KINDS = list(words.KINDS)
_UNEXPLAINED = Account("unexplained")


class ClassifiedRank(NamedTuple):
    """One rank's trace, classified without the other ranks: the key of its collectives is still -1, since the name of
    their process group depends on the groups of all ranks."""

    events: Events
    context: Context
    keys: Keys
    classified: Classified


class RankTrace(NamedTuple):
    """One rank's trace and all results. Interval i of `classified` is booked under `keys.pairs[classified.key[i]]`, and
    starts after its wait for other ranks, if any, which is in `waits`; `parts` tile the window, and have one ledger
    each in `ledgers`; `owned`: ns that each interval owns."""

    events: Events
    context: Context
    keys: Keys
    classified: Classified
    waits: Waits
    parts: tuple[StepPart, ...]
    ledgers: tuple[Ledger, ...]
    owned: I64
    waited: I64
    """ns that each of `waits` owns."""
    arithmetic: Arithmetic

    @property
    def flops(self) -> I64:
        """FLOPs of each interval; -1 if unknown."""
        return self.arithmetic.flops

    @property
    def bytes(self) -> I64:
        """Bytes moved by each interval; -1 if unknown."""
        return self.arithmetic.bytes


def classify_rank(events: Events, host_context: Context | None = None) -> ClassifiedRank:
    """Classifies one rank: an account and phase for each interval, and its steps with the work between them.

    `host_context`: the phase, module and cause of each host span, if `events` were classified before and have their
    step marks; None to determine both.
    """
    if host_context is None:
        host_context = build_context(events)
        events = mark_warm_up(split_marks(infer_steps(events, host_context), host_context))
    keys = Keys()
    classify = classify_device if len(events.work) else classify_cpu
    return ClassifiedRank(
        events=events, context=host_context, keys=keys, classified=classify(events, host_context, keys)
    )


def book_rank(rank: ClassifiedRank, agreement: RankAgreement, formulas: Formulas = BUILT_IN) -> RankTrace:
    """Books one rank's ledgers on the common clock and steps of all ranks.

    `agreement`: what the alignment of all ranks determined for this one: its rank number, clock correction, ends of
    steps, and the times at which its waits for other ranks end. `formulas`: of the FLOPs and bytes of ops. Adds keys of
    collectives, waits and idle time to `rank.keys`, in place.
    """
    events, host_context, keys, classified = rank
    events = msgspec.structs.replace(events, rank=agreement.rank, group_sizes=agreement.group_sizes)
    classified = key_collectives(events, keys, classified)
    events = agreement.clock.corrected(events)
    classified = classified._replace(
        start=agreement.clock.at(classified.start), stop=agreement.clock.at(classified.stop)
    )
    parts = (
        steps.whole_window(events) if agreement.ends is None else steps.parts(events, agreement.ends, agreement.names)
    )
    classified, waits = split_waits(classified, keys, agreement.arrivals, agreement.unmet, parts)
    return _book_on_parts(events, host_context, keys, classified, waits, parts, agreement.aligned, formulas)


def _book_on_parts(
    events: Events,
    host_context: Context,
    keys: Keys,
    classified: Classified,
    waits: Waits,
    parts: list[StepPart],
    aligned: Aligned,
    formulas: Formulas,
) -> RankTrace:
    """Books a rank whose times are on the common clock and whose waits are split off, part by part.

    `classified`: starts at the end of each wait; `parts`: tile the window; `aligned`: how clocks were aligned, which is
    recorded in the ledgers. Adds keys of idle time to `keys`, in place.
    """
    # Intervals to book, as (start, stop, key): work, waits for other ranks, and idle time with a known cause.
    columns = [(classified.start, classified.stop, classified.key), (waits.start, waits.stop, waits.key)]
    if len(events.work):
        columns.append(find_idle(events, host_context, keys))
    start, stop, key = (np.concatenate(column) for column in zip(*columns))
    kinds: I8 = keys.kinds()
    bounds = np.array([parts[0].start, *(part.stop for part in parts)], np.int64)
    # `book` decides ties within a kind by the lower key, and they have to follow the order in words.py: so keys are
    # renumbered by their position in that order, and the columns of the result put back into the order of `keys`.
    precedence = keys.precedence()
    booking = book(
        Intervals(start=start, stop=stop, kind=kinds[key], key=precedence[key]), bounds, len(keys.pairs), len(_KINDS)
    )
    booking = booking._replace(owned=booking.owned[:, [*precedence, -1]], live=booking.live[:, precedence])
    interval_count = len(classified.start)
    # An interrupted op has several intervals, but counts as one call; each wait and idle period counts once.
    begins = np.ones(len(start), bool)
    begins[:interval_count] = classified.begins
    counts = _count_starts(start[begins], key[begins], bounds, len(keys.pairs))
    work = measure_arithmetic(events, host_context, keys, classified, formulas)
    flops_and_bytes = np.stack(
        [sum_by_part_and_key(column, classified, bounds, len(keys.pairs)) for column in (work.flops, work.bytes)]
    )
    ledgers = tuple(
        _build_ledger(
            events, keys, booking, counts[part_index], flops_and_bytes[:, part_index], part_index, part, aligned
        )
        for part_index, part in enumerate(parts)
    )
    # Intervals come first, then waits, then idle time.
    owned, waited, _ = np.split(booking.by_interval, [interval_count, interval_count + len(waits.start)])
    return RankTrace(
        events=events,
        context=host_context,
        keys=keys,
        classified=classified,
        waits=waits,
        parts=tuple(parts),
        ledgers=ledgers,
        owned=owned,
        waited=waited,
        arithmetic=work,
    )


def _count_starts(start: I64, key: I32, bounds: I64, key_count: int) -> I64:
    """[p, k]: the number of intervals of each key that start in each part. `start` (ns), `key`: of each interval;
    `bounds`: p + 1 bounds of the parts in ns; `key_count`: k."""
    part = np.searchsorted(bounds, start, "right") - 1
    inside = (part >= 0) & (part < len(bounds) - 1)
    counts = np.zeros((len(bounds) - 1, key_count), np.int64)
    np.add.at(counts, (part[inside], key[inside]), 1)
    return counts


def _build_ledger(
    events: Events,
    keys: Keys,
    booking: Booking,
    counts: I64,
    flops_and_bytes: I64,
    part_index: int,
    part: StepPart,
    aligned: Aligned,
) -> Ledger:
    """The ledger of one part of a rank's window, for k keys.

    `booking`: owned and live ns of all parts, of which row `part_index` is used; `counts`[k]: calls of each key;
    `flops_and_bytes`[2, k]: total FLOPs and bytes of each key, -1 if unknown. Time that no interval covers is booked as
    `unexplained`.
    """
    owned, live = booking.owned[part_index], booking.live[part_index]
    entries = [
        Entry(
            account=account,
            phase=PHASES[phase],
            ns=int(owned[key]),
            hidden_ns=int(live[key] - owned[key]),
            count=int(counts[key]),
            flops=int(flops_and_bytes[0, key]) if flops_and_bytes[0, key] >= 0 else None,
            bytes=int(flops_and_bytes[1, key]) if flops_and_bytes[1, key] >= 0 else None,
            # The account of waits and idle time follows from the events around them.
            how="inferred" if account.kind in ("launch_gap", "straggler", "bubble") else "seen",
        )
        for key, (account, phase) in enumerate(keys.pairs)
        if live[key] or counts[key]
    ]
    if owned[-1]:
        entries.append(Entry(account=_UNEXPLAINED, ns=int(owned[-1]), how="inferred"))
    entries.sort(key=lambda entry: (entry.account.rank, PHASES.index(entry.phase)))
    unions = {kind: int(ns) for kind, ns in zip(_KINDS, booking.unions[part_index]) if ns}
    scope = Scope(steps=(part.label,), ranks=(events.rank,), aligned=aligned, partial=part.partial)
    return Ledger(
        wall_ns=part.stop - part.start, entries=tuple(entries), scope=scope, source=events.source, unions=unions
    )
