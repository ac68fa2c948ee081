"""Whether ranks' clocks agree, and which collectives of different ranks are one.

Clocks of ranks on one host are one clock. Across hosts they would be solved from the common ends of
collectives; this version does not, and says `no`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainyard.events import Collective, Events
from trainyard.trace.classify import Classified

_SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


Aligned = Literal["no", "host"]


class Alignment(NamedTuple):
    """`aligned` as in words.ALIGNMENTS, and the reason in a sentence."""

    aligned: Aligned
    why: str


def alignment(ranks: Sequence[Events], classified: Sequence[Classified]) -> Alignment:
    first = ranks[0]
    if len(ranks) == 1:
        # A file that does not state the number of ranks, and yet communicates, is of more than one.
        several = not first.world and bool(classified[0].collectives)
        of = str(first.world) if first.world > 1 else "several" if several else ""
        if not of:
            return Alignment("host", "One rank alone.")
        return Alignment(
            "no", f"One rank of {of}: when its peers arrived is not in the file, so waiting for them stays in comm."
        )
    windows = [events.window for events in ranks]
    if max(start for start, _ in windows) > min(stop for _, stop in windows):
        return Alignment("no", "The ranks' windows do not overlap: waiting stays in comm and no rank is blamed.")
    hosts = {events.host_name for events in ranks}
    if len(hosts) == 1 and "" not in hosts:
        return Alignment("host", f"All {len(ranks)} ranks ran on one host and share its clock.")
    devices = {events.device_index for events in ranks}
    if hosts == {""} and first.device_index >= 0 and len(devices) == first.world == first.devices == len(ranks):
        return Alignment(
            "host", f"{len(ranks)} ranks on {len(devices)} different devices of a host with {first.devices}: one clock."
        )
    return Alignment(
        "no",
        "The files do not show that the ranks share a clock, so waiting for a late peer stays in comm and no rank is "
        "blamed. Clocks across hosts are not solved in this version.",
    )


class Meeting(NamedTuple):
    """One collective, met by all its members: (place of the rank, interval) of each."""

    members: tuple[tuple[int, int], ...]


def meetings(ranks: Sequence[Events], classified: Sequence[Classified]) -> list[Meeting]:
    """Symmetric collectives matched across ranks that share a clock: by group and sequence number, else by order
    among like ones where every member shows the same number of them. None can leave before the last has come, so
    members that do not overlap are no meeting. What cannot be matched for certain is left out."""
    seen: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    wanted: dict[tuple[object, ...], frozenset[int]] = {}
    all_ranks = frozenset(events.rank for events in ranks)
    for place, one in enumerate(classified):
        for row, collective in sorted(one.collectives.items(), key=lambda item: int(one.start[item[0]])):
            if collective.name not in _SYMMETRIC:
                continue
            if collective.ranks or collective.members in (0, len(all_ranks)):
                ident = _identity(collective)
                seen[ident][place].append(row)
                wanted[ident] = frozenset(collective.ranks) or all_ranks
    places = {events.rank: place for place, events in enumerate(ranks)}
    found: list[Meeting] = []
    for ident, rows_of in seen.items():
        members = wanted[ident]
        if len(members) < 2 or not members <= all_ranks or {places[rank] for rank in members} != rows_of.keys():
            continue
        if len({len(rows) for rows in rows_of.values()}) == 1:
            columns = zip(*[[(place, row) for row in rows] for place, rows in sorted(rows_of.items())])
            found.extend(Meeting(column) for column in columns if _overlap(column, classified))
    return found


def _overlap(members: Sequence[tuple[int, int]], classified: Sequence[Classified]) -> bool:
    starts = [int(classified[place].start[row]) for place, row in members]
    stops = [int(classified[place].stop[row]) for place, row in members]
    return max(starts) < min(stops)


def _identity(collective: Collective) -> tuple[object, ...]:
    if collective.seq >= 0:
        return (collective.group_name, collective.ranks, collective.seq, collective.name)
    # Members of an all-to-all may send unlike amounts; of the others, none does.
    size = collective.size if collective.name != "all_to_all" else 0
    return (collective.group_name, collective.ranks, collective.name, size)
