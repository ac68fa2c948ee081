"""Default environment variables of the ranks on this host."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tiny_job import ONE_LAYER
from trainyard.run.local.rank_environment import environment, variable_values
from trainyard.vendors import cpu_vendor


@pytest.mark.parametrize(("vendor", "is_timed"), [("nvidia", True), ("amd", True), ("cpu", False), ("pretend", False)])
def test_nccl_is_timed_on_the_devices_of_the_ranks(vendor: str, is_timed: bool) -> None:
    # Without the vendors of accelerators: their drivers are not asked again for the devices.
    values = variable_values(environment(1, {"cpu": cpu_vendor.Cpu()}, vendor))
    assert values.get("TORCH_NCCL_ENABLE_TIMING", "") == ("1" if is_timed else "")


def test_ranks_divide_the_cores() -> None:
    for ranks in (1, cpu_vendor.cores(), cpu_vendor.cores() + 1):
        values = variable_values(environment(ranks, {"cpu": cpu_vendor.Cpu()}, "cpu"))
        assert int(values["OMP_NUM_THREADS"]) == max(1, cpu_vendor.cores() // ranks)


IMPORTED_AFTER_PRELOAD = """
import sys
from trainyard import job_file, plugins
from trainyard.launch.agents.preload import preload
from trainyard.run.local.rank_environment import PRELOAD
preload(PRELOAD)
preloaded = set(sys.modules)
import trainyard.run.local.worker
job = job_file.parse(sys.argv[1] + "[recipe]\\nseq_len = 8\\ntokens_per_step = 8", "the test")
plugins.load("workloads", job.workload).build(job, "cpu")(0)
print(*(name for name in set(sys.modules) - preloaded if name.startswith("torch.distributed")))
"""


@pytest.mark.torch
def test_preload_contains_torch_modules_of_a_training_step() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", IMPORTED_AFTER_PRELOAD, ONE_LAYER]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.split() == []
