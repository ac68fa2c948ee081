"""What a reader of the ledgers must be told: what was left out, what could not be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainyard import units
from trainyard.events import Events
from trainyard.ledger import BEFORE, WINDOW
from trainyard.trace.align.alignment import Alignment
from trainyard.trace.align.steps import StepPart


class Told(NamedTuple):
    """Of one rank: its parts, how many device events it has, and how many of them without a launch in the file."""

    parts: tuple[StepPart, ...]
    work: int
    unlaunched: int


def notes(facts: Sequence[Events], ranks: Sequence[Told], agreed: Alignment, window: str) -> tuple[str, ...]:
    """Sentences, the weightiest first. `facts` and `ranks` in order of rank."""
    made = [note for events in facts for note in events.notes]
    if len(facts) > 1 and not any(events.world for events in facts):
        made.append("The files name no ranks: they are taken for ranks of one job, in the order given.")
    if agreed.aligned != "host":
        made.append(agreed.why)
    if window == "steps" and not all(events.marks for events in facts):
        made.append(
            "No annotations mark the steps, so the whole window is booked as one. torch.profiler writes ProfilerStep "
            "marks when it is given a schedule and step() is called; --mark names others."
        )
    unlaunched = sum(rank.unlaunched for rank in ranks)
    if unlaunched:
        made.append(
            f"{unlaunched:,} of {sum(rank.work for rank in ranks):,} device events have no launch in the file: they "
            "count, and idle time before them is unexplained."
        )
    if all(part.partial for rank in ranks for part in rank.parts):
        return (*made, "No step lies whole in the window; the figures are of the partial ones.")
    return (*made, *_without_compute(facts, ranks, window), *_cut_off(facts, ranks))


def _without_compute(facts: Sequence[Events], ranks: Sequence[Told], window: str) -> list[str]:
    made = []
    for events, rank in zip(facts, ranks):
        shown = {part.label for part in rank.parts}
        gone = [mark.label for mark in events.marks if mark.label not in shown]
        if gone and window == "steps" and shown != {WINDOW}:
            listed = ", ".join(gone[:4]) + (", …" if len(gone) > 4 else "")
            made.append(
                f"Rank {events.rank}: steps {listed} launched no compute of their own; their time stands in the next "
                "step."
            )
    return made


def _cut_off(facts: Sequence[Events], ranks: Sequence[Told]) -> list[str]:
    lengths: dict[str, dict[int, int]] = {}
    for events, rank in zip(facts, ranks):
        for part in rank.parts:
            if part.partial:
                lengths.setdefault(part.label, {})[events.rank] = part.stop - part.start
    made = []
    for label, found in lengths.items():
        what = "Work from before the first mark" if label == BEFORE else f"Step {label}, which is cut off,"
        which = f"rank {next(iter(found))}" if len(found) == 1 else f"{len(found)} of {len(ranks)} ranks"
        on = f" on {which}" if len(ranks) > 1 else ""
        long = units.show_time(max(found.values()))
        made.append(f"{what} ({'up to ' if len(found) > 1 else ''}{long}{on}) is left out of the mean.")
    return made
