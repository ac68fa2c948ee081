"""Find the collectives that do not end, and those of them that do not merely wait for another one."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.hangs.collectives import Call, CollectiveTable, differences
from trainyard.hangs.flight_record import STARTED


class Unfinished(NamedTuple):
    """A collective, or a send or receive, that does not end.

    `group`: index in `CollectiveTable.groups`; `sequence`: number in the group; `members`: global ranks that have to
    enter; `entered`: global rank -> its call; `absent`: members that did not enter, as far as their records show;
    `differs`: the respects in which the calls do not match, as in `differences`; `waits`: whether a rank waits in it.
    """

    group: int
    sequence: int
    members: tuple[int, ...]
    entered: dict[int, Call]
    absent: tuple[int, ...]
    differs: frozenset[str]
    waits: bool

    @property
    def created_ns(self) -> int:
        """When the first rank entered, in ns since the epoch; 0 if unknown."""
        return min((call.first.created_ns for call in self.entered.values()), default=0)


def unfinished_collectives(table: CollectiveTable) -> list[Unfinished]:
    """The first collective of each process group that does not end or in which the ranks issue different operations,
    and the first send or receive between each pair of ranks that does not end."""
    listed = [first for group in range(len(table.groups)) if (first := _first_of_group(table, group))]
    return listed + _unfinished_transfers(table)


def _first_of_group(table: CollectiveTable, group: int) -> Unfinished | None:
    """The first collective of a group that some rank waits in; without such, the first one that ranks do not agree on,
    or that a member did not enter; None if there is neither.

    gloo marks a collective as ended a moment after it has ended. One that all members entered and some have ended only
    counts if there is nothing else.
    """
    weak = lagging = None
    for sequence, entered in sorted(table.groups[group].calls.items()):
        members = table.groups[group].members
        absent = tuple(rank for rank in members if rank not in entered and not table.passed(rank, group, sequence))
        calls = list(entered.values())
        differs = frozenset(respect for call in calls[1:] for respect in differences(calls[0], call))
        waits = any(not call.is_ended for call in calls)
        unfinished = Unfinished(group, sequence, members, entered, absent, differs, waits)
        if waits and not absent and not differs and any(call.is_ended for call in calls) and _is_gloo(calls):
            lagging = lagging or unfinished
        elif waits or "operation" in differs:
            return weak._replace(waits=waits) if weak is not None and weak.differs else unfinished
        elif (differs or absent) and weak is None:
            weak = unfinished
    return lagging or weak


def _is_gloo(calls: list[Call]) -> bool:
    return all(call.first.backend == "gloo" for call in calls)


def _unfinished_transfers(table: CollectiveTable) -> list[Unfinished]:
    """The first send or receive that does not end between each pair of ranks, of those whose peers are recorded."""
    pending: dict[tuple[int, int, int], dict[int, Call]] = {}
    for call in table.transfers:
        operation, members = call.first, table.groups[call.group].members
        if call.is_ended or not (0 <= operation.source < len(members) and 0 <= operation.target < len(members)):
            continue
        source, target = members[operation.source], members[operation.target]
        pending.setdefault((call.group, source, target), {}).setdefault(call.rank, call)
    listed = []
    for (group, source, target), entered in pending.items():
        absent = tuple(rank for rank in (source, target) if rank not in entered)
        sizes = {call.first.elements for call in entered.values()}
        differs = frozenset({"size"} if len(sizes) > 1 else ())
        sequence = next(iter(entered.values())).sequence
        listed.append(Unfinished(group, sequence, (source, target), entered, absent, differs, waits=True))
    return listed


def independent(unfinished: list[Unfinished]) -> list[Unfinished]:
    """Those collectives of `unfinished` that do not wait for another one of the list, earliest first; empty if they all
    wait for each other.

    A collective waits for another one if a member that did not enter it waits in that one, or if a member issued it
    after that one and has not started it. A collective whose operations differ does not wait for another.
    """
    waiting = [collective for collective in unfinished if collective.waits]
    free = [collective for collective in waiting if not any(_waits_for(collective, other) for other in waiting)]
    return sorted(free, key=lambda collective: (not collective.differs, collective.created_ns))


def _waits_for(collective: Unfinished, other: Unfinished) -> bool:
    """Whether `collective` cannot end before `other` does: a member that did not enter `collective` waits in
    `other`, or a member enqueued `collective` after `other` and has not started it."""
    if collective is other or collective.differs:
        return False
    if any(rank in other.entered and not other.entered[rank].is_ended for rank in collective.absent):
        return True
    return any(
        call.state < STARTED and rank in other.entered and _is_blocked_by(call, other.entered[rank])
        for rank, call in collective.entered.items()
    )


def _is_blocked_by(call: Call, earlier: Call) -> bool:
    """Whether `earlier`, of the same rank, was enqueued before `call` and has not ended."""
    return earlier.index < call.index and not earlier.is_ended
