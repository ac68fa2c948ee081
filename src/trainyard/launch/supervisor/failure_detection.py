"""What a supervisor concludes from what the agents say, and what it has them do. No process, store or clock in here.

It is a state machine: `State` says what each state waits for and which states follow it, and `HANDLERS` which method
of `Supervision` is called in it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from trainyard.launch.launch_spec import LEFT, Spec
from trainyard.launch.supervisor import find_cause
from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.launch.supervisor.failure_report import Failure
from trainyard.launch.supervisor.messages import AgentPlan, AgentReport, Member, RankReport

SILENT_S = 8.0
"""An agent that says nothing new for so long is lost; it speaks twenty times a second."""
GIVE_UP_S = 60.0
"""How much longer than for all nodes it waits for enough of them."""
SETTLE_S = 0.3
TWICE_S = 1.0
TOGETHER_S = 0.5
STACKS_S, STACKS_MOST_S = 0.7, 6.0
"""How long ranks may take to write their stacks: at least, and if some are missing or still grow."""
STOP_S = 10.0
LONGER = {"starting": 5.0, "stepping": 1.0, "saving": 5.0, "finishing": 15.0}
"""How many times `hang_s` a rank may take where it does something else than steps."""


class State(Enum):
    """What a supervision waits for. From every state, `STOP` follows if the job is over or cannot continue."""

    GATHER = "gather"
    """As many nodes as the job can run on; then `RUN`."""
    RUN = "run"
    """The end of all ranks. `SETTLE`: a rank or an agent failed. `STACKS`: no rank moves. `LEAVE`: the job was asked to
    end, or more nodes are there."""
    LEAVE = "leave"
    """The ranks save and leave; then `STOP`. `SETTLE` and `STACKS` as in `RUN`."""
    SETTLE = "settle"
    """Reports from all agents after a failure, since the first to fail may not be the first to be reported; then
    `STOP`. `RUN` or `LEAVE`, whichever it was before, if the report was only late."""
    STACKS = "stacks"
    """The ranks write their stacks; then `STOP`."""
    STOP = "stop"
    """No rank of the generation is left; then `GATHER`, unless the job is over. `STOP` again if it was asked to end in
    the meantime."""


class Now(NamedTuple):
    """`seconds` of a clock that never jumps, and ns since the epoch."""

    seconds: float
    epoch: int


class _Cause(NamedTuple):
    """A failure and its moment, in ns since the epoch; the node if no single rank is to blame."""

    at: int
    failure: Failure
    node: int = -1


class Heard(NamedTuple):
    """The last report of an agent, and when it came. `dead`: the agent has ended since."""

    when: Now
    report: AgentReport
    dead: bool = False


class Supervision:
    """`look` is called again and again; what it wants done stands in `plan`, what it has to tell in `events`.

    `state`: the current state. `result`: None until the job is over and no rank is left: 0, 4 (see `failure`) or
    `LEFT`, when it was asked to leave. `lost`: nodes whose agents, should they still run, are to be killed. `port`:
    gives each generation a store of its own, so that no rank finds what the ranks of another one left there. `stacks`:
    the stack of each rank, as it wrote it. `attempts`: how many there were before this supervisor's.
    """

    def __init__(
        self,
        spec: Spec,
        now: Now,
        port: Callable[[], int],
        stacks: Callable[[], Mapping[int, str]],
        attempts: int = 0,
    ) -> None:
        self.spec = spec
        self.plan = AgentPlan(generation=attempts - 1)
        self.events = [JobEvent(what="started", at=now.epoch)]
        self.result: int | None = None
        self.failure: Failure | None = None
        self.lost: set[int] = set()
        self.restarts = 0
        self._port, self._read_stacks = port, stacks
        self.state = State.GATHER
        self._since, self._until = now.seconds, now.seconds + spec.gather_s
        self._heard: dict[int, Heard] = {}
        self._last: dict[str, Now] = {}
        self._moved: dict[int, tuple[int, float]] = {}
        self._slowness = find_cause.Slowness()
        self._ticks: dict[int, int] = {}
        self._alone = -1
        self._stacks_read: Mapping[int, str] = {}
        self._complete_at = 0.0
        self._asked = ""
        self._ending: tuple[int, Failure | None] | None = None

    # What is there

    def hear(self, now: Now, reports: Mapping[int, AgentReport]) -> None:
        """Takes the last report of each agent. A second agent of a node is not listened to while the first speaks."""
        for node, report in reports.items():
            known = self._heard.get(node)
            other = known is not None and known.report.life != report.life
            if known and other and not known.dead and now.seconds - known.when.seconds < TWICE_S:
                continue
            if known is None or (known.report.life, known.report.beat) != (report.life, report.beat):
                self._heard[node] = Heard(now, report)
                self._last[report.life] = now

    def gone(self, node: int) -> None:
        """The agent of this node has ended: the supervisor started it, so that this is known at once."""
        if node in self._heard:
            self._heard[node] = self._heard[node]._replace(dead=True)

    def _live(self, now: Now) -> dict[int, AgentReport]:
        return {
            node: heard.report
            for node, heard in sorted(self._heard.items())
            if not heard.dead and now.seconds - heard.when.seconds < SILENT_S
        }

    def _missing(self, now: Now) -> list[int]:
        """Members that are lost, or whose agent is another one than was started with."""
        live = self._live(now)
        return [m.node for m in self.plan.members if m.node not in live or live[m.node].life != m.life]

    def ranks(self) -> list[RankReport]:
        """All ranks of the generation that were spoken of; those of a lost node as they were seen last."""
        members = {member.node: member.life for member in self.plan.members}
        return [
            rank
            for node, (_, report, _) in self._heard.items()
            if report.generation == self.plan.generation and members.get(node) == report.life
            for rank in report.ranks
        ]

    def _node(self, rank: int) -> int:
        index = rank // self.spec.ranks_each
        return self.plan.members[index].node if 0 <= index < len(self.plan.members) else -1

    # What happens

    def look(self, now: Now) -> None:
        """One turn; at most one change of state."""
        if self.result is None:
            HANDLERS[self.state](self, now)

    def notice(self, now: Now) -> None:
        """The job is asked to save and leave; at once while there is nothing to save."""
        self._asked = "notice"
        if self.state is State.GATHER:
            self._end(now, LEFT, self._preempted(now))

    def abort(self, now: Now, reason: str) -> None:
        """The job cannot go on, whatever its ranks do."""
        if self._ending is None:
            self._end(now, 4, Failure(rank=-1, pid=0, exit_code=4, when=now.epoch / 1e9, last_words=reason))

    def _gather(self, now: Now) -> None:
        live = self._live(now)
        size, sizes = self.spec.size(len(live)), self.spec.sizes or (self.spec.nodes,)
        if size == max(sizes) or (size and now.seconds >= self._until):
            self._launch(now, [Member(node, report.life) for node, report in live.items()][:size])
        elif now.seconds >= self._until + GIVE_UP_S:
            self.abort(now, f"{len(live)} of {self.spec.nodes} nodes are there, but the job needs {min(sizes)}")

    def _launch(self, now: Now, members: list[Member]) -> None:
        generation = self.plan.generation + 1
        before = {member.node for member in self.plan.members} or set(range(self.spec.nodes))
        says = _moved(before, {member.node for member in members})
        self._publish("run", generation=generation, members=tuple(members), port=self._port())
        self.events.append(JobEvent(what="launched", at=now.epoch, attempt=generation, nodes=len(members), says=says))
        self.state, self._moved, self._slowness, self._asked = State.RUN, {}, find_cause.Slowness(), ""

    def _run(self, now: Now) -> None:
        ranks = self.ranks()
        self._watch(now, ranks)
        if self.state is not State.RUN:
            return
        if self._asked:
            if self._all_reported(ranks):
                self._ask_to_leave()
            return
        for rank, times in self._slowness.look([rank for rank in ranks if rank.exit_code is None]):
            says = f"rank {rank} takes {times:.1f} times as long as its peers for its own part of a step"
            self._record(now, "slow", now.epoch, rank, says)
        if self._can_grow(now, ranks):
            self._asked = "grow"
            self._ask_to_leave()

    def _leave(self, now: Now) -> None:
        ranks = self.ranks()
        self._watch(now, ranks)
        if self.state is not State.LEAVE or self.plan.before >= 0 or not self._all_asked():
            return
        if any(rank.begun < 0 for rank in ranks):
            # It still starts, which may take long; and no step has ended, since a step takes all ranks.
            self._end(now, LEFT, self._preempted(now))
        else:
            self._publish("leave", before=max((rank.begun + (not rank.held) for rank in ranks), default=0))

    def _all_reported(self, ranks: list[RankReport]) -> bool:
        """Whether all ranks of the generation have been reported."""
        return len(ranks) == len(self.plan.members) * self.spec.ranks_each

    def _all_asked(self) -> bool:
        """Whether each member has held its ranks, and has looked at them after that."""
        return all(self._heard[member.node].report.serial >= self.plan.serial for member in self.plan.members)

    def _watch(self, now: Now, ranks: list[RankReport]) -> None:
        """Whether something failed, all has ended, or nothing moves."""
        self._see_movement(now, ranks)
        if self._failed(ranks) or self._missing(now):
            self.state, self._since, self._until = State.SETTLE, now.seconds, now.seconds + SETTLE_S
        elif self._all_reported(ranks) and all(rank.exit_code is not None for rank in ranks):
            self._all_ended(now, ranks)
        elif still := self._still(now, ranks):
            self._ticks = {rank.rank: rank.ticks for rank in ranks}
            self._alone = still[0] if len(still) == 1 < len(ranks) else -1
            self._publish("stacks")
            self.state, self._until = State.STACKS, now.seconds + STACKS_S

    def _failed(self, ranks: list[RankReport]) -> list[RankReport]:
        """A rank without a heartbeat cannot save, and is killed when it is asked to leave: that is as it should be."""
        failed = find_cause.failed(ranks)
        return [rank for rank in failed if not self._asked or rank.count or rank.exit_code != -signal.SIGKILL]

    def _all_ended(self, now: Now, ranks: list[RankReport]) -> None:
        if all(rank.exit_code == 0 for rank in ranks):
            self._end(now, 0, None)
        elif self._asked == "grow":
            self._stop_ranks(now)
        else:
            self._end(now, LEFT, self._preempted(now))

    def _preempted(self, now: Now) -> Failure:
        ranks = self.ranks()
        step = max((rank.begun for rank in ranks), default=-1)  # it stands before this one, counted from 0
        if step < 0:
            says = "asked to leave, it was ended before it took a step"
        elif any(rank.exit_code != LEFT for rank in ranks):
            says = "asked to leave, it was ended"
        else:
            says = f"asked to leave, it left after step {step}" if step else "asked to leave, it left before any step"
        self._record(now, "preempted", now.epoch, -1, says)
        return Failure(rank=-1, pid=0, exit_code=LEFT, when=now.epoch / 1e9, last_words=says, kind="preempted")

    def _see_movement(self, now: Now, ranks: list[RankReport]) -> None:
        for rank in ranks:
            known = self._moved.get(rank.rank)
            if known is None or known[0] != rank.count:
                self._moved[rank.rank] = (rank.count, now.seconds)

    def _still(self, now: Now, ranks: list[RankReport]) -> list[int]:
        """Ranks that have not moved for longer than the most patient of those that run may take. In lockstep they come
        to that within moments of each other: none are named before the last of them must have."""
        running = [rank for rank in ranks if rank.exit_code is None]
        may = self.spec.hang_s * max((LONGER[rank.phase] for rank in running), default=0.0)
        times = {rank.rank: now.seconds - self._moved[rank.rank][1] for rank in running}
        if max(times.values(), default=0.0) <= may + TOGETHER_S:
            return []
        return [rank for rank, seconds in times.items() if seconds > may]

    def _can_grow(self, now: Now, ranks: list[RankReport]) -> bool:
        """A node more is there, and every rank has trained since it was started and still does."""
        steady = ranks and all(rank.phase == "stepping" and rank.exit_code is None and rank.done for rank in ranks)
        return bool(steady and self.spec.size(len(self._live(now))) > len(self.plan.members))

    def _ask_to_leave(self) -> None:
        self._publish("leave", before=-1)
        self.state = State.LEAVE

    def _settle(self, now: Now) -> None:
        """Until all have spoken since: the peers of a failed rank fail too, and may be heard of before it."""
        ranks, missing = self.ranks(), self._missing(now)
        failed = self._failed(ranks)
        stopped = find_cause.stopped(ranks)
        late = any(self._heard[member.node].when.seconds <= self._since for member in self.plan.members)
        if now.seconds < self._until or (late and not missing and not stopped):
            return
        here = [rank for rank in (*find_cause.killed(failed), *stopped) if self._node(rank.rank) not in missing]
        causes = [self._agent_died(now, node) for node in missing]
        causes += [
            self._hung(now, rank.rank, find_cause.STOPPED_EVIDENCE) if rank.exit_code is None else self._died(now, rank)
            for rank in here
        ]
        if not causes and failed:
            causes = [self._died(now, find_cause.first_to_die(failed))]
        if causes:
            self._fault(now, causes)
        else:
            self.state = State.LEAVE if self.plan.do == "leave" else State.RUN  # the late agent has reported

    def _stacks(self, now: Now) -> None:
        """The ranks have had time to write where they stand."""
        if now.seconds < self._until:
            return
        running = [rank for rank in self.ranks() if rank.exit_code is None]
        stacks, missing = self._read_stacks(), self._missing(now)
        if stacks != self._stacks_read:  # the main thread's stack is written last
            self._stacks_read, self._complete_at = stacks, now.seconds + SETTLE_S
        incomplete = not all(stacks.get(rank.rank) for rank in running) or now.seconds < self._complete_at
        waits = incomplete and not missing and not find_cause.stopped(running)
        if waits and now.seconds < self._until + STACKS_MOST_S - STACKS_S:
            return
        if missing:  # an agent that is another one now knows nothing of the ranks
            causes = [self._agent_died(now, node) for node in missing]
        else:
            if self._alone >= 0 and not find_cause.waits_for_data(stacks.get(self._alone, "")):
                hung = [(self._alone, "it has stopped moving, its peers have not")]
            else:
                hung = find_cause.hung(running, self._ticks, stacks)
            causes = [self._hung(now, rank, why) for rank, why in hung]
        self._fault(now, causes)

    def _died(self, now: Now, rank: RankReport) -> _Cause:
        failure = Failure(
            rank=rank.rank,
            pid=rank.pid,
            exit_code=rank.exit_code or 0,
            when=now.epoch / 1e9,
            last_words=rank.why,
            shortage=rank.shortage,
        )
        return _Cause(rank.told or rank.ended, failure)

    def _hung(self, now: Now, rank: int, why: str) -> _Cause:
        reports = [report for report in self.ranks() if report.rank == rank]
        at = max(report.at for report in reports or self.ranks())
        pid = reports[0].pid if reports else 0
        failure = Failure(rank=rank, pid=pid, exit_code=4, when=now.epoch / 1e9, last_words=why, kind="hang")
        return _Cause(at, failure)

    def _agent_died(self, now: Now, node: int) -> _Cause:
        heard = self._heard[node]
        (life,) = (member.life for member in self.plan.members if member.node == node)
        says = f"node {node} is gone, and its ranks with it"
        if heard.report.life == life and not heard.dead:  # of one that is dead, another is on its way
            self.lost.add(node)
            says += f": its agent has been silent for {SILENT_S:g} s"
        failure = Failure(rank=-1, pid=0, exit_code=4, when=now.epoch / 1e9, last_words=says, kind="agent_death")
        return _Cause(self._last[life].epoch, failure, node)

    def _fault(self, now: Now, causes: list[_Cause]) -> None:
        """Record each cause as a fault of its own; together they take one restart."""
        causes = sorted(causes, key=lambda cause: cause.at)
        for at, failure, node in causes:
            self._record(now, failure.kind, at, failure.rank, failure.says, node)
        self.restarts += 1
        if self.restarts > self.spec.restarts:
            first, *others = (cause.failure for cause in causes)
            self._ending = 4, replace(first, others=tuple(others))
        self._stop_ranks(now)

    def _record(self, now: Now, kind: str, at: int, rank: int, says: str, node: int = -1) -> None:
        step = max((report.begun - 1 for report in self.ranks() if report.begun >= 0), default=-1)
        event = JobEvent(
            what="fault",
            kind=kind,
            at=min(at, now.epoch),
            noticed=now.epoch,
            attempt=max(0, self.plan.generation),
            rank=rank,
            node=self._node(rank) if node < 0 else node,
            step=step,
            says=says,
        )
        self.events.append(event)

    def _end(self, now: Now, code: int, failure: Failure | None) -> None:
        self._ending = code, failure
        self._stop_ranks(now)

    def _stop_ranks(self, now: Now) -> None:
        self._publish("stop")
        self.state, self._until = State.STOP, now.seconds + STOP_S

    def _stop(self, now: Now) -> None:
        """Until no rank of the generation is left, so that it cannot touch what the next one writes."""
        there = {
            node: report
            for node, report in self._live(now).items()
            if report.generation == self.plan.generation and any(rank.exit_code is None for rank in report.ranks)
        }
        if there and now.seconds < self._until:
            return
        self.lost |= there.keys()
        if self._ending:
            self.result, self.failure = self._ending
            self._publish("end")
            self.events.append(JobEvent(what="ended", at=now.epoch, attempt=max(0, self.plan.generation)))
        elif self._asked == "notice":
            self._end(now, LEFT, self._preempted(now))
        else:
            # Without waiting where it can go on with the nodes that are there; one more is taken in later.
            self.state, self._until = State.GATHER, now.seconds
            if not self.spec.size(len(self._live(now))):
                self._until += self.spec.gather_s

    def _publish(self, do: Literal["run", "leave", "stacks", "stop", "end"], **changed: Any) -> None:
        self.plan = replace(self.plan, serial=self.plan.serial + 1, do=do, **changed)


HANDLERS: Mapping[State, Callable[[Supervision, Now], None]] = {
    State.GATHER: Supervision._gather,
    State.RUN: Supervision._run,
    State.LEAVE: Supervision._leave,
    State.SETTLE: Supervision._settle,
    State.STACKS: Supervision._stacks,
    State.STOP: Supervision._stop,
}
"""What `Supervision.look` calls in each state."""


def _moved(before: set[int], after: set[int]) -> str:
    """`node 1 joins`, `without nodes 2, 3`; empty where they are the same."""

    def named(nodes: set[int]) -> str:
        return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, sorted(nodes)))}"

    joins = [f"{named(after - before)} join{'s' * (len(after - before) == 1)}"] if after - before else []
    return ", ".join([*joins, *([f"without {named(before - after)}"] if before - after else [])])
