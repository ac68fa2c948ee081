"""Judge the devices of ranks whose peers left no record of a collective, by the record of each rank.

The device of a rank starts a collective once its own earlier work has ended, whatever its peers do; it ends the
collective only after they have started it too. Without its peers' records, a record can thus show that a device is
stuck before the collective, but not why a device waits inside it. torch records starts only with
TORCH_NCCL_ENABLE_TIMING=1.
"""

from __future__ import annotations

from trainyard.hangs.collectives import Call, CollectiveTable
from trainyard.hangs.deviations import Culprits
from trainyard.hangs.flight_record import SCHEDULED, STARTED
from trainyard.hangs.unfinished import Unfinished
from trainyard.units import show_ranks


def judge_devices_without_peers(table: CollectiveTable, collective: Unfinished) -> Culprits | None:
    """The ranks whose record alone shows that their device is stuck; None if there are none, or if a member that did
    not enter left a record, which shows more."""
    if any(rank in table.records for rank in collective.absent):
        return None
    waiting = _calls_on_device(collective)
    if waiting and _is_only_member(table, collective):
        reason = "the group has no other member to wait for, and the collective has not ended"
        return Culprits("device_stuck", tuple(waiting), reason)
    unstarted = tuple(sorted(rank for rank, call in waiting.items() if _is_stuck_before(table, call)))
    if not unstarted:
        return None
    reason = "its device has not started the collective, although all earlier ones have ended: other work does not end"
    return Culprits("device_stuck", unstarted, reason)


def explain_missing_records(reason: str, table: CollectiveTable, collective: Unfinished) -> str:
    """`reason`, why the culprit is not known, with the state of the devices and the record that would show more."""
    waiting = _calls_on_device(collective)
    if started := [rank for rank, call in waiting.items() if call.state == STARTED]:
        device = f"the device of {show_ranks(started)}"
        return f"{reason}; {device} has started the collective and may wait for the others, whose records would show it"
    if unknown := [rank for rank in waiting if not table.records[rank].has_starts]:
        device = f"the device of {show_ranks(unknown)}"
        return f"{reason}; no record shows whether {device} has started it (set TORCH_NCCL_ENABLE_TIMING=1)"
    return reason


def _calls_on_device(collective: Unfinished) -> dict[int, Call]:
    """The calls that do not end, by rank, except those of gloo, which uses no device, and of an unknown backend."""
    return {
        rank: call
        for rank, call in collective.entered.items()
        if not call.is_ended and call.first.backend not in ("", "gloo")
    }


def _is_only_member(table: CollectiveTable, collective: Unfinished) -> bool:
    """Whether a record lists the members of the group, and there is one."""
    name = table.groups[collective.group].name
    groups = (table.records[rank].groups.get(name) for rank in collective.entered)
    return len(collective.members) == 1 and any(group is not None and group.ranks for group in groups)


def _is_stuck_before(table: CollectiveTable, call: Call) -> bool:
    """Whether the device of the call's rank has not started it although it could: no earlier one is unfinished."""
    earlier = table.by_rank[call.rank][: call.index]
    has_starts = table.records[call.rank].has_starts
    return call.state == SCHEDULED and has_starts and all(other.is_ended for other in earlier)
