"""A process killed between any two durable effects: finished work stays, unfinished work is absent or marked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.killed import arrivals, each, kill_at
from tests.stored import JOB, JOB_TEXT, LEDGER, samples, stored
from trainyard.fault_points import POINTS, VARIABLE, fault_point
from trainyard.record import Run
from trainyard.store.index.run_index import RunRow
from trainyard.store.store import Store

FIRST, SECOND, THIRD = "0000000a", "0000000b", "0000000c"
BEGUN = Run(id=THIRD, job=JOB, started="2025-03-01T00:00:00.000+00:00")
DONE = msgspec.structs.replace(BEGUN, state="complete", samples=samples(), ledgers=(LEDGER,))


def never(text: str) -> None:
    raise AssertionError(text)


# The points


def test_the_points_are_those_that_the_code_has(root: Path) -> None:
    call = re.compile(r'fault_point\("([a-z_.]+)"\)')
    used = [name for path in (root / "src").rglob("*.py") for name in call.findall(path.read_text("utf-8"))]
    assert sorted(used) == sorted(POINTS), "each name is used once"


def test_without_the_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for name in POINTS:
        fault_point(name)


@pytest.mark.parametrize("value", ["", "store.part", "store.part:0", "store.part:x", "store.prat:1"])
def test_a_misspelt_point_is_an_error(value: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from trainyard.fault_points import fault_point; fault_point('store.part')"],
        env={**os.environ, VARIABLE: value}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{VARIABLE} is {value!r}" in done.stderr


def test_the_process_dies_at_that_arrival_and_no_other() -> None:
    code = (
        "from trainyard.fault_points import fault_point as f; f('store.part'); f('store.synced'); print(1, flush=True);"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + "f('store.part'); print(2)"],
        env={**os.environ, VARIABLE: "store.part:2"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1\n")


# A store


@pytest.fixture(params=["sqlite", "postgresql"])
def index(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment that chooses where the index is."""
    return {} if request.param == "sqlite" else {"TRAINYARD_INDEX": request.getfixturevalue("postgres_url")}


def list_runs(root: Path) -> None:
    Store(root, say=never).rows()


def begin_run(root: Path) -> None:
    Store(root, say=never).begin(BEGUN, JOB_TEXT)
    list_runs(root)


def finish_run(root: Path) -> None:
    store = Store(root, say=never)
    store.finish(DONE)
    store.rows()


def move_tag(root: Path) -> None:
    Store(root, say=lambda _: None).tag(SECOND, "main")


def remove_tag(root: Path) -> None:
    store = Store(root, say=never)
    if any(row.tags for row in store.rows()):
        store.untag("main")


def delete_run(root: Path) -> None:
    store = Store(root, say=never)
    if (store.runs / SECOND).exists():
        store.delete(SECOND)


def rebuild_index(root: Path) -> None:
    Store(root, say=never).reindex()


def push_run(root: Path) -> None:
    from trainyard.store.exchange.push_pull import push
    from trainyard.store.exchange.remote_store import Remote

    push(root / "runs" / FIRST, Remote(str(root.parent / "remote")))


def pull_run(root: Path) -> None:
    from trainyard.store.exchange.push_pull import pull
    from trainyard.store.exchange.remote_store import Remote

    pull(Store(root.parent / "other", say=never), Remote(str(root)), FIRST)


def prepare(root: Path, work: Callable[[Path], None], environment: dict[str, str]) -> None:
    """A store with two runs, of which the first has a tag, and one that was begun if the work is to finish it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRAINYARD_INDEX", raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        store = Store(root, say=never)
        stored(store, FIRST)
        stored(store, SECOND)
        if work is finish_run:
            store.begin(BEGUN, JOB_TEXT)
        if work not in (list_runs, begin_run):  # else the index, and the store's id, do not exist yet
            store.tag(FIRST, "main")


INDEXED = [list_runs, begin_run, finish_run, move_tag, remove_tag, delete_run, rebuild_index]
COPIES = [push_run, pull_run]


def check_store(root: Path, whole: dict[str, Run]) -> Store:
    """Every run can be listed and read without a complaint, by this index and by a new one."""
    store = Store(root, say=never)
    rows = store.rows()
    assert store.rows() == rows
    for row in rows:
        run = store.load(row.id)
        assert run == whole.get(row.id) or (run.id, run.state) == (THIRD, "incomplete"), "whole, or marked"
    assert Store(root, say=never).reindex() == len(rows)
    assert store.rows() == rows
    return store


def rows_of(store: Store) -> list[RunRow]:
    """Without the time, of which each store has its own."""
    return [msgspec.structs.replace(row, started="") for row in store.rows()]


def remains(root: Path) -> list[str]:
    return [str(path) for path in root.rglob(".*")]


@pytest.mark.slow
@pytest.mark.parametrize("work", INDEXED)
def test_a_store_survives_a_kill_at_every_point(
    tmp_path: Path, index: dict[str, str], work: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in index.items():
        monkeypatch.setenv(name, value)
    prepare(tmp_path / "calm", work, index)
    calm = Store(tmp_path / "calm", say=never)
    whole = {path.name: calm.load(path.name) for path in calm.runs.iterdir()}  # so that no index is made
    reached = arrivals(work, tmp_path / "calm", environment=index)
    whole |= {row.id: calm.load(row.id) for row in calm.rows()}
    assert sum(reached.values()) >= 2
    if index:  # files are written the same way, whatever the index is
        reached = {point: count for point, count in reached.items() if point.startswith("index")}
    for point, number in each(reached):
        root = tmp_path / f"{point}-{number}"
        prepare(root, work, index)
        kill_at(point, number, work, root, environment=index)
        store = check_store(root, whole)
        rows = store.rows()
        assert {row.id for row in rows} >= whole.keys() - {SECOND if work is delete_run else "", THIRD}
        assert sum(row.tags.count("main") for row in rows) == 1 or work in (list_runs, begin_run, remove_tag)
        if work is not begin_run or THIRD not in {row.id for row in rows}:
            work(root)
        assert rows_of(store) == rows_of(calm), "as if it had not been killed"
        store.reindex()
        assert remains(root) == []


@pytest.mark.slow
@pytest.mark.parametrize("work", COPIES)
def test_a_copy_survives_a_kill_at_every_point(tmp_path: Path, work: Callable[[Path], None]) -> None:
    pytest.importorskip("fsspec")
    copy = "remote" if work is push_run else "other"
    prepare(tmp_path / "calm" / "store", work, {})
    reached = arrivals(work, tmp_path / "calm" / "store")
    whole = {id: Store(tmp_path / "calm" / "store", say=never).load(id) for id in (FIRST, SECOND)}
    for point, number in each(reached):
        root = tmp_path / f"{point}-{number}" / "store"
        prepare(root, work, {})
        kill_at(point, number, work, root)
        check_store(root, whole)
        half = Store(root.parent / copy, say=never)
        for row in half.rows():
            assert half.load(row.id) == whole[row.id], "absent or whole"
        work(root)
        assert half.load("main") == whole[FIRST]
        assert remains(root.parent) == []


def test_a_pull_killed_twice_leaves_nothing(tmp_path: Path) -> None:
    """At first half-way, then when the run was there."""
    pytest.importorskip("fsspec")
    root = tmp_path / "store"
    prepare(root, pull_run, {})
    for point in ("pull.fetched", "pull.renamed"):
        kill_at(point, 1, pull_run, root)
    pull_run(root)
    assert remains(tmp_path) == []


# A checkpoint


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    from tests.train.checkpoint.test_checkpoint import a_job, here, train

    return train(here(), a_job(), tmp_path_factory.mktemp("calm"))[1]


def save_alone(run: str) -> None:
    from tests.train.checkpoint.test_checkpoint import a_job, here, train

    train(here(), a_job(every=2, keep=1), run)


def resume_alone(run: str) -> Any:
    from tests.train.checkpoint.test_checkpoint import a_job, here, train

    return train(here(), a_job(), run)


def saves_before(point: str, number: int) -> int:
    """Whole saves at the least, by the order of a save: part, shard, manifest, sealed, renamed, retired."""
    if point.startswith("checkpoint.file"):
        return (number - 1) // 2
    return number - 1 + (point == "checkpoint.renamed") + 2 * (point == "checkpoint.retired")


@pytest.mark.torch
@pytest.mark.slow
def test_a_save_survives_a_kill_at_every_point(tmp_path: Path, undisturbed: list[Any]) -> None:
    from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

    reached = arrivals(save_alone, str(tmp_path / "calm"))
    assert set(reached) == {
        f"checkpoint.{name}" for name in ("part", "file.written", "file.synced", "sealed", "renamed", "retired")
    }
    for point, number in each(reached):
        run = tmp_path / f"{point}-{number}"
        kill_at(point, number, save_alone, str(run))
        steps = CheckpointStore(run).steps()
        assert max(steps, default=-1) + 1 >= 2 * saves_before(point, number), "nothing finished is lost"
        first, outcomes, notices, _ = resume_alone(str(run))
        assert (first, notices) == (max(steps, default=-1) + 1, [])
        assert outcomes == undisturbed[first:], "bit for bit"
        assert remains(run) == []


def save_on_ranks(ranks: Any, run: str, rank: int, at: str) -> None:
    """The rank that is not killed may end, or lose its peer."""
    from tests.train.checkpoint.test_checkpoint import a_job, train
    from trainyard.layout import Layout

    if ranks.rank == rank:
        os.environ[VARIABLE] = at
    with suppress(RuntimeError):
        train(ranks, a_job(Layout(dp_shard=2), every=2, keep=1), run, 4)


def resume_on_ranks(ranks: Any, runs: list[str]) -> list[Any]:
    from tests.train.checkpoint.test_checkpoint import a_job, train
    from trainyard.layout import Layout

    return [train(ranks, a_job(Layout(dp_shard=2)), run) for run in runs]


@pytest.mark.torch
@pytest.mark.slow
def test_one_killed_rank_of_two_costs_no_checkpoint(tmp_path: Path) -> None:
    """At each point of the second save, which only one of the two ranks lives to end."""
    from tests.ranks import on_ranks
    from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

    kills = [(1, "part:2"), (1, "file.synced:2"), (0, "part:2"), (0, "file.synced:3"), (0, "file.synced:4")]
    kills += [(0, "sealed:2"), (0, "retired:1")]
    runs = [tmp_path / f"{rank}-{at}" for rank, at in kills]
    for run, (rank, at) in zip(runs, kills):
        assert on_ranks(2, save_on_ranks, str(run), rank, f"checkpoint.{at}")[rank] == -signal.SIGKILL
    newest = [max(CheckpointStore(run).steps()) for run in runs]
    calm = str(tmp_path / "calm")
    (whole, *resumed), same = on_ranks(2, resume_on_ranks, [calm, *map(str, runs)])
    assert same == [whole, *resumed]
    for step, (first, outcomes, notices, _) in zip(newest, resumed):
        assert (first, notices) == (step + 1, [])
        assert first in (2, 4)
        assert outcomes == whole[1][first:], "bit for bit"


# Another run's checkpoint, and a damaged one


def adopt(run: str) -> None:
    from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

    CheckpointStore(Path(run) / "new", "adopted").copy_from(CheckpointStore(Path(run)), 5)


def damaged(run: Path) -> Path:
    """A run with a checkpoint after step 3, and one after step 6 with a byte flipped."""
    from tests.run.resume.test_resume_hint import shelve
    from tests.train.checkpoint.test_checkpoint import flipped
    from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

    shelve(run, 2)
    shelve(run, 5)
    flipped(CheckpointStore(run).folder(5))
    return run


def set_aside(run: str) -> None:
    from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

    CheckpointStore(Path(run)).set_aside(5, "torn")


def test_setting_aside_survives_a_kill(tmp_path: Path) -> None:
    from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

    kill_at("checkpoint.set_aside", 1, set_aside, str(damaged(tmp_path)))
    assert CheckpointStore(tmp_path).steps() == [5, 2]
    set_aside(str(tmp_path))
    assert CheckpointStore(tmp_path).steps() == [2]
    assert len(list(tmp_path.glob("checkpoints/bad-step-000006*/step-000006"))) == 1


def test_adopting_survives_a_kill_at_every_point(tmp_path: Path) -> None:
    from tests.run.resume.test_resume_hint import shelve
    from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

    shelve(tmp_path / "calm", 5)
    for point, number in each(arrivals(adopt, str(tmp_path / "calm"))):
        run = tmp_path / f"{point}-{number}"
        shelve(run, 5)
        kill_at(point, number, adopt, str(run))
        assert CheckpointStore(run).describe_damage(5) == ""
        assert CheckpointStore(run / "new").steps() == ([5] if point == "checkpoint.renamed" else [])
        CheckpointStore(run / "new").clear()
        assert remains(run) == []
