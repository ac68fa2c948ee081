"""The least memory of a job: divided by the layout, and refused before the start if it exceeds the device's memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import refused
from trainyard import plugins, units
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.job_file import parse
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.models import presets
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen
from trainyard.run.local.harness import execute
from trainyard.run.session import Session
from trainyard.store.store import Store
from trainyard.train.rules import memory_rules
from trainyard.workloads.ops.matrices import parameters

MODEL = Model(layers=4, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=4, head_dim=8)
JOB = Job(model=MODEL, recipe=Recipe(seq_len=16, tokens_per_step=256))
WIDE = {"dp_replicate": st.sampled_from([1, 2]), "dp_shard": st.sampled_from([1, 2]), "tp": st.sampled_from([1, 2])}
layouts = st.builds(Layout, **WIDE, cp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2]))


def weights(job):
    return plugins.load("workloads", job.workload).weights(job)


def with_layout(layout):
    return replace(JOB, layout=layout, recipe=replace(JOB.recipe, schedule="gpipe" if layout.pp > 1 else "none"))


@given(layouts)
def test_ranks_together_hold_each_weight_once_per_replica(layout):
    job = with_layout(layout)
    least = memory_rules.least(job, weights(job))
    times = layout.dp_replicate
    whole = parameters(MODEL, 16)
    assert least.parameters * layout.ranks == pytest.approx(4 * whole * times, rel=1e-3)
    assert (least.gradients, least.state) == (least.parameters, 2 * least.parameters)


def test_zero_1_shards_only_the_optimizer_state():
    job = with_layout(Layout(dp_shard=2, zero=1))
    whole = 4 * parameters(MODEL, 16)
    assert memory_rules.least(job, weights(job)) == (whole, whole, whole)


@given(layouts, st.booleans())
def test_job_is_refused_exactly_above_the_available_memory(layout, shared):
    job = with_layout(layout)
    need = sum(memory_rules.least(job, weights(job))) * (layout.ranks if shared else 1)
    memory_rules.check(job, weights(job), need, "this device", shared)
    memory_rules.check(job, weights(job), 0, "a device of unknown memory", shared)
    with refused(BadJob, "this device", units.show_size(need - 1)):
        memory_rules.check(job, weights(job), need - 1, "this device", shared)


def test_error_has_the_arithmetic_and_the_next_step():
    job = parse('[model]\nfrom = "llama3-8b"\n[recipe]\nseq_len = 64\ntokens_per_step = 512', "job.toml")
    arithmetic = "weights 29.9 GiB + gradients 29.9 GiB + adamw's state 59.8 GiB = 119.7 GiB"
    with refused(BadJob, "8,030,261,248", "one rank", arithmetic, "this host", "24.0 GiB", "[model]"):
        memory_rules.check(job, weights(job), 24 << 30, "this host", shared=True)
    job = replace(job, layout=Layout(dp_shard=8), recipe=replace(job.recipe, optimizer="sgd"))
    memory_rules.check(job, weights(job), 24 << 30, "this device", shared=False)
    with refused(BadJob, "sgd's state 3.7 GiB", "8 ranks = 89.7 GiB", "this host", "24.0 GiB"):
        memory_rules.check(job, weights(job), 24 << 30, "this host", shared=True)


@pytest.mark.parametrize("name", ["tiny-vit", "tiny-resnet", "tiny-dit", "tiny-flux", "tiny-unet", "tiny-dlrm"])
def test_data_parallelism_does_not_change_a_workloads_weight_count(name):
    preset = presets.load(name)
    job = Job(workload=preset.workload, sizes=preset.sizes, recipe=Recipe(tokens_per_step=8, dataset="synthetic"))
    sharded = replace(job, layout=Layout(dp_shard=2))
    assert weights(job) == weights(sharded) > 0


def test_sharded_tables_are_on_one_rank_each():
    sizes = {**presets.load("tiny-dlrm").sizes, "tables": "by_row"}
    job = Job(workload="recommender", sizes=sizes, recipe=Recipe(tokens_per_step=8, dataset="synthetic"))
    tables = sum(sizes["rows"]) * sizes["width"]
    for ranks in (2, 4):
        count = weights(replace(job, layout=Layout(dp_replicate=ranks)))
        assert count == weights(job) - tables + -(-tables // ranks)


def test_refused_job_is_not_started_or_stored(tmp_path):
    host = DeviceSeen(index=0, name="some cores", vendor="cpu", memory_bytes=1 << 16, facts={"cores": "2"})
    store = Store(tmp_path)
    with refused(BadJob, "some cores", "64.0 KiB"):
        execute(JOB, "", Session(store, lambda _: [], devices=[host]))
    assert not store.rows()
