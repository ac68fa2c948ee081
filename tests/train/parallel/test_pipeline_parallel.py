"""Pipeline parallelism: gradients of every schedule match the full batch, and configurations that torch would refuse
are refused beforehand. (test_parity.py trains them on ranks.)"""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import refused
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import pipeline_rules as rules

MODEL = Model(layers=4, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
STAGES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "looped_bfs": 2, "zero_bubble": 2, "zbv": 2, "dualpipev": 2}
"""Stages per rank, by schedule."""


def a_job(schedule="none", layers=4, micro_batches=4, layout=None, **recipe):
    """A job with a learning rate low enough that AdamW's first steps do not amplify rounding."""
    layout = layout or Layout(pp=1 if schedule == "none" else 2, interleave=STAGES.get(schedule, 1))
    given = {"seq_len": 32, "micro_batch_size": 2, "learning_rate": 1e-3, "seed": 7, "schedule": schedule, **recipe}
    given["tokens_per_step"] = given["seq_len"] * given["micro_batch_size"] * layout.batch_ranks * micro_batches
    return Job(model=replace(MODEL, layers=layers), layout=layout, recipe=Recipe(**given))


# Refusals


def test_schedule_without_a_pipeline_is_refused():
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
                "seq_len 32 * micro_batch_size 2",
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
            a_job("zero_bubble", activation_checkpoint="full"),
            [
                "activation_checkpoint = 'full'",
                "schedule = 'zero_bubble'",
                "1 + 9 = 10",
                "activation_checkpoint = 'none'",
            ],
        ),
    ],
)
def test_refusal_shows_arithmetic_and_next_step(job, values):
    with refused(BadJob, *values):
        rules.check(job)


def test_tied_embeddings_are_refused():
    job = a_job("1f1b")
    rules.check(job)
    with refused(BadJob, "tie_word_embeddings = true", "$.model", "tie_word_embeddings = false", "pp = 1"):
        rules.check(replace(job, model=replace(job.decoder, tie_word_embeddings=True)))


class Mock:
    """The attributes of a stage that a schedule reads before it runs."""

    def __init__(self, number, stage_count, ranks, rank):
        from torch import nn

        self.submod = nn.Module()
        self.stage_index, self.num_stages, self.group_size, self.group_rank = number, stage_count, ranks, rank
        self.is_first, self.is_last = number == 0, number == stage_count - 1


def torch_takes(schedule, pp, interleave, micro_batches):
    """Whether torch can create the schedule on each rank."""
    from trainyard.train.parallel import pipeline_parallel

    stage_count = pp * interleave
    for rank in range(pp):
        numbers = pipeline_parallel.stages_of(rank, Layout(pp=pp, interleave=interleave), schedule)
        # A V-shaped schedule has two stages per rank for any `interleave`; torch must get the given value.
        stages: list[Any] = [Mock(number, stage_count, pp, rank) for number in (*numbers, *numbers)[:interleave]]
        try:
            if schedule in rules.ONE_STAGE:
                (stage,) = stages
                pipeline_parallel._ONE_STAGE[schedule](stage, micro_batches, loss_fn=lambda output, target: output)
            else:
                pipeline_parallel._MULTI_STAGE[schedule](stages, micro_batches, loss_fn=lambda output, target: output)
        except ValueError:
            return False
    return True


@pytest.mark.torch
@settings(deadline=None)
@given(st.sampled_from(sorted(STAGES)), st.integers(2, 4), st.integers(1, 3), st.integers(1, 11))
def test_rules_match_what_torch_schedules_accept(schedule, pp, interleave, micro_batches):
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
    stage_count = pp * interleave
    with torch.device("meta"):
        owned = [list(Language(job).stage(number, stage_count).layers) for number in range(stage_count)]
    assert [layer for part in owned for layer in part] == [str(layer) for layer in range(layers)]
    try:
        rules.check(job)
    except BadJob:
        assert not all(owned)
    else:
        assert all(owned)


# Stages of a rank


@pytest.mark.torch
@given(st.sampled_from(sorted(STAGES)), st.integers(2, 8))
def test_stage_placement_matches_torch(schedule, pp):
    pytest.importorskip("torch")
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

    from trainyard.train.parallel.pipeline_parallel import stages_of

    layout = Layout(pp=pp, interleave=STAGES[schedule])
    style = "v" if schedule in rules.V_SHAPED else "loop"
    ranks = {number: rank for rank in range(pp) for number in stages_of(rank, layout, schedule)}
    assert ranks == generate_stage_to_rank_mapping(pp, pp * STAGES[schedule], style)


@pytest.mark.torch
@pytest.mark.parametrize("stage_count", [2, 3, 4])
def test_stages_have_each_parameter_name_once(stage_count):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.language_task import Language

    task = Language(a_job())
    with torch.device("meta"):
        whole = Counter(name for name, _ in task.module().named_parameters())
        parts = Counter(
            name for number in range(stage_count) for name, _ in task.stage(number, stage_count).named_parameters()
        )
    assert parts == whole


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stage_outputs_have_the_declared_shapes(dtype):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.language_task import Language

    task = Language(a_job("1f1b", dtype=dtype))
    with torch.device("meta"):
        x = torch.zeros(2, 32, dtype=torch.long)
        for number in range(3):
            x = task.stage(number, 4)(x)
            (declared,) = task.stage_activations(2)
            assert (x.shape, x.dtype) == (declared.shape, declared.dtype)


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
    initial_weights.fill(module, task)
    return module


def forward_backward(schedule, group):
    """Loss, gradients by name and actions of 3 micro-batches, through `schedule`, or as one batch for `none`."""
    import torch

    from trainyard.train.model.language_task import Language
    from trainyard.train.parallel.pipeline_parallel import PipelineRunner
    from trainyard.train.task import Batch

    job = a_job(schedule, layout=Layout(interleave=STAGES.get(schedule, 1)), micro_batches=3)
    task = Language(job)
    tokens = torch.randint(256, (job.batch, 33), generator=torch.Generator().manual_seed(1))
    batch = Batch((tokens[:, :-1],), (tokens[:, 1:],))
    stage_count = job.layout.interleave
    with torch.device("meta"):
        stages = {number: task.stage(number, stage_count) for number in range(stage_count)}
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
def test_schedule_gradients_match_the_full_batch(alone, at_once, schedule):
    torch = pytest.importorskip("torch")
    loss, grads, _ = at_once
    other, batch_gradients, names = forward_backward(schedule, alone)
    torch.testing.assert_close(other, loss)
    assert batch_gradients.keys() == grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(batch_gradients[name], grad)
    done = Counter(re.findall(r"\d+[FBIW]\d+", " ".join(names)))
    for stage in range(STAGES[schedule]):
        for micro_batch in range(3):
            both = done[f"{stage}B{micro_batch}"], done[f"{stage}I{micro_batch}"] + done[f"{stage}W{micro_batch}"]
            assert (done[f"{stage}F{micro_batch}"], both) in ((1, (1, 0)), (1, (0, 2))), "each action has its name"
