"""Ends an agent that has lost its supervisor, and with it its ranks, before the supervisor replaces them.

A cut network sends no error: a call into the store may block for minutes. The agent therefore has a lease. Each answer
of the supervisor renews it, from the moment of the question. When it runs out, the kernel ends the agent (SIGALRM),
wherever it is, and its ranks die with it. If the agent itself is stopped, the ranks see that the lease has run out and
end before their next step.
"""

from __future__ import annotations

import signal
import time

from trainyard.launch.agents.rank_progress import HeartbeatBoard

FENCE_S = 6.0
"""Length of a lease. It is shorter than `agent_reports.SILENT_S`, the time after which the supervisor replaces a
silent agent, so that two agents never run the same ranks."""
_MIN_TIMER_S = 0.001
"""Shortest time of the timer: 0 would disarm it."""


class Lease:
    """The lease of this process. `board`: the heartbeats of its ranks, in which it is recorded."""

    def __init__(self, board: HeartbeatBoard) -> None:
        self._board = board
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, even inside a blocking call

    def renew(self, asked_s: float) -> None:
        """Renew the lease after an answer to a question that was asked at `asked_s`, a monotonic time."""
        end_s = asked_s + FENCE_S
        signal.setitimer(signal.ITIMER_REAL, max(_MIN_TIMER_S, end_s - time.monotonic()))
        self._board.lend(round(end_s * 1e9))

    def end(self) -> None:
        """Give up the lease when no rank is left: this process may then run for any time."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
