"""What a rank shows of its progress, in memory it shares with the agent that forked it: a microsecond a step.

A row of whole numbers a rank. The agent reads it, whatever the rank is doing, and writes the last one: what the rank is
asked. All ranks must leave before the same step, and no collective is spent on that: asked to hold, each stops where
its next step would begin. Those that have begun a step may need the others to end it; so the supervisor names the
first step that none has begun, when it has seen all, and each goes on until there.
"""

from __future__ import annotations

import mmap
import time
from typing import Literal, NamedTuple, get_args

from trainyard.launch import epoch

Phase = Literal["starting", "stepping", "saving", "finishing"]
PHASES: tuple[Phase, ...] = get_args(Phase)
_ROW = 8
_COUNT, _BEGUN, _DONE, _PHASE, _OWN, _AT, _HELD, _ASKED = range(8)
_HOLD, _BEFORE = 1, 2
_WAIT_S = 0.002


class HeartbeatReading(NamedTuple):
    """`count` grows with every sign of life. `begun`: the last step that was begun, or is about to be where the rank is
    `held` before it; -1 before the first; `done`: how many have ended. `own_ns`: what those took the rank itself,
    without waiting for peers. `at`: ns since the epoch of the last sign."""

    count: int
    begun: int
    done: int
    phase: Phase
    own_ns: int
    at: int
    held: bool


class HeartbeatBoard:
    """The rows of one node's ranks; made by the agent before it forks."""

    def __init__(self, ranks: int) -> None:
        self._rows = memoryview(mmap.mmap(-1, ranks * _ROW * 8)).cast("q")

    def heartbeat(self, local_rank: int) -> Heartbeat:
        """The row of a rank, as at its start."""
        row = self._rows[local_rank * _ROW : (local_rank + 1) * _ROW]
        row[:] = memoryview(bytes(_ROW * 8)).cast("q")
        row[_BEGUN] = -1
        row[_AT] = epoch.now_ns()
        return Heartbeat(row)

    def see(self, local_rank: int) -> HeartbeatReading:
        row = self._rows[local_rank * _ROW : (local_rank + 1) * _ROW]
        return HeartbeatReading(
            row[_COUNT], row[_BEGUN], row[_DONE], PHASES[row[_PHASE]], row[_OWN], row[_AT], bool(row[_HELD])
        )

    def hold(self, local_rank: int) -> None:
        """Asks the rank to stop before its next step."""
        self._rows[local_rank * _ROW + _ASKED] = _HOLD

    def leave(self, local_rank: int, before: int) -> None:
        """Asks it to go on up to this step, and to leave before it."""
        self._rows[local_rank * _ROW + _ASKED] = _BEFORE + before


class Heartbeat:
    """One rank's row, as the rank writes it.

    A rank's own time is the processor time of its steps, and all that passes between one step and the next: in a
    collective every rank waits for the slowest, so that how long a step lasts says nothing of who made it long.
    """

    def __init__(self, row: memoryview) -> None:
        self._row = row
        self._ended = 0
        self._burnt = 0

    def phase(self, phase: Phase) -> None:
        """What the rank does from now on; what passes until the next step is not counted as its own time."""
        self._row[_PHASE] = PHASES.index(phase)
        self._ended = 0
        self._sign()

    def begin(self, step: int, fresh: bool = False) -> None:
        """`fresh`: the rank came from a meeting with its peers, so that the time before the step was not its own."""
        if self._ended and not fresh:
            self._row[_OWN] += time.perf_counter_ns() - self._ended
        self._row[_BEGUN] = step
        self._burnt = time.process_time_ns()
        self._sign()

    def leaves(self, step: int) -> bool:
        """Whether the rank is to save and leave before `step`; returns when that is known. Asked before each step."""
        row = self._row
        row[_BEGUN] = step  # before looking: who is not held is taken to have begun
        if not row[_ASKED]:
            return False
        row[_HELD] = 1
        self._sign()
        while row[_ASKED] == _HOLD:
            time.sleep(_WAIT_S)
        row[_HELD] = 0
        return step >= row[_ASKED] - _BEFORE

    def end(self) -> None:
        self._row[_OWN] += time.process_time_ns() - self._burnt
        self._row[_DONE] += 1
        self._row[_PHASE] = PHASES.index("stepping")
        self._ended = time.perf_counter_ns()
        self._sign()

    def _sign(self) -> None:
        self._row[_AT] = epoch.now_ns()
        self._row[_COUNT] += 1


_own = [HeartbeatBoard(1).heartbeat(0)]


def own() -> Heartbeat:
    """The heartbeat of this process; it is not read if the process was not forked by an agent."""
    return _own[0]


def take(heartbeat: Heartbeat) -> None:
    """From now on `heartbeat` is the heartbeat of this process."""
    _own[0] = heartbeat
