"""What must at the least be held: divided as the layout divides it, and refused before anything starts where it is more
than all of the memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import refused
from trainyard import plugins, units
from trainyard.errors import BadJob
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.job_file import parse
from trainyard.models import presets
from trainyard.record import DeviceSeen
from trainyard.run.local.harness import execute
from trainyard.run.session import Session
from trainyard.store.store import Store
from trainyard.train.rules import memory_rules
from trainyard.workloads.ops.matrices import parameters

MODEL = Model(layers=4, width=32, ffn=64, heads=4, kv_heads=4, head_dim=8)
JOB = Job(model=MODEL, recipe=Recipe(seq_len=16, tokens_per_step=256))
WIDE = {"dp_replicate": st.sampled_from([1, 2]), "dp_shard": st.sampled_from([1, 2]), "tp": st.sampled_from([1, 2])}
layouts = st.builds(Layout, **WIDE, cp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2]))


def weights(job):
    return plugins.load("workloads", job.workload).weights(job)


def spread(layout):
    return replace(JOB, layout=layout, recipe=replace(JOB.recipe, schedule="gpipe" if layout.pp > 1 else "none"))


@given(layouts)
def test_all_ranks_hold_each_weight_as_often_as_it_is_replicated(layout):
    job = spread(layout)
    held = memory_rules.least(job, weights(job))
    times = layout.dp_replicate
    whole = parameters(MODEL, 16)
    assert held.parameters * layout.ranks == pytest.approx(4 * whole * times, rel=1e-3)
    assert (held.gradients, held.state) == (held.parameters, 2 * held.parameters)


def test_zero_1_divides_the_state_alone():
    job = spread(Layout(dp_shard=2, zero=1))
    whole = 4 * parameters(MODEL, 16)
    assert memory_rules.least(job, weights(job)) == (whole, whole, whole)


@given(layouts, st.booleans())
def test_refused_is_what_needs_more_than_there_is_and_nothing_else(layout, shared):
    job = spread(layout)
    need = sum(memory_rules.least(job, weights(job))) * (layout.ranks if shared else 1)
    memory_rules.check(job, weights(job), need, "this device", shared)
    memory_rules.check(job, weights(job), 0, "a device that does not say", shared)
    with refused(BadJob, "this device", units.show_size(need - 1)):
        memory_rules.check(job, weights(job), need - 1, "this device", shared)


def test_the_arithmetic_and_the_next_step_are_said():
    job = parse('[model]\nfrom = "llama3-8b"\n[recipe]\nseq_len = 64\ntokens_per_step = 512', "job.toml")
    arithmetic = "weights 29.9 GiB + gradients 29.9 GiB + adamw's state 59.8 GiB = 119.7 GiB"
    with refused(BadJob, "8,030,261,248", "one rank", arithmetic, "this host", "24.0 GiB", "[model]"):
        memory_rules.check(job, weights(job), 24 << 30, "this host", shared=True)
    job = replace(job, layout=Layout(dp_shard=8), recipe=replace(job.recipe, optimizer="sgd"))
    memory_rules.check(job, weights(job), 24 << 30, "this device", shared=False)
    with refused(BadJob, "sgd's state 3.7 GiB", "8 ranks = 89.7 GiB", "this host", "24.0 GiB"):
        memory_rules.check(job, weights(job), 24 << 30, "this host", shared=True)


@pytest.mark.parametrize("name", ["tiny-vit", "tiny-resnet", "tiny-dit", "tiny-flux", "tiny-unet", "tiny-dlrm"])
def test_every_workload_counts_its_weights_and_divides_none_that_data_parallelism_does(name):
    preset = presets.load(name)
    job = Job(workload=preset.workload, sizes=preset.sizes, recipe=Recipe(tokens_per_step=8, text="synthetic"))
    sharded = replace(job, layout=Layout(dp_shard=2))
    assert weights(job) == weights(sharded) > 0


def test_divided_tables_are_on_one_rank_each():
    sizes = {**presets.load("tiny-dlrm").sizes, "tables": "by_row"}
    job = Job(workload="recommender", sizes=sizes, recipe=Recipe(tokens_per_step=8, text="synthetic"))
    tables = sum(sizes["rows"]) * sizes["width"]
    for ranks in (2, 4):
        found = weights(replace(job, layout=Layout(dp_replicate=ranks)))
        assert found == weights(job) - tables + -(-tables // ranks)


def test_nothing_is_started_or_stored(tmp_path):
    host = DeviceSeen(index=0, name="some cores", vendor="cpu", memory_bytes=1 << 16, facts={"cores": "2"})
    store = Store(tmp_path)
    with refused(BadJob, "some cores", "64.0 KiB"):
        execute(JOB, "", Session(store, lambda _: [], devices=[host]))
    assert not store.rows()
