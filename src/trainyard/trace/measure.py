"""Profiler files -> ledgers: classify -> align -> refine -> book, for one or many ranks of one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from trainyard import ledger as ledgers_of
from trainyard import words
from trainyard.events import I8, I32, I64, Events
from trainyard.ledger import BEFORE, Account, Entry, Ledger, Scope
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.align import steps
from trainyard.trace.align.alignment import Aligned, Alignment
from trainyard.trace.align.bandwidth import Bandwidth
from trainyard.trace.align.cross_rank import Agreement, RankAgreement, Window, agree, numbered
from trainyard.trace.align.lateness import Lateness, Waited, lateness
from trainyard.trace.align.survey import survey
from trainyard.trace.booking.idle import idle
from trainyard.trace.booking.intervals import Booking, Intervals, book
from trainyard.trace.booking.split_waits import Waits, split
from trainyard.trace.classify.context import PHASES, Context, context
from trainyard.trace.classify.cpu import classify_cpu
from trainyard.trace.classify.kernels import Classified, Keys, classify
from trainyard.trace.flops.attribution import Arithmetic, arithmetic, by_part
from trainyard.trace.rank_files import LISTED, Unread, left_out, rank_files, read_file
from trainyard.trace.reader_notes import Told, notes
from trainyard.units import listed

_KINDS = list(words.KINDS)
_STRAGGLER = _KINDS.index("straggler")
_UNEXPLAINED = Account("unexplained")


class RankTrace(NamedTuple):
    """One rank's trace with everything concluded from it. Column i of `classified` is booked under
    `keys.pairs[classified.key[i]]`; `parts` tile the window; `owned` is the ns each interval owns."""

    events: Events
    context: Context
    keys: Keys
    classified: Classified
    waits: Waits
    parts: tuple[steps.StepPart, ...]
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


class Prepared(NamedTuple):
    """One rank's trace as far as it goes alone, with what it has to show the others."""

    events: Events
    context: Context
    keys: Keys
    classified: Classified


class MeasuredTrace(NamedTuple):
    """What a set of profiler files says. `mean` is over ranks and full steps, `by_rank` each rank's parts in
    turn. `lateness`: of each rank, where clocks agree. `ranks` may lie on disk: each is loaded when asked for.
    `unread`: files that could not be read, each of which may be a rank."""

    ranks: Sequence[RankTrace]
    by_rank: tuple[Ledger, ...]
    mean: Ledger
    alignment: Alignment
    notes: tuple[str, ...]
    lateness: tuple[Lateness, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def world(self) -> int:
        """Ranks of the job, 0 if the files do not show it."""
        world = self.ranks[0].events.world
        return max(world, len(self.ranks) + len(self.unread)) if self.unread else world

    @property
    def left_out(self) -> str:
        """A sentence about the files that could not be read; empty if there are none."""
        ranks = {rank for ledger in self.by_rank for rank in ledger.scope.ranks}
        return left_out(self.unread, sorted(ranks), self.ranks[0].events.world) if self.unread else ""

    @property
    def damage(self) -> str:
        """Sentences about the files that could not be read, or only in part; empty if all were read whole."""
        cut = [rank.events.source for rank in self.ranks if rank.events.cut_short]
        said = f"{len(cut):,} of {len(self.ranks):,} ranks are read in part: {listed(cut, LISTED)} cut short."
        part = said if cut else ""
        return " ".join(filter(None, (self.left_out, part)))

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Every rank's parts, then the mean."""
        return (*self.by_rank, self.mean)


def measure(
    traces: Sequence[Events],
    window: Window = "steps",
    source: str = "",
    axis: str = "",
    places: Sequence[int] = (),
) -> MeasuredTrace:
    """Ledgers of each rank and part, and the mean of the full steps. `axis`: the mesh axis that all ranks form,
    where the job's layout has only one. `places`: as in `numbered`. Raises `BadInput` for ranks of different jobs."""
    by_rank = dict(zip(numbered(traces, places), traces))
    prepared = [prepare(msgspec.structs.replace(by_rank[rank], rank=rank, axis=axis)) for rank in sorted(by_rank)]
    agreed = agree([survey(one.events, one.classified, one.keys) for one in prepared], window, axis)
    ranks = tuple(book_rank(one, share) for one, share in zip(prepared, agreed.shares))
    return conclude(ranks, agreed, window, source or sources(traces))


def prepare(events: Events) -> Prepared:
    """What can be said of a rank without the others."""
    around = context(events)
    return Prepared(events, around, *_classified(events, around))


def _classified(events: Events, around: Context) -> tuple[Keys, Classified]:
    keys = Keys()
    return keys, (classify if len(events.work) else classify_cpu)(events, around, keys)


def book_rank(prepared: Prepared, share: RankAgreement) -> RankTrace:
    """A rank's ledgers, once it is settled what the ranks have in common."""
    events, around, keys, one = prepared
    known = (events.axis, set(events.group_sizes))
    events = msgspec.structs.replace(events, rank=share.rank, axis=share.axis, group_sizes=share.group_sizes)
    if known != (share.axis, set(share.group_sizes)):
        keys, one = _classified(events, around)
    events = share.clock.corrected(events)
    one = one._replace(start=share.clock.at(one.start), stop=share.clock.at(one.stop))
    parts = steps.whole(events) if share.ends is None else steps.parts(events, share.ends)
    one, waits = split(one, keys, share.arrivals, share.unmet, parts)
    return _book_rank(events, around, keys, one, waits, parts, share.aligned)


def conclude(ranks: Sequence[RankTrace], agreed: Agreement, window: Window, source: str) -> MeasuredTrace:
    """Everything said of the ranks together. Each is looked at once, in order."""
    told: list[Told] = []
    booked: list[Ledger] = []
    waits: list[Waited] = []
    for rank in ranks:
        told.append(Told(rank.parts, len(rank.events.work), _unlaunched(rank)))
        booked.extend(rank.ledgers)
        waits.append(_waited(rank, len(ranks)))
    parts = [one.parts for one in told]
    late = lateness([share.rank for share in agreed.shares], parts, agreed.met, waits)
    full_steps = max(1, *(sum(not part.partial for part in own) for own in parts))
    full = [ledger for ledger in booked if not ledger.scope.partial]
    full = full or [ledger for ledger in booked if ledger.scope.steps != (BEFORE,)] or booked
    costs = {row.rank: row.exposed_ns // full_steps for row in late if row.exposed_ns}
    mean = msgspec.structs.replace(ledgers_of.mean(full, source=source), late=costs)
    said = notes(agreed.facts, told, agreed.alignment, window)
    return MeasuredTrace(ranks, tuple(booked), mean, agreed.alignment, said, late, agreed.bandwidths)


def _unlaunched(rank: RankTrace) -> int:
    return int((rank.classified.launcher < 0).sum()) if len(rank.events.work) else 0


def _waited(rank: RankTrace, ranks: int) -> Waited:
    """What the rank waited in collectives in its full steps, by the place of who came last."""
    waits = rank.waits
    counts = steps.in_full(rank.parts, waits.start) & (rank.keys.kinds()[waits.key] == _STRAGGLER)
    exposed, total = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    np.add.at(exposed, waits.late[counts], rank.waited[counts])
    np.add.at(total, waits.late[counts], (waits.stop - waits.start)[counts])
    return Waited(exposed, total)


def read(paths: Sequence[Path | str], how: ReadOptions = AS_WRITTEN) -> list[Events]:
    """All ranks' events from files and folders. Raises `BadFile` if any of them is damaged."""
    named = rank_files(paths)
    if named.unread:
        raise named.unread[0].error()
    return [events for file in named.files for events in read_file(file, how)]


def sources(facts: Sequence[Events]) -> str:
    """What ledgers of several files are called."""
    names = list(dict.fromkeys(events.source for events in facts))
    return listed(names, 1)


def _book_rank(
    events: Events,
    around: Context,
    keys: Keys,
    one: Classified,
    waits: Waits,
    parts: list[steps.StepPart],
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
    part: steps.StepPart,
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
