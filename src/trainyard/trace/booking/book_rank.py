"""One rank's events -> its ledgers: classified separately, then booked on the common clock, steps and groups."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from trainyard import words
from trainyard.events import I8, I32, I64, Events
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.trace.align import steps
from trainyard.trace.align.alignment import Aligned
from trainyard.trace.align.cross_rank import RankAgreement
from trainyard.trace.align.steps import StepPart
from trainyard.trace.booking.idle import idle
from trainyard.trace.booking.intervals import Booking, Intervals, book
from trainyard.trace.booking.stragglers_and_bubbles import Waits, split_waits
from trainyard.trace.classify.context import PHASES, Context, context
from trainyard.trace.classify.cpu import classify_cpu
from trainyard.trace.classify.kernels import Classified, Keys, classify_device, key_collectives
from trainyard.trace.flops.attribution import Arithmetic, measure_arithmetic, sum_by_part_and_key

_KINDS = list(words.KINDS)
_UNEXPLAINED = Account("unexplained")


class ClassifiedRank(NamedTuple):
    """One rank's trace, classified without the other ranks: its collectives have no key yet."""

    events: Events
    context: Context
    keys: Keys
    classified: Classified


class RankTrace(NamedTuple):
    """One rank's trace and all results. Interval i of `classified` is booked under `keys.pairs[classified.key[i]]`;
    `parts` tile the window; `owned`: ns that each interval owns."""

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


def classify_rank(events: Events, around: Context | None = None) -> ClassifiedRank:
    """Classifies a rank without the other ranks. `around`: the context of its events, if already computed."""
    around = around or context(events)
    keys = Keys()
    classify = classify_device if len(events.work) else classify_cpu
    return ClassifiedRank(events, around, keys, classify(events, around, keys))


def book_rank(rank: ClassifiedRank, share: RankAgreement) -> RankTrace:
    """Books a rank's ledgers, given its share of the cross-rank alignment."""
    events, around, keys, classified = rank
    events = msgspec.structs.replace(events, rank=share.rank, group_sizes=share.group_sizes)
    classified = key_collectives(events, keys, classified)
    events = share.clock.corrected(events)
    classified = classified._replace(start=share.clock.at(classified.start), stop=share.clock.at(classified.stop))
    parts = steps.whole_window(events) if share.ends is None else steps.parts(events, share.ends)
    classified, waits = split_waits(classified, keys, share.arrivals, share.unmet, parts)
    return _book_rank(events, around, keys, classified, waits, parts, share.aligned)


def _book_rank(
    events: Events,
    around: Context,
    keys: Keys,
    classified: Classified,
    waits: Waits,
    parts: list[StepPart],
    aligned: Aligned,
) -> RankTrace:
    columns = [(classified.start, classified.stop, classified.key), (waits.start, waits.stop, waits.key)]
    if len(events.work):
        columns.append(idle(events, around, keys))
    start, stop, key = (np.concatenate(column) for column in zip(*columns))
    kinds: I8 = keys.kinds()
    bounds = np.array([parts[0].start, *(part.stop for part in parts)], np.int64)
    # Ties within a kind go by the order in words.py, so keys are booked by their precedence in it.
    precedence = keys.precedence()
    booking = book(Intervals(start, stop, kinds[key], precedence[key]), bounds, len(keys.pairs), len(_KINDS))
    booking = booking._replace(owned=booking.owned[:, [*precedence, -1]], live=booking.live[:, precedence])
    n = len(classified.start)
    begins = np.ones(len(start), bool)
    begins[:n] = classified.begins
    counts = _counts(start[begins], key[begins], bounds, len(keys.pairs))
    work = measure_arithmetic(events, around, keys, classified)
    done = np.stack(
        [sum_by_part_and_key(column, classified, bounds, len(keys.pairs)) for column in (work.flops, work.bytes)]
    )
    ledgers = tuple(
        _ledger(events, keys, booking, counts[part_index], done[:, part_index], part_index, part, aligned)
        for part_index, part in enumerate(parts)
    )
    return RankTrace(
        events, around, keys, classified, waits, tuple(parts), ledgers,
        booking.by_interval[:n], booking.by_interval[n : n + len(waits.start)], work,
    )  # fmt: skip


def _counts(start: I64, key: I32, bounds: I64, keys: int) -> I64:
    """[p, k]: the number of intervals of each key that start in each part."""
    part = np.searchsorted(bounds, start, "right") - 1
    inside = (part >= 0) & (part < len(bounds) - 1)
    counts = np.zeros((len(bounds) - 1, keys), np.int64)
    np.add.at(counts, (part[inside], key[inside]), 1)
    return counts


def _ledger(
    events: Events,
    keys: Keys,
    booking: Booking,
    count: I64,
    done: I64,
    part_index: int,
    part: StepPart,
    aligned: Aligned,
) -> Ledger:
    """The ledger of one part. `done`: FLOPs and bytes of each key; -1 if unknown."""
    owned, live = booking.owned[part_index], booking.live[part_index]
    entries = [
        Entry(
            account=account,
            phase=PHASES[phase],
            ns=int(owned[key]),
            hidden_ns=int(live[key] - owned[key]),
            count=int(count[key]),
            flops=int(done[0, key]) if done[0, key] >= 0 else None,
            bytes=int(done[1, key]) if done[1, key] >= 0 else None,
            how="inferred" if account.kind in ("launch_gap", "straggler", "bubble") else "seen",
        )
        for key, (account, phase) in enumerate(keys.pairs)
        if live[key] or count[key]
    ]
    if owned[-1]:
        entries.append(Entry(account=_UNEXPLAINED, ns=int(owned[-1]), how="inferred"))
    entries.sort(key=lambda entry: (entry.account.rank, PHASES.index(entry.phase)))
    unions = {kind: int(ns) for kind, ns in zip(_KINDS, booking.unions[part_index]) if ns}
    scope = Scope(steps=(part.label,), ranks=(events.rank,), aligned=aligned, partial=part.partial)
    return Ledger(
        wall_ns=part.stop - part.start, entries=tuple(entries), scope=scope, source=events.source, unions=unions
    )
