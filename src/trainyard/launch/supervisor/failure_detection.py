"""Failure detection: the supervisor's conclusions from the agents' reports, and its plans. No process, store or clock.

It is a state machine: `State` documents the condition that each state waits for and the states that follow it, and
`HANDLERS` names the method of `Supervision` that is called in it. `supervisor_main.py` calls `advance`, and passes
plans and reports on.

A generation is one launch of all ranks on the member nodes; after a fault the next one is launched. Ranks write
heartbeats, which their node's agent reports. Arguments `now` are the current time on two clocks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from trainyard.hangs.flight_record import FlightRecord
from trainyard.launch.launch_spec import FAILED, LEFT, ROLLED_BACK, STOPPED, Spec
from trainyard.launch.supervisor import find_cause, hang_records
from trainyard.launch.supervisor.agent_reports import SILENT_S, AgentReports, Now
from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.launch.supervisor.failure_report import Failure
from trainyard.launch.supervisor.fault_causes import Cause, agent_death, rank_death, rank_hang, rank_stop
from trainyard.launch.supervisor.hang_investigation import HangInvestigation, HungRank
from trainyard.launch.supervisor.messages import AgentPlan, Member, RankReport
from trainyard.launch.supervisor.progress_watch import ProgressWatch
from trainyard.units import counted, show_ranges

GIVE_UP_S = 60.0
"""Additional time to wait for the minimum number of nodes, after the wait for all of them."""
SETTLE_S = 0.3
"""Time for other reports to arrive after a failure was seen."""
STOP_S = 10.0
"""Time for the ranks of a generation to end; nodes that still run some are then lost."""


class State(Enum):
    """States, with what each one waits for. From every state, `STOP` follows if the job is over or cannot continue."""

    GATHER = "gather"
    """Waits for as many nodes as the job can run on; then `RUN`."""
    RUN = "run"
    """Waits for the end of all ranks. `SETTLE` if a rank or an agent failed, `STACKS` if no rank makes progress,
    `LEAVE` if the job was asked to leave or more nodes are available."""
    LEAVE = "leave"
    """Waits for the ranks to save and leave; then `STOP`. `SETTLE` and `STACKS` as in `RUN`."""
    SETTLE = "settle"
    """Waits for reports from all agents after a failure, since the first to fail may not be the first to be reported;
    then `STOP`, or back to `RUN` or `LEAVE` if a report was only late."""
    STACKS = "stacks"
    """Waits for the ranks to write their stacks; then `STOP`."""
    STOP = "stop"
    """Waits until no rank of the generation is left; then `GATHER`, unless the job is over. `STOP` again if it was
    asked to leave in the meantime."""


class Supervision:
    """Supervision of a job. Pass the agents' reports to `reports` and call `advance`, repeatedly; it updates `plan` for
    the agents and appends to `events`.

    `state`: the current state. `result`: exit code, None until the job is over and no rank is left: 0, 4 (see
    `failure`) or `LEFT`, if it was asked to leave. `lost`: nodes whose agents must be killed if they still run. `port`:
    opens a store for a generation and returns its port, so that no rank reads keys of an earlier generation.
    `attempts`: number of attempts before this supervisor. `records`: returns the flight records by rank that the ranks
    of a generation published; None if ranks write none.
    """

    def __init__(
        self,
        spec: Spec,
        now: Now,
        port: Callable[[], int],
        attempts: int = 0,
        records: Callable[[int, Sequence[RankReport]], Mapping[int, FlightRecord]] | None = None,
    ) -> None:
        """Begin in the state `GATHER`: wait `spec.gather_s` seconds for all nodes. The class describes the
        arguments."""
        self.spec = spec
        self.plan = AgentPlan(generation=attempts - 1)
        self.events = [JobEvent(type="started", at=now.epoch)]
        self.result: int | None = None
        self.failure: Failure | None = None
        self.lost: set[int] = set()
        self.restarts = 0
        """Number of restarts after faults so far."""
        self._open_port = port
        self._read_records = records
        self.state = State.GATHER
        self._settle_began_s, self._deadline_s = now.seconds, now.seconds + spec.gather_s
        """Monotonic times: the change to `SETTLE`; the end of the current state's wait."""
        self.reports = AgentReports()
        self._progress = ProgressWatch()
        self._slowness = find_cause.Slowness()
        self._investigation: HangInvestigation
        """That of the current hang, set on the change to `STACKS`."""
        self._asked = ""
        """Why the ranks are asked to leave: "notice", "grow" (to more nodes), or empty if they are not."""
        self._ending: tuple[int, Failure | None] | None = None
        """Exit code and failure with which the job ends once its ranks have stopped; None if it goes on."""

    def _missing(self, now: Now) -> list[int]:
        """Members that are lost, or whose agent was replaced since the launch."""
        live = self.reports.live(now)
        return [m.node for m in self.plan.members if m.node not in live or live[m.node].life != m.life]

    def ranks(self) -> list[RankReport]:
        """All ranks of the generation that were reported; for a lost node, as in its last report."""
        return self.reports.ranks(self.plan)

    def _node(self, rank: int) -> int:
        """The node of a rank of the current generation; -1 for rank -1."""
        members = [member.node for member in self.plan.members for _ in range(self.spec.node_ranks(member.node))]
        return members[rank] if 0 <= rank < len(members) else -1

    # Events and state transitions

    def advance(self, now: Now) -> None:
        """Handle the current state once; at most one change of state."""
        if self.result is None:
            HANDLERS[self.state](self, now)

    def notice(self, now: Now) -> None:
        """Ask the job to save and leave; it leaves at once if nothing has been launched."""
        self._asked = "notice"
        if self.state is State.GATHER:
            self._end(now, LEFT, self._preempted(now))

    def abort(self, now: Now, reason: str) -> None:
        """End the job as failed, whatever its ranks do."""
        if self._ending is None:
            self._end(now, FAILED, Failure(rank=-1, pid=0, exit_code=FAILED, when=now.epoch / 1e9, last_words=reason))

    def _gather(self, now: Now) -> None:
        """Launch the ranks as soon as as many nodes are available as the job can use, or after the wait on as many as
        there are; abort the job after `GIVE_UP_S` more seconds without enough nodes."""
        live = self.reports.live(now)
        size, sizes = self.spec.size(len(live)), self.spec.sizes or (self.spec.nodes,)
        if size == max(sizes) or (size and now.seconds >= self._deadline_s):
            members = [
                Member(node=node, life=report.life, device_host=report.device_host) for node, report in live.items()
            ]
            self._launch(now, members[:size])
        elif now.seconds >= self._deadline_s + GIVE_UP_S:
            absent = sorted(set(range(self.spec.nodes)) - set(live))
            nodes = f"{'node' if len(absent) == 1 else 'nodes'} {show_ranges(absent)}"
            available = f"{len(live)} of {counted(self.spec.nodes, 'node')}"
            self.abort(now, f"{available} are available, but the job needs {min(sizes)}; missing: {nodes}")

    def _launch(self, now: Now, members: list[Member]) -> None:
        """Plan a new generation of ranks on `members`, with a store of its own, and log the change of nodes."""
        generation = self.plan.generation + 1
        earlier_nodes = {member.node for member in self.plan.members} or set(range(self.spec.nodes))
        change = _describe_change(earlier_nodes, {member.node for member in members})
        self._publish("run", generation=generation, members=tuple(members), port=self._open_port())
        self.events.append(
            JobEvent(type="launched", at=now.epoch, attempt=generation, nodes=len(members), message=change)
        )
        self._progress, self._slowness = ProgressWatch(), find_cause.Slowness()
        self.state, self._asked = State.RUN, ""

    def _run(self, now: Now) -> None:
        """Watch the ranks; log slow ones, and ask all to leave after a notice or when more nodes are available."""
        ranks = self.ranks()
        self._watch(now, ranks)
        if self.state is not State.RUN:
            return
        if self._asked:
            if self._all_reported(ranks):
                self._ask_to_leave()
            return
        for rank, ratio in self._slowness.update([rank for rank in ranks if rank.exit_code is None]):
            message = f"rank {rank} takes {ratio:.1f} times as long as its peers for its own share of a step"
            self._record(now, "slow", now.epoch, rank, message)
        if self._can_grow(now, ranks):
            self._asked = "grow"
            self._ask_to_leave()

    def _leave(self, now: Now) -> None:
        """Watch the ranks; once all are held, publish the step before which they leave: the first that none has
        begun."""
        ranks = self.ranks()
        self._watch(now, ranks)
        if self.state is not State.LEAVE or self.plan.before >= 0 or not self._all_asked():
            return
        if any(rank.begun < 0 for rank in ranks):
            # Starting may take long, and no step has ended yet, since a step takes all ranks.
            if self._asked == "grow":
                self._stop_ranks(now)
            else:
                self._end(now, LEFT, self._preempted(now))
        else:
            self._publish("leave", before=max((rank.begun + (not rank.held) for rank in ranks), default=0))

    def _all_reported(self, ranks: list[RankReport]) -> bool:
        """Whether all ranks of the generation have been reported."""
        return len(ranks) == sum(self.spec.node_ranks(member.node) for member in self.plan.members)

    def _all_asked(self) -> bool:
        """Whether each member has held its ranks and reported them after that."""
        return all(self.reports.last[member.node].report.serial >= self.plan.serial for member in self.plan.members)

    def _watch(self, now: Now, ranks: list[RankReport]) -> None:
        """Change the state if a rank or agent failed, all ranks have ended, or none makes progress."""
        self._progress.note(now, ranks)
        if self._failed(ranks) or self._missing(now):
            self.state, self._settle_began_s, self._deadline_s = State.SETTLE, now.seconds, now.seconds + SETTLE_S
        elif self._all_reported(ranks) and all(rank.exit_code is not None for rank in ranks):
            self._all_ended(now, ranks)
        elif stalled := self._progress.stalled_ranks(now, ranks, self.spec.hang_timeout_s):
            read_records = self._read_records and partial(self._read_records, self.plan.generation)
            self._investigation = HangInvestigation(now, ranks, stalled, read_records)
            self._publish("stacks")
            self.state = State.STACKS

    def _failed(self, ranks: list[RankReport]) -> list[RankReport]:
        """The ranks that ended abnormally. A rank without a heartbeat cannot save its state, and is killed on a request
        to leave, which does not count as a failure."""
        failed = find_cause.failed_ranks(ranks)
        return [rank for rank in failed if not self._asked or rank.count or rank.exit_code != -signal.SIGKILL]

    def _all_ended(self, now: Now, ranks: list[RankReport]) -> None:
        """End the job after all `ranks` have ended, or only the generation if they left so that the job can grow, or
        ended to be launched again from the last checkpoint."""
        stopped = [rank for rank in ranks if rank.exit_code == STOPPED]
        if all(rank.exit_code == 0 for rank in ranks):
            self._end(now, 0, None)
        elif stopped:
            self._end(now, FAILED, rank_stop(now, stopped[0]))
        elif self._asked == "grow" or (not self._asked and any(rank.exit_code == ROLLED_BACK for rank in ranks)):
            self._stop_ranks(now)
        else:
            self._end(now, LEFT, self._preempted(now))

    def _preempted(self, now: Now) -> Failure:
        """Record that the job left on request, with its last step; return that as the reason of its end."""
        ranks = self.ranks()
        step = max((rank.begun for rank in ranks), default=-1)  # the next step, counted from 0
        if step < 0:
            message = "asked to leave, it was ended before its first step"
        elif any(rank.exit_code != LEFT for rank in ranks):
            message = "asked to leave, it was ended"
        else:
            message = f"asked to leave, it left {f'after step {step}' if step else 'before its first step'}"
        self._record(now, "preempted", now.epoch, -1, message)
        return Failure(rank=-1, pid=0, exit_code=LEFT, when=now.epoch / 1e9, last_words=message, kind="preempted")

    def _can_grow(self, now: Now, ranks: list[RankReport]) -> bool:
        """Whether the job can run on more nodes, and every rank has trained since its start and still does."""
        is_steady = all(rank.phase == "stepping" and rank.exit_code is None and rank.done for rank in ranks)
        is_steady = is_steady and self._all_reported(ranks)
        return is_steady and self.spec.size(len(self.reports.live(now))) > len(self.plan.members)

    def _ask_to_leave(self) -> None:
        self._publish("leave", before=-1)
        self.state = State.LEAVE

    def _settle(self, now: Now) -> None:
        """Determine the cause of a failure after the wait, once all agents have reported since its beginning. If a node
        is lost or a rank is stopped, late agents are not waited for.

        The peers of a failed rank fail too, and may be reported before it. The causes are lost agents, then killed and
        stopped ranks, and without any of these the rank that failed first. Without a failure, a late report was the
        only problem, and the job goes back to its previous state.
        """
        ranks, missing = self.ranks(), self._missing(now)
        failed = self._failed(ranks)
        stopped = find_cause.stopped_ranks(ranks)
        is_agent_late = any(
            self.reports.last[member.node].when.seconds <= self._settle_began_s for member in self.plan.members
        )
        if now.seconds < self._deadline_s or (is_agent_late and not missing and not stopped):
            return
        blamed_ranks = [
            rank for rank in (*find_cause.killed_ranks(failed), *stopped) if self._node(rank.rank) not in missing
        ]
        causes = [self._agent_died(now, node) for node in missing]
        causes += [
            rank_hang(now, HungRank(rank.rank, find_cause.STOPPED_EVIDENCE, "stopped_process"), ranks)
            if rank.exit_code is None
            else rank_death(now, rank)
            for rank in blamed_ranks
        ]
        if not causes and failed:
            cause = rank_death(now, find_cause.first_to_die(failed))
            records = self._read_records(self.plan.generation, ranks) if self._read_records is not None else {}
            verdict = hang_records.judge_hang(ranks, records)
            if verdict is not None and verdict.kind in hang_records.MISMATCHES:
                words_of_rank = f"{hang_records.describe_verdict(verdict)}\n{cause.failure.last_words}"
                cause = cause._replace(failure=replace(cause.failure, last_words=words_of_rank))
            causes = [cause]
        if causes:
            self._fault(now, causes)
        else:
            self.state = State.LEAVE if self.plan.do == "leave" else State.RUN  # a late agent has reported

    def _stacks(self, now: Now) -> None:
        """Once the ranks have had time to write their stacks, determine which of them hangs, and record the fault.

        Lost agents are the cause if there are any; then a single rank without progress, unless it waits for data.
        """
        ranks, missing = self.ranks(), self._missing(now)
        running = [rank for rank in ranks if rank.exit_code is None]
        if self._investigation.must_wait(now, running, is_node_lost=bool(missing)):
            return
        if missing:  # a replacement agent knows nothing of the ranks
            causes = [self._agent_died(now, node) for node in missing]
        else:
            causes = [rank_hang(now, hung, ranks) for hung in self._investigation.hung_ranks(ranks)]
        self._fault(now, causes)

    def _agent_died(self, now: Now, node: int) -> Cause:
        """The failure of a member node whose agent ended, was replaced or is silent, at the time of its last report.

        A silent agent is given up, and added to `lost`, so that it is killed.
        """
        last = self.reports.last[node]
        (life,) = (member.life for member in self.plan.members if member.node == node)
        message = f"node {node} is lost with its ranks"
        if last.report.life == life and not last.dead:  # a dead agent is being replaced already
            self.lost.add(node)
            self.reports.give_up(node, self.plan.serial)
            message += f": its agent has not reported for {SILENT_S:g} s"
        return agent_death(now, node, self.reports.last_heard[life].epoch, message)

    def _fault(self, now: Now, causes: list[Cause]) -> None:
        """Record each cause as a separate fault, and stop the ranks; together they take one restart.

        Without restarts left, the earliest cause becomes the failure with which the job ends.
        """
        causes = sorted(causes, key=lambda cause: cause.at)
        for at, failure, node in causes:
            self._record(now, failure.kind, at, failure.rank, failure.summary, node, failure.verdict)
        self.restarts += 1
        if self.restarts > self.spec.max_restarts:
            first, *others = (cause.failure for cause in causes)
            self._ending = FAILED, replace(first, others=tuple(others))
        self._stop_ranks(now)

    def _record(self, now: Now, kind: str, at: int, rank: int, message: str, node: int = -1, verdict: str = "") -> None:
        """Append a fault to `events`.

        `kind`: as in words.FAULTS; `at`: when it occurred, in ns since the epoch; `rank`, `node`: to blame, -1 for
        none; `verdict`: on a hang, as in words.HANGS. Its step is the last one that all ranks can have completed.
        """
        step = max((report.begun - 1 for report in self.ranks() if report.begun >= 0), default=-1)
        event = JobEvent(
            type="fault",
            kind=kind,
            at=min(at, now.epoch),
            noticed=now.epoch,
            attempt=max(0, self.plan.generation),
            rank=rank,
            node=self._node(rank) if node < 0 else node,
            step=step,
            message=message,
            verdict=verdict,
        )
        self.events.append(event)

    def _end(self, now: Now, exit_code: int, failure: Failure | None) -> None:
        """End the job with this exit code and failure, once the ranks are stopped."""
        self._ending = exit_code, failure
        self._stop_ranks(now)

    def _stop_ranks(self, now: Now) -> None:
        self._publish("stop")
        self.state, self._deadline_s = State.STOP, now.seconds + STOP_S

    def _stop(self, now: Now) -> None:
        """Wait until no rank of the generation is left, so that none interferes with the files of the next one.

        Then end the job if that was decided, or gather nodes for the next generation. Nodes that still run ranks after
        `STOP_S` are added to `lost`.
        """
        running = {
            node: report
            for node, report in self.reports.live(now).items()
            if report.generation == self.plan.generation and any(rank.exit_code is None for rank in report.ranks)
        }
        if running and now.seconds < self._deadline_s:
            return
        self.lost |= running.keys()
        if self._ending:
            self.result, self.failure = self._ending
            self._publish("end", exit_code=self.result)
            self.events.append(JobEvent(type="ended", at=now.epoch, attempt=max(0, self.plan.generation)))
        elif self._asked == "notice":
            self._end(now, LEFT, self._preempted(now))
        else:
            # Do not wait if the job can continue with the available nodes; others can join later.
            self.state, self._deadline_s = State.GATHER, now.seconds
            if not self.spec.size(len(self.reports.live(now))):
                self._deadline_s += self.spec.gather_s

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
"""The method that `Supervision.advance` calls in each state."""


def _describe_change(before: set[int], after: set[int]) -> str:
    """Describe a change of nodes: `node 1 joins`, `without nodes 2, 3`; empty if they are the same."""

    def name_nodes(nodes: set[int]) -> str:
        return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, sorted(nodes)))}"

    joins = [f"{name_nodes(after - before)} join{'s' * (len(after - before) == 1)}"] if after - before else []
    return ", ".join([*joins, *([f"without {name_nodes(before - after)}"] if before - after else [])])
