"""Which ranks make no progress, by the heartbeats in the agents' reports."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.launch.supervisor.agent_reports import Now
from trainyard.launch.supervisor.messages import RankReport

TOGETHER_S = 0.5
"""Additional time without progress, in which ranks that hang together all exceed the limit."""
LONGER = {"starting": 5.0, "stepping": 1.0, "saving": 5.0, "finishing": 15.0}
"""Multiples of `hang_timeout_s` that a rank may take in each phase."""


class ProgressWatch:
    """The times at which the ranks of a generation last made progress."""

    def __init__(self) -> None:
        """Begin without any rank."""
        self._last: dict[int, tuple[int, float]] = {}
        """Rank -> (its last heartbeat count, monotonic seconds at which that changed)."""

    def note(self, now: Now, ranks: Sequence[RankReport]) -> None:
        """Note the time of each rank's last new heartbeat."""
        for rank in ranks:
            known = self._last.get(rank.rank)
            if known is None or known[0] != rank.count:
                self._last[rank.rank] = (rank.count, now.seconds)

    def stalled_ranks(self, now: Now, ranks: Sequence[RankReport], hang_timeout_s: float) -> list[int]:
        """The numbers of the ranks that have made no progress for longer than the limit; none if no rank has exceeded
        it for `TOGETHER_S`. `ranks`: as last noted.

        The limit is `hang_timeout_s` times the longest factor of a running rank's phase. Ranks in lockstep exceed it
        within moments of each other, so that none is reported until the last of them must have.
        """
        running = [rank for rank in ranks if rank.exit_code is None]
        limit_s = hang_timeout_s * max((LONGER[rank.phase] for rank in running), default=0.0)
        still_s = {rank.rank: now.seconds - self._last[rank.rank][1] for rank in running}
        if max(still_s.values(), default=0.0) <= limit_s + TOGETHER_S:
            return []
        return [rank for rank, seconds in still_s.items() if seconds > limit_s]
