"""A Slurm cluster for the tests of this folder, started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import slurm_cluster
from tests.slurm_cluster import Cluster


@pytest.fixture(scope="session")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two nodes; skips the test if Slurm is not installed."""
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def cluster(started_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, which the tools of Slurm that the test runs use."""
    monkeypatch.setenv("SLURM_CONF", str(started_cluster.configuration))
    return started_cluster


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of a launch, with a space in its name."""
    folder = tmp_path / "a launch"
    folder.mkdir()
    return folder
