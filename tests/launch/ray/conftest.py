"""The real job for the tests of this folder, with fewer steps: two Ray nodes share the cores with Ray's processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.real_job import JOB, local_losses, store

__all__ = ["local_losses", "store"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB.replace("steps = 299", "steps = 59"))
    return path
