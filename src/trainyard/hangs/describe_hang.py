"""Put a verdict on a hang into words, with the activity of each rank and the next step."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard import words
from trainyard.hangs.collectives import Call, CollectiveTable
from trainyard.hangs.deviations import Culprits
from trainyard.hangs.flight_record import user_location
from trainyard.hangs.unfinished import Unfinished
from trainyard.hangs.verdict import HangAnalysis, RankActivity
from trainyard.units import show_ranks

_REMEDIES: Mapping[str, str] = {
    "missing_collective": "Let every member of the group call the collective, or none: look for a condition on the "
    "rank, an early return or uneven numbers of batches.",
    "wrong_order": "Issue the collectives in the same order on every member of the group, also across groups.",
    "wrong_size": "Give the collective tensors of the same number of elements on every rank, or pad them.",
    "wrong_dtype": "Give the collective tensors of the same dtype on every rank.",
    "host_stuck": "Look at the line where the rank is: a lock, a file, a network call or a long computation.",
    "dead_process": "Read the rank's own log and the kernel's log of its host: its peers only wait for it.",
    "data_loader": "Look at the workers of the data loader: a slow file system, a deadlock, a killed worker.",
    "stopped_process": "Continue the process with SIGCONT; a debugger, a terminal or a scheduler stopped it.",
    "device_stuck": "Check the device (Xid errors in the kernel log, ECC counts), and the kernels before it.",
    "network": "Check the links between the ranks: NCCL_DEBUG=INFO, counters of the adapters, a run of nccl-tests.",
    "cannot_tell": "Record more: TORCH_FR_BUFFER_SIZE=20000, a dump of every rank, and Python stacks (py-spy dump).",
    "no_hang": "Dump the records while the job hangs.",
}


def describe(
    table: CollectiveTable, culprits: Culprits, collective: Unfinished | None, warnings: tuple[str, ...]
) -> HangAnalysis:
    """The verdict as plain data. `collective`: the one in which the culprits are missed or deviate, None if there is
    none; `warnings`: passed on, followed by those on incomplete records."""
    missing = tuple(rank for rank in range(table.world) if rank not in table.records)
    notes = [*warnings]
    if missing and culprits.kind != "dead_process":
        notes.append(f"{show_ranks(missing)} left no readable flight record.")
    notes += [
        f"{record.source or f'rank {rank}'}: {record.skipped:,} entries could not be read."
        for rank, record in sorted(table.records.items())
        if record.skipped
    ]
    group = table.groups[collective.group] if collective else None
    call = _typical_call(collective, culprits) if collective else None
    return HangAnalysis(
        kind=culprits.kind,
        ranks=culprits.ranks,
        alternatives=culprits.alternatives,
        group=group.name if group else "",
        description=group.description if group else "",
        members=collective.members if collective else (),
        sequence=collective.sequence if collective else -1,
        operation=call.name if call else "",
        summary=_summarize(culprits, collective, call, group.name if group else ""),
        evidence=_evidence(culprits, collective, call),
        remedy=_REMEDIES[culprits.kind],
        activities=tuple(_activity(table, collective, rank) for rank in collective.members) if collective else (),
        world=table.world,
        missing=missing,
        warnings=tuple(notes),
    )


def _typical_call(collective: Unfinished, culprits: Culprits) -> Call | None:
    """The call of a rank that is not a culprit, else of any rank; None if none entered."""
    others = [call for rank, call in collective.entered.items() if rank not in culprits.ranks]
    return next(iter(others or collective.entered.values()), None)


def _describe_call(call: Call) -> str:
    """`all_reduce of 4 Float`: operation, number of elements and number format of a call."""
    elements = call.first.elements
    return f"{call.name} of {elements:,} {call.first.dtype}".rstrip() if elements else call.name


def _summarize(culprits: Culprits, collective: Unfinished | None, call: Call | None, group: str) -> str:
    """One sentence with the verdict, the culprits and the collective."""
    label = words.HANGS[culprits.kind].label
    title = label[0].upper() + label[1:]
    if culprits.kind in ("no_hang", "cannot_tell") or (not culprits.ranks and culprits.kind != "network"):
        return f"{title}: {culprits.reason}."
    subject = show_ranks(culprits.ranks) if culprits.ranks else f"{len(collective.members) if collective else 0} ranks"
    where = (
        f"{_describe_call(call)}, number {collective.sequence} of group {group}"
        if collective and call
        else "a collective"
    )
    mine = collective.entered.get(culprits.ranks[0]) if collective and culprits.ranks else None
    verb = {
        "missing_collective": f"did not enter {where}",
        "wrong_order": f"entered collectives in another order than the peers: expected was {where}",
        "wrong_size": f"entered {where}, with another number of elements",
        "wrong_dtype": f"entered {where}, with another number format",
        "host_stuck": f"did not enter {where}",
        "data_loader": f"did not enter {where}",
        "device_stuck": f"entered {where}, and the device does not end it",
        "network": f"entered {where}, and it ends on no rank",
        "dead_process": "ended" + (f"; the peers wait in {where}" if collective and call else ""),
        "stopped_process": "stopped" + (f"; the peers wait in {where}" if collective and call else ""),
    }[culprits.kind]
    if mine is not None and culprits.kind in ("wrong_order", "wrong_size", "wrong_dtype", "missing_collective"):
        verb += f"; it entered {_describe_call(mine)}" if len(culprits.ranks) == 1 else ""
    return f"{title}: {subject} {verb}."


def _evidence(culprits: Culprits, collective: Unfinished | None, call: Call | None) -> str:
    """The reason, the numbers of ranks that entered, and the line of code of the peers."""
    parts = [culprits.reason]
    if collective is not None:
        parts.append(f"{len(collective.entered)} of {len(collective.members)} ranks entered")
    if call is not None and call.first.location is not None:
        parts.append(f"the peers issued it at {call.first.location}")
    if culprits.alternatives:
        labels = " or ".join(words.HANGS[kind].label for kind in culprits.alternatives)
        parts.append(f"the records also allow: {labels}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _activity(table: CollectiveTable, collective: Unfinished, rank: int) -> RankActivity:
    """The activity of a member of the group, of the collective if it entered it, else of its last call."""
    record = table.records.get(rank)
    if record is None:
        return RankActivity(rank=rank, activity="no_record")
    state, call = record.state, collective.entered.get(rank)
    ended = [own.sequence for own in table.by_rank[rank] if own.group == collective.group and own.is_ended]
    last_ended = max(ended, default=-1)
    shown = call or next(iter(reversed(table.by_rank[rank])), None)
    location = shown.first.location if call and shown else user_location(state.stack)
    activity = "waits" if call and not call.is_ended else "ended" if call else "not_entered"
    if state.is_stopped:
        activity = "stopped"
    elif state.exit_code is not None:
        activity = "left"
    return RankActivity(
        rank=rank,
        activity=activity,
        operation=shown.name if shown else "",
        elements=shown.first.elements if shown else 0,
        dtype=shown.first.dtype if shown else "",
        location=location,
        last_ended=last_ended,
    )
