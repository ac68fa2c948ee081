"""Messages between supervisor and agents, through the supervisor's store: complete states, never changes.

Each side repeats its full state under its own key, so that a lost, duplicate or late message does no harm.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.launch.agents.rank_progress import Phase
from trainyard.launch.launch_spec import Spec

PLAN = "plan"
SERIAL = "serial"
"""The key of the serial of the current plan, which agents read often; they read the plan, which names all members, only
when it has changed."""
START = "start"
"""The key of the `JobStart`."""


def key(node: int) -> str:
    """The key of a node's agent in the store."""
    return f"agent/{node}"


class RankReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a rank as its agent sees it; `HeartbeatReading` documents `count` to `held`.

    `state`: process state letter of proc(5); T is stopped. `ticks`: CPU time used. `exit_code`: None while it runs,
    negative for a signal. `ended_ns`: when its end was seen, in ns since the epoch. `reported_ns`: when the rank
    reported its own failure, in ns since the epoch; 0 if it could not. `reason`: that report, else the end of its
    stderr. `shortage`: the resource that the kernel killed it for, if known. `stack`: the stack of its main thread as
    faulthandler writes it, after a plan that asks for stacks. `recorded_ns`: when the rank wrote the flight record that
    its agent published last (`hang_records.py`), in ns since the epoch; 0 if none.
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
    ended_ns: int = 0
    reported_ns: int = 0
    reason: str = ""
    shortage: str = ""
    stack: str = ""
    recorded_ns: int = 0


class AgentReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of an agent. `life`: random id drawn at its start. `beat`: grows with every report. `generation`: that
    of `ranks`, if any. `serial`: that of the last plan the agent acted on before it looked at the ranks. `host`: name
    of its host. `notice`: whether its host was asked to leave. `problem`: why this host cannot take part in the job.
    `device_host`: as in `Member`."""

    node: int
    life: str
    beat: int
    pid: int = 0
    generation: int = -1
    serial: int = -1
    ranks: tuple[RankReport, ...] = ()
    host: str = ""
    notice: bool = False
    problem: str = ""
    device_host: str = ""


class JobStart(msgspec.Struct, frozen=True, kw_only=True):
    """The data with which an agent on another host starts. `run`: id of the run. `files`: name of a file in the run's
    folder -> its contents."""

    spec: Spec
    run: str
    files: dict[str, str]


class Member(msgspec.Struct, frozen=True):
    """An agent that takes part in a generation: its node, and the `life` of its reports. `device_host`: the same text
    for all agents that see the same devices (`shared_devices.device_host`); empty if unknown."""

    node: int
    life: str
    device_host: str = ""


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The plan for all agents. `serial` grows with every plan.

    By `do`: "wait": nothing yet. "run": the members, in this order, run the generation; its ranks meet at `port`.
    "leave": hold the ranks, and let them leave before step `before` once it is known (rank_progress.py); kill a rank
    without a heartbeat. "stacks": have the ranks write their stacks and flight records. "stop": kill the ranks. "end":
    the job is over, with `exit_code`. An agent that is not a member runs nothing.
    """

    serial: int = 0
    do: Literal["wait", "run", "leave", "stacks", "stop", "end"] = "wait"
    generation: int = -1
    members: tuple[Member, ...] = ()
    port: int = 0
    before: int = -1
    exit_code: int = 0
