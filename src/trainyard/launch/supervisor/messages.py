"""What supervisor and agents tell each other through the supervisor's store: whole states, never changes of them.

Each says all it knows under a key of its own, over and over: nothing is lost when a word is, or comes twice or late.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.launch.agents.rank_progress import Phase

PLAN = "plan"


def key(node: int) -> str:
    """Where the agent of a node speaks."""
    return f"agent/{node}"


class RankReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank as its agent sees it; `HeartbeatReading` explains `count` to `held`.

    `state`: the letter of proc(5); T is stopped. `ticks`: processor time used. `exit_code`: None while it runs,
    negative for a signal. `ended`, `told`: ns since the epoch at which its end was seen, and its failure told by
    itself (0: it could not); `why`: its last words. `shortage`: what the kernel killed it for, if that is counted.
    """

    rank: int
    pid: int
    count: int = 0
    begun: int = -1
    done: int = 0
    phase: Phase = "starting"
    own_ns: int = 0
    at: int = 0
    held: bool = False
    state: str = ""
    ticks: int = 0
    exit_code: int | None = None
    ended: int = 0
    told: int = 0
    why: str = ""
    shortage: str = ""


class AgentReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent. `life`: drawn by chance when it started; `beat` grows. `generation`: whose `ranks` these are, if any.
    `serial`: of the last plan that was acted on before the ranks were looked at."""

    node: int
    life: str
    beat: int
    pid: int = 0
    generation: int = -1
    serial: int = -1
    ranks: tuple[RankReport, ...] = ()


class Member(msgspec.Struct, frozen=True):
    node: int
    life: str


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all agents shall do now. `serial` grows with every plan.

    `wait`: nothing yet. `run`: the members, in this order, run the generation; its ranks meet at `port`. `leave`: they
    hold their ranks, and have them leave before step `before` once it is known (heartbeat.py); a rank without a
    heartbeat is killed. `stacks`: they have their ranks write their stacks. `stop`: they kill their ranks. `end`: the
    job is over. An agent that is not a member runs nothing.
    """

    serial: int = 0
    do: Literal["wait", "run", "leave", "stacks", "stop", "end"] = "wait"
    generation: int = -1
    members: tuple[Member, ...] = ()
    port: int = 0
    before: int = -1
