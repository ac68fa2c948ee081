"""Recovery: what a supervisor concludes and has done, what becomes of its processes, what a job's life went into."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processes import alive, until
from tests.refused import missing_values, refused
from tests.tiny_job import TWO_REPLICAS
from trainyard import words
from trainyard.errors import BadJob, UnknownName
from trainyard.job import Job, Recovery
from trainyard.job_file import parse
from trainyard.launch.agents import rank_progress
from trainyard.launch.launch_spec import FILE, LEFT, Spec
from trainyard.launch.supervisor import event_log, find_cause, supervisor_main
from trainyard.launch.supervisor import failure_report as failures
from trainyard.launch.supervisor.agent_reports import SILENT_S, AgentReports, Now
from trainyard.launch.supervisor.event_log import EventLogWriter, JobEvent
from trainyard.launch.supervisor.failure_detection import HANDLERS, State, Supervision
from trainyard.launch.supervisor.messages import AgentReport, RankReport
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen, Run, Sample
from trainyard.run.local.harness import execute
from trainyard.run.record import goodput
from trainyard.run.resume import shrink_job
from trainyard.run.session import Progress, Session
from trainyard.store.store import Store

S = 1_000_000_000


# A job on fewer nodes

UNEQUAL = Recovery(nodes=2, ranks_per_node=(2, 1))


def job(tokens: int = 96, least: int = 1, nodes: int = 4, **layout: Any) -> Job:
    return Job(
        model=Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8),
        layout=Layout(**(layout or {"dp_replicate": 4})),
        recipe=Recipe(seq_len=8, tokens_per_step=tokens),
        recovery=Recovery(nodes=nodes, min_nodes=least),
    )


@pytest.mark.parametrize("layout", [{"dp_replicate": 8}, {"dp_shard": 8}, {"dp_replicate": 3, "dp_shard": 4, "tp": 2}])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_on_fewer_nodes_the_batch_stays(layout: dict[str, int], nodes: int) -> None:
    whole = job(tokens=8 * 144, **layout)
    fewer = shrink_job.shrink(whole, nodes)
    assert fewer.layout.ranks * 4 == whole.layout.ranks * nodes
    assert fewer.batch == whole.batch
    assert fewer.accumulate * nodes == whole.accumulate * 4
    assert fewer.layout.tp == whole.layout.tp


def test_indivisible_layout_is_refused_with_arithmetic() -> None:
    with refused(BadJob, "nodes = 4", "$.recovery", "dp_replicate 2", "dp_shard 2"):
        shrink_job.shrink(job(dp_replicate=2, dp_shard=2), 2)
    with refused(BadJob, "tokens_per_step 64", "data-parallel ranks 3 = 24"):
        shrink_job.shrink(job(tokens=64), 3)
    with refused(BadJob, "6 ranks", "nodes = 4", "$.recovery", "6 % 4 = 2"):
        shrink_job.node_counts(job(dp_replicate=6), lambda _: None)


def test_unequal_shares_are_refused_on_fewer_nodes_only() -> None:
    unequal = job(tokens=128, dp_replicate=4, batch_shares=(3, 1))
    assert shrink_job.shrink(unequal, 4) == unequal
    with refused(BadJob, "min_nodes = 1 of 4", "$.recovery", "[3, 1]", "$.layout"):
        shrink_job.node_counts(unequal, lambda _: None)
    equal = job(tokens=192, dp_replicate=4, batch_shares=(2, 2))
    assert shrink_job.shrink(equal, 3).micro_batches == (8, 8, 8)


def test_unequal_nodes_need_all_of_them() -> None:
    whole = msgspec.structs.replace(job(least=0, nodes=1, dp_replicate=3), recovery=UNEQUAL)
    assert shrink_job.node_counts(whole, lambda _: None) == (2,)
    assert [whole.ranks_on(nodes) for nodes in (0, 1, 2)] == [0, 2, 3]
    launches = [JobEvent(type="launched", at=1, attempt=attempt, nodes=2) for attempt in range(2)]
    assert goodput.last_ranks(launches, whole) == 3
    with refused(BadJob, "min_nodes = 1", "nodes = 2", "[2, 1]"):
        msgspec.structs.replace(UNEQUAL, min_nodes=1)


def test_indivisible_node_counts_are_skipped_except_min_nodes() -> None:
    assert shrink_job.node_counts(job(), lambda _: None) == (4, 3, 2, 1)
    assert shrink_job.node_counts(job(tokens=64), lambda _: None) == (4, 2, 1)
    assert shrink_job.node_counts(job(least=0), lambda _: None) == (4,)
    with refused(BadJob, "tokens_per_step 64", "data-parallel ranks 3 = 24"):
        shrink_job.node_counts(job(tokens=64, least=3), lambda _: None)
    assert Spec(ranks=4, nodes=4, sizes=(4, 2), port=0, module="m").size(3) == 2


# What a job's life went into


def step(number: int, ended: float, wall: float = 1.0, attempt: int = 0, rank: int = 0) -> Sample:
    return Sample(
        step=number, rank=rank, repeat=0, wall_ns=round(wall * S), tokens=1, loss=1.0, memory_bytes=1, attempt=attempt,
        ended_ns=round(ended * S),
    )  # fmt: skip


def event(what: Any, at: float, attempt: int = 0, **more: Any) -> JobEvent:
    for name in ("noticed", "ns"):
        if name in more:
            more[name] = round(more[name] * S)
    return JobEvent(type=what, at=round(at * S), attempt=attempt, **more)


KILLED = [
    event("started", 100),
    event("launched", 102, nodes=1),
    event("saved", 107.5, ns=0.5, step=1),
    event("fault", 109.5, kind="worker_death", rank=1, noticed=110, message="rank 1 died"),
    event("launched", 111, attempt=1, nodes=1),
    event("loaded", 113, attempt=1, ns=1, step=2),
    event("ended", 120, attempt=1),
]
STEPS = [
    step(0, 106), step(1, 107), step(2, 109), step(2, 115, attempt=1), step(3, 116, attempt=1), step(3, 116, rank=1),
]  # fmt: skip


def test_goodput_by_cause() -> None:
    spent = goodput.goodput(KILLED, STEPS)
    assert spent == {
        "init": 2 + 3 + 2,  # until the first launch, until the first step, and after the fault less the load
        "load": 1,
        "good": 2 + 1.5 + 1,  # steps 0 and 1, step 2 less the save before it, step 3
        "save": 0.5,
        "recompute": 1,
        "lost": 0.5,
        "stall": 0.5,
        "restart": 1,
        "finish": 4,
    }
    assert sum(spent.values()) == 20


def test_final_save_counts_as_save_and_time_before_as_finish() -> None:
    events = [event("started", 100), event("launched", 100, nodes=1), event("saved", 109, ns=1, step=0),
              event("ended", 112)]  # fmt: skip
    assert goodput.goodput(events, [step(0, 105)]) == {"init": 4, "good": 1, "save": 1, "finish": 3 + 3}


def test_incident_has_its_cost() -> None:
    (incident,) = goodput.incidents(KILLED, STEPS)
    assert (incident.kind, incident.rank, incident.attempt, incident.step, incident.resumed_step) == (
        "worker_death",
        1,
        0,
        2,
        2,
    )
    assert (incident.detect_s, incident.restart_s) == (0.5, 4.0)
    assert incident.lost_s == 1.5  # step 2, and half a second of step 3
    assert incident.time == "1970-01-01T00:01:49.500+00:00"


def test_final_fault_has_no_restart() -> None:
    events = [*KILLED[:4], event("ended", 112)]
    (incident,) = goodput.incidents(events, STEPS[:3])
    assert (incident.resumed_step, incident.restart_s, incident.lost_s) == (-1, 0.0, 0.0)
    assert sum(goodput.time_by_cause(events, STEPS[:3]).values()) == 12 * S


def test_survived_fault_costs_no_restart() -> None:
    events = [
        *KILLED[:3],
        event("fault", 107.2, kind="disk_full", noticed=107.2, message="no room", step=1),
        *KILLED[3:],
    ]
    full, died = goodput.incidents(events, STEPS)
    assert (full.kind, full.resumed_step, full.restart_s, full.lost_s) == ("disk_full", -1, 0.0, 0.0)
    assert died.resumed_step == 2


def test_resumed_run_has_two_supervised_periods() -> None:
    later = [
        event("started", 200), event("launched", 201, attempt=2), event("ended", 206, attempt=2),
    ]  # fmt: skip
    steps = [*STEPS, step(3, 204, attempt=2), step(4, 205, attempt=2)]
    spent = goodput.time_by_cause([*KILLED, *later], steps)
    assert sum(spent.values()) == 26 * S
    assert spent["recompute"] == 2 * S


def test_goodput_is_empty_without_supervisor() -> None:
    assert goodput.goodput([], STEPS) == {}
    assert goodput.incidents([], STEPS) == ()


MOMENTS = st.integers(0, 60)
KINDS = st.sampled_from(sorted(words.FAULTS))
EVENTS = st.builds(
    lambda what, at, attempt, kind, late, ns: JobEvent(
        type=what, at=at, attempt=attempt, kind=kind if what == "fault" else "", noticed=at + late, ns=ns
    ),
    st.sampled_from(["launched", "fault", "loaded", "saved", "ended", "started"]),
    MOMENTS, st.integers(0, 3), KINDS, st.integers(0, 9), st.integers(0, 30),
)  # fmt: skip
SAMPLES = st.builds(
    lambda number, ended, wall, attempt: step(number, ended / S, wall / S, attempt),
    st.integers(0, 6), st.integers(1, 60), st.integers(0, 20), st.integers(0, 3),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=14), st.lists(SAMPLES, max_size=14), st.integers(0, 80))
def test_causes_sum_to_total_time_for_any_history(events: list[JobEvent], steps: list[Sample], end: int) -> None:
    """Clocks may jump and files may be torn: each nanosecond still has one cause."""
    inner = [event for event in events if event.type not in ("started", "ended")]
    inner.sort(key=lambda event: event.noticed or event.at)
    history = [JobEvent(type="started", at=0), *inner, JobEvent(type="ended", at=end)]
    spent = goodput.time_by_cause(history, steps)
    assert sum(spent.values()) == end
    assert min(spent.values()) >= 0
    assert spent.keys() == words.TIMES.keys()
    assert sum(goodput.goodput(history, steps).values()) == pytest.approx(end / S)


@given(st.lists(EVENTS, max_size=14), st.lists(SAMPLES, max_size=14))
def test_goodput_accepts_any_history(events: list[JobEvent], steps: list[Sample]) -> None:
    assert min(goodput.time_by_cause(events, steps).values()) >= 0
    for incident in goodput.incidents(events, steps):
        assert min(incident.detect_s, incident.restart_s, incident.lost_s) >= 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)), max_size=40, unique=True))
def test_figures_use_the_last_attempt_of_each_step(taken: list[tuple[int, int, int]]) -> None:
    samples = tuple(step(number, 1, attempt=attempt, rank=rank) for number, attempt, rank in taken)
    run = Run(id="00000000", job=job(), started="2025-01-01", samples=samples)
    for number in {sample.step for sample in samples}:
        own = {sample.attempt for sample in run.kept() if sample.step == number}
        assert own == {max(attempt for other, attempt, _ in taken if other == number)}
    assert run.measured() == run.kept()


# What ranks and supervisor leave behind


def test_an_event_with_old_keys_is_upgraded_when_read(tmp_path: Path) -> None:
    (tmp_path / event_log.PART).mkdir()
    (tmp_path / event_log.PART / "rank0.jsonl").write_text(
        '{"what": "fault", "kind": "hang", "at": 1, "says": "hung"}\n'
    )
    assert event_log.read(tmp_path) == [JobEvent(type="fault", kind="hang", at=1, message="hung")]


def test_event_log_round_trip(tmp_path: Path) -> None:
    mine = EventLogWriter(tmp_path, "rank0", attempt=2)
    mine.loaded(7, step=3)
    mine.saved(5, step=4)
    mine.fault("disk_full", "no room", rank=0, step=4)
    with (tmp_path / event_log.PART / "rank0.jsonl").open("ab") as file:
        file.write(b'{"type": "sav')
    events = event_log.read(tmp_path)
    assert [(event.type, event.attempt, event.step, event.ns) for event in events] == [
        ("loaded", 2, 3, 7), ("saved", 2, 4, 5), ("fault", 2, 4, 0),
    ]  # fmt: skip
    assert supervisor_main.attempts(tmp_path) == 0
    EventLogWriter(tmp_path, event_log.SUPERVISOR).add(JobEvent(type="launched", at=1, attempt=4, nodes=2))
    assert supervisor_main.attempts(tmp_path) == 5
    with refused(UnknownName, "'flood'", "disk_full"):
        mine.fault("flood", "")


def test_heartbeat_shows_steps_and_own_time() -> None:
    heartbeats = rank_progress.HeartbeatBoard(2)
    own = heartbeats.heartbeat(1)
    assert heartbeats.read(1)[:4] == (0, -1, 0, "starting")
    own.begin(7)
    time.sleep(0.05)  # as it would in a collective: not its own time
    own.end()
    seen = heartbeats.read(1)
    assert (seen.begun, seen.done, seen.phase) == (7, 1, "stepping")
    assert seen.own_ns < 0.04 * S
    time.sleep(0.05)  # between steps nobody is waited for
    own.begin(8)
    assert heartbeats.read(1).own_ns > 0.05 * S
    own.end()
    own.phase("saving")
    before = heartbeats.read(1).own_ns
    time.sleep(0.02)
    own.begin(9)
    assert heartbeats.read(1).own_ns == before
    assert heartbeats.read(1).count > seen.count
    assert heartbeats.read(0).count == 0


def test_held_rank_leaves_before_the_given_step() -> None:
    heartbeats = rank_progress.HeartbeatBoard(1)
    own = heartbeats.heartbeat(0)
    assert not own.must_leave_before(3)
    heartbeats.leave(0, before=5)
    assert [own.must_leave_before(number) for number in (3, 4, 5, 6)] == [False, False, True, True]
    assert heartbeats.read(0).begun == 6
    assert not heartbeats.read(0).held


# What a supervisor concludes


FOLLOWING = {
    State.GATHER: {State.RUN, State.STOP},
    State.RUN: {State.SETTLE, State.STACKS, State.LEAVE, State.STOP},
    State.LEAVE: {State.SETTLE, State.STACKS, State.STOP},
    State.SETTLE: {State.RUN, State.LEAVE, State.STOP},
    State.STACKS: {State.STOP},
    State.STOP: {State.GATHER, State.STOP},
}
"""State -> the states that may follow it; asserted at each turn of a `World`."""


def test_every_state_has_a_handler() -> None:
    assert HANDLERS.keys() == set(State) == FOLLOWING.keys()


class World:
    """Nodes that do as they are told, on a clock that only `turn` moves."""

    def __init__(self, spec: Spec, here: int | None = None) -> None:
        self.seconds = 0.0
        self.spec = spec
        self.ports = iter(range(5000, 6000))
        self.stacks: dict[int, str] = {}
        self.supervision = Supervision(spec, self.now, lambda: next(self.ports))
        self.beats = Counter[int]()
        self.lives = {node: f"{node}a" for node in range(spec.nodes if here is None else here)}
        self.silent: set[int] = set()
        self.generation: dict[int, int] = {}
        self.started = -1
        self.ranks: dict[int, RankReport] = {}
        self.steps = True
        self.plans: list[str] = []

    @property
    def now(self) -> Now:
        return Now(self.seconds, round(self.seconds * S) + S)

    @property
    def plan(self):  # type: ignore[no-untyped-def]
        return self.supervision.plan

    def turn(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.seconds += 0.05
            before = self.plan.serial
            self._act()
            reports = {node: self._report(node) for node in self.lives if node not in self.silent}
            self.supervision.reports.receive(self.now, reports)
            state = self.supervision.state
            self.supervision.advance(self.now)
            assert self.supervision.state in {state, *FOLLOWING[state]}
            if self.plan.serial != before:
                self.plans.append(self.plan.do)

    def until(self, condition: Callable[[], bool], seconds: float = 400) -> None:
        end = self.seconds + seconds
        while not condition():
            assert self.seconds < end, (self.plan, self.supervision.state, self.ranks)
            self.turn()

    def change(self, rank: int, **to: Any) -> None:
        self.ranks[rank] = msgspec.structs.replace(self.ranks[rank], **to)

    def die(self, node: int) -> None:
        del self.lives[node]
        self.generation.pop(node, None)
        self.supervision.reports.mark_dead(node)

    def _own(self, node: int) -> list[int]:
        members = [member.node for member in self.plan.members]
        first = sum(self.spec.node_ranks(other) for other in members[: members.index(node)])
        return list(range(first, first + self.spec.node_ranks(node)))

    def _act(self) -> None:
        members = {member.node for member in self.plan.members if self.lives.get(member.node) == member.life}
        if self.plan.do == "run" and self.started != self.plan.generation:
            self.started = self.plan.generation
            self.ranks = {}
            for node in members:
                self.generation[node] = self.plan.generation
                self.ranks |= {rank: RankReport(rank=rank, pid=100 + rank, state="S") for rank in self._own(node)}
            return
        for node in members:
            for rank in self._own(node):
                report = self.ranks[rank]
                if report.exit_code is None and self.plan.do in ("stop", "end"):
                    self.change(rank, exit_code=-9, ended_ns=self.now.epoch)
                elif report.exit_code is None and self.plan.do == "leave" and self.plan.before >= 0:
                    self.change(rank, exit_code=LEFT, begun=self.plan.before, ended_ns=self.now.epoch)
                elif report.exit_code is None and self.steps and self.plan.do == "run" and report.state != "T":
                    self.change(
                        rank, count=report.count + 2, begun=report.begun + 1, done=report.done + 1, phase="stepping",
                        at=self.now.epoch, own_ns=report.own_ns + 10,
                    )  # fmt: skip

    def _report(self, node: int) -> AgentReport:
        self.beats[node] += 1
        generation = self.generation.get(node, -1)
        runs = generation == self.plan.generation and node in {member.node for member in self.plan.members}
        ranks = tuple(self._with_stack(self.ranks[rank]) for rank in self._own(node)) if runs and self.ranks else ()
        return AgentReport(
            node=node, life=self.lives[node], beat=self.beats[node], generation=generation if runs else -1,
            serial=self.plan.serial, ranks=ranks,
        )  # fmt: skip

    def _with_stack(self, report: RankReport) -> RankReport:
        return msgspec.structs.replace(report, stack=self.stacks.get(report.rank, ""))

    @property
    def faults(self) -> list[JobEvent]:
        return [event for event in self.supervision.events if event.type == "fault"]


def world(ranks: int = 4, nodes: int = 2, here: int | None = None, **spec: Any) -> World:
    return World(Spec(ranks=ranks, nodes=nodes, port=1, module="m", **spec), here)


def running(job_world: World, steps: int = 3) -> World:
    """When all ranks of the plan have taken some steps."""

    def steady() -> bool:
        alive = [rank for rank in job_world.ranks.values() if rank.exit_code is None and rank.done >= steps]
        return (
            job_world.plan.do == "run"
            and job_world.started == job_world.plan.generation
            and 0 < len(job_world.ranks) == len(alive)
        )

    job_world.until(steady)
    return job_world


def end(job_world: World) -> int | None:
    for rank in job_world.ranks:
        job_world.change(rank, exit_code=0)
    job_world.until(lambda: job_world.supervision.result is not None)
    return job_world.supervision.result


def test_successful_job_is_launched_once() -> None:
    job_world = running(world())
    assert job_world.plan.members[0].node == 0
    assert end(job_world) == 0
    assert job_world.plans == ["run", "stop", "end"]
    assert [event.type for event in job_world.supervision.events] == ["started", "launched", "ended"]


def test_first_dead_rank_is_blamed_though_peers_report_first() -> None:
    job_world = running(world(max_restarts=1))
    job_world.change(
        3,
        exit_code=1,
        reported_ns=job_world.now.epoch + 50,
        ended_ns=job_world.now.epoch + 60,
        reason="connection closed by peer",
    )
    job_world.turn()
    job_world.change(0, exit_code=-9, ended_ns=job_world.now.epoch + 10, reason="")
    job_world.until(lambda: bool(job_world.faults))
    (fault,) = job_world.faults
    assert (fault.kind, fault.rank, fault.node) == ("worker_death", 0, 0)
    assert missing_values(fault.message, "SIGKILL") == []
    running(job_world)
    assert job_world.plan.generation == 1
    assert end(job_world) == 0


@pytest.mark.parametrize(("rank", "node"), [(0, 0), (3, 0), (4, 1), (5, 2), (6, 2)])
def test_node_of_a_dead_rank_if_nodes_have_different_ranks(rank: int, node: int) -> None:
    job_world = running(world(ranks=7, nodes=3, ranks_per_node=(4, 1, 2), max_restarts=1))
    job_world.change(rank, exit_code=-9, ended_ns=job_world.now.epoch, reason="")
    job_world.until(lambda: bool(job_world.faults))
    assert [(fault.rank, fault.node) for fault in job_world.faults] == [(rank, node)]
    assert len(running(job_world).ranks) == 7
    assert end(job_world) == 0


def test_rank_aborted_by_watchdog_is_not_blamed() -> None:
    """Of collectives: the rank that told why it fails ended before."""
    job_world = running(world(max_restarts=1))
    job_world.change(
        1, exit_code=1, reported_ns=job_world.now.epoch, ended_ns=job_world.now.epoch + 10, reason="ValueError: no"
    )
    job_world.change(2, exit_code=-6, ended_ns=job_world.now.epoch + 20, reason="")
    job_world.until(lambda: bool(job_world.faults))
    assert job_world.faults[0].rank == 1
    running(job_world)
    assert end(job_world) == 0


def test_two_ranks_killed_at_once_are_two_incidents() -> None:
    job_world = running(world(max_restarts=1))
    job_world.change(
        0,
        exit_code=1,
        reported_ns=job_world.now.epoch + 5,
        ended_ns=job_world.now.epoch + 40,
        reason="connection closed by peer",
    )
    job_world.change(1, exit_code=-9, ended_ns=job_world.now.epoch + 20)
    job_world.change(3, exit_code=-11, ended_ns=job_world.now.epoch + 10)
    job_world.until(lambda: bool(job_world.faults))
    assert [(fault.kind, fault.rank, fault.node) for fault in job_world.faults] == [
        ("worker_death", 3, 1), ("worker_death", 1, 0),
    ]  # fmt: skip
    assert job_world.supervision.restarts == 1
    running(job_world)
    job_world.change(0, exit_code=-9, ended_ns=job_world.now.epoch)
    job_world.change(2, exit_code=-9, ended_ns=job_world.now.epoch)
    job_world.until(lambda: job_world.supervision.result is not None)
    failure = job_world.supervision.failure
    assert failure is not None
    assert [failure.rank, *(other.rank for other in failure.others)] == [0, 2]
    assert failure.summary.count("killed by SIGKILL") == 2


def test_a_killed_rank_and_a_dead_agent_are_two_incidents() -> None:
    job_world = running(world(max_restarts=1))
    job_world.change(0, exit_code=-9, ended_ns=job_world.now.epoch)
    job_world.die(1)
    job_world.until(lambda: bool(job_world.faults))
    assert sorted((fault.kind, fault.rank, fault.node) for fault in job_world.faults) == [
        ("agent_death", -1, 1), ("worker_death", 0, 0),
    ]  # fmt: skip


def test_two_stopped_ranks_are_two_incidents() -> None:
    job_world = running(world(hang_timeout_s=5.0))
    job_world.steps = False
    job_world.change(1, state="T")
    job_world.change(2, state="T")
    job_world.until(lambda: bool(job_world.faults))
    assert [(fault.kind, fault.rank) for fault in job_world.faults] == [("hang", 1), ("hang", 2)]


def test_incidents_at_once_share_one_loss() -> None:
    second = event("fault", 109.6, kind="worker_death", rank=0, noticed=110, message="rank 0 died")
    incidents = goodput.incidents([*KILLED[:4], second, *KILLED[4:]], STEPS)
    assert [incident.rank for incident in incidents] == [1, 0]
    assert [incident.lost_s for incident in incidents] == [1.5, 0.0]
    assert {incident.resumed_step for incident in incidents} == {2}
    assert goodput.goodput([*KILLED[:4], second, *KILLED[4:]], STEPS) == goodput.goodput(KILLED, STEPS)


def test_restarts_are_counted_and_last_fault_is_reported() -> None:
    job_world = running(world(max_restarts=1))
    for _ in range(2):
        running(job_world)
        job_world.change(
            1, exit_code=3, ended_ns=job_world.now.epoch, reported_ns=job_world.now.epoch, reason="ValueError: no"
        )
        job_world.until(lambda: job_world.plan.do == "stop")
        job_world.turn(4)
    job_world.until(lambda: job_world.supervision.result is not None)
    assert job_world.supervision.result == 4
    assert job_world.supervision.failure is not None
    assert (
        missing_values(job_world.supervision.failure.summary, "rank 1", "exit code 3", "pid 101", "ValueError: no")
        == []
    )


@pytest.mark.parametrize("node", [0, 1])
def test_job_waits_for_new_agent_if_it_needs_all_nodes(node: int) -> None:
    """The first node's agent too: the store is not its."""
    job_world = running(world(max_restarts=1))
    job_world.die(node)
    job_world.until(lambda: bool(job_world.faults))
    assert (job_world.faults[0].kind, job_world.faults[0].node, job_world.faults[0].rank) == ("agent_death", node, -1)
    job_world.turn(10)
    assert job_world.plan.do == "stop"
    job_world.lives[node] = f"{node}b"
    running(job_world)
    assert job_world.plan.generation == 1
    assert end(job_world) == 0


def test_job_shrinks_on_lost_node_and_grows_when_it_returns() -> None:
    job_world = running(world(ranks=8, nodes=4, sizes=(4, 3, 2, 1), max_restarts=5))
    job_world.die(1)
    job_world.die(2)
    job_world.until(lambda: job_world.plan.generation == 1)
    assert job_world.seconds < 5
    assert [member.node for member in job_world.plan.members] == [0, 3]
    running(job_world)
    job_world.lives[2] = "2b"
    job_world.until(lambda: job_world.plan.generation == 2)
    assert [member.node for member in job_world.plan.members] == [0, 2, 3]
    assert job_world.plans == ["run", "stop", "run", "leave", "leave", "stop", "run"]
    assert [(event.kind, event.node) for event in job_world.faults] == [("agent_death", 1), ("agent_death", 2)]
    assert job_world.supervision.restarts == 1
    assert end(running(job_world)) == 0


def test_indivisible_node_count_is_skipped() -> None:
    job_world = running(world(ranks=4, nodes=4, sizes=(4, 2), max_restarts=1))
    job_world.die(3)
    job_world.until(lambda: job_world.plan.generation == 1)
    assert [member.node for member in job_world.plan.members] == [0, 1]


def test_late_nodes_are_waited_for_and_then_join() -> None:
    job_world = world(ranks=4, nodes=4, here=1, sizes=(4, 3, 2, 1), gather_s=10)
    job_world.turn(20)
    assert job_world.plan.do == "wait"
    running(job_world)
    assert len(job_world.plan.members) == 1
    for node in (1, 2, 3):  # each comes while the job moves for the one before
        job_world.lives[node] = f"{node}a"
        job_world.turn(3)
    job_world.until(lambda: len(job_world.plan.members) == 4 and job_world.plan.do == "run")
    assert end(running(job_world)) == 0


def test_job_grows_only_after_all_ranks_were_reported() -> None:
    job_world = world(ranks=8, nodes=4, here=2, sizes=(4, 3, 2, 1), gather_s=0)
    job_world.until(lambda: job_world.plan.do == "run")
    job_world.silent.add(1)
    job_world.lives[2] = "2a"
    job_world.turn(8)
    assert job_world.plans == ["run"]
    job_world.silent.clear()
    job_world.until(lambda: job_world.plan.generation == 1)
    assert [member.node for member in job_world.plan.members] == [0, 1, 2]
    assert end(running(job_world)) == 0


def test_job_that_grows_while_a_rank_starts_continues() -> None:
    """It is not a request to the job to leave."""
    job_world = running(world(ranks=8, nodes=4, here=2, sizes=(4, 3, 2, 1), gather_s=0))
    job_world.lives[2] = "2a"
    job_world.until(lambda: job_world.plan.do == "leave")
    job_world.change(2, begun=-1)
    job_world.until(lambda: job_world.plan.generation == 1)
    assert job_world.plans == ["run", "leave", "stop", "run"]
    assert job_world.supervision.result is None
    assert job_world.faults == []
    assert end(running(job_world)) == 0


def test_too_few_nodes_end_the_job() -> None:
    job_world = world(ranks=4, nodes=2, here=1, gather_s=5)
    job_world.until(lambda: job_world.supervision.result is not None)
    assert job_world.supervision.failure is not None
    failure = job_world.supervision.failure
    assert missing_values(failure.summary, "1 of 2 nodes", 2, "node 1") == []
    assert failure.is_without_process
    assert "pid" not in failure.summary


def test_silent_agent_is_lost_and_may_return() -> None:
    job_world = running(world(ranks=2, nodes=2, sizes=(2, 1), max_restarts=1))
    job_world.silent.add(0)
    began = job_world.seconds
    job_world.until(lambda: bool(job_world.faults))
    assert SILENT_S <= job_world.seconds - began < SILENT_S + 2
    assert job_world.faults[0].node == 0
    assert 0 in job_world.supervision.lost
    job_world.until(lambda: job_world.plan.generation == 1)
    assert [member.node for member in job_world.plan.members] == [1]
    running(job_world)
    job_world.silent.clear()
    job_world.until(lambda: job_world.plan.generation == 2)
    assert len(job_world.plan.members) == 2


def test_first_report_of_an_agent_is_accepted_before_it_knows_a_plan() -> None:
    reports = AgentReports()
    reports.receive(Now(0.0, 0), {1: AgentReport(node=1, life="1a", beat=1)})
    assert reports.live_nodes(Now(0.1, 0)) == {1: "1a"}


def test_delayed_reports_of_a_lost_agent_are_ignored() -> None:
    """A network that works again delivers what the agent sent before its ranks ended themselves."""
    job_world = running(world(ranks=2, nodes=2, max_restarts=2))
    sent = job_world.supervision.reports.last[1].report
    job_world.silent.add(1)
    job_world.until(lambda: bool(job_world.faults))
    for beat in range(100):
        job_world.supervision.reports.receive(job_world.now, {1: msgspec.structs.replace(sent, beat=sent.beat + beat)})
        job_world.turn()
    assert job_world.plan.do == "stop"
    job_world.lives[1] = "1b"
    job_world.silent.clear()
    assert end(running(job_world)) == 0
    assert len(job_world.faults) == 1


def test_second_agent_of_node_is_ignored_while_first_reports() -> None:
    job_world = running(world(max_restarts=1))
    for _ in range(100):
        job_world.lives[1] = "1b" if job_world.lives[1] == "1a" else "1a"
        job_world.turn()
    assert not job_world.faults
    job_world.lives[1] = "1b"
    job_world.until(lambda: bool(job_world.faults))
    assert (job_world.faults[0].kind, job_world.faults[0].node) == ("agent_death", 1)
    running(job_world)
    assert job_world.plan.members[1].life == "1b"


def test_silent_node_is_blamed_though_its_peers_fail_first() -> None:
    job_world = running(world(ranks=2, nodes=2, max_restarts=1))
    job_world.silent.add(0)
    job_world.turn(3)
    job_world.change(
        1,
        exit_code=1,
        reported_ns=job_world.now.epoch,
        ended_ns=job_world.now.epoch,
        reason="connection closed by peer",
    )
    job_world.until(lambda: bool(job_world.faults))
    assert (job_world.faults[0].kind, job_world.faults[0].node) == ("agent_death", 0)


def test_a_stopped_rank_hangs_the_job_and_is_blamed() -> None:
    job_world = running(world(hang_timeout_s=3, max_restarts=1))
    job_world.change(2, state="T")
    job_world.steps = False
    last = job_world.ranks[2].at
    job_world.until(lambda: bool(job_world.faults))
    (fault,) = job_world.faults
    assert (fault.kind, fault.rank, fault.node, fault.at) == ("hang", 2, 1, last)
    assert 3 <= (fault.noticed - fault.at) / S < 5
    job_world.steps = True
    running(job_world)
    assert job_world.plans[:4] == ["run", "stacks", "stop", "run"]


def test_a_stack_is_read_when_it_is_complete() -> None:
    """faulthandler writes the main thread last: what a busy machine has written so far names another thread."""
    job_world = running(world(ranks=2, nodes=1, hang_timeout_s=2, max_restarts=1))
    job_world.steps = False
    job_world.until(lambda: job_world.plan.do == "stacks")
    job_world.turn(12)
    job_world.stacks = {0: COLLECTIVE, 1: WORK}
    job_world.turn(4)
    loader = f'Current thread 0x2:\n  File "/x/{find_cause._LOADER}", line 3 in _next_data\n'
    job_world.stacks = {0: COLLECTIVE, 1: WORK + loader}
    job_world.until(lambda: bool(job_world.faults))
    (fault,) = job_world.faults
    assert (fault.kind, fault.rank) == ("hang", 1)
    assert "waits for data" in fault.message


def test_stopped_rank_is_blamed_though_peers_fail_first() -> None:
    job_world = running(world(hang_timeout_s=60, max_restarts=1))
    job_world.change(2, state="T")
    job_world.change(0, exit_code=1, reported_ns=job_world.now.epoch, ended_ns=job_world.now.epoch, reason="timed out")
    job_world.until(lambda: bool(job_world.faults))
    assert (job_world.faults[0].kind, job_world.faults[0].rank) == ("hang", 2)


def test_single_stopped_rank_is_blamed() -> None:
    job_world = running(world(hang_timeout_s=3, max_restarts=1))
    job_world.change(2, state="T")
    job_world.until(lambda: bool(job_world.faults))
    assert (job_world.faults[0].kind, job_world.faults[0].rank) == ("hang", 2)
    assert "while its peers do" in job_world.faults[0].message


def test_long_start_is_not_a_hang() -> None:
    job_world = world(hang_timeout_s=2, max_restarts=1)
    job_world.steps = False
    job_world.turn(20 * 8)
    assert not job_world.faults
    job_world.turn(20 * 10)
    assert job_world.faults[0].kind == "hang"


def test_on_leave_request_all_ranks_leave_before_same_step() -> None:
    job_world = running(world())
    for rank in job_world.ranks:
        job_world.change(rank, begun=9 + (rank == 1), held=rank != 1)
    job_world.steps = False
    job_world.supervision.notice(job_world.now)
    job_world.until(lambda: job_world.plan.before >= 0)
    assert job_world.plan.before == 11, "rank 1 is in step 10 already"
    job_world.until(lambda: job_world.supervision.result is not None)
    assert job_world.supervision.result == LEFT
    assert job_world.supervision.failure is not None
    assert job_world.supervision.failure.kind == "preempted"
    assert [event.kind for event in job_world.faults] == ["preempted"]
    assert missing_values(job_world.supervision.failure.summary, "step 11") == []


@pytest.mark.parametrize("late", [0, 3])
def test_leave_request_while_a_rank_starts_ends_all_at_once(late: int) -> None:
    job_world = running(world())
    for rank in job_world.ranks:
        job_world.change(rank, begun=-1 if rank == late else 0, done=0)
    job_world.steps = False
    job_world.turn()
    job_world.supervision.notice(job_world.now)
    job_world.until(lambda: job_world.supervision.result is not None, seconds=1)
    assert job_world.supervision.result == LEFT
    assert job_world.plan.before < 0
    assert job_world.supervision.failure is not None
    assert "it was ended" in job_world.supervision.failure.summary


def test_leave_step_follows_from_ranks_once_they_hold() -> None:
    """What was heard before may be old: ranks that seemed to start may have taken steps since."""
    job_world = world()
    job_world.steps = False
    job_world.until(lambda: job_world.plan.do == "run" and len(job_world.supervision.ranks()) == 4)
    job_world.silent = {0, 1}
    for rank in job_world.ranks:
        job_world.change(rank, begun=5, done=5, count=10)
    job_world.supervision.notice(job_world.now)
    job_world.turn(3)
    job_world.silent.clear()
    job_world.until(lambda: job_world.supervision.result is not None)
    assert job_world.plan.before == 6
    assert job_world.supervision.failure is not None
    assert missing_values(job_world.supervision.failure.summary, "step 6") == []


@pytest.mark.parametrize("asked", ["before", "while"])
def test_leave_request_around_a_temporary_silence_is_honoured(asked: str) -> None:
    """The silence is long enough to be looked into, and no fault after all."""
    job_world = running(world())
    job_world.silent.add(1)
    job_world.turn(round(SILENT_S / 0.05) - 2)
    if asked == "before":
        job_world.supervision.notice(job_world.now)
    job_world.until(lambda: job_world.supervision.state is State.SETTLE)
    job_world.silent.clear()
    if asked == "while":
        job_world.supervision.notice(job_world.now)
    job_world.until(lambda: job_world.supervision.result is not None)
    assert job_world.supervision.result == LEFT
    assert [event.kind for event in job_world.faults] == ["preempted"]


def test_agent_death_during_hang_analysis_is_blamed() -> None:
    job_world = running(world(nodes=1, hang_timeout_s=2, max_restarts=1))
    job_world.steps = False
    job_world.until(lambda: job_world.plan.do == "stacks")
    job_world.die(0)
    job_world.lives[0] = "0b"  # it has been followed by another one, which knows nothing of the ranks
    job_world.until(lambda: bool(job_world.faults))
    assert [event.kind for event in job_world.faults] == ["agent_death"]
    job_world.steps = True
    assert end(running(job_world)) == 0


def test_leave_request_during_restart_is_honoured() -> None:
    job_world = running(world(max_restarts=3))
    job_world.die(1)
    job_world.until(lambda: job_world.plan.do == "stop")
    job_world.supervision.notice(job_world.now)
    job_world.until(lambda: job_world.supervision.result is not None)
    assert job_world.supervision.result == LEFT


def report(rank: int, **more: Any) -> RankReport:
    return RankReport(rank=rank, pid=rank, begun=4, done=4, **more)


COLLECTIVE = 'Thread 0x1 (most recent call first):\n  File "/x/torch/distributed/c10d.py", line 3 in all_reduce\n'
EVENT = 'Thread 0x1 (most recent call first):\n  File "/x/torch/cuda/streams.py", line 213 in synchronize\n'
WORK = 'Thread 0x1 (most recent call first):\n  File "/x/mine.py", line 3 in work\n'


@pytest.mark.parametrize(
    ("ranks", "stacks", "blamed"),
    [
        ([report(0), report(1, state="T"), report(2)], {}, 1),
        ([report(0), report(1), RankReport(rank=2, pid=2, begun=3, done=3)], {}, 2),
        ([report(0), RankReport(rank=1, pid=1, begun=5, done=5), report(2)], {}, 1),
        ([report(0), RankReport(rank=1, pid=1, begun=5, done=5)], {}, 0),
        ([report(0), report(1), report(2)], {0: COLLECTIVE, 1: WORK, 2: COLLECTIVE}, 1),
        ([report(0), report(1), report(2)], {0: COLLECTIVE, 2: COLLECTIVE}, 1),
        ([report(0), report(1), report(2)], {0: WORK, 1: WORK, 2: WORK}, -1),
        ([report(0), report(1, ticks=90), report(2)], {0: WORK, 1: WORK, 2: WORK}, 1),
        ([report(0)], {0: WORK}, 0),
        # A rank that waits for its device takes CPU time, and may wait there for its peers.
        ([report(0, ticks=90), report(1)], {0: EVENT, 1: WORK}, 1),
        ([report(0, ticks=90), report(1), report(2, ticks=90)], {0: EVENT, 1: WORK, 2: EVENT}, 1),
        ([report(0, ticks=90), report(1)], {0: EVENT, 1: COLLECTIVE}, -1),
        ([report(0, ticks=90), report(1), report(2)], {0: EVENT, 1: EVENT, 2: COLLECTIVE}, -1),
        ([report(0, ticks=90), report(1, ticks=90), report(2)], {0: EVENT, 1: WORK, 2: WORK}, 1),
        ([report(0), report(1)], {0: EVENT}, 1),
    ],
)
def test_who_hangs(ranks: list[RankReport], stacks: Mapping[int, str], blamed: int) -> None:
    assert find_cause.hung_ranks(ranks, {rank.rank: 5 if rank.ticks else 0 for rank in ranks}, stacks)[0][0] == blamed


@pytest.mark.parametrize(
    ("stacks", "kind"),
    [({0: EVENT}, "device_stuck"), ({0: WORK}, "host_stuck"), ({0: ""}, ""), ({0: COLLECTIVE}, "")],
)
def test_only_rank_that_waits_for_its_device_has_a_stuck_device(stacks: Mapping[int, str], kind: str) -> None:
    ranks = [report(0)]
    hung = find_cause.hung_ranks(ranks, {}, stacks)
    assert find_cause.hang_kind(hung, ranks, stacks) == kind
    assert ("Xid" in hung[0][1]) == (kind == "device_stuck")


def test_rank_among_several_that_waits_for_its_device_may_wait_for_its_peers() -> None:
    ranks, stacks = [report(0), RankReport(rank=1, pid=1, begun=3, done=3)], {0: EVENT, 1: EVENT}
    hung = find_cause.hung_ranks(ranks, {}, stacks)
    assert hung[0][0] == 1
    assert find_cause.hang_kind(hung, ranks, stacks) == ""


@given(st.integers(0, 3), st.floats(1.0, 4.0), st.lists(st.integers(8, 30), min_size=6, max_size=6))
def test_rank_is_slow_after_consecutive_slow_windows(rank: int, factor: float, strides: list[int]) -> None:
    looking, done, slow = find_cause.Slowness(), 0, []
    for stride in strides:
        done += stride
        ranks = [
            RankReport(
                rank=number, pid=number, done=done, at=done * 100,
                own_ns=round(done * 40 * (factor if number == rank else 1.0)),
            )
            for number in range(4)
        ]  # fmt: skip
        slow += looking.update(ranks)
    if factor > 1.6:
        assert [number for number, _ in slow] == [rank], "told once"
        assert slow[0][1] == pytest.approx(factor, rel=0.02)
    elif factor < 1.4:
        assert not slow


def test_one_slow_step_is_no_slow_rank() -> None:
    looking = find_cause.Slowness()
    for window in range(8):
        late = 10_000 if window >= 4 else 0
        ranks = [
            RankReport(rank=rank, pid=1, done=10 * window, own_ns=400 * window + late * rank, at=window)
            for rank in (0, 1)
        ]
        assert not looking.update(ranks)


# What becomes of its processes

WORKER = """
import os, sys, time
from pathlib import Path
from trainyard.launch.agents import rank_progress as heartbeat
from trainyard.launch.launch_spec import LEFT
folder = Path(sys.argv[1])
rank, world, attempt = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
assert os.environ["MASTER_ADDR"] == "127.0.0.1" and int(os.environ["MASTER_PORT"])
own = heartbeat.own_heartbeat()
own.phase("starting")
(folder / f"at.{attempt}.{rank}").write_text(f"{os.getpid()} {os.getppid()} {world}")
saved = folder / "saved"
step = int(saved.read_text()) if saved.exists() else 0
def save():
    (folder / "part").write_text(str(step))
    (folder / "part").replace(saved)
while not (folder / "enough").exists():
    if own.must_leave_before(step):
        if rank == "0":
            save()
        sys.exit(LEFT)
    own.begin(step)
    time.sleep(0.01)
    own.end()
    with (folder / f"steps.{rank}").open("a") as log:
        log.write(f"{attempt} {step}\\n")
    step += 1
    if rank == "0" and step % 5 == 0:
        save()
"""


class Started:
    """A supervisor's process, and what its ranks leave."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.folder = folder
        spec = {"ranks": 4, "nodes": 2, "port": 0, "max_restarts": 9, **spec}
        job_spec = Spec(module="stepping_worker", args=(str(folder),), **spec)
        (folder / FILE).write_bytes(msgspec.json.encode(job_spec))
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.process = self._start("trainyard.launch.supervisor.supervisor_main", str(os.getpid()))

    def _start(self, module: str, *args: str) -> subprocess.Popen[bytes]:
        log = (self.folder / "log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(self.folder / FILE), *args], stderr=log, start_new_session=True
            )

    def agent(self, node: int) -> None:
        self.agents[node] = self._start("trainyard.launch.agents.elastic", str(node), str(os.getpid()))

    def at(self, attempt: int, ranks: int) -> list[tuple[int, int]]:
        """(process, its agent's) of each rank, when all of the attempt have begun."""
        paths = [self.folder / f"at.{attempt}.{rank}" for rank in range(ranks)]
        assert until(lambda: all(path.exists() and path.read_text() for path in paths)), self.log
        steps = [path.read_text().split() for path in paths]
        assert {world for _, _, world in steps} == {str(ranks)}
        return [(int(pid), int(agent)) for pid, agent, _ in steps]

    def steps(self, rank: int = 0) -> list[tuple[int, int]]:
        path = self.folder / f"steps.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(attempt), int(number)) for attempt, number in map(str.split, lines)]

    def stepping(self, attempt: int, ranks: int) -> bool:
        return until(lambda: all((attempt, 1) <= (self.steps(rank) or [(-1, 0)])[-1] for rank in range(ranks)))

    def world(self, ranks: int) -> int:
        """The attempt in which so many ranks step."""

        def newest() -> tuple[int, int]:
            there = [path.name.split(".") for path in self.folder.glob("at.*")]
            last = max((int(attempt) for _, attempt, _ in there), default=-1)
            sizes = {(self.folder / f"at.{last}.{rank}").read_text().split(" ")[-1] for _, attempt, rank in there
                     if int(attempt) == last}  # fmt: skip
            return last, int(sizes.pop() or 0) if len(sizes) == 1 else 0

        assert until(lambda: newest()[1] == ranks), self.log
        attempt = newest()[0]
        assert self.stepping(attempt, ranks), self.log
        return attempt

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text() + json.dumps(
            [msgspec.to_builtins(event) for event in event_log.read(self.folder)], indent=1
        )

    def faults(self) -> list[JobEvent]:
        return [event for event in event_log.read(self.folder) if event.type == "fault"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Started]]:
    pytest.importorskip("torch")
    (tmp_path / "stepping_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    begun: list[Started] = []

    def begin(**spec: Any) -> Started:
        folder = tmp_path / f"run{len(begun)}"
        folder.mkdir()
        begun.append(Started(folder, **spec))
        return begun[-1]

    yield begin
    for started in begun:
        for process in (started.process, *started.agents.values()):
            process.kill()
            process.wait()


@pytest.mark.torch
@pytest.mark.slow
def test_job_survives_dying_and_stopped_ranks_and_agents(start: Callable[..., Started]) -> None:
    started = start(hang_timeout_s=8.0)
    first = started.at(0, 4)
    assert started.stepping(0, 4)
    os.kill(first[3][0], signal.SIGKILL)
    second = started.at(1, 4)
    assert not any(alive(pid) for pid, _ in first), "none of the attempt before is left when the next begins"
    assert {agent for _, agent in first} == {agent for _, agent in second}
    assert started.stepping(1, 4)
    os.kill(second[0][1], signal.SIGKILL)  # the first node's agent
    third = started.at(2, 4)
    assert not any(alive(pid) for pid, _ in second)
    assert started.stepping(2, 4)
    os.kill(third[2][0], signal.SIGSTOP)
    last = started.at(3, 4)
    assert not any(alive(pid) for pid, _ in third)
    (started.folder / "enough").touch()
    assert started.process.wait(60) == 0
    assert not any(alive(pid) for pair in last for pid in pair)
    assert [(fault.kind, fault.rank, fault.node) for fault in started.faults()] == [
        ("worker_death", 3, 1), ("agent_death", -1, 0), ("hang", 2, 1),
    ]  # fmt: skip


@pytest.mark.torch
@pytest.mark.slow
def test_agents_of_different_sizes_number_their_ranks(start: Callable[..., Started]) -> None:
    started = start(ranks=3, nodes=2, ranks_per_node=(2, 1), max_restarts=1)
    first = started.at(0, 3)
    assert started.stepping(0, 3)
    agents = [agent for _, agent in first]
    assert agents[0] == agents[1] != agents[2]
    os.kill(first[2][0], signal.SIGKILL)
    second = started.at(1, 3)
    assert [agent for _, agent in second] == agents
    assert started.stepping(1, 3)
    (started.folder / "enough").touch()
    assert started.process.wait(60) == 0
    assert [(fault.kind, fault.rank, fault.node) for fault in started.faults()] == [("worker_death", 2, 1)]


@pytest.mark.torch
@pytest.mark.slow
def test_two_killed_processes_are_both_recorded(start: Callable[..., Started]) -> None:
    started = start(max_restarts=1)
    for attempt, killed in ((0, (1, 2)), (1, (0, 3))):  # ranks of both nodes, then the last restart is used up
        pairs = started.at(attempt, 4)
        assert started.stepping(attempt, 4)
        for rank in killed:
            os.kill(pairs[rank][0], signal.SIGKILL)
    assert started.process.wait(60) == 4
    incidents = started.faults()
    assert sorted((fault.attempt, fault.rank, fault.node) for fault in incidents) == [
        (0, 1, 0), (0, 2, 1), (1, 0, 0), (1, 3, 1),
    ]  # fmt: skip
    failure = failures.read(started.folder)
    assert failure is not None
    assert {failure.rank, *(other.rank for other in failure.others)} == {0, 3}
    assert failure.summary.count("killed by SIGKILL") == 2


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux")
def test_dead_fork_server_is_replaced(start: Callable[..., Started]) -> None:
    started = start(max_restarts=1)
    first = started.at(0, 4)
    assert started.stepping(0, 4)
    fork_server = int(Path(f"/proc/{first[0][1]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    known = {
        pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in (started.process.pid, fork_server, *first[3])
    }
    assert list(known.values()) == ["ty-supervisor", "ty-fork-server", "ty-rank3", "ty-agent1"]
    os.kill(fork_server, signal.SIGKILL)
    second = started.at(1, 4)
    assert not any(alive(pid) for pair in first for pid in pair)
    assert started.stepping(1, 4)
    (started.folder / "enough").touch()
    assert started.process.wait(60) == 0
    assert not any(alive(pid) for pair in second for pid in pair)
    both = {("agent_death", 0, 0), ("agent_death", 1, 0)}  # ordered by last report: either may be first
    assert len(started.faults()) == 2
    assert {(fault.kind, fault.node, fault.attempt) for fault in started.faults()} == both


@pytest.mark.torch
@pytest.mark.slow
def test_nodes_come_and_go(start: Callable[..., Started]) -> None:
    """1 -> 4 -> 2 -> 3: agents started by others, at any time; no step is left out, and none is lost by growing."""
    started = start(ranks=4, nodes=4, sizes=(4, 3, 2, 1), started=1, gather_s=0.0)
    started.world(1)
    for node in (1, 2, 3):
        started.agent(node)
    four = started.world(4)
    for node in (2, 3):
        started.agents[node].kill()
    two = started.world(2)
    started.agent(2)
    three = started.world(3)
    (started.folder / "enough").touch()
    assert started.process.wait(60) == 0
    for agent in started.agents.values():
        assert until(lambda agent=agent: agent.poll() is not None)
    assert four < two < three
    steps = started.steps()
    assert {number for _, number in steps} == set(range(max(number for _, number in steps) + 1))
    grown = [attempt for attempt in range(three + 1) if attempt <= four or attempt == three]
    ends = {attempt: [number for other, number in steps if other == attempt] for attempt in grown}
    for attempt in [attempt for attempt in grown if attempt and ends.get(attempt - 1) and ends[attempt]]:
        assert ends[attempt][0] == ends[attempt - 1][-1] + 1, "what was saved on leaving is gone on with"


@pytest.mark.torch
@pytest.mark.slow
def test_sigterm_to_every_process_saves_and_ends_the_job(start: Callable[..., Started]) -> None:
    started = start(ranks=2)
    pairs = started.at(0, 2)
    assert started.stepping(0, 2)
    os.killpg(started.process.pid, signal.SIGTERM)
    assert started.process.wait(60) == LEFT
    assert not any(alive(pid) for pair in pairs for pid in pair)
    steps = [started.steps(rank)[-1][1] for rank in range(2)]
    assert steps[0] == steps[1] == int((started.folder / "saved").read_text()) - 1
    assert [fault.kind for fault in started.faults()] == ["preempted"]


@pytest.mark.torch
@pytest.mark.slow
def test_nothing_outlives_the_supervisor(start: Callable[..., Started]) -> None:
    started = start(started=1)
    started.agent(1)
    pairs = started.at(0, 4)
    started.process.kill()
    assert until(lambda: not any(alive(pid) for pair in pairs for pid in pair))
    assert until(lambda: started.agents[1].poll() is not None), "an agent elsewhere loses the store"


TINY = f"""{TWO_REPLICAS}[measure]
warmup = 2
steps = 5
repeats = 2
profiled = 0
[checkpoint]
interval = 3
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_killed_run_comes_back_with_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "text.txt").write_bytes(bytes(range(256)) * 40)
    monkeypatch.chdir(tmp_path)
    text = TINY.replace("[measure]", 'dataset = "text.txt"\n[measure]')
    cores = (DeviceSeen(index=0, name="some cores", vendor="cpu", facts={"cores": "2"}),)
    store = Store(tmp_path / "store")

    def go(text: str, progress: Callable[[Progress], None] = lambda _: None) -> Run:
        return execute(parse(text, "tiny.toml"), text, Session(store, lambda _: [], progress=progress, devices=cores))

    killed: list[int] = []

    def kill(at: Progress) -> None:
        if at.step >= 5 and not killed:
            killed.append(int(next(store.runs.glob("*/logs/rank1.pid")).read_text()))
            os.kill(killed[0], signal.SIGKILL)

    broken = go(text + "[recovery]\nmax_restarts = 1\n", kill)
    store.delete(broken.id)
    whole = go(text)
    assert broken.state == whole.state == "complete"
    assert [(sample.step, sample.loss) for sample in broken.kept()] == [
        (sample.step, sample.loss) for sample in whole.kept()
    ]
    assert len(broken.kept()) == 2 * 12
    assert whole.incidents == ()
    (incident,) = broken.incidents
    assert (incident.kind, incident.rank, incident.attempt) == ("worker_death", 1, 0)
    assert incident.resumed_step % 3 == 0
    assert incident.resumed_step <= incident.step + 1
    assert min(incident.restart_s, incident.detect_s, incident.lost_s) >= 0
    assert missing_values(incident.summary, "SIGKILL") == []
    lived = event_log.read(store.runs / whole.id)
    assert sum(whole.goodput.values()) == pytest.approx((lived[-1].at - lived[0].at) / S)
    assert set(broken.goodput) > {"good", "init", "load", "stall", "restart"}
