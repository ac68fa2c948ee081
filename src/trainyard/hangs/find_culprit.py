"""Find the ranks that cause a hang, and how, from the flight records of all ranks. Pure functions, without torch.

1. A stopped or dead process is the cause, since it cannot enter anything.
2. Otherwise the first collective is sought that does not wait for another one (`unfinished.py`).
3. If its calls do not match, the ranks that deviate are the cause (`deviations.py`); if ranks did not enter it, they
   are (`absent_ranks.py`), unless they left no record and that of a rank shows a stuck device
   (`devices_without_peers.py`); if all entered it with matching calls, a device or the network is.
4. If all unfinished collectives wait for each other, ranks entered them in different orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

from trainyard.hangs.absent_ranks import ended_or_stopped, why_absent
from trainyard.hangs.collectives import Call, CollectiveTable
from trainyard.hangs.describe_hang import describe
from trainyard.hangs.deviations import Culprits, deviating_ranks, irregular_ranks, kind_of_order, uneven_culprits
from trainyard.hangs.devices_without_peers import explain_missing_records, judge_devices_without_peers
from trainyard.hangs.expected_calls import conforms, expected_calls
from trainyard.hangs.flight_record import SCHEDULED, STARTED, FlightRecord
from trainyard.hangs.unfinished import Unfinished, independent, unfinished_collectives
from trainyard.hangs.verdict import HangAnalysis
from trainyard.units import show_ranks


def find_culprit(
    records: Sequence[FlightRecord], warnings: Iterable[str] = (), unreadable: Iterable[int] = ()
) -> HangAnalysis:
    """Determine why the ranks of a job hang, and which ranks are to blame.

    `records`: one for each rank, in any order; some may be missing, and some may hold the state of a process only.
    `warnings`: on files that could not be read, which are passed on; `unreadable`: the ranks of these files.
    """
    table = CollectiveTable(records, unreadable)
    unfinished = unfinished_collectives(table)
    culprits, collective = _decide(table, unfinished)
    return describe(table, culprits, collective, tuple(warnings))


def _decide(table: CollectiveTable, unfinished: list[Unfinished]) -> tuple[Culprits, Unfinished | None]:
    """The culprits, and the collective in which they are missed; None if no collective shows them."""
    if (culprits := ended_or_stopped(table)) is not None:
        missed = [
            collective for collective in unfinished if set(culprits.ranks) & {*collective.absent, *collective.entered}
        ]
        return culprits, min(missed, key=lambda collective: (not collective.waits, collective.created_ns), default=None)
    waiting = [collective for collective in unfinished if collective.waits]
    differing = [collective for collective in unfinished if collective.differs and not _is_transfer(collective)]
    judged = [(_judge(table, collective), collective) for collective in independent(unfinished)]
    if decided := [pair for pair in judged if pair[0].kind != "cannot_tell"]:
        return decided[0]
    if waiting and not judged:
        culprits = _judge_cycle(table, waiting)
        return culprits, next(
            (collective for collective in waiting if set(culprits.ranks) & set(collective.absent)), waiting[0]
        )
    if differing:
        first = min(differing, key=lambda collective: collective.created_ns)
        return deviating_ranks(table, first.entered), first
    culprits, collective = _judge_without_waits(table, unfinished)
    return judged[0] if judged and culprits.kind in ("cannot_tell", "no_hang") else (culprits, collective)


def _judge(table: CollectiveTable, collective: Unfinished) -> Culprits:
    """The culprits of a collective that does not wait for another one."""
    if collective.differs and not _is_transfer(collective):
        return deviating_ranks(table, collective.entered)
    if collective.differs:
        ranks = irregular_ranks(table, collective.entered) or collective.members
        return Culprits("wrong_size", tuple(ranks), "sender and receiver use different numbers of elements")
    if collective.absent:
        extra = irregular_ranks(table, collective.entered)
        is_minority = 0 < len(extra) == len(collective.entered) < len(collective.absent)
        if is_minority and (expected := _expected_by_peers(table, collective)):
            kind, alternatives = kind_of_order(table, next(iter(collective.entered.values())), expected)
            return Culprits(kind, extra, "it departs from its earlier steps, and its peers do not enter", alternatives)
        return judge_devices_without_peers(table, collective) or why_absent(table, collective)
    return uneven_culprits(table, collective.entered) or _judge_device(table, collective)


def _is_transfer(collective: Unfinished) -> bool:
    return any(call.first.is_p2p for call in collective.entered.values())


def _expected_by_peers(table: CollectiveTable, collective: Unfinished) -> Call | None:
    """The call that the history of the ranks which entered `collective` predicts in its place; None if it predicts
    none."""
    for rank, call in collective.entered.items():
        if expected := expected_calls(table.by_rank[rank], call.index):
            return expected[0]
    return None


def _judge_device(table: CollectiveTable, collective: Unfinished) -> Culprits:
    """The culprit of a collective that all members entered with matching calls, by the state of each device."""
    if len(collective.members) < 2 or (table.world > len(table.records) and not table.is_world_known):
        if culprits := judge_devices_without_peers(table, collective):
            return culprits
        missing = table.world - len(table.records)
        reason = f"the records of {missing or 'other'} ranks are missing, which may not have entered the collective"
        return Culprits("cannot_tell", (), explain_missing_records(reason, table, collective))
    unended = {rank: call for rank, call in collective.entered.items() if not call.is_ended}
    scheduled = tuple(sorted(rank for rank, call in unended.items() if call.state == SCHEDULED))
    started = tuple(sorted(rank for rank, call in unended.items() if call.state == STARTED))
    has_states = any(call.first.backend != "gloo" for call in unended.values())
    everyone = len(collective.entered)
    if has_states and scheduled and len(scheduled) < everyone:
        reason = "its device has not started the collective, which the other devices have: earlier work does not end"
        return Culprits("device_stuck", scheduled, reason)
    if started and len(started) < everyone:
        return Culprits("device_stuck", started, "the collective has ended on the other devices")
    if started:
        reason = "all ranks entered and started the collective with matching calls, and it has ended on none"
        return Culprits("network", (), reason)
    if not has_states and len(unended) == everyone:
        return Culprits("network", (), "all ranks entered the collective with matching calls, and it has ended on none")
    if not has_states:
        return Culprits("cannot_tell", (), "all ranks entered the collective, and some have ended it")
    reason = "all ranks entered the collective with matching calls, and no device has started it"
    return Culprits("cannot_tell", (), reason, ("device_stuck", "network"))


def _judge_cycle(table: CollectiveTable, waiting: list[Unfinished]) -> Culprits:
    """The ranks that entered collectives of several groups in another order than their peers.

    A rank that departs from its earlier steps deviates; without such, the rank whose first unfinished collective
    differs from that of most ranks which are members of the same groups.
    """
    first_calls: dict[int, Call] = {}
    for collective in waiting:
        for rank, call in collective.entered.items():
            if not call.is_ended and (rank not in first_calls or call.index < first_calls[rank].index):
                first_calls[rank] = call
    departures = {rank: call for rank in first_calls if (call := _departure(table, waiting, rank, first_calls[rank]))}
    if 0 < len(departures) < len(first_calls):
        ranks, reason = tuple(sorted(departures)), "it departs from its earlier steps, which its peers repeat"
        call = departures[ranks[0]]
        expected = expected_calls(table.by_rank[ranks[0]], call.index)[0]
        kind, alternatives = kind_of_order(table, call, expected)
        return Culprits(kind, ranks, reason, alternatives)
    if ranks := _minority(table, first_calls):
        return Culprits("wrong_order", ranks, "most ranks of the same groups enter them in another order")
    involved = tuple(sorted(first_calls))
    return Culprits("wrong_order", involved, "they wait for each other in collectives of different groups")


def _departure(table: CollectiveTable, waiting: list[Unfinished], rank: int, last: Call) -> Call | None:
    """The first call with which a rank departs from its earlier steps, of those after its last call in a group whose
    collective it is missed in, up to `last`, in which it waits; None if it repeats its earlier steps."""
    calls = table.by_rank[rank]
    missed = {collective.group: collective.sequence for collective in waiting if rank in collective.absent}
    earlier = [call.index for call in calls if call.sequence < missed.get(call.group, 0)]
    first = max(earlier, default=last.index - 1) + 1
    return next((call for call in calls[first : last.index + 1] if conforms(calls, call.index) is False), None)


def _minority(table: CollectiveTable, first_calls: dict[int, Call]) -> tuple[int, ...]:
    """The ranks that wait in another group than most ranks which are members of both groups; none on a tie."""
    groups = Counter(call.group for call in first_calls.values())
    outvoted: set[int] = set()
    for one_group, other_group in combinations(groups, 2):
        shared = set(table.groups[one_group].members) & set(table.groups[other_group].members)
        sides = [
            {rank for rank, call in first_calls.items() if call.group == group and rank in shared}
            for group in (one_group, other_group)
        ]
        smaller, larger = sorted(sides, key=len)
        if len(smaller) < len(larger):
            outvoted |= smaller
    return tuple(sorted(outvoted))


def _judge_without_waits(table: CollectiveTable, unfinished: list[Unfinished]) -> tuple[Culprits, Unfinished | None]:
    """The verdict if no recorded collective is unfinished: a rank may be stuck in its own code, or have ended."""
    failed = {rank for rank, record in table.records.items() if record.state.exit_code}
    if failed and (uneven := _uneven(table)) is not None:
        return uneven
    late = [
        collective
        for collective in unfinished
        if any(rank in table.records and rank not in failed for rank in collective.absent)
    ]
    if late:
        first = min(late, key=lambda collective: collective.created_ns)
        return why_absent(table, first), first
    if not any(table.by_rank.values()):
        return Culprits("cannot_tell", (), "the records hold no collective"), None
    missing = tuple(rank for rank in range(table.world) if rank not in table.records)
    if missing:
        reason = f"no record shows an unfinished collective, and {len(missing)} of {table.world} ranks left none"
        return Culprits("cannot_tell", (), reason), None
    if failed:
        reason = f"{show_ranks(sorted(failed))} failed, and the ranks agree on all collectives"
        return Culprits("cannot_tell", (), reason), None
    return Culprits("no_hang", (), "every recorded collective has ended, and the ranks agree on all of them"), None


def _uneven(table: CollectiveTable) -> tuple[Culprits, Unfinished] | None:
    """The culprits in the last collective of a group, if it allows different sizes and a rank changed its size; None if
    there is none."""
    for index, group in enumerate(table.groups):
        sequence = max(group.calls, default=-1)
        entered = group.calls.get(sequence, {})
        if len(entered) > 1 and (culprits := uneven_culprits(table, entered)) is not None:
            return culprits, Unfinished(index, sequence, group.members, entered, (), frozenset({"size"}), waits=False)
    return None
