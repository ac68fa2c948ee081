"""A real training job on a Ray cluster of two nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.launch.ray.test_ray import address
from tests.launch.real_job import losses
from tests.processes import until
from trainyard.api.run_jobs import read_job
from trainyard.launch.ray.launcher import Ray
from trainyard.launch_request import SchedulerOptions
from trainyard.run.launches.launch_job import LaunchOptions, submit_job
from trainyard.run.parts.part import joined_run_id
from trainyard.store.store import Store

__all__ = ["address"]
pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.slow]


def test_a_job_has_the_losses_of_a_local_run(
    address: str, store: Store, job: Path, local_losses: Mapping[tuple[int, int], float | None]
) -> None:
    options = LaunchOptions(
        nodes=2, scheduler=SchedulerOptions(options={"address": address, "cpus": "0.5", "wait_s": "60"}),
        node_folder=str(store.root / "nodes"), shared_folder=str(store.root / "shared"),
        environment={"TRAINYARD_STORE": str(store.root)},
    )  # fmt: skip
    record = submit_job(*read_job(job), "ray", options, store.root)
    assert until(lambda: Ray().status(record.scheduler_id).is_over, 240)
    status = Ray().status(record.scheduler_id)
    assert status.state == "ended", status.reason
    assert losses(store.load(joined_run_id(record.id))) == local_losses
