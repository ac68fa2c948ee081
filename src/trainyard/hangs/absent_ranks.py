"""Decide why a rank did not enter a collective that its peers wait in, or why its process is the cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from trainyard.code_location import CodeLocation
from trainyard.hangs.collectives import CollectiveTable
from trainyard.hangs.deviations import Culprits
from trainyard.hangs.devices_without_peers import explain_missing_records
from trainyard.hangs.expected_calls import conforms
from trainyard.hangs.flight_record import RankState, user_location
from trainyard.hangs.unfinished import Unfinished
from trainyard.units import show_ranks

_LOADER = "torch/utils/data/dataloader.py"
_TEARDOWN = frozenset({"destroy_process_group", "_shutdown", "_exitfunc", "shutdown"})
"""Functions that run after a program's last collective."""
_CONSEQUENCE = re.compile(
    r"connection (was )?(reset|closed|refused)|closed by peer|broken pipe|timed? ?out|remote process exited|"
    r"expected size|DistBackendError|DistNetworkError|socket|aborted due to|NCCL error",
    re.IGNORECASE,
)
"""Errors of a rank whose peer failed, or whose collective does not match that of its peers."""


def ended_or_stopped(table: CollectiveTable) -> Culprits | None:
    """The ranks whose process is stopped, else those that ended with an error of their own; None if there are none.

    A rank whose error is that a peer disappeared or sent unexpected data is not a cause.
    """
    states = {rank: record.state for rank, record in table.records.items()}
    if stopped := [rank for rank, state in states.items() if state.is_stopped]:
        return Culprits("stopped_process", tuple(sorted(stopped)), "its process is stopped (state T)")
    if ended := [rank for rank, state in states.items() if _failed_alone(state)]:
        state = states[min(ended)]
        return Culprits("dead_process", tuple(sorted(ended)), f"its process ended: {_describe_end(state)}")
    return None


def _failed_alone(state: RankState) -> bool:
    """Whether a process ended with an error that is not the consequence of another rank's. gloo aborts a rank (SIGABRT)
    that receives more data than it expects."""
    if state.exit_code in (None, 0, -signal.SIGABRT):
        return False
    return state.exit_code < 0 or not _CONSEQUENCE.search(state.error)


def _describe_end(state: RankState) -> str:
    exit_code = state.exit_code or 0
    if exit_code < 0:
        try:
            return f"killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"killed by signal {-exit_code}"
    last_line = state.error.strip().splitlines()[-1:] or ["no error message"]
    return f"exit code {exit_code}, {last_line[0][:200]}"


def why_absent(table: CollectiveTable, collective: Unfinished) -> Culprits:
    """Why the absent ranks of `collective` did not enter it. None of them waits in another unfinished collective.

    Ranks whose record shows that they did not enter are to blame before ranks without a record. Without a Python stack,
    a rank that skipped the collective cannot be distinguished from a rank that is stuck before it.
    """
    recorded = [rank for rank in collective.absent if rank in table.records and not table.records[rank].state.exit_code]
    if not recorded and (failed := [rank for rank in collective.absent if rank in table.records]):
        return Culprits("cannot_tell", (), f"{len(failed)} ranks ended with the error of a peer before they entered")
    if not recorded and (damaged := sorted(table.unreadable & set(collective.absent))):
        records = "its record is" if len(damaged) == 1 else "their records are"
        reason = f"only {show_ranks(damaged)} may not have entered, and {records} damaged"
        return Culprits("cannot_tell", (), reason)
    if not recorded:
        reason = "it left no flight record, and a live process can write one"
        if 2 * len(collective.absent) > max(2, len(collective.members)):
            reason = f"{len(collective.absent)} of {len(collective.members)} ranks left no flight record"
            reason = explain_missing_records(reason, table, collective)
            return Culprits("cannot_tell", (), reason, ("dead_process", "stopped_process"))
        return Culprits("dead_process", tuple(collective.absent), reason, ("stopped_process",))
    judged = {rank: _why_absent(table, collective, rank) for rank in recorded}
    # A rank that has skipped the collective is a cause; ranks without a decisive sign may only be late.
    decided = {rank: culprits for rank, culprits in judged.items() if not culprits.alternatives}
    first = next(iter(decided.values()), next(iter(judged.values())))
    ranks = tuple(sorted(rank for rank, culprits in judged.items() if culprits.kind == first.kind))
    return first._replace(ranks=ranks)


def _why_absent(table: CollectiveTable, collective: Unfinished, rank: int) -> Culprits:
    state = table.records[rank].state
    stack = state.stack
    if any(call.file.replace("\\", "/").endswith(_LOADER) for call in stack):
        return Culprits("data_loader", (rank,), "its main thread waits for a batch of its data loader")
    if state.exit_code == 0:
        return Culprits("missing_collective", (rank,), "its process ended without entering it")
    if any(call.function in _TEARDOWN for call in stack):
        return Culprits("missing_collective", (rank,), "its program has ended its last collective and shuts down")
    if _has_passed(table, collective, rank):
        return Culprits("missing_collective", (rank,), "it entered collectives that follow this one")
    peers_done = [table.records[peer].state.steps_done for peer in collective.entered if peer in table.records]
    if state.steps_done >= 0 and peers_done and state.steps_done > max(peers_done) >= 0:
        return Culprits("missing_collective", (rank,), f"it has ended step {state.steps_done}, unlike its peers")
    if stack:
        return Culprits("host_stuck", (rank,), f"its main thread is in {_describe_location(stack)}")
    return Culprits(
        "missing_collective",
        (rank,),
        "its record ends before it, without a Python stack that would show where the rank is",
        ("host_stuck", "data_loader"),
    )


def _describe_location(stack: Sequence[CodeLocation]) -> str:
    """The innermost call, and the user's call below it."""
    location = user_location(tuple(stack))
    innermost = stack[0]
    if location is None or location == innermost:
        return str(innermost)
    return f"{innermost}, called from {location}"


def _has_passed(table: CollectiveTable, collective: Unfinished, rank: int) -> bool:
    """Whether the last call of `rank` follows the collective in the program: a peer issued the same one after it, or
    has not issued it yet. If no peer shares its group, whether it departs from the rank's earlier steps."""
    own = table.by_rank[rank]
    if not own:
        return False
    last = own[-1]
    group = table.groups[last.group]
    for peer, call in collective.entered.items():
        theirs = group.calls.get(last.sequence, {}).get(peer)
        if theirs is not None:
            return theirs.index > call.index
        if peer in group.members and not last.first.is_p2p and not table.passed(peer, last.group, last.sequence):
            return True
    return conforms(own, len(own) - 1) is False
