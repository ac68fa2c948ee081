"""Tokens per expert in the samples: in which steps, on which ranks, and that they add up."""

from io import BytesIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import on_ranks
from trainyard.job import Job, Measure
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import Sample
from trainyard.run.local.expert_samples import ExpertSamples
from trainyard.train.step.outcome import Outcome

MODEL = Model(
    layers=2, hidden_size=16, ffn_hidden_size=24, heads=4, kv_heads=4, head_dim=4, experts=4, top_k=2,
    moe_ffn_hidden_size=8,
)  # fmt: skip


class Counting:
    """A training that reports `expert_count` counts of each step."""

    def __init__(self, expert_count):
        self.expert_count = expert_count
        self.step = -1

    def __call__(self, step):
        self.step = step
        return Outcome(loss=1.0, grad_norm=0.5)

    def about(self):
        raise AssertionError("not called")

    def expert_counts(self):
        step = self.step
        return lambda: {"layers.0": (step, 1)}


@given(st.integers(1, 10**7), st.integers(1, 10**5))
def test_few_steps_are_recorded_and_the_first_is(steps, expert_count):
    samples = ExpertSamples(Counting(expert_count), steps)
    recorded = -(-steps // samples.interval)
    assert 1 <= recorded <= 50
    assert recorded <= 4 or recorded * expert_count <= 200_000
    assert recorded == steps or recorded >= 2
    assert samples.copy(0) is not None
    assert (samples.copy(1) is not None) == (samples.interval == 1)


def test_ranks_without_experts_record_none():
    class Dense:
        def __call__(self, step):
            return Outcome(loss=1.0, grad_norm=0.5)

        def about(self):
            raise AssertionError("not called")

    assert ExpertSamples(Dense(), 10).copy(0) is None
    assert ExpertSamples(Counting(0), 10).copy(0) is None


@pytest.mark.torch
def test_samples_of_profiled_steps_have_no_counts(tmp_path):
    torch = pytest.importorskip("torch")
    from trainyard.run.local.step_clock import StepClock
    from trainyard.run.local.worker import Rank
    from trainyard.train.process_group import Ranks

    job = _job(Layout(), measure=Measure(warmup=1, steps=2, repeats=2, profiled=1))
    log = BytesIO()
    alone = Ranks(0, 0, 1, 1, "cpu", torch.device("cpu"))
    Rank(job, alone, Counting(2), StepClock(), log, lambda _: None).run(tmp_path)
    samples = [msgspec.json.decode(line, type=Sample) for line in log.getvalue().splitlines()]
    assert [sample.experts for sample in samples if not sample.profiled] == [
        {"layers.0": (step, 1)} for step in range(5)
    ]
    assert {len(sample.experts) for sample in samples if sample.profiled} == {0}


def _job(layout, **fields):
    schedule = "1f1b" if layout.pp > 1 else "none"
    recipe = Recipe(seq_len=8, tokens_per_step=128, micro_batch_size=2, learning_rate=3e-3, schedule=schedule)
    return Job(model=MODEL, layout=layout, recipe=recipe, **fields)


def _counts_of_step(ranks, job):
    from trainyard import plugins

    training = plugins.load("workloads", job.workload).build(job, "cpu")
    training(0)
    counts = training.expert_counts()
    return training.expert_count, dict(counts()) if counts else {}, dict(training.about().experts)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("layout", "reporting"),
    [(Layout(dp_shard=2, ep=2), {0}), (Layout(pp=2, dp_shard=2), {0, 2}), (Layout(cp=2, ep=2), {0})],
    ids=["ep", "stages", "cp"],
)
def test_the_first_rank_of_each_stage_reports_the_global_batch(layout, reporting):
    pytest.importorskip("torch")
    results = on_ranks(layout.ranks, _counts_of_step, _job(layout))
    layers = {}
    for rank, (expert_count, counts, facts) in enumerate(results):
        assert expert_count == MODEL.experts * len(counts)
        assert bool(counts) == (rank in reporting)
        if counts:
            assert {layer: list(tokens) for layer, tokens in counts.items()} == facts
        assert not layers.keys() & counts.keys()
        layers |= counts
    assert layers.keys() == {"layers.0", "layers.1"}
    assert {sum(tokens) for tokens in layers.values()} == {128 * MODEL.top_k}
