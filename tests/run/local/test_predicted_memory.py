"""A run is preceded by a warning if the planner predicts more memory than a device has."""

from __future__ import annotations

import msgspec

from tests.refused import missing_values
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases
from trainyard.predict.memory.framework_memory import USABLE, memory
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen
from trainyard.run.local.predicted_memory import memory_warning
from trainyard.units import show_size

JOB = Job(
    name="tiny",
    model=Model(layers=4, hidden_size=256, ffn_hidden_size=512, heads=4, kv_heads=4, head_dim=64),
    layout=Layout(dp_shard=2),
    recipe=Recipe(seq_len=512, tokens_per_step=8192, dtype="bfloat16"),
)


def gpu(memory_bytes: float, vendor: str = "nvidia") -> DeviceSeen:
    return DeviceSeen(index=0, name="NVIDIA H100", vendor=vendor, memory_bytes=round(memory_bytes))


def test_warning_begins_where_the_predicted_peak_exceeds_usable_memory() -> None:
    parts = memory(cases.of_jobs([JOB]))
    peak = float(parts.total[0])
    assert memory_warning(JOB, gpu(1.01 * peak / USABLE)) == ""
    warning = memory_warning(JOB, gpu(0.99 * peak / USABLE))
    sizes = [show_size(size) for size in (peak, float(parts.activations[0]), round(0.99 * peak / USABLE))]
    assert missing_values(warning, *sizes, "NVIDIA H100", "trainyard plan check") == []


def test_other_devices_and_jobs_have_no_warning() -> None:
    assert memory_warning(JOB, gpu(1, "cpu")) == ""
    assert memory_warning(JOB, gpu(0)) == ""
    recommender = msgspec.structs.replace(JOB, model=None, workload="recommender", sizes={"tables": 1})
    assert memory_warning(recommender, gpu(1)) == ""
