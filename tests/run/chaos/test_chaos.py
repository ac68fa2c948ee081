"""Faults made on purpose: plans that fit, each fault once, a score that says what is true of two runs."""

from __future__ import annotations

import errno
import faulthandler
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import missing_values, refused
from tests.tiny_job import TWO_REPLICAS
from trainyard import renamed_keys, words
from trainyard.cli.run import command
from trainyard.errors import (
    BadFile,
    BadInput,
    MissingFile,
    Preempted,
    RankDied,
    TrainyardError,
    UnknownName,
    WrongRunState,
)
from trainyard.job import Checkpoint, Job, Measure, Recovery
from trainyard.launch.supervisor import find_cause
from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import Incident, Run, Sample
from trainyard.report.render.chaos_table import table
from trainyard.run.chaos import chaos_files, experiment, fault_plan
from trainyard.run.chaos.chaos_files import InjectedFault
from trainyard.run.chaos.experiment import ChaosScore
from trainyard.run.chaos.fault_plan import Fault, FaultPlan
from trainyard.run.chaos.score_recovery import FaultScore, score_faults, strays
from trainyard.run.session import Session
from trainyard.store.store import Store, new_id

S = 1_000_000_000


def job(**more: Any) -> Job:
    given: dict[str, Any] = {
        "model": Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8),
        "layout": Layout(dp_replicate=2),
        "recipe": Recipe(seq_len=8, tokens_per_step=32),
        "measure": Measure(warmup=0, steps=20, repeats=1, profiled=0),
        "checkpoint": Checkpoint(interval=5),
        "recovery": Recovery(max_restarts=3, nodes=2),
    }
    return Job(**{**given, **more})


def fault(kind: str, step: int = 7, target: int = 0) -> Fault:
    strikes = words.INJECTIONS[kind].strikes
    amount = 50.0 if kind == "delay" else 0.0
    return Fault(kind=kind, step=step, amount=amount, **({} if strikes == "job" else {strikes: target}))


# Plans


def test_every_injection_maps_to_a_reportable_fault() -> None:
    blamed = {injection.blamed for injection in words.ALL_INJECTIONS.values()}
    # `command_death` is of `trainyard run -- COMMAND`, which is not a job; the others are faults of numbers.
    assert blamed == words.FAULTS.keys() - {"command_death", "non_finite", "loss_spike"}
    for injection in words.ALL_INJECTIONS.values():
        assert injection.means.endswith(".")


@pytest.mark.parametrize("kind", words.INJECTIONS)
def test_each_fault_kind_fits_a_job_that_can_recover(kind: str) -> None:
    FaultPlan(fault=(fault(kind),)).check(job())


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ["$:", "`fault`"]),
        ("fault = []", ["$:", "[[fault]]"]),
        ("[[fault]", ["plan.toml:", "TOML"]),
        ('[[fault]]\nkind = "kill_agnet"\nstep = 1', ["$.fault[0]:", "'kill_agnet'", "'kill_agent'"]),
        ('[[fault]]\nkind = "stop"\nstep = 1\nrnak = 1', ["$.fault[0]:", "'rnak'", "'rank'"]),
        ('[[fault]]\nkind = "stop"\nstep = 1', ["$.fault[0]:", "stop", "rank"]),
        ('[[fault]]\nkind = "preempt"\nstep = 1\nrank = 0', ["$.fault[0]:", "preempt", "rank = 0"]),
        ('[[fault]]\nkind = "kill_agent"\nstep = 1\nrank = 0', ["$.fault[0]:", "kill_agent", "node", "rank = 0"]),
        ('[[fault]]\nkind = "delay"\nstep = 1\nrank = 0', ["$.fault[0]:", "delay", "amount"]),
        ('[[fault]]\nkind = "stop"\nstep = 1\nrank = 0\namount = 5', ["$.fault[0]:", "amount = 5", "stop"]),
        ('[[fault]]\nkind = "stop"\nstep = -1\nrank = 0', ["$.fault[0]:", "step = -1"]),
    ],
)
def test_what_is_no_plan_is_refused_with_its_place(text: str, values: list[str]) -> None:
    with refused(BadInput, "plan.toml", *values):
        fault_plan.parse(text, "plan.toml")


@pytest.mark.parametrize(
    ("faults", "job", "values"),
    [
        ([fault("stop", target=2)], job(), ["stop", "$.fault[0]:", "rank", 2, 1]),
        ([fault("kill_agent", target=2)], job(), ["kill_agent", "$.fault[0]:", "node", 2, "nodes", 1]),
        ([fault("stop", 20)], job(), ["stop", "$.fault[0]:", "step = 20"]),
        ([fault("preempt", 19)], job(), ["preempt", "$.fault[0]:", 19]),
        ([fault("fill_disk")], job(checkpoint=Checkpoint()), ["fill_disk", "$.fault[0]:", "[checkpoint]", "interval"]),
        ([fault("flip_byte", 4)], job(), ["flip_byte", "$.fault[0]:", 4, "interval = 5"]),
        (
            [fault("fill_disk", 18)],
            job(checkpoint=Checkpoint(interval=6)),
            ["fill_disk", "$.fault[0]:", 18, "interval = 6"],
        ),
        (
            [fault("flip_byte")],
            job(recovery=Recovery()),
            ["flip_byte", "max_restarts = 0", "$.recovery", "max_restarts = 1"],
        ),
        ([fault("stop")] * 4, job(), ["stop", "max_restarts = 3", "$.recovery", "max_restarts = 4"]),
        ([fault("delay")], job(layout=Layout(), recovery=Recovery()), ["delay", "$.fault[0]:", "$.layout", 1, 2]),
    ],
)
def test_a_plan_that_does_not_fit_the_job_is_refused(faults: list[Fault], job: Job, values: list[object]) -> None:
    with refused(BadInput, *values):
        FaultPlan(fault=tuple(faults)).check(job)


def test_a_plan_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with refused(MissingFile, "none.toml:", "[[fault]]"):
        fault_plan.load(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with refused(BadFile, "bytes.toml:", "0xff"):
        fault_plan.load(tmp_path / "bytes.toml")
    with refused(UnknownName, "'earthquake'"):
        Fault(kind="earthquake", step=1)


def test_the_examples_fit(root: Path) -> None:
    from trainyard import job_file as jobs

    fault_plan.load(root / "examples" / "chaos" / "plan.toml").check(jobs.load(root / "examples" / "chaos.toml"))


# Each once


def test_fault_is_injected_once_per_run(tmp_path: Path) -> None:
    assert chaos_files.read_plan(tmp_path) is None
    wanted = FaultPlan(fault=(fault("stop"), fault("delay")))
    chaos_files.write_plan(tmp_path, wanted)
    assert chaos_files.read_plan(tmp_path) == wanted
    assert chaos_files.injected_faults(tmp_path) == {}
    assert chaos_files.claim_injection(tmp_path, 1, 7, 0)
    assert not chaos_files.claim_injection(tmp_path, 1, 8, 1)
    assert chaos_files.claim_injection(tmp_path, 0, 9, 1)
    assert {number: (fault.step, fault.attempt) for number, fault in chaos_files.injected_faults(tmp_path).items()} == {
        1: (7, 0),
        0: (9, 1),
    }


@pytest.mark.torch
def test_rank_injects_its_faults_once_at_their_steps(tmp_path: Path, monkeypatch: Any) -> None:
    torch = pytest.importorskip("torch")
    from trainyard.run.chaos import inject_faults
    from trainyard.train.process_group import Ranks

    done: list[tuple[int, str, int]] = []
    seen: list[int] = []
    for kind in list(inject_faults._ACTIONS):
        monkeypatch.setitem(
            inject_faults._ACTIONS, kind, lambda own, one: done.append((own.ranks.rank, one.kind, seen[-1]))
        )
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    faults = (
        fault("stop", 2, target=1),
        fault("kill_agent", 3, target=1),
        fault("preempt", 4),
        fault("kill_worker", 4, target=0),
        fault("flip_byte", 5, target=0),
    )
    chaos_files.write_plan(tmp_path, FaultPlan(fault=faults))

    def ranks(rank: int) -> Ranks:
        return Ranks(rank, rank, 2, 1, "cpu", torch.device("cpu"))

    def go(steps: Sequence[int]) -> None:
        callers = [inject_faults.fault_injector(tmp_path, job(), ranks(rank), 0) for rank in range(2)]
        for step in steps:
            seen.append(step)
            for call in callers:
                assert call is not None
                call(step)

    go(range(4))
    go(range(1, 8))  # started again, from a step before
    assert done == [(1, "stop", 2), (1, "kill_agent", 3), (0, "preempt", 4), (0, "kill_worker", 4)]
    (tmp_path / "checkpoints" / "step-000004").mkdir(parents=True)  # a byte can be flipped from now on
    go([8, 9])
    assert done[4:] == [(0, "flip_byte", 8)]
    go(range(20))
    assert len(done) == 5
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    assert inject_faults.fault_injector(tmp_path / "calm", job(), ranks(0), 0) is None


@pytest.mark.torch
@pytest.mark.parametrize("target", [1, 2, 9, 10, 11])
def test_a_flipped_byte_is_in_the_file_of_its_rank(tmp_path: Path, monkeypatch: Any, target: int) -> None:
    torch = pytest.importorskip("torch")
    from trainyard.run.chaos import inject_faults
    from trainyard.train.process_group import Ranks

    folder = tmp_path / "checkpoints" / "step-000004"
    folder.mkdir(parents=True)
    for rank in range(12):
        (folder / f"rank{rank}.bin").write_bytes(b"abc")
    plan = FaultPlan(fault=(fault("flip_byte", target=target),))
    ranks = Ranks(target, target, 12, 12, "cpu", torch.device("cpu"))
    injector = inject_faults.FaultInjector(tmp_path, plan, job(), ranks, 0)
    monkeypatch.setattr(chaos_files, "claim_injection", lambda *_: True)
    monkeypatch.setattr(injector, "_die", lambda fault: None)
    injector(8)
    changed = {path.name for path in folder.iterdir() if path.read_bytes() != b"abc"}
    assert changed == {f"rank{target}.bin"}


@pytest.mark.torch
def test_delayed_rank_sleeps_its_share_of_a_step(tmp_path: Path, monkeypatch: Any) -> None:
    torch = pytest.importorskip("torch")
    from trainyard.run.chaos import inject_faults
    from trainyard.train.process_group import Ranks

    slept: list[float] = []
    clock = [100.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += 99.0

    monkeypatch.setattr(inject_faults.time, "sleep", sleep)
    monkeypatch.setattr(inject_faults.time, "perf_counter", lambda: clock[0])
    chaos_files.write_plan(tmp_path, FaultPlan(fault=(Fault(kind="delay", step=3, rank=0, amount=50.0),)))
    call = inject_faults.fault_injector(tmp_path, job(), Ranks(0, 0, 1, 1, "cpu", torch.device("cpu")), 0)
    assert call is not None
    for step in range(6):
        call(step)
        clock[0] += 4.0
    assert slept == [2.0, 2.0, 2.0], "before steps 3, 4, 5; what it slept is not of a step"


@pytest.mark.torch
@pytest.mark.skipif(not fault_plan.FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("parts", [[b"x" * 1000], [b"x" * 10, b"y" * 90]])
def test_save_to_full_disk_fails_with_enospc_and_next_save_succeeds(tmp_path: Path, parts: list[bytes]) -> None:
    pytest.importorskip("torch")
    from trainyard.run.chaos import inject_faults
    from trainyard.train.checkpoint import checkpoint_saver, checkpoint_store

    real = checkpoint_saver.write
    inject_faults._fill_disk(lambda: True)
    with refused(OSError, errno.ENOSPC) as caught:
        checkpoint_saver.write(tmp_path / "rank0.bin", parts)
    assert caught.value.errno == errno.ENOSPC
    assert checkpoint_store.is_full(caught.value)
    assert (tmp_path / "rank0.bin").stat().st_size == len(parts[0]) // 2, "torn, as by a disk that fills up"
    assert checkpoint_saver.write is real
    assert checkpoint_saver.write(tmp_path / "rank1.bin", parts).bytes == sum(map(len, parts))
    inject_faults._fill_disk(lambda: False)  # somebody else's by now
    assert checkpoint_saver.write(tmp_path / "rank2.bin", parts).bytes == sum(map(len, parts))
    assert checkpoint_saver.write is real


# The score


def sample(step: int, ended: float, loss: float | None = None, attempt: int = 0, rank: int = 0) -> Sample:
    return Sample(
        step=step, rank=rank, repeat=0, wall_ns=S, tokens=1, memory_bytes=0, attempt=attempt,
        loss=5.0 - step / 100 if loss is None else loss, ended_ns=int(ended * S),
    )  # fmt: skip


def incident(kind: str, second: int, rank: int = -1, node: int = -1, detect: float = 0.5, **more: Any) -> Incident:
    when = f"1970-01-01T00:{second // 60:02}:{second % 60:02}.250+00:00"
    return Incident(kind=kind, time=when, attempt=0, summary="so", rank=rank, node=node, detect_s=detect, **more)


def run(samples: Sequence[Sample], incidents: Sequence[Incident] = (), **more: Any) -> Run:
    given: dict[str, Any] = {"state": "complete", **more}
    return Run(id="0" * 8, job=job(), started="", samples=tuple(samples), incidents=tuple(incidents), **given)


CALM = run([sample(step, step + 1.0) for step in range(20)])


def only(disturbed: Run, planned: Fault, at: float = 7.1) -> FaultScore:
    injected = {0: InjectedFault(at=int(at * S), step=planned.step, attempt=0)}
    (row,) = score_faults(disturbed, CALM, FaultPlan(fault=(planned,)), injected)
    return row


def test_recovered_fault_with_correct_blame_scores_well() -> None:
    again = [sample(step, step + 10.0, attempt=1) for step in range(5, 20)]
    death = incident("worker_death", 7, rank=1, node=1, restart_s=2.0, lost_s=1.5, resumed_step=5)
    row = only(run([*CALM.samples[:7], *again], [death]), fault("kill_worker", target=1))
    assert row.correct
    assert (row.injected_step, row.blamed, row.blamed_rank, row.outcome, row.losses) == (
        7, "worker_death", 1, "recovered", "identical",
    )  # fmt: skip
    assert row.detect_s == pytest.approx(0.65, abs=0.01), "from the fault itself, 7.1 s, to 7.75 s"
    assert (row.restart_s, row.lost_s, row.import_s) == (2.0, 1.5, 0.0)


@pytest.mark.parametrize(
    ("told", "blamed", "rank"),
    [
        ([], "", -1),
        ([incident("worker_death", 7, rank=0)], "worker_death", 0),
        ([incident("hang", 7, rank=1)], "hang", 1),
        ([incident("worker_death", 3, rank=1)], "", -1),
    ],
)
def test_missing_wrong_or_earlier_incident_is_not_right(told: list[Incident], blamed: str, rank: int) -> None:
    row = only(run(CALM.samples, told), fault("kill_worker", target=1))
    assert not row.correctly_blamed
    assert not row.correct
    assert (row.blamed, row.blamed_rank) == (blamed, rank)


def test_flipped_byte_is_detected_on_load_and_costs_a_restart() -> None:
    killed = incident("worker_death", 8, rank=1, restart_s=3.0, lost_s=1.0)
    read = incident("bad_checkpoint", 10, detect=0.0)
    row = only(run(CALM.samples, [killed, read]), fault("flip_byte", target=1))
    assert (row.blamed, row.correctly_blamed, row.restart_s, row.lost_s) == ("bad_checkpoint", True, 3.0, 1.0)
    assert not only(run(CALM.samples, [killed]), fault("flip_byte", target=1)).correctly_blamed, (
        "killed, and the byte was used"
    )


@pytest.mark.parametrize(
    ("changed", "losses"),
    [
        ({}, "identical"),
        ({12: 1e-7}, "close"),
        ({12: 1e-3}, "different"),
        ({12: math.nan}, "different"),
        ({3: 1e-3}, "identical"),  # before the fault
    ],
)
def test_losses_after_the_fault_are_compared_to_the_bit(changed: dict[int, float], losses: str) -> None:
    def bent(sample: Sample) -> Sample:
        return replace(sample, loss=(sample.loss or 0.0) * (1 + changed.get(sample.step, 0.0)))

    row = only(run(list(map(bent, CALM.samples))), fault("delay"))
    assert row.losses == losses
    assert (row.loss_error == 0) == (losses == "identical")


def test_a_step_taken_twice_must_be_the_same_both_times() -> None:
    wrong = sample(7, 7.5, loss=1.0)
    again = [sample(step, step + 10.0, attempt=1) for step in range(5, 20)]
    assert only(run([*CALM.samples[:7], wrong, *again]), fault("kill_worker")).losses == "different"


def test_missing_step_makes_losses_missing() -> None:
    gone = [sample for sample in CALM.samples if sample.step != 8]
    assert only(run(gone), fault("kill_worker")).losses == "missing"


def test_early_end_is_failed_only_with_a_reason() -> None:
    part = CALM.samples[:8]
    assert only(run(part, state="failed", failure="rank 0 died"), fault("kill_worker")).outcome == "failed"
    assert only(run(part, state="incomplete"), fault("kill_worker")).outcome == "stuck"
    row = only(run(part, state="failed", failure="rank 0 died"), fault("kill_worker"))
    assert row.losses == "missing"
    (missed,) = score_faults(CALM, CALM, FaultPlan(fault=(fault("stop"),)), {})
    assert (missed.outcome, missed.injected_step, missed.correctly_blamed) == ("not injected", -1, False)


def test_nan_losses_in_both_runs_are_identical() -> None:
    calm = run([*CALM.samples[:19], sample(19, 20.0, loss=math.nan)])
    injected = {0: InjectedFault(at=7 * S, step=7, attempt=0)}
    (row,) = score_faults(calm, calm, FaultPlan(fault=(fault("delay"),)), injected)
    assert row.losses == "identical"


def test_import_time_is_reported_separately() -> None:
    preemption = incident("preempted", 8, detect=0.0, restart_s=9.0)
    lived = [
        JobEvent(type="started", at=0), JobEvent(type="launched", at=2 * S),
        JobEvent(type="started", at=10 * S), JobEvent(type="launched", at=14 * S),
    ]  # fmt: skip
    injected = {0: InjectedFault(at=8 * S, step=7, attempt=0)}
    (row,) = score_faults(run(CALM.samples, [preemption]), CALM, FaultPlan(fault=(fault("preempt"),)), injected, lived)
    assert (row.correctly_blamed, row.restart_s, row.import_s) == (True, 9.0, 4.0)


MADE = st.lists(st.tuples(st.sampled_from(sorted(words.INJECTIONS)), st.integers(0, 1)), min_size=1, max_size=6)


def found(planned: Fault, second: int) -> list[Incident]:
    """What a supervisor that is never wrong tells of it."""
    kill = [incident("worker_death", second, rank=planned.rank)] if planned.kind == "flip_byte" else []
    rank = -1 if planned.kind == "flip_byte" else planned.rank
    return [*kill, incident(planned.blamed, second, rank=rank, node=max(planned.node, rank))]


@given(MADE, st.randoms())
def test_correct_incidents_score_right_in_any_plan_order(made: list[tuple[str, int]], chance: Any) -> None:
    faults = [fault(kind, 7, who) for kind, who in made]
    told = [one for place, each in enumerate(faults) for one in found(each, 10 * place + 10)]
    numbered = [(one, InjectedFault(at=(10 * place + 9) * S, step=7, attempt=0)) for place, one in enumerate(faults)]
    chance.shuffle(numbered)
    marked = {number: mark for number, (_, mark) in enumerate(numbered)}
    wanted = FaultPlan(fault=tuple(one for one, _ in numbered))
    rows = score_faults(run(CALM.samples, told), CALM, wanted, marked)
    assert [row.kind for row in rows] == [one.kind for one in wanted.fault]
    assert all(row.correctly_blamed for row in rows)
    assert strays(run(CALM.samples, told), wanted, marked) == ()
    assert all(row.detect_s == pytest.approx(1.75, abs=0.01) for row in rows)


@given(MADE, st.lists(st.tuples(st.sampled_from(sorted(words.FAULTS)), st.integers(-1, 1), st.integers(0, 59))))
def test_incident_is_attributed_once_and_after_its_fault(
    made: list[tuple[str, int]], told: list[tuple[str, int, int]]
) -> None:
    faults = tuple(fault(kind, 7, who) for kind, who in made)
    marked = {number: InjectedFault(at=(number * 7) * S, step=7, attempt=0) for number in range(len(faults))}
    incidents = [incident(kind, second, rank, rank, restart_s=1.0) for kind, rank, second in told]
    rows = score_faults(run(CALM.samples, incidents), CALM, FaultPlan(fault=faults), marked)
    assert sum(bool(row.blamed) for row in rows) <= len(incidents)
    assert all(row.detect_s >= 0 for row in rows)
    for kind in words.FAULTS:
        assert sum(row.blamed == kind for row in rows) <= sum(one.kind == kind for one in incidents)
    for row in rows:
        assert not row.correctly_blamed or row.blamed == words.INJECTIONS[row.kind].blamed
    wanted = FaultPlan(fault=faults)
    others = strays(run(CALM.samples, incidents), wanted, marked)
    flips = sum(row.kind == "flip_byte" for row in rows)
    assert 0 <= len(incidents) - len(others) - sum(bool(row.blamed) for row in rows) <= flips
    score = ChaosScore(reference="", plan=wanted, faults=rows, unplanned=others)
    assert len(table(score).rows) == len(rows)


def test_rank_outside_collective_is_distinguished_from_waiting_ranks(tmp_path: Path) -> None:
    """faulthandler calls the thread that took the signal `Current thread`, others `Thread`; the main one comes last."""
    free = threading.Event()
    thread = threading.Thread(target=free.wait)
    thread.start()
    with (tmp_path / "stacks").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        free.set()
        thread.join()
        file.seek(0)
        stack = file.read()
    assert stack.count("hread 0x") > 1
    assert Path(__file__).name in find_cause.innermost(stack)


# A run under a plan


class Ends:
    """In place of the harness: each call of `execute` or `resume` ends as the next of `ends` says; what was called."""

    def __init__(self, store: Store, ends: Sequence[TrainyardError | None]) -> None:
        self.store, self.ends, self.called = store, list(ends), list[str]()

    def execute(self, job: Job, text: str, _: Session, *, begun: Any = None, tag: str = "") -> Run:
        self.called.append("execute")
        one = replace(run([]), id=new_id(), job=job, state="incomplete")
        if begun is None:
            return self._end(one, text)
        begun(self.store.begin(one, text))
        return self._finish(one)

    def resume(self, name: str, _: Session) -> Run:
        self.called.append("resume")
        return self._finish(self.store.load(name))

    def _end(self, run: Run, text: str) -> Run:
        self.store.begin(run, text)
        return self.store.finish(replace(run, state="complete", samples=CALM.samples))

    def _finish(self, run: Run) -> Run:
        error = self.ends.pop(0)
        if error is None:
            return self.store.finish(replace(run, state="complete", samples=CALM.samples))
        self.store.finish(replace(run, state="failed", failure=str(error)))
        raise error


@pytest.mark.parametrize(
    ("ends", "called", "failed"),
    [
        ([None], ["execute", "execute"], False),
        ([Preempted("asked to leave"), None], ["execute", "execute", "resume"], False),
        ([RankDied("rank 0 died")], ["execute", "execute"], True),
        ([Preempted("asked to leave"), RankDied("rank 0 died")], ["execute", "execute", "resume"], True),
        ([Preempted("asked to leave"), Preempted("again")], ["execute", "execute", "resume"], True),
    ],
)
def test_preempted_job_resumes_as_planned_and_is_always_scored(
    ends: list[TrainyardError | None], called: list[str], failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    stand_in = Ends(store, ends)
    monkeypatch.setattr(experiment, "harness", stand_in)
    met = experiment.execute(job(), "", FaultPlan(fault=(fault("preempt"),)), Session(store, lambda _: []))
    assert stand_in.called == called
    assert (met.failure is not None) == failed == (met.run.state == "failed")
    assert [row.outcome for row in met.score.faults] == ["not injected"], "nothing was struck here"
    folder = store.runs / met.run.id
    assert chaos_files.read_plan(folder) == FaultPlan(fault=(fault("preempt"),))
    assert met.score.reference in (folder / "chaos.json").read_text()
    assert chaos_files.read_plan(store.runs / met.score.reference) is None


def test_incomparable_reference_run_is_refused() -> None:
    calm = run(CALM.samples)
    assert experiment.comparable(calm, job(name="other", recovery=Recovery())) is calm
    with refused(BadInput, calm.id, "--against"):
        experiment.comparable(calm, job(recipe=Recipe(seq_len=8, tokens_per_step=32, seed=1)))
    with refused(WrongRunState, calm.id, "failed"):
        experiment.comparable(run([], state="failed"), job())
    with refused(BadInput, calm.id, "restarts = 1"):
        experiment.comparable(run([sample(1, 2.0, attempt=1)]), job())


# The trials of `make chaos`


def test_trials_cover_every_fault_first_and_are_reproducible(root: Path) -> None:
    from trainyard import job_file as jobs
    from validation import chaos

    small = jobs.load(root / "examples" / "chaos.toml")
    every = list(chaos.wanted(small, 2, words.INJECTIONS))
    assert every == list(chaos.wanted(small, 2, words.INJECTIONS))
    assert len({(one.kind, one.step, number) for one, number in every}) == len(every) == 2 * 3 * len(words.INJECTIONS)
    assert {one.kind for one, _ in every[: len(words.INJECTIONS)]} == words.INJECTIONS.keys()
    for one, _ in every:
        FaultPlan(fault=(one,)).check(small)
    alone = [(one, number) for one, number in every if one.kind == "stop"]
    assert list(chaos.wanted(small, 2, ["stop"])) == alone


def test_a_table_of_trials_counts_what_went_wrong_too() -> None:
    from validation import chaos

    well = only(run(CALM.samples, [incident("hang", 8, rank=0, restart_s=1.0)]), fault("stop"))
    ill = only(run(CALM.samples[:9], state="incomplete"), fault("stop"))
    trials = [
        chaos.Trial(kind="stop", step=7, number=number, seconds=1.0, load=1.0, when="2026-01-01", row=row, error="none")
        for number, row in enumerate([well, well, ill, None])
    ]
    assert "| stop a rank | 4 | 50 % | 50 % | 50 % | 0 | 2.7 s | 2.7 s |" in chaos.table(trials)
    assert len(chaos.list_failures(trials).splitlines()) == 2


# The short form of it


SMALL = f"""{TWO_REPLICAS}dataset = "text.txt"
[measure]
warmup = 2
steps = 14
repeats = 2
profiled = 0
[checkpoint]
interval = 3
[recovery]
max_restarts = 2
hang_timeout_s = 60
nodes = 2
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(not fault_plan.FULL.exists(), reason="needs /dev/full")
def test_job_recovers_from_kill_full_disk_and_flipped_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import os

    from trainyard.job_file import parse

    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(bytes(range(256)) * 40)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    store = Store(tmp_path / "store")
    faults = fault("kill_agent", 4, target=1), fault("fill_disk", 9, target=1), fault("flip_byte", 16)
    wanted = FaultPlan(fault=faults)
    met = experiment.execute(parse(SMALL, "small.toml"), SMALL, wanted, Session(store, lambda _: []))
    assert met.failure is None
    assert [(row.kind, row.blamed, row.outcome, row.losses) for row in met.score.faults] == [
        ("kill_agent", "agent_death", "recovered", "identical"),
        ("fill_disk", "disk_full", "recovered", "identical"),
        ("flip_byte", "bad_checkpoint", "recovered", "identical"),
    ]
    assert all(row.correct for row in met.score.faults)
    assert [row.injected_step for row in met.score.faults] == [4, 11, 16]
    assert all(row.detect_s + row.restart_s > 0 for row in met.score.faults)
    kept = (store.runs / met.run.id / "chaos.json").read_text()
    assert met.score.reference in kept
    assert (store.runs / met.run.id / "checkpoints").is_dir()
    other = parse(SMALL.replace("hidden_size = 16", "hidden_size = 32"), "small.toml")
    with refused(BadInput, met.score.reference, "--against"):
        experiment.execute(other, SMALL, wanted, Session(store, lambda _: []), against=met.score.reference)


def test_unfitting_plan_is_refused_before_any_run(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    (tmp_path / "plan.toml").write_text('[[fault]]\nkind = "stop"\nrank = 7\nstep = 1\n')
    example = root / "examples" / "chaos.toml"
    done = CliRunner().invoke(command, ["chaos", str(tmp_path / "plan.toml"), str(example)])
    assert type(done.exception) is BadInput
    assert missing_values(str(done.exception), "$.fault[0]:", "rank", 7, 2) == []
    assert not (tmp_path / "store" / "runs").exists()


def test_a_score_of_the_old_schema_is_upgraded():
    old = {
        "against": "calm",
        "plan": {"fault": [{"kind": "stop", "rank": 1, "step": 3}]},
        "rows": [{"kind": "stop", "step": 3, "right": True}],
        "strays": [{"kind": "hang", "when": "2025", "attempt": 0, "says": "rank 1 hung"}],
        "schema": "trainyard/chaos/1",
    }  # fmt: skip
    score = msgspec.convert(renamed_keys.upgraded_chaos(old), ChaosScore)
    assert score.reference == "calm"
    assert score.faults == (FaultScore(kind="stop", step=3, correctly_blamed=True),)
    assert score.unplanned == (Incident(kind="hang", time="2025", attempt=0, summary="rank 1 hung"),)
