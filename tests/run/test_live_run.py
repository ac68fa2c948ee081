"""Following a run by the files that it writes, one step after another."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tests.refused import refused
from tests.stored import JOB, JOB_TEXT, LEDGER, samples
from trainyard.errors import BadFile, MissingFile, UnknownName
from trainyard.job import SCRIPT
from trainyard.launch.supervisor.event_log import SUPERVISOR, EventLogWriter, JobEvent
from trainyard.ledger import Ledger
from trainyard.record import Run, Sample
from trainyard.run.folder_lock import is_locked, lock_folder
from trainyard.run.live_run import LiveRun, RunFollower, follow_run
from trainyard.store.store import Store

ID = "00c0ffee"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def begin(store: Store, **changes: object) -> tuple[Run, Path]:
    """A run that has begun, and its folder."""
    run = msgspec.structs.replace(Run(id=ID, job=JOB, started="2026-01-01T00:00:00+00:00"), **changes)
    return run, store.begin(run, JOB_TEXT)


def append(folder: Path, *added: Sample, end: bytes = b"\n") -> None:
    """Appends samples to the files of their ranks; the last line ends with `end`."""
    for sample in added:
        with (folder / "samples" / f"rank{sample.rank}.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(sample) + (end if sample is added[-1] else b"\n"))


def make_old(folder: Path, age_s: float = 3600) -> None:
    """Sets the time of the last change of all files to `age_s` seconds ago."""
    changed = time.time() - age_s
    for path in folder.rglob("*"):
        os.utime(path, (changed, changed))


def sample(step: int, rank: int = 0, **changes: object) -> Sample:
    fields = {"repeat": 0, "wall_ns": 1_000_000_000 + rank, "tokens": 8, "loss": 5.0 - step, "memory_bytes": 100 + rank}
    return Sample(step=step, rank=rank, **{**fields, **changes})  # type: ignore[arg-type]


def test_steps_are_read_once_with_their_slowest_rank(store: Store) -> None:
    _, folder = begin(store)
    with lock_folder(folder):
        follower = RunFollower(folder)
        update = follower.look()
        assert (update.state, update.last, update.new_steps, update.steps) == ("starting", None, (), JOB.measure.in_all)
        for step in range(3):
            append(folder, sample(step), sample(step, rank=1))
            update = follower.look()
            (new,) = update.new_steps
            assert (new.step, new.slowest_rank, new.wall_ns, new.loss) == (step, 1, 1_000_000_001, 5.0 - step)
            assert new.tokens_per_s == pytest.approx(JOB.recipe.tokens_per_step, rel=1e-6)
            assert (update.state, update.ranks, update.memory_bytes) == ("running", 2, 101)
        assert follower.look().new_steps == ()
        assert [step.step for step in follower.steps] == [0, 1, 2]


def test_incomplete_line_is_read_when_it_is_complete(store: Store) -> None:
    _, folder = begin(store)
    follower = RunFollower(folder)
    append(folder, sample(0), end=b"")
    assert follower.look().state == "starting"
    with (folder / "samples" / "rank0.jsonl").open("ab") as file:
        file.write(b"\n")
    assert [step.step for step in follower.look().new_steps] == [0]


def test_unreadable_line_is_a_warning(store: Store) -> None:
    _, folder = begin(store)
    (folder / "samples" / "rank0.jsonl").write_bytes(b'{"step": "a\n' + msgspec.json.encode(sample(1)) + b"\n")
    update = RunFollower(folder).look()
    assert [step.step for step in update.new_steps] == [1]
    (warning,) = update.warnings
    assert "rank0.jsonl" in warning


def test_follower_that_joins_a_long_run_reads_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.run.live_run._MAX_FIRST_BYTES", 1_000)
    _, folder = begin(store)
    append(folder, *(sample(step) for step in range(100)))
    update = RunFollower(folder).look()
    steps = [step.step for step in update.new_steps]
    assert steps == list(range(steps[0], 100))
    assert 0 < len(steps) < 20
    assert not update.warnings


def test_run_whose_process_died_is_stopped(store: Store) -> None:
    _, folder = begin(store)
    append(folder, sample(0))
    follower = RunFollower(folder)
    assert follower.look().state == "running", "its last step ended just now"
    make_old(folder)
    with lock_folder(folder):
        assert is_locked(folder)
        assert follower.look().state == "running"
    make_old(folder)
    assert not is_locked(folder)
    assert follower.look().state == "stopped"


def test_run_of_another_host_is_not_stopped_by_a_silent_minute(store: Store) -> None:
    run, _ = begin(store)
    provenance = msgspec.structs.replace(run.provenance, host={"name": "another-host"})
    folder = store.begin(msgspec.structs.replace(run, id="00c0ffe1", provenance=provenance), JOB_TEXT)
    make_old(folder, 60)
    assert RunFollower(folder).look().state == "starting"


def test_incidents_and_goodput_of_a_running_job(store: Store) -> None:
    _, folder = begin(store)
    log = EventLogWriter(folder, SUPERVISOR)
    log.add(JobEvent(type="started", at=10**9))
    log.add(JobEvent(type="launched", at=2 * 10**9, nodes=1))
    append(folder, sample(0, ended_ns=4 * 10**9))
    follower = RunFollower(folder)
    assert follower.look().incidents == ()
    log.add(
        JobEvent(
            type="fault", kind="worker_death", at=5 * 10**9, noticed=6 * 10**9, rank=1, node=0, message="rank 1 died"
        )
    )
    (incident,) = follower.look().incidents
    assert (incident.kind, incident.rank, incident.step, incident.resumed_step) == ("worker_death", 1, 0, -1)
    log.add(JobEvent(type="launched", at=7 * 10**9, attempt=1, nodes=1))
    append(folder, sample(0, attempt=1, ended_ns=9 * 10**9))
    update = follower.look()
    assert (update.attempt, update.incidents[0].resumed_step, update.incidents[0].restart_s) == (1, 0, 2.0)
    assert update.last is not None
    assert update.last.attempt == 1
    assert sum(update.goodput.values()) == pytest.approx(8.0)


def test_updates_end_with_the_stored_run(store: Store) -> None:
    run, folder = begin(store)
    updates: list[LiveRun] = []

    def write() -> None:
        for step in samples():
            append(folder, step)
            time.sleep(0.02)
        store.finish(msgspec.structs.replace(run, state="complete", samples=samples(), ledgers=(LEDGER,)))

    with lock_folder(folder):
        writer = threading.Thread(target=write)
        writer.start()
        updates.extend(follow_run(folder, interval_s=0.01))
        writer.join()
    states = [update.state for update in updates]
    assert states[-1] == "complete"
    assert set(states[:-1]) <= {"starting", "running", "finishing"}
    assert [step.step for update in updates for step in update.new_steps] == [0, 1, 2, 3, 4, 5]
    assert updates[-1].ledger == LEDGER
    for update, following in pairwise(updates):
        assert update != following


@pytest.mark.parametrize("state", ["complete", "failed"])
def test_run_that_is_over_has_one_update(store: Store, state: str) -> None:
    run, folder = begin(store)
    store.finish(msgspec.structs.replace(run, state=state, samples=samples(), failure="rank 1 died"))
    (update,) = follow_run(folder, interval_s=0)
    assert (update.state, update.failure, update.is_over) == (state, "rank 1 died", True)
    assert update.last is not None
    assert update.last.step == 5


def test_damaged_run_ends_with_the_reason(store: Store) -> None:
    run, folder = begin(store)
    store.finish(msgspec.structs.replace(run, state="complete", samples=samples()))
    append(folder, sample(9))
    (update,) = follow_run(folder, interval_s=0)
    assert update.state == "damaged"
    assert "samples/rank0.jsonl" in update.failure


def test_unreadable_head_and_deleted_run_are_errors(store: Store) -> None:
    run, folder = begin(store)
    with refused(MissingFile, "run.json"):
        RunFollower(folder / "missing").look()
    follower = RunFollower(folder)
    follower.look()
    store.delete(run.id)
    with refused(UnknownName, ID, "deleted"):
        follower.look()
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(b"{")
    with refused(BadFile, "run.json"):
        follower.look()


def test_window_of_a_script_is_booked_while_it_continues(store: Store) -> None:
    script = msgspec.structs.replace(JOB, workload=SCRIPT, sizes={"command": "python train.py"})
    _, folder = begin(store, job=script)
    booked: list[Sequence[Path]] = []

    def book(_: Run, traces: Sequence[Path]) -> Ledger:
        booked.append(traces)
        return LEDGER

    follower = RunFollower(folder, book)
    append(folder, sample(0), sample(1, profiled=True))
    (folder / "traces" / "rank0.json.gz").write_bytes(b"a trace")
    assert [follower.look().ledger for _ in range(2)] == [None, None], "the window may still be going"
    append(folder, sample(2))
    updates = [follower.look() for _ in range(3)]
    assert updates[-1].ledger == LEDGER
    assert updates[-1].steps == 0
    assert booked == [[folder / "traces" / "rank0.json.gz"]]


def test_window_that_cannot_be_booked_is_a_warning(store: Store) -> None:
    _, folder = begin(store)

    def book(*_: object) -> Ledger:
        raise BadFile("rank0.json.gz: not a trace.")

    follower = RunFollower(folder, book)
    append(folder, sample(0, profiled=True), sample(1))
    (folder / "traces" / "rank0.json.gz").write_bytes(b"")
    warnings = [follower.look().warnings for _ in range(4)][-1]
    assert len(warnings) == 1
    assert "not a trace" in warnings[0]
