"""A real job of two ranks with checkpoints, its losses on this machine, and an empty store, for tests of launchers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_job import TWO_REPLICAS
from trainyard import api
from trainyard.record import Run
from trainyard.store.store import Store

JOB = f"""
name = "two hosts"
{TWO_REPLICAS}
[measure]
warmup = 1
steps = 299
repeats = 1
profiled = 0
[checkpoint]
interval = 10
[recovery]
max_restarts = 2
"""


def losses(run: Run) -> dict[tuple[int, int], float | None]:
    """(rank, step) -> loss, of each step's last attempt."""
    return {(sample.rank, sample.step): sample.loss for sample in run.kept()}


def log_ends(root: Path) -> dict[str, str]:
    """The last 2,000 characters of each log file below `root`, for the message of a failed assertion."""
    return {str(path.relative_to(root)): path.read_text(errors="replace")[-2000:] for path in root.rglob("*.log")}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def local_losses(job: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], float | None]:
    """The losses of the job on this machine, without interruption."""
    store = Store(tmp_path_factory.mktemp("local"))
    return losses(store.load(api.run(job, session=api.Session(store)).id))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store, also of the processes that are started."""
    monkeypatch.setenv("TRAINYARD_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return Store(tmp_path / "store")
