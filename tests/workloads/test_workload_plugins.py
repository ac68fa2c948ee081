"""Every workload is a plugin that reports its costs without torch, and the parts of a job it uses."""

import subprocess
import sys

import msgspec
import pytest

from trainyard import plugins
from trainyard.job import Job
from trainyard.model import Model
from trainyard.models import presets
from trainyard.recipe import Recipe

MODEL = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
JOBS = {
    "transformer": Job(model=MODEL, recipe=Recipe(seq_len=4, tokens_per_step=4)),
    "vision": Job(workload="vision", sizes=presets.load("vit-b-16").sizes, recipe=Recipe(tokens_per_step=4)),
    "diffusion": Job(workload="diffusion", sizes=presets.load("flux1-dev").sizes, recipe=Recipe(tokens_per_step=4)),
    "recommender": Job(
        workload="recommender",
        sizes=presets.load("dlrm-dcnv2").sizes,
        recipe=Recipe(tokens_per_step=4, dataset="synthetic"),
    ),
}
ASK = """
import sys
import msgspec
from trainyard import plugins
from trainyard.job import Job
job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
assert plugins.load("workloads", job.workload).expect(job)
sys.exit("torch" in sys.modules)
"""


def test_every_builtin_workload_is_covered():
    ours = {name for name, point in plugins.names("workloads").items() if point.value.startswith("trainyard.")}
    assert ours == set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_workload_costs_need_no_torch(name):
    process = subprocess.run([sys.executable, "-c", ASK], input=msgspec.json.encode(JOBS[name]), check=False)
    assert process.returncode == 0


@pytest.mark.parametrize("name", JOBS)
def test_params_are_parts_of_a_job(name):
    job = msgspec.to_builtins(JOBS[name])
    for path in plugins.load("workloads", name).params:
        part = job
        for key in path.split("."):
            part = part[key]
