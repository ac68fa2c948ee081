"""Profiler files -> ledgers: classify -> align -> refine -> book, for one or many ranks of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from trainyard import ledger as ledgers_of
from trainyard import plugins, units, words
from trainyard.errors import BadFile, BadInput
from trainyard.events import I8, I32, I64, Events
from trainyard.ledger import BEFORE, WINDOW, Account, Entry, Ledger, Scope
from trainyard.trace import steps
from trainyard.trace.align import Aligned, Alignment, alignment, meetings
from trainyard.trace.book import Booking, Intervals, book
from trainyard.trace.classify import Classified, Keys, classify
from trainyard.trace.context import PHASES, Context, context
from trainyard.trace.cpu import classify_cpu
from trainyard.trace.idle import idle
from trainyard.trace.refine import Waits, split

_KINDS = list(words.KINDS)
_UNEXPLAINED = Account("unexplained")


class RankTrace(NamedTuple):
    """One rank's trace with everything concluded from it. Column i of `classified` is booked under
    `keys.pairs[classified.key[i]]`; `parts` tile the window; `owned` is the ns each interval owns."""

    events: Events
    context: Context
    keys: Keys
    classified: Classified
    waits: Waits
    parts: tuple[steps.Part, ...]
    ledgers: tuple[Ledger, ...]
    owned: I64
    waited: I64
    """ns each of `waits` owns."""


class Measured(NamedTuple):
    """What a set of profiler files says. `mean` is over ranks and full steps."""

    ranks: tuple[RankTrace, ...]
    mean: Ledger
    alignment: Alignment
    notes: tuple[str, ...]

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Every rank's parts, then the mean."""
        return (*(ledger for rank in self.ranks for ledger in rank.ledgers), self.mean)


def measure(
    traces: Sequence[Events], window: Literal["steps", "all"] = "steps", source: str = "", axis: str = ""
) -> Measured:
    """Ledgers of each rank and part, and the mean of the full steps. `axis`: the mesh axis that all ranks form,
    where the job's layout has only one. Raises `BadInput` for ranks of different jobs."""
    # A rank knows the groups it is in; whether all ranks are the only group, all of them together know.
    sizes = tuple(size for events in traces for size in events.group_sizes)
    traces = [msgspec.structs.replace(events, axis=axis, group_sizes=sizes) for events in _numbered(traces)]
    keys = [Keys() for _ in traces]
    contexts = [context(events) for events in traces]
    classified = [
        (classify if len(events.work) else classify_cpu)(events, around, key)
        for events, around, key in zip(traces, contexts, keys)
    ]
    agreed = alignment(traces, classified)
    whole_window = window == "all" or not all(events.marks for events in traces)
    parts = (
        [steps.whole(events) for events in traces]
        if whole_window
        else _steps(traces, classified, keys, agreed.aligned != "no")
    )
    met = meetings(traces, classified) if agreed.aligned != "no" and len(traces) > 1 else []
    classified, waits = split(classified, keys, met)
    ranks = tuple(
        _book_rank(*row, aligned=agreed.aligned) for row in zip(traces, contexts, keys, classified, waits, parts)
    )
    full = [ledger for rank in ranks for ledger in rank.ledgers if not ledger.scope.partial]
    if not full:
        every = [ledger for rank in ranks for ledger in rank.ledgers]
        full = [ledger for ledger in every if ledger.scope.steps != (BEFORE,)] or every
    mean = ledgers_of.mean(full, source=source or _sources(traces))
    mean = msgspec.structs.replace(mean, late=_late(ranks))
    return Measured(ranks, mean, agreed, tuple(_notes(traces, ranks, agreed, window)))


def read(paths: Sequence[Path]) -> list[Events]:
    """All ranks' events from files and folders (of `.json` and `.json.gz` files). Raises `BadFile`."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")))
            if not inside:
                raise BadFile(f"{path}: the folder holds no .json or .json.gz file.", "Name the folder of the traces.")
            files.extend(inside)
        else:
            files.append(path)
    twice = [path for path, times in Counter(file.resolve() for file in files).items() if times > 1]
    if twice:
        raise BadInput(f"{twice[0]} is named twice.", "Name each rank's file once.")
    readers = plugins.load_all("readers")
    return [events for file in files for events in _read(file, readers)]


def _read(file: Path, readers: dict[str, plugins.Reader]) -> Sequence[Events]:
    if not file.exists():
        raise BadFile(f"{file}: there is no such file.")
    reader = next((reader for reader in readers.values() if reader.sniff(file)), None)
    if reader is None:
        raise BadFile(f"{file}: no reader knows this kind of file.", f"Readers: {', '.join(readers)}.")
    return reader.read(file)


def _sources(traces: Sequence[Events]) -> str:
    names = list(dict.fromkeys(events.source for events in traces))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _numbered(traces: Sequence[Events]) -> list[Events]:
    """Ranks the files do not state are numbered by order; no rank may stand twice."""
    if not traces:
        raise BadInput("there is no trace to book.")
    numbered = [
        msgspec.structs.replace(events, rank=place) if events.rank < 0 else events
        for place, events in enumerate(traces)
    ]
    seen: dict[int, str] = {}
    for events in numbered:
        if events.rank in seen:
            raise BadInput(
                f"{seen[events.rank]} and {events.source} both say they are rank {events.rank}.",
                "Give the files of one run; compare two runs with trainyard diff.",
            )
        seen[events.rank] = events.source
    return sorted(numbered, key=lambda events: events.rank)


def _steps(
    traces: Sequence[Events], classified: Sequence[Classified], keys: Sequence[Keys], aligned: bool
) -> list[list[steps.Part]]:
    ends = [
        steps.ends(events, one, key.kinds()[one.key] == _KINDS.index("compute"))
        for events, one, key in zip(traces, classified, keys)
    ]
    if aligned:
        ends = steps.share(ends, [[mark.label for mark in events.marks] for events in traces])
    return [steps.parts(events, own) for events, own in zip(traces, ends)]


def _book_rank(
    events: Events,
    around: Context,
    keys: Keys,
    one: Classified,
    waits: Waits,
    parts: list[steps.Part],
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
    made = tuple(
        _ledger(events, keys, booking, counts[place], place, part, aligned) for place, part in enumerate(parts)
    )
    return RankTrace(
        events, around, keys, one, waits, tuple(parts), made,
        booking.by_interval[:n], booking.by_interval[n : n + len(waits.start)],
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
    place: int,
    part: steps.Part,
    aligned: Aligned,
) -> Ledger:
    owned, live = booking.owned[place], booking.live[place]
    entries = [
        Entry(
            account=account,
            phase=PHASES[phase],
            ns=int(owned[key]),
            hidden_ns=int(live[key] - owned[key]),
            count=int(count[key]),
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


def _late(ranks: Sequence[RankTrace]) -> dict[int, int]:
    """For each rank, the ns a full step that the other ranks waited (exposed) for it, averaged over steps."""
    total: dict[int, int] = {}
    full_steps = max(1, *(sum(not part.partial for part in rank.parts) for rank in ranks))
    for rank in ranks:
        inside = steps.in_full(rank.parts, rank.waits.start)
        for late, ns in zip(rank.waits.late[inside].tolist(), rank.waited[inside].tolist()):
            who = ranks[late].events.rank
            total[who] = total.get(who, 0) + ns
    return {rank: ns // full_steps for rank, ns in sorted(total.items(), key=lambda item: -item[1]) if ns}


def _notes(traces: Sequence[Events], ranks: Sequence[RankTrace], agreed: Alignment, window: str) -> list[str]:
    notes = [note for events in traces for note in events.notes]
    if len(traces) > 1 and not any(events.world for events in traces):
        notes.append("The files name no ranks: they are taken for ranks of one job, in the order given.")
    if agreed.aligned == "no":
        notes.append(agreed.why)
    if window == "steps" and not all(events.marks for events in traces):
        notes.append(
            "The trace has no ProfilerStep marks, so the whole window is booked as one. torch.profiler writes marks "
            "when it is given a schedule and step() is called."
        )
    without = sum(int((rank.classified.launcher < 0).sum()) for rank in ranks if len(rank.events.work))
    if without:
        of = sum(len(rank.events.work) for rank in ranks)
        notes.append(
            f"{without:,} of {of:,} device events have no launch in the file: they count, and idle time before them "
            "is unexplained."
        )
    if all(part.partial for rank in ranks for part in rank.parts):
        notes.append("No step lies whole in the window; the figures are of the partial ones.")
        return notes
    cut_off: dict[str, list[int]] = {}
    for rank in ranks:
        marked, shown = [mark.label for mark in rank.events.marks], {part.label for part in rank.parts}
        gone = [label for label in marked if label not in shown]
        if gone and window == "steps" and shown != {WINDOW}:
            listed = ", ".join(gone[:4]) + (", …" if len(gone) > 4 else "")
            notes.append(
                f"Rank {rank.events.rank}: steps {listed} launched no compute of their own; their time stands in the "
                "next step."
            )
        for part in rank.parts:
            if part.partial:
                cut_off.setdefault(part.label, []).append(part.stop - part.start)
    for label, lengths in cut_off.items():
        what = "Work from before the first mark" if label == BEFORE else f"Step {label}, which is cut off,"
        long = units.show_time(max(lengths))
        on = f" on {len(lengths)} of {len(ranks)} ranks" if len(ranks) > 1 else ""
        notes.append(f"{what} ({'up to ' if len(lengths) > 1 else ''}{long}{on}) is left out of the mean.")
    return notes
