"""Heartbeats: a rank's progress, in memory that it shares with the agent that forked it, for a microsecond per step.

Each rank has a row of integers. The agent can read it at any time, and writes the last one: its request to the rank.
All ranks must leave before the same step, without spending a collective on that: on a request to hold, each rank stops
before its next step. Ranks that have begun a step may need the others to finish it; so once it has seen all ranks, the
supervisor names the first step that none has begun, and each rank continues up to that step.

The agent also writes until when it may run ranks (`lease.py`): a rank that finds this time passed ends itself.
"""

from __future__ import annotations

import mmap
import time
from array import array
from typing import Literal, NamedTuple, get_args

from trainyard.errors import EnvironmentFailed
from trainyard.launch import epoch
from trainyard.launch.agents.own_time import CpuClock, OwnClock

Phase = Literal["starting", "stepping", "saving", "finishing"]
PHASES: tuple[Phase, ...] = get_args(Phase)
_ROW = 9
"""Integers of 8 bytes in a rank's row."""
_COUNT, _BEGUN, _DONE, _PHASE, _OWN, _AT, _HELD, _REQUEST, _LEASE = range(9)
"""Columns of a rank's row; the first seven are the fields of `HeartbeatReading`. `_LEASE`: monotonic time in ns until
which the agent may run ranks; 0 if that is not limited."""
_HOLD, _STEP_OFFSET = 1, 2
"""Values of the column `_REQUEST`: 0 for no request, `_HOLD` to stop before the next step, `_STEP_OFFSET + N` to leave
before step N."""
_WAIT_S = 0.002
"""Seconds between two looks of a held rank at its request."""


class HeartbeatReading(NamedTuple):
    """One reading of a rank's heartbeat.

    `count`: grows with every update. `begun`: the last step that has begun, or is about to begin if the rank is `held`
    before it; -1 before the first. `done`: number of steps that have ended. `own_ns`: the rank's own time in these
    steps, without waiting for peers. `at`: time of the last update, in ns since the epoch.
    """

    count: int
    begun: int
    done: int
    phase: Phase
    own_ns: int
    at: int
    held: bool


class HeartbeatBoard:
    """The heartbeats of one node's ranks; created by the agent before it forks them."""

    def __init__(self, ranks: int) -> None:
        self._rows = memoryview(mmap.mmap(-1, ranks * _ROW * 8)).cast("q")
        self._lease_ns = 0

    def heartbeat(self, local_rank: int) -> Heartbeat:
        """Reset the heartbeat of a rank, and return it for the rank to write to."""
        row = self._rows[local_rank * _ROW : (local_rank + 1) * _ROW]
        row[:] = memoryview(bytes(_ROW * 8)).cast("q")
        row[_BEGUN] = -1
        row[_AT] = epoch.now_ns()
        row[_LEASE] = self._lease_ns
        return Heartbeat(row)

    def lend(self, until_ns: int) -> None:
        """Let all ranks run until `until_ns`, a monotonic time in ns."""
        self._lease_ns = until_ns
        self._rows[_LEASE::_ROW] = array("q", [until_ns]) * (len(self._rows) // _ROW)

    def read(self, local_rank: int) -> HeartbeatReading:
        """Read the current heartbeat of a rank of this node."""
        row = self._rows[local_rank * _ROW : (local_rank + 1) * _ROW]
        return HeartbeatReading(
            count=row[_COUNT],
            begun=row[_BEGUN],
            done=row[_DONE],
            phase=PHASES[row[_PHASE]],
            own_ns=row[_OWN],
            at=row[_AT],
            held=bool(row[_HELD]),
        )

    def hold(self, local_rank: int) -> None:
        """Ask the rank to stop before its next step."""
        self._rows[local_rank * _ROW + _REQUEST] = _HOLD

    def leave(self, local_rank: int, before: int) -> None:
        """Ask the rank to continue up to step `before` and to leave before it."""
        self._rows[local_rank * _ROW + _REQUEST] = _STEP_OFFSET + before


class Heartbeat:
    """One rank's heartbeat, as the rank writes it.

    A rank's own time is that of its steps by `clock` plus the wall time between steps: in a collective every rank waits
    for the slowest one, so that the step time does not show which rank is slow.
    """

    def __init__(self, row: memoryview) -> None:
        """`row`: the rank's integers, shared with its agent."""
        self._row = row
        self._step_end_ns = 0
        """Wall clock at the end of the last step; 0 if the time since then is not the rank's own."""
        self.clock: OwnClock = CpuClock()
        """Measures the own time of a step; set it before the first step, for ranks on a device."""

    def phase(self, phase: Phase) -> None:
        """Set the current phase; the time until the next step does not count as the rank's own time."""
        self._row[_PHASE] = PHASES.index(phase)
        self._step_end_ns = 0
        self._count_update()

    def begin(self, step: int, fresh: bool = False) -> None:
        """Begin a step. `fresh`: the rank comes from a barrier, so that the time before the step is not its own."""
        if self._step_end_ns and not fresh:
            self._row[_OWN] += time.perf_counter_ns() - self._step_end_ns
        self._row[_BEGUN] = step
        self.clock.begin()
        self._count_update()

    def must_leave_before(self, step: int) -> bool:
        """Whether the rank must save and leave before `step`. Call before each step.

        Blocks while the agent's request is to hold, until the step before which all ranks leave is known. Raises
        `EnvironmentFailed` if the agent's lease has run out.
        """
        row = self._row
        self._check_lease()
        row[_BEGUN] = step  # set before the check: a rank that is not held counts as having begun
        if not row[_REQUEST]:
            return False
        row[_HELD] = 1
        self._count_update()
        while row[_REQUEST] == _HOLD:
            time.sleep(_WAIT_S)
            self._check_lease()
        row[_HELD] = 0
        return step >= row[_REQUEST] - _STEP_OFFSET

    def end(self) -> None:
        """End a step: count it, and add the own time that is known by now."""
        self._row[_OWN] += self.clock.end()
        self._row[_DONE] += 1
        self._row[_PHASE] = PHASES.index("stepping")
        self._step_end_ns = time.perf_counter_ns()
        self._count_update()

    def steps(self) -> tuple[int, int]:
        """Numbers of steps that have begun and that have ended."""
        return self._row[_BEGUN] + 1, self._row[_DONE]

    def _check_lease(self) -> None:
        """Raise `EnvironmentFailed` if the agent's lease has run out: another agent may have started this rank."""
        if 0 < self._row[_LEASE] < time.monotonic_ns():
            raise EnvironmentFailed(
                "the agent of this node has lost the supervisor, which may have replaced this rank."
            )

    def _count_update(self) -> None:
        self._row[_AT] = epoch.now_ns()
        self._row[_COUNT] += 1


_own_heartbeat = [HeartbeatBoard(1).heartbeat(0)]
"""The heartbeat of this process, as the only element."""


def own_heartbeat() -> Heartbeat:
    """The heartbeat of this process, which nothing reads unless an agent forked the process."""
    return _own_heartbeat[0]


def set_own_heartbeat(heartbeat: Heartbeat) -> None:
    """Make `heartbeat` the heartbeat of this process."""
    _own_heartbeat[0] = heartbeat
