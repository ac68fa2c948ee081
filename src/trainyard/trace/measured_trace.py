"""The measurement of all ranks, once each is booked: the mean ledger, late ranks, and notes on missing data.

`measure.py` calls `conclude` with the booked ranks. A part is a labelled interval of a rank's window: a step, the work
before the first step, or work between steps such as an evaluation; a partial part is not a full step. `facts` are the
`Events` of each rank without their columns: its number, marks, device and notes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, overload

import msgspec
import numpy as np

from trainyard import ledger as ledgers_of
from trainyard import units, words
from trainyard.events import I64, Events
from trainyard.ledger import WINDOW, Ledger
from trainyard.trace.align import steps
from trainyard.trace.align.alignment import Alignment
from trainyard.trace.align.bandwidth import Bandwidth
from trainyard.trace.align.cross_rank import Agreement, Window
from trainyard.trace.align.device_models import ranks_by_model
from trainyard.trace.align.matching import Meetings
from trainyard.trace.align.steps import StepPart
from trainyard.trace.align.traffic import PairTraffic
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.summarise_rank import RankSummary
from trainyard.trace.flops.op_costs import BUILT_IN, Formulas
from trainyard.trace.rank_files import MAX_LISTED_FILES, Unread, left_out
from trainyard.trace.step_overview import StepOverview, describe_left_out, describe_steps, overview
from trainyard.units import listed

_START_UP_ACCOUNTS = ("launch_gap/init", "launch_gap/edge")
_NOTED_START_UP_NS = 10_000_000
"""Start-up that is worth a note, if it is not in the mean."""
_STRAGGLER = list(words.KINDS).index("straggler")
"""Index of the kind `straggler`, waits for late ranks, in words.KINDS."""
_FIGURE = re.compile(r"\d[\d,.]*(?: (?:ns|µs|ms|s)\b)?|\([^()]*\)")
"""A number with its unit, or a part in brackets, which differ between similar notes."""


class Lateness(NamedTuple):
    """How often a rank was late, over the full steps. `met`: the number of its collectives that were matched with those
    of other ranks; `last`: the number of these at which it arrived last; `waited_ns`: the time that all other ranks
    together waited for it; `exposed_ns`: the part of that during which they had no other work."""

    rank: int
    last: int
    met: int
    exposed_ns: int
    waited_ns: int


class ModelMean(NamedTuple):
    """The mean ledger of the ranks on one model of device."""

    model: str
    ranks: tuple[int, ...]
    mean: Ledger


class _Selected(Sequence[RankTrace]):
    """Some of the ranks, loaded on access."""

    def __init__(self, ranks: Sequence[RankTrace], indices: Sequence[int]) -> None:
        """`indices`: of the selected ranks, in order."""
        self._ranks, self._indices = ranks, indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> RankTrace: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RankTrace]: ...
    def __getitem__(self, index: int | slice) -> RankTrace | Sequence[RankTrace]:
        if isinstance(index, slice):
            return _Selected(self._ranks, self._indices[index])
        return self._ranks[self._indices[index]]


class MeasuredTrace(NamedTuple):
    """The measurement of a set of profiler files. `mean`: over ranks and full steps; `by_rank`: a ledger for each part
    of each rank, rank by rank; `lateness`: of each rank, if clocks are aligned; `ranks`: may be on disk, and are loaded
    on access; `unread`: files that could not be read, each of which may be a rank; `read_files`: number of the files
    that were read, 0 if none is unread; `steps`: how the window divides into steps; `by_model`: a mean for each device
    model if the ranks run on unlike devices, most ranks first: `mean` is then the first of them. `formulas`: those that
    gave the FLOPs and bytes of ops. `summaries`: of each of many ranks that are on disk; empty for a few.
    """

    ranks: Sequence[RankTrace]
    by_rank: tuple[Ledger, ...]
    mean: Ledger
    alignment: Alignment
    notes: tuple[str, ...]
    lateness: tuple[Lateness, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    traffic: tuple[PairTraffic, ...] = ()
    unread: tuple[Unread, ...] = ()
    read_files: int = 0
    steps: StepOverview = StepOverview(how="window")
    by_model: tuple[ModelMean, ...] = ()
    formulas: Formulas = BUILT_IN
    summaries: tuple[RankSummary, ...] = ()

    @property
    def comparable(self) -> MeasuredTrace:
        """The measurement with the ranks that `mean` covers: all of them, or those on the most frequent model."""
        return self._replace(ranks=_Selected(self.ranks, self.comparable_indices)) if self.by_model else self

    @property
    def rank_numbers(self) -> tuple[int, ...]:
        """The rank number of each of `ranks`."""
        return tuple(dict.fromkeys(ledger.scope.ranks[0] for ledger in self.by_rank))

    @property
    def comparable_indices(self) -> list[int]:
        """The indices in `ranks` of the ranks that `mean` covers."""
        of_mean = self.by_model[0].ranks if self.by_model else self.rank_numbers
        return [index for index, rank in enumerate(self.rank_numbers) if rank in of_mean]

    @property
    def unlike_devices(self) -> str:
        """A sentence about ranks on unlike devices; empty if there is one model."""
        if not self.by_model:
            return ""
        means = [
            f"{units.counted(len(model.ranks), 'rank')} on {model.model} ({units.show_time(model.mean.wall_ns)})"
            for model in self.by_model
        ]
        return (
            f"The ranks run on unlike devices: {listed(means, MAX_LISTED_FILES)}. Figures, findings and kernels are "
            f"those of {self.by_model[0].model}; the table of device models has the others."
        )

    @property
    def world(self) -> int:
        """Number of ranks of the job, 0 if the files do not show it. If some could not be read, at least the number of
        ranks that were read plus that of these files."""
        world = self.ranks[0].events.world
        return max(world, len(self.ranks) + len(self.unread)) if self.unread else world

    @property
    def left_out(self) -> str:
        """A sentence about the files that could not be read; empty if there are none."""
        ranks = {rank for ledger in self.by_rank for rank in ledger.scope.ranks}
        world = self.ranks[0].events.world
        return left_out(self.unread, self.read_files, sorted(ranks), world) if self.unread else ""

    @property
    def damage(self) -> str:
        """Sentences about the files that could not be read, or only in part; empty if all were read completely."""
        cut = [rank.events.source for rank in self.ranks if rank.events.cut_short]
        message = (
            f"{len(cut):,} of {len(self.ranks):,} ranks are incomplete: {listed(cut, MAX_LISTED_FILES)} cut short."
        )
        part = message if cut else ""
        return " ".join(filter(None, (self.left_out, part)))

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Every rank's parts, then the mean."""
        return (*self.by_rank, self.mean)


def conclude(ranks: Sequence[RankTrace], agreement: Agreement, window: Window, source: str) -> MeasuredTrace:
    """Summarises the booked ranks: mean ledger, lateness, bandwidths, overview of steps and notes.

    `ranks`: in order of rank, each loaded once; `agreement`: the alignment of all ranks; `window`: whether the window
    was cut into steps; `source`: the name of the mean ledger. The mean covers the parts of `steps.select_averaged`.
    """
    parts: list[tuple[StepPart, ...]] = []
    booked: list[Ledger] = []
    start_up_ns = 0
    device_events = unlaunched = 0
    exposed_ns, waited_ns = np.zeros((2, len(ranks)), np.int64)
    for rank in ranks:
        parts.append(rank.parts)
        booked.extend(rank.ledgers)
        start_up_ns = max(start_up_ns, sum(map(_start_up_ns, filter(_is_partial, rank.ledgers))))
        device_events += len(rank.events.work)
        unlaunched += int((rank.classified.launcher < 0).sum()) if len(rank.events.work) else 0
        _add_waits(rank, exposed_ns, waited_ns)
    lateness = _rank_lateness([share.rank for share in agreement.shares], parts, agreement.met, exposed_ns, waited_ns)
    full_steps = max(1, *(sum(not part.partial for part in rank_parts) for rank_parts in parts))
    exposed_ns_by_rank = {row.rank: row.exposed_ns // full_steps for row in lateness if row.exposed_ns}
    mean_ledger, by_model = mean_ledgers(parts, booked, agreement.facts, source)
    mean_ledger = msgspec.structs.replace(mean_ledger, late=exposed_ns_by_rank)
    step_overview = overview(agreement.facts, parts)
    sentences = _collect_notes(
        agreement.facts, parts, step_overview, agreement.alignment, window, device_events, unlaunched
    )
    if start_up_ns >= _NOTED_START_UP_NS:
        sentences = (
            *sentences,
            f"Initialisation and the edge of the profile ({units.show_time(start_up_ns)} on a rank) are left out of "
            "the mean: they lie in partial steps.",
        )
    return MeasuredTrace(
        ranks=ranks,
        by_rank=tuple(booked),
        mean=mean_ledger,
        alignment=agreement.alignment,
        notes=sentences,
        lateness=lateness,
        bandwidths=agreement.bandwidths,
        traffic=agreement.traffic,
        steps=step_overview,
        by_model=by_model,
    )


def mean_ledgers(
    parts: Sequence[Sequence[StepPart]], booked: Sequence[Ledger], facts: Sequence[Events], source: str
) -> tuple[Ledger, tuple[ModelMean, ...]]:
    """(The mean ledger, that of each model of device if the ranks run on unlike devices). `parts`, `facts`: of each
    rank; `booked`: the ledgers of all parts, rank by rank; `source`: the name of the mean ledger."""
    masks = np.concatenate(steps.select_averaged(parts)).tolist()
    averaged = [ledger for ledger, is_averaged in zip(booked, masks, strict=True) if is_averaged]
    by_model = tuple(
        ModelMean(model, tuple(model_ranks), ledgers_of.mean(own, source=source))
        for model, model_ranks in ranks_by_model(facts).items()
        if (own := [ledger for ledger in averaged if ledger.scope.ranks[0] in model_ranks])
    )
    return by_model[0].mean if by_model else ledgers_of.mean(averaged, source=source), by_model


def _is_partial(ledger: Ledger) -> bool:
    return ledger.scope.partial


def _start_up_ns(ledger: Ledger) -> int:
    """ns of a ledger in the accounts of initialisation and of the edge of the profile."""
    return sum(ns for account, ns in ledger.by_account().items() if str(account) in _START_UP_ACCOUNTS)


def _add_waits(rank: RankTrace, exposed_ns: I64, waited_ns: I64) -> None:
    """Adds a rank's waits in collectives, in its full steps, to the totals of the ranks that it waited for, in place.

    `waited_ns[i]`: ns of waits for the rank with index i; `exposed_ns[i]`: the part of these without other work.
    """
    waits = rank.waits
    is_counted = steps.in_full(rank.parts, waits.start) & (rank.keys.kinds()[waits.key] == _STRAGGLER)
    np.add.at(exposed_ns, waits.late[is_counted], rank.waited[is_counted])
    np.add.at(waited_ns, waits.late[is_counted], (waits.stop - waits.start)[is_counted])


def _rank_lateness(
    ranks: Sequence[int], parts: Sequence[Sequence[StepPart]], met: Meetings, exposed: I64, waited: I64
) -> tuple[Lateness, ...]:
    """Counts how often each rank arrived last: one row for each rank with matched collectives, the costliest first.

    A collective counts if its last member was in a full step when it arrived. `ranks`: rank numbers; `parts`: the parts
    of each; `met`: the matched collectives; `exposed`, `waited`: ns that all other ranks waited for each rank, by
    index.
    """
    late, arrived = met.late, met.arrived
    in_full_step = np.zeros(met.size, bool)
    for rank_index, rank_parts in enumerate(parts):
        is_late_rank = late == rank_index
        in_full_step[is_late_rank] = steps.in_full(rank_parts, arrived[is_late_rank])
    last_counts = np.bincount(late[in_full_step], minlength=len(ranks))
    matched_counts = np.bincount(met.only(in_full_step).rank_index, minlength=len(ranks))
    columns = (last_counts.tolist(), matched_counts.tolist(), exposed.tolist(), waited.tolist())
    # The columns are the fields of Lateness; the third is the number of matched collectives.
    rows = (Lateness(*row) for row in zip(ranks, *columns) if row[2])
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, -row.last, row.rank)))


def _collect_notes(
    facts: Sequence[Events],
    parts: Sequence[Sequence[StepPart]],
    step_overview: StepOverview,
    alignment: Alignment,
    window: Window,
    device_events: int,
    unlaunched: int,
) -> tuple[str, ...]:
    """Collects sentences on missing data, the most important first, for the user.

    `facts` and `parts`: of each rank; `window`: notes on steps are given for `steps` only; `device_events`: number of
    device intervals of all ranks; `unlaunched`: number of those without a launch in the file.
    """
    notes = _merge_notes(facts)
    if len(facts) > 1 and not any(events.world for events in facts):
        notes.append("The files name no ranks: they are treated as ranks 0, 1, ... of one job, in the order given.")
    if alignment.aligned != "host":
        notes.append(alignment.why)
    if window == "steps":
        notes.extend(describe_steps(step_overview, facts))
    if unlaunched:
        notes.append(
            f"{unlaunched:,} of {device_events:,} device events have no launch in the file: they are counted, and idle "
            "time before them is unexplained."
        )
    if all(part.partial for rank_parts in parts for part in rank_parts):
        return (*notes, "The window contains no complete step; the figures are those of partial steps.")
    left_out = describe_left_out(step_overview, len(facts))
    return (*notes, *_note_steps_without_compute(facts, parts, window), *left_out)


def _merge_notes(facts: Sequence[Events]) -> list[str]:
    """The notes of the ranks' files. Notes of several ranks that differ in their numbers only are shown once."""
    # Note with its numbers replaced -> (rank, note) of each rank that has it.
    notes_by_pattern: dict[str, list[tuple[int, str]]] = {}
    for events in facts:
        for note in events.notes:
            notes_by_pattern.setdefault(_FIGURE.sub("#", note), []).append((events.rank, note))
    notes: list[str] = []
    for similar in notes_by_pattern.values():
        rank, note = similar[0]
        if len({text for _, text in similar}) > 1:
            others = units.counted(len(similar) - 1, "other rank has a similar note", "other ranks have similar notes")
            note = f"Rank {rank}: {note} {others}."
        notes.append(note)
    return notes


def _note_steps_without_compute(
    facts: Sequence[Events], parts: Sequence[Sequence[StepPart]], window: Window
) -> list[str]:
    """Describes marked steps that have no part of their own, in a sentence for each rank that has some.

    A step ends with its last compute kernel, so a step without one is empty. `facts`, `parts`: of each rank.
    """
    notes = []
    for events, rank_parts in zip(facts, parts):
        booked_labels = {part.label for part in rank_parts}
        missing_labels = [mark.label for mark in events.marks if mark.is_training and mark.label not in booked_labels]
        if missing_labels and window == "steps" and booked_labels != {WINDOW}:
            first = ", ".join(missing_labels[:4]) + (", …" if len(missing_labels) > 4 else "")
            notes.append(
                f"Rank {events.rank}: steps {first} launched no compute; their time is counted in the next step."
            )
    return notes
