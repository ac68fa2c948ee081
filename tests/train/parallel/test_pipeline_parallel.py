"""Pipeline parallelism: every schedule leaves the gradients of the whole batch, and what torch would refuse is refused
before. (test_parity.py trains them on ranks.)"""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import refused
from trainyard.errors import BadJob
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.train.rules import pipeline_rules as rules

MODEL = Model(layers=4, width=32, ffn=64, heads=4, kv_heads=2, head_dim=8)
STAGES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "looped_bfs": 2, "zero_bubble": 2, "zbv": 2, "dualpipev": 2}
"""Stages a rank, by schedule."""


def a_job(schedule="none", layers=4, micro_batches=4, layout=None, **recipe):
    """With a learning rate at which AdamW's first steps do not turn rounding into more than it is."""
    layout = layout or Layout(pp=1 if schedule == "none" else 2, interleave=STAGES.get(schedule, 1))
    given = {"seq_len": 32, "microbatch": 2, "learning_rate": 1e-3, "seed": 7, "schedule": schedule, **recipe}
    given["tokens_per_step"] = given["seq_len"] * given["microbatch"] * layout.batch_ranks * micro_batches
    return Job(model=replace(MODEL, layers=layers), layout=layout, recipe=Recipe(**given))


# What is refused


def test_without_a_pipeline_there_is_no_schedule():
    rules.check(a_job())
    with refused(BadJob, "schedule = '1f1b'", "$.recipe", "pp = 1", "schedule = 'none'"):
        rules.check(a_job("1f1b", layout=Layout()))
    with refused(BadJob, "interleave = 2", "$.layout", "pp = 1"):
        rules.check(a_job(layout=Layout(interleave=2)))
    with refused(BadJob, "pp = 2", "schedule = 'none'", "schedule = '1f1b'"):
        rules.check(a_job(layout=Layout(pp=2)))
    with refused(BadJob, "pp = 2", "schedule = 'none'", "schedule = 'gpipe'"):
        rules.check(a_job(layout=Layout(pp=2), micro_batches=1))


@pytest.mark.parametrize(
    ("job", "values"),
    [
        (a_job("zbv", layout=Layout(pp=2)), ["interleave = 1", "schedule = 'zbv'", "2 stages", "interleave = 2"]),
        (
            a_job("gpipe", layout=Layout(pp=2, interleave=3)),
            ["interleave = 3", "schedule = 'gpipe'", "1 stage", "interleave = 1"],
        ),
        (
            a_job("1f1b", layout=Layout(pp=4, dp_shard=2), micro_batches=3),
            [
                "3 micro-batches",
                "$.recipe",
                "tokens_per_step 384",
                "seq_len 32 * microbatch 2",
                "ranks 2",
                "schedule = '1f1b'",
                "4 * interleave 1 = 4 stages",
                "tokens_per_step = 512",
                "schedule = 'gpipe'",
            ],
        ),
        (
            a_job("interleaved", micro_batches=5),
            ["5 micro-batches", "5 // pp 2 = 2", "tokens_per_step = 256", "schedule = 'looped_bfs'"],
        ),
        (
            a_job("interleaved", layers=5, layout=Layout(pp=3, interleave=2), micro_batches=3),
            ["pp 3 * interleave 2 = 6 stages", "$.layout", "5 layers", "pp = 2"],
        ),
        (a_job("gpipe", layers=1), ["pp 2 * interleave 1 = 2 stages", "1 layers", "2 layers", "pp = 1"]),
        (a_job("zbv", compile=True), ["$.recipe", "schedule = 'zbv'", "compile = false"]),
        (
            a_job("zero_bubble", remat="full"),
            ["remat = 'full'", "schedule = 'zero_bubble'", "1 + 9 = 10", "remat = 'none'"],
        ),
    ],
)
def test_refused_with_the_arithmetic_and_the_next_step(job, values):
    with refused(BadJob, *values):
        rules.check(job)


def test_tied_embeddings_are_refused():
    job = a_job("1f1b")
    rules.check(job)
    with refused(BadJob, "tied = true", "$.model", "tied = false", "pp = 1"):
        rules.check(replace(job, model=replace(job.decoder, tied=True)))


class Mock:
    """As much of a stage as a schedule asks before it runs."""

    def __init__(self, number, of, ranks, rank):
        from torch import nn

        self.submod = nn.Module()
        self.stage_index, self.num_stages, self.group_size, self.group_rank = number, of, ranks, rank
        self.is_first, self.is_last = number == 0, number == of - 1


def torch_takes(schedule, pp, interleave, micro_batches):
    """Whether torch makes the schedule on each rank."""
    from trainyard.train.parallel import pipeline_parallel

    of = pp * interleave
    for rank in range(pp):
        numbers = pipeline_parallel.stages_of(rank, Layout(pp=pp, interleave=interleave), schedule)
        # In a V there are two whatever `interleave` says; torch is to hear what it says.
        stages: list[Any] = [Mock(number, of, pp, rank) for number in (*numbers, *numbers)[:interleave]]
        try:
            if schedule in rules.ONE_STAGE:
                (stage,) = stages
                pipeline_parallel._ONE[schedule](stage, micro_batches, loss_fn=lambda output, target: output)
            else:
                pipeline_parallel._MANY[schedule](stages, micro_batches, loss_fn=lambda output, target: output)
        except ValueError:
            return False
    return True


@pytest.mark.torch
@settings(deadline=None)
@given(st.sampled_from(sorted(STAGES)), st.integers(2, 4), st.integers(1, 3), st.integers(1, 11))
def test_rules_refuse_what_torch_refuses_and_nothing_else(schedule, pp, interleave, micro_batches):
    pytest.importorskip("torch")
    layout = Layout(pp=pp, interleave=interleave)
    job = a_job(schedule, layers=15, layout=layout, micro_batches=micro_batches)
    takes = torch_takes(schedule, pp, interleave, micro_batches)
    try:
        rules.check(job)
    except BadJob as refusal:
        assert not takes
        if advised := re.search(r"Use tokens_per_step = (\d+)", str(refusal)):
            rules.check(replace(job, recipe=replace(job.recipe, tokens_per_step=int(advised[1]))))
    else:
        assert takes


@pytest.mark.torch
@settings(deadline=None, max_examples=30)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 12))
def test_each_stage_has_a_layer_or_the_layout_is_refused(pp, interleave, layers):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.language_task import Language

    layout = Layout(pp=pp, interleave=interleave)
    job = a_job("looped_bfs", layers=layers, layout=layout)
    of = pp * interleave
    with torch.device("meta"):
        owned = [list(Language(job).stage(number, of).layers) for number in range(of)]
    assert [layer for part in owned for layer in part] == [str(layer) for layer in range(layers)]
    try:
        rules.check(job)
    except BadJob:
        assert not all(owned)
    else:
        assert all(owned)


# What a rank has


@pytest.mark.torch
@given(st.sampled_from(sorted(STAGES)), st.integers(2, 8))
def test_stages_lie_where_torch_looks_for_them(schedule, pp):
    pytest.importorskip("torch")
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

    from trainyard.train.parallel.pipeline_parallel import stages_of

    layout = Layout(pp=pp, interleave=STAGES[schedule])
    style = "v" if schedule in rules.V_SHAPED else "loop"
    ranks = {number: rank for rank in range(pp) for number in stages_of(rank, layout, schedule)}
    assert ranks == generate_stage_to_rank_mapping(pp, pp * STAGES[schedule], style)


@pytest.mark.torch
@pytest.mark.parametrize("of", [2, 3, 4])
def test_stages_have_the_names_of_the_whole_model_once_each(of):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.language_task import Language

    task = Language(a_job())
    with torch.device("meta"):
        whole = Counter(name for name, _ in task.module().named_parameters())
        parts = Counter(name for number in range(of) for name, _ in task.stage(number, of).named_parameters())
    assert parts == whole


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stage_hands_on_what_it_says(dtype):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.language_task import Language

    task = Language(a_job("1f1b", dtype=dtype))
    with torch.device("meta"):
        x = torch.zeros(2, 32, dtype=torch.long)
        for number in range(3):
            x = task.stage(number, 4)(x)
            (said,) = task.handed(2)
            assert (x.shape, x.dtype) == (said.shape, said.dtype)


# The step, all stages in one process


@pytest.fixture(scope="module")
def alone():
    """A process group of one rank."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    torch.set_num_threads(1)  # threads that wait for each other crawl on a machine with other work
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def drawn(task, module):
    from trainyard.train.model import initial_weights

    module.to_empty(device="cpu")
    initial_weights.fill(module, task.draw)
    return module


def forward_backward(schedule, group):
    """Loss and gradients by name of 3 micro-batches, through `schedule` or, of `none`, as one batch; the actions."""
    import torch

    from trainyard.train.model.language_task import Language
    from trainyard.train.parallel.pipeline_parallel import PipelineRunner
    from trainyard.train.task import Batch

    job = a_job(schedule, layout=Layout(interleave=STAGES.get(schedule, 1)), micro_batches=3)
    task = Language(job)
    tokens = torch.randint(256, (job.batch, 33), generator=torch.Generator().manual_seed(1))
    batch = Batch((tokens[:, :-1],), (tokens[:, 1:],))
    of = job.layout.interleave
    with torch.device("meta"):
        stages = {number: task.stage(number, of) for number in range(of)}
    stages = {number: drawn(task, stage) for number, stage in stages.items()}
    with torch.profiler.profile() as profile:
        if schedule == "none":
            loss = task.loss(stages[0](*batch.inputs), batch.targets)
            loss.backward()
        else:
            loss = PipelineRunner(job, task, group, torch.device("cpu"), stages).forward_backward(batch)
    grads = {name: p.grad for stage in stages.values() for name, p in stage.named_parameters()}
    return loss.detach(), grads, [event.name for event in profile.events() or () if event.name.startswith("PP:")]


@pytest.fixture(scope="module")
def at_once(alone):
    return forward_backward("none", alone)


@pytest.mark.torch
@pytest.mark.parametrize("schedule", sorted(STAGES))
def test_a_schedule_leaves_the_gradients_of_the_whole_batch(alone, at_once, schedule):
    torch = pytest.importorskip("torch")
    loss, grads, _ = at_once
    other, found, names = forward_backward(schedule, alone)
    torch.testing.assert_close(other, loss)
    assert found.keys() == grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(found[name], grad)
    done = Counter(re.findall(r"\d+[FBIW]\d+", " ".join(names)))
    for stage in range(STAGES[schedule]):
        for micro_batch in range(3):
            both = done[f"{stage}B{micro_batch}"], done[f"{stage}I{micro_batch}"] + done[f"{stage}W{micro_batch}"]
            assert (done[f"{stage}F{micro_batch}"], both) in ((1, (1, 0)), (1, (0, 2))), "each action has its name"
