"""Find the ranks to blame for a failure or a hang, from the agents' reports. Pure functions.

If a rank fails or hangs, its peers wait for it in collectives, and fail too after a while: the cause is the rank that
failed first, or that does something else than waiting.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence

from trainyard.launch.launch_spec import PLANNED_ENDS
from trainyard.launch.supervisor.messages import RankReport

STOPPED = "T"
STOPPED_EVIDENCE = "its process is stopped (state T)"
_STUCK_EVIDENCE = (
    "its device does not end the work that it waits for: read the Xid errors in the kernel log, and run nvidia-smi"
)
_COLLECTIVE_FILES = ("torch/distributed", "torch/autograd/graph.py", "_functional_collectives")
"""Parts of the paths of files whose calls wait for other ranks."""
_DEVICE_CALLS = ("torch/cuda/streams.py", "torch/cuda/__init__.py")
"""Parts of the paths of files whose calls wait for the device: of events, of streams and of all of its work."""
_LOADER = "torch/utils/data/dataloader.py"


def failed_ranks(ranks: Sequence[RankReport]) -> list[RankReport]:
    """The ranks that ended abnormally."""
    return [rank for rank in ranks if rank.exit_code not in (None, *PLANNED_ENDS)]


def killed_ranks(failed: Sequence[RankReport]) -> list[RankReport]:
    """The ranks that could not report why they ended, earliest first: each was killed, and not by a peer's failure.

    SIGABRT does not count: the collectives' watchdog raises it in ranks that waited for a dead one."""
    return sorted((rank for rank in failed if not _reported(rank)), key=lambda rank: rank.ended_ns)


def first_to_die(failed: Sequence[RankReport]) -> RankReport:
    """The killed rank that ended first, or the earliest to report: its peers fail because of it."""
    return min(failed, key=lambda rank: (_reported(rank), rank.ended_ns))


def _reported(rank: RankReport) -> int:
    """ns since the epoch at which the rank reported its failure; 0 if it could not."""
    return rank.reported_ns or (rank.ended_ns if rank.exit_code == -signal.SIGABRT else 0)


def stopped_ranks(ranks: Sequence[RankReport]) -> list[RankReport]:
    """The ranks whose process is stopped, as by SIGSTOP."""
    return [rank for rank in ranks if rank.state == STOPPED and rank.exit_code is None]


def hung_ranks(
    ranks: Sequence[RankReport], earlier_ticks: Mapping[int, int], stacks: Mapping[int, str]
) -> list[tuple[int, str]]:
    """The ranks that the others wait for, each with the evidence: several if their processes are stopped or wait for
    data; rank -1 if the ranks do not differ.

    `earlier_ticks`: CPU ticks of each rank a while ago. `stacks`: the stack of each rank, innermost call first, as
    faulthandler writes it; missing or empty for a rank that does not respond.
    """
    if suspended := stopped_ranks(ranks):
        return [(rank.rank, STOPPED_EVIDENCE) for rank in suspended]
    if starved := [rank.rank for rank in ranks if waits_for_data(stacks.get(rank.rank, ""))]:
        return [(rank, "it waits for data: the workers of its loader return no batch") for rank in starved]
    return [_hung_rank(ranks, earlier_ticks, stacks)]


def hang_kind(hung: Sequence[tuple[int, str]], ranks: Sequence[RankReport], stacks: Mapping[int, str]) -> str:
    """The verdict on a hang by stacks and process states, a key of words.HANGS; empty if these do not decide. `hung`:
    the result of `hung_ranks`, whose other arguments are those of that function."""
    if stopped_ranks(ranks):
        return "stopped_process"
    if any(waits_for_data(stacks.get(rank, "")) for rank, _ in hung):
        return "data_loader"
    rank, _ = hung[0]
    if waits_for_device(stacks.get(rank, "")):  # with peers, the device may wait for theirs in a collective
        return "device_stuck" if len(ranks) == 1 else ""
    return "host_stuck" if stacks.get(rank) and not waits_in_collective(stacks[rank]) else ""


def _hung_rank(
    ranks: Sequence[RankReport], earlier_ticks: Mapping[int, int], stacks: Mapping[int, str]
) -> tuple[int, str]:
    """(The rank that the others wait for, the evidence), by the first criterion that only one rank meets; rank -1 if
    none does.

    The criteria: another step than its peers; no stack; neither in a collective nor waiting for its device; CPU time
    since the earlier report, except of ranks that wait for their device. `earlier_ticks`: rank -> its CPU ticks in the
    earlier report; `stacks`: rank -> its Python stack.

    A rank that waits for its device may be waiting for its peers in a collective, and uses CPU time while it waits.
    """
    if (differing_rank := _find_differing_rank(ranks)) is not None:
        return (
            differing_rank.rank,
            f"it is in step {differing_rank.begun + 1} after {differing_rank.done} completed steps, unlike its peers",
        )
    silent = [rank.rank for rank in ranks if not stacks.get(rank.rank)]
    if len(silent) == 1 < len(ranks):
        return silent[0], "it does not respond to a signal"
    on_device = {rank.rank for rank in ranks if waits_for_device(stacks.get(rank.rank, ""))}
    busy = [
        rank.rank
        for rank in ranks
        if stacks.get(rank.rank) and rank.rank not in on_device and not waits_in_collective(stacks[rank.rank])
    ]
    if len(busy) == 1 < len(ranks):
        waits = "collectives or for their devices" if on_device else "collectives"
        return busy[0], f"its peers wait for it in {waits}, while it is in {innermost(stacks[busy[0]])}"
    computing = [
        rank.rank
        for rank in ranks
        if rank.rank not in on_device and rank.ticks > earlier_ticks.get(rank.rank, rank.ticks)
    ]
    if len(computing) == 1 < len(ranks):
        return computing[0], "it computes while its peers wait"
    if len(ranks) == 1:
        return ranks[0].rank, _STUCK_EVIDENCE if on_device else "it is the only rank"
    return -1, "no rank differs from the others"


def _find_differing_rank(ranks: Sequence[RankReport]) -> RankReport | None:
    """The rank whose step differs from that of all others, who agree; of two ranks that differ, the one behind. None if
    there is no such rank."""
    step_counts = Counter((rank.done, rank.begun) for rank in ranks)
    if len(step_counts) == 2 and len(ranks) == 2:
        return min(ranks, key=lambda rank: (rank.done, rank.begun))
    lone = [rank for rank in ranks if step_counts[rank.done, rank.begun] == 1]
    return lone[0] if len(step_counts) == 2 and len(lone) == 1 else None


def waits_in_collective(stack: str) -> bool:
    """Whether the main thread is in a collective, by the innermost call of its stack."""
    return any(part in innermost(stack) for part in _COLLECTIVE_FILES)


def waits_for_data(stack: str) -> bool:
    """Whether the main thread waits for a batch of its data loader."""
    return any(_LOADER in call for call in _calls(stack))


def waits_for_device(stack: str) -> bool:
    """Whether the main thread waits for its device to end earlier work, by the innermost call of its stack."""
    return any(part in innermost(stack) for part in _DEVICE_CALLS)


def innermost(stack: str) -> str:
    """The innermost call of the main thread."""
    return next(iter(_calls(stack)), "")


def _calls(stack: str) -> list[str]:
    """The calls of the thread that was written last: the main thread, which received the signal. Innermost call first.

    faulthandler begins each thread with `Thread 0x...` or `Current thread 0x...`, and each call with `File`.
    """
    return [line.strip() for line in stack.split("hread 0x")[-1].splitlines() if line.lstrip().startswith("File ")]


class Slowness:
    """Detects ranks whose own time per step is longer than that of their peers.

    A rank is slow if, in three consecutive windows of at least 8 steps, its own time exceeded 1.5 times the median of
    the other ranks, by more than 5 % of the step time.
    """

    WINDOW, WINDOWS = 8, 3
    FACTOR, SHARE = 1.5, 0.05

    def __init__(self) -> None:
        self._window_start: dict[int, RankReport] = {}
        """The report of each rank at the start of the current window."""
        self._slow_windows: dict[int, int] = {}
        """Number of consecutive windows, up to the last one, in which a rank was slow."""

    def update(self, ranks: Sequence[RankReport]) -> list[tuple[int, float]]:
        """Return (rank, ratio to the other ranks' median own time) for each rank that has become slow with this report.

        `ranks`: the current reports of all running ranks. A window ends when every rank has ended `WINDOW` more steps;
        if the set of ranks changes, a new one begins.
        """
        current_by_rank = {rank.rank: rank for rank in ranks}
        if current_by_rank.keys() != self._window_start.keys() or len(current_by_rank) < 2:
            self._window_start = current_by_rank
            return []
        steps_in_window = min(current_by_rank[rank].done - self._window_start[rank].done for rank in current_by_rank)
        if steps_in_window < self.WINDOW:
            return []
        own_ns_per_step = {
            rank: (current_by_rank[rank].own_ns - start.own_ns) / (current_by_rank[rank].done - start.done)
            for rank, start in self._window_start.items()
        }
        step_ns = (
            max(current_by_rank[rank].at - start.at for rank, start in self._window_start.items()) / steps_in_window
        )
        self._window_start = current_by_rank
        slow_ranks: list[tuple[int, float]] = []
        sorted_ns = sorted(own_ns_per_step.values())
        for rank, own_ns in own_ns_per_step.items():
            # The upper median of the others: removing a value at or below the middle shifts it by one.
            middle = (len(sorted_ns) - 1) // 2
            median_ns = sorted_ns[middle + (own_ns <= sorted_ns[middle])]
            is_slow = own_ns > self.FACTOR * median_ns and own_ns - median_ns > self.SHARE * step_ns
            self._slow_windows[rank] = self._slow_windows.get(rank, 0) + 1 if is_slow else 0
            if self._slow_windows[rank] == self.WINDOWS:
                slow_ranks.append((rank, own_ns / max(median_ns, 1.0)))
        return slow_ranks
