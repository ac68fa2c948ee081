"""Investigation of a hang: waits for the stacks and flight records of the ranks, then finds the ranks to blame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from trainyard.hangs.flight_record import FlightRecord
from trainyard.launch.supervisor import find_cause, hang_records
from trainyard.launch.supervisor.agent_reports import Now
from trainyard.launch.supervisor.messages import RankReport

STACKS_S, STACKS_MOST_S = 0.7, 6.0
"""Time for the ranks to write their stacks: minimum, and maximum if some are missing or still growing."""
STACKS_SETTLE_S = 0.3
"""Time for stacks to grow further after they last changed: the main thread's stack is written last."""


class HungRank(NamedTuple):
    """A rank that the others wait for. `rank`: -1 for none in particular; `evidence`: part of a sentence; `verdict`: a
    key of words.HANGS, empty if undecided."""

    rank: int
    evidence: str
    verdict: str


class HangInvestigation:
    """The investigation of one hang, which begins when the ranks are asked to write their stacks."""

    def __init__(
        self,
        now: Now,
        ranks: Sequence[RankReport],
        stalled: Sequence[int],
        read_records: Callable[[Sequence[RankReport]], Mapping[int, FlightRecord]] | None,
    ) -> None:
        """`ranks`: all ranks of the generation; `stalled`: the numbers of those without progress, at least one;
        `read_records`: returns the flight records of ranks by rank, None if ranks write none."""
        self._began_s = now.seconds
        self._ticks = {rank.rank: rank.ticks for rank in ranks}
        """CPU ticks by rank when the ranks were found to hang."""
        self._only_stalled_rank = stalled[0] if len(stalled) == 1 < len(ranks) else -1
        """The rank without progress if its peers made some, else -1."""
        self._read_records = read_records
        self._stacks: Mapping[int, str] = {}
        """The stacks by rank as last read."""
        self._stacks_settled_s = 0.0
        """Monotonic time from which on unchanged stacks count as complete."""

    def must_wait(self, now: Now, running: Sequence[RankReport], is_node_lost: bool) -> bool:
        """Whether stacks or records of `running`, the ranks that have not ended, are to come. After `STACKS_S`, ranks
        are not waited for if a node is lost or a process is stopped."""
        waited_s = now.seconds - self._began_s
        if waited_s < STACKS_S:
            return True
        stacks = {rank.rank: rank.stack for rank in running}
        if stacks != self._stacks:
            self._stacks, self._stacks_settled_s = stacks, now.seconds + STACKS_SETTLE_S
        is_incomplete = (
            not all(stacks.values())
            or now.seconds < self._stacks_settled_s
            or (self._read_records is not None and not all(rank.recorded_ns for rank in running))
        )
        return is_incomplete and waited_s < STACKS_MOST_S and not is_node_lost and not find_cause.stopped_ranks(running)

    def hung_ranks(self, ranks: Sequence[RankReport]) -> list[HungRank]:
        """The hung ranks of all `ranks`: a single one without progress, unless it waits for data; else by the flight
        records, and by stacks and CPU time if these do not decide."""
        running = [rank for rank in ranks if rank.exit_code is None]
        stacks = {rank.rank: rank.stack for rank in running}
        lone = self._only_stalled_rank
        if lone >= 0 and not find_cause.waits_for_data(stacks.get(lone, "")):
            return [HungRank(lone, "it makes no progress, while its peers do", "")]
        by_stacks = find_cause.hung_ranks(running, self._ticks, stacks)
        kind = find_cause.hang_kind(by_stacks, running, stacks)
        records = self._read_records(running) if self._read_records is not None else {}
        verdict = hang_records.judge_hang(ranks, records)
        if verdict is None or find_cause.stopped_ranks(running) or (verdict.kind == "network" and by_stacks[0][0] >= 0):
            return [HungRank(rank, evidence, kind) for rank, evidence in by_stacks]
        evidence = hang_records.describe_verdict(verdict)
        return [HungRank(rank, evidence, verdict.kind) for rank in verdict.ranks or (-1,)]
