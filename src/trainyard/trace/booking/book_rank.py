"""One rank's events -> its ledgers: classified alone, then booked on the clock, steps and groups that ranks share."""

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
from trainyard.trace.flops.attribution import Arithmetic, arithmetic, by_part

_KINDS = list(words.KINDS)
_UNEXPLAINED = Account("unexplained")


class ClassifiedRank(NamedTuple):
    """One rank's trace as far as it goes alone: its collectives have no key yet."""

    events: Events
    context: Context
    keys: Keys
    classified: Classified


class RankTrace(NamedTuple):
    """One rank's trace with everything concluded from it. Column i of `classified` is booked under
    `keys.pairs[classified.key[i]]`; `parts` tile the window; `owned` is the ns each interval owns."""

    events: Events
    context: Context
    keys: Keys
    classified: Classified
    waits: Waits
    parts: tuple[StepPart, ...]
    ledgers: tuple[Ledger, ...]
    owned: I64
    waited: I64
    """ns each of `waits` owns."""
    arithmetic: Arithmetic

    @property
    def flops(self) -> I64:
        """Of each interval, -1 where unknown."""
        return self.arithmetic.flops

    @property
    def bytes(self) -> I64:
        """Of each interval, -1 where unknown."""
        return self.arithmetic.bytes


def classify_rank(events: Events, around: Context | None = None) -> ClassifiedRank:
    """Classifies a rank without the others. `around`: the context of its events, if it is known."""
    around = around or context(events)
    keys = Keys()
    classify = classify_device if len(events.work) else classify_cpu
    return ClassifiedRank(events, around, keys, classify(events, around, keys))


def book_rank(rank: ClassifiedRank, share: RankAgreement) -> RankTrace:
    """A rank's ledgers, once it is settled what the ranks have in common."""
    events, around, keys, classified = rank
    events = msgspec.structs.replace(events, rank=share.rank, group_sizes=share.group_sizes)
    classified = key_collectives(events, keys, classified)
    events = share.clock.corrected(events)
    classified = classified._replace(start=share.clock.at(classified.start), stop=share.clock.at(classified.stop))
    parts = steps.whole(events) if share.ends is None else steps.parts(events, share.ends)
    classified, waits = split_waits(classified, keys, share.arrivals, share.unmet, parts)
    return _book_rank(events, around, keys, classified, waits, parts, share.aligned)


def _book_rank(
    events: Events,
    around: Context,
    keys: Keys,
    one: Classified,
    waits: Waits,
    parts: list[StepPart],
    aligned: Aligned,
) -> RankTrace:
    columns = [(one.start, one.stop, one.key), (waits.start, waits.stop, waits.key)]
    if len(events.work):
        columns.append(idle(events, around, keys))
    start, stop, key = (np.concatenate(column) for column in zip(*columns))
    kinds: I8 = keys.kinds()
    bounds = np.array([parts[0].start, *(part.stop for part in parts)], np.int64)
    # Ties within a kind go by the order in words.py, so the keys are booked under their places in it.
    place_of = keys.places()
    booking = book(Intervals(start, stop, kinds[key], place_of[key]), bounds, len(keys.pairs), len(_KINDS))
    booking = booking._replace(owned=booking.owned[:, [*place_of, -1]], live=booking.live[:, place_of])
    n = len(one.start)
    begins = np.ones(len(start), bool)
    begins[:n] = one.begins
    counts = _counts(start[begins], key[begins], bounds, len(keys.pairs))
    work = arithmetic(events, around, keys, one)
    done = np.stack([by_part(column, one, bounds, len(keys.pairs)) for column in (work.flops, work.bytes)])
    made = tuple(
        _ledger(events, keys, booking, counts[place], done[:, place], place, part, aligned)
        for place, part in enumerate(parts)
    )
    return RankTrace(
        events, around, keys, one, waits, tuple(parts), made,
        booking.by_interval[:n], booking.by_interval[n : n + len(waits.start)], work,
    )  # fmt: skip


def _counts(start: I64, key: I32, bounds: I64, keys: int) -> I64:
    """[p, k]: how many intervals of each key start in each part."""
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
    place: int,
    part: StepPart,
    aligned: Aligned,
) -> Ledger:
    """`done`: FLOPs and bytes of each key, -1 where unknown."""
    owned, live = booking.owned[place], booking.live[place]
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
    unions = {kind: int(ns) for kind, ns in zip(_KINDS, booking.unions[place]) if ns}
    scope = Scope(steps=(part.label,), ranks=(events.rank,), aligned=aligned, partial=part.partial)
    return Ledger(
        wall_ns=part.stop - part.start, entries=tuple(entries), scope=scope, source=events.source, unions=unions
    )
