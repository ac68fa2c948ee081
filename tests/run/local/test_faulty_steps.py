"""Runs of two ranks with faulty steps: what they record, how they end, and their losses."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks import on_ranks
from tests.refused import refused
from tests.tiny_job import TWO_REPLICAS
from trainyard.errors import TrainingStopped
from trainyard.job_file import parse
from trainyard.record import DeviceSeen, Run
from trainyard.run.local.harness import execute
from trainyard.run.session import Session
from trainyard.store.store import Store

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CORES = (DeviceSeen(index=0, name="some cores", vendor="cpu", facts={"cores": "2"}),)
STEPS = 22
Go = Callable[[str, str], Run]


def text_of(dataset: Path, recipe: str) -> str:
    return f"""{TWO_REPLICAS}dataset = "{dataset}"
learning_rate = 1e-2
{recipe}
[measure]
warmup = 2
steps = {(STEPS - 2) // 2}
repeats = 2
profiled = 0
[checkpoint]
interval = 3
"""


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(Path(__file__).read_bytes())
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def go(dataset: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Go:
    """Runs the job with more lines of `[recipe]` and the faults of `tests.faulty_steps`."""
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(recipe: str, faults: str) -> Run:
        monkeypatch.setenv("FAULTY_STEPS", faults)
        text = text_of(dataset, recipe)
        return execute(
            parse(text, "job.toml"), text, Session(store, lambda _: [], devices=CORES, worker="tests.faulty_steps")
        )

    return run


def train_without(ranks, text, left_out):  # type: ignore[no-untyped-def]
    """Losses by step of a training that leaves out some steps."""
    from trainyard import plugins

    del ranks
    job = parse(text, "job.toml")
    training = plugins.load("workloads", job.workload).build(job, "cpu")
    return {step: training(step).loss for step in range(STEPS) if step not in left_out}


def losses(run: Run) -> dict[int, float | None]:
    return {sample.step: sample.loss for sample in run.kept() if sample.rank == 0 and not sample.skipped}


def skipped(run: Run) -> set[tuple[int, int, int]]:
    """(rank, attempt, step) of the skipped samples."""
    return {(sample.rank, sample.attempt, sample.step) for sample in run.samples if sample.skipped}


def test_stop_names_the_tensor_and_keeps_the_measurements(go: Go, store: Store) -> None:
    with refused(TrainingStopped, "step 8", "the output of layers.1.attention.out", "rank 1", "after step 6") as caught:
        go("", "activation:1:7")
    assert caught.value.exit_code == 4
    (folder,) = store.runs.iterdir()
    run = store.load(folder.name)
    (incident,) = run.incidents
    assert (incident.kind, incident.action, incident.step, incident.rank) == ("non_finite", "stop", 7, 1)
    assert run.state == "failed"
    assert skipped(run) == {(0, 0, 7), (1, 0, 7)}
    assert max(sample.step for sample in run.samples) == 7
    assert incident.summary in run.failure


def test_skipped_steps_leave_the_losses_of_a_run_without_them(go: Go, dataset: Path) -> None:
    recipe = 'on_non_finite = "skip"'
    run = go(recipe, "activation:1:7 activation:0:8 activation:1:12")
    assert [(incident.action, incident.step, incident.rank) for incident in run.incidents] == [
        ("skip", 7, 1), ("skip", 8, 0), ("skip", 12, 1),
    ]  # fmt: skip
    assert (run.state, skipped(run)) == ("complete", {(rank, 0, number) for rank in (0, 1) for number in (7, 8, 12)})
    assert losses(run) == on_ranks(2, train_without, text_of(dataset, recipe), {7, 8, 12})[0]
    assert not any(sample.skipped for sample in run.measured())


def test_rollback_leaves_the_losses_of_a_run_without_the_batch(go: Go, dataset: Path) -> None:
    recipe = 'on_loss_spike = "rollback"\nloss_spike_window = 8\nloss_spike_threshold = 2\nrollback_skip_steps = 2'
    run = go(recipe, "batch:0:16 batch:1:16")
    (incident,) = run.incidents
    assert (incident.kind, incident.action, incident.step, incident.resumed_step) == ("loss_spike", "rollback", 16, 17)
    assert run.state == "complete"
    assert skipped(run) == {(0, 0, 16), (1, 0, 16)}
    assert losses(run).keys() == set(range(STEPS)) - {16}
    expected = on_ranks(2, train_without, text_of(dataset, recipe), {15, 16})[0]
    assert {number: loss for number, loss in losses(run).items() if number != 15} == expected


def test_rollbacks_are_limited_over_attempts(go: Go, store: Store) -> None:
    with refused(TrainingStopped, "step 9", "max_rollbacks = 1"):
        go('on_non_finite = "rollback"\nmax_rollbacks = 1', "activation:0:7 activation:0:8")
    (folder,) = store.runs.iterdir()
    run = store.load(folder.name)
    assert [(incident.action, incident.attempt, incident.step) for incident in run.incidents] == [
        ("rollback", 0, 7), ("stop", 1, 8),
    ]  # fmt: skip
    assert all(loss is not None and math.isfinite(loss) for loss in losses(run).values())
    assert len(losses(run)) < STEPS
