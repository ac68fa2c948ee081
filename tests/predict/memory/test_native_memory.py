"""Memory of trainyard's own trainer: the planner's closed form against fake runs of the training code."""

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from tests import fake_runs
from tests.refused import refused
from trainyard.cli.plan import command
from trainyard.errors import BadJob, MissingLibrary
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.memory import framework_memory, native_memory, native_stage
from trainyard.predict.pipeline import in_flight, schedules, simulation
from trainyard.recipe import Recipe
from trainyard.train.fake_run import held_memory

MODEL = {
    "layers": 4,
    "hidden_size": 512,
    "ffn_hidden_size": 1536,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "vocab": 4096,
}
EXPERTS = {**MODEL, "experts": 4, "top_k": 2, "moe_ffn_hidden_size": 768}
SEVERAL_BUCKETS = {**MODEL, "hidden_size": 1024, "ffn_hidden_size": 4096, "heads": 16}
SPLIT = {"sequence_parallel": True, "loss_parallel": True}


def a_job(layout=None, model=None, micro=1, **recipe):
    layout = Layout(**layout or {})
    recipe = {"seq_len": 512, "dtype": "bfloat16", **recipe}
    tokens = recipe["seq_len"] * recipe.get("micro_batch_size", 1) * micro * layout.batch_ranks
    return Job(model=Model(**model or MODEL), layout=layout, recipe=Recipe(tokens_per_step=tokens, **recipe))


def predicted(job, rank=0):
    return float(native_memory.peak(cases.of_jobs([job]), first=rank == 0).total[0])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "how"),
    [
        ({}, {"micro": 2}),
        ({}, {"dtype": "float32"}),
        ({"dp_replicate": 2}, {"activation_checkpoint": "selective"}),
        ({"dp_shard": 2, "zero": 1}, {}),
        ({"dp_shard": 2, "zero": 1}, {"model": SEVERAL_BUCKETS, "seq_len": 64}),
        ({"dp_shard": 4, "zero": 2}, {"activation_checkpoint": "full"}),
        ({"dp_shard": 4}, {"micro": 2}),
        ({"dp_shard": 4}, {"activation_checkpoint": "selective", "micro_batch_size": 2}),
        ({"dp_shard": 4, "reshard_after_forward": "always"}, {"micro": 2}),
        ({"dp_shard": 4, "reshard_after_forward": "never"}, {"activation_checkpoint": "full"}),
        ({"dp_shard": 4, "backward_prefetch": 3}, {"activation_checkpoint": "full"}),
        ({"dp_shard": 4}, {"model": {**MODEL, "tie_word_embeddings": True}, "activation_checkpoint": "full"}),
        ({"dp_shard": 2}, {"optimizer": "muon"}),
        ({"dp_replicate": 2}, {"optimizer": "sgd", "momentum": 0.0}),
        ({"dp_replicate": 2, "dp_shard": 2, "cp": 2}, {"activation_checkpoint": "full", "seq_len": 1024}),
        ({"tp": 2, "dp_shard": 2, **SPLIT}, {"micro": 2}),
        ({"pp": 2}, {"schedule": "1f1b", "micro": 4}),
        ({"pp": 2, "interleave": 2}, {"schedule": "interleaved", "micro": 4, "activation_checkpoint": "full"}),
        ({"pp": 2, "dp_shard": 2}, {"schedule": "1f1b", "micro": 16}),
        ({"pp": 2}, {"schedule": "gpipe", "micro": 3}),
        ({"pp": 2, "interleave": 2}, {"schedule": "looped_bfs", "micro": 4}),
        ({"dp_shard": 4, "ep": 4}, {"model": EXPERTS, "micro": 2}),
        (
            {"dp_shard": 4, "zero": 2, "pp": 2, "interleave": 2, "ep": 2},
            {"model": EXPERTS, "schedule": "interleaved", "micro": 4, "activation_checkpoint": "selective"},
        ),
    ],
    ids=str,
)
def test_predicted_memory_matches_fake_runs(layout, how):
    job = a_job(layout, **how)
    for rank in held_memory.representative_ranks(job):
        counted = fake_runs.measure_rank(job, rank)
        assert predicted(job, rank) == pytest.approx(counted.peak, rel=0.02), rank
        assert counted.peak >= counted.update >= counted.parameters + counted.gradients + counted.optimizer


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "interleave"), [("zero_bubble", 1), ("zbv", 2), ("dualpipev", 2)])
def test_memory_with_delayed_weight_gradients_matches_fake_runs(schedule, interleave):
    job = a_job({"pp": 2, "interleave": interleave}, schedule=schedule, micro=6)
    for rank in held_memory.representative_ranks(job):
        assert predicted(job, rank) == pytest.approx(fake_runs.measure_rank(job, rank).peak, rel=0.06), rank


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_keeps_only_its_shard():
    """Including tables divided by rows, and gradients between micro-batches."""
    whole = fake_runs.measure_rank(a_job(), 0)
    assert whole.gradients == pytest.approx(whole.parameters, rel=1e-4)
    assert whole.optimizer == pytest.approx(2 * whole.parameters, rel=1e-4)
    for layout in ({"dp_shard": 4}, {"tp": 4, **SPLIT}):
        part = fake_runs.measure_rank(a_job(layout, micro=2), 0)
        assert part.parameters == pytest.approx(whole.parameters / 4, rel=5e-3)
        assert part.gradients == pytest.approx(part.parameters, rel=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "value"), [({"dtype": "float8"}, "dtype = 'float8'"), ({"offload": True}, "offload = true")]
)
def test_recipe_without_fake_run_is_refused(how, value):
    pytest.importorskip("torch")
    with refused(BadJob, value, "$.recipe:"):
        held_memory.measure_rank(a_job({"dp_shard": 2}, **how), 0)


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("Traceback\n  File x\nValueError: a\n", "ValueError: a"),
        ("[rank0]: x.AnError: a: b\n\n[rank0]: RuntimeError: \n[rank0]:   Input: 1\n[rank0]: \n", "x.AnError: a: b"),
        ("[rank3]: Killed\n[rank3]:\n\n", "Killed"),
        ("[rank0]:\n", "no error message"),
    ],
)  # fmt: skip
def test_error_of_a_failed_fake_run_has_a_message(stderr, expected):
    assert held_memory.find_error(stderr) == expected


def test_without_torch_the_error_names_it(monkeypatch):
    monkeypatch.setattr(held_memory, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with refused(MissingLibrary, "pip install torch"):
        held_memory.measure_rank(a_job(), 0)


PLAN = ["llama3-8b", "--machine", "h100", "--devices", "8", "--batch", "8", "--seq-len", "512", "--fix", "pp=1"]


@pytest.mark.torch
@pytest.mark.slow
def test_check_counts_the_memory_of_the_best_layout(tmp_path):
    pytest.importorskip("torch")
    job = str(tmp_path / "job.toml")
    assert not CliRunner().invoke(command, [*PLAN, "--out", job]).exit_code
    result = CliRunner().invoke(command, ["check", job, "--machine", "h100", "--json"])
    plan = json.loads(result.stdout)
    counted = max(plan["exact_bytes"].values())
    assert counted == pytest.approx(sum(plan["choices"][0]["plan"]["memory"].values()), rel=0.01)


# Properties of the closed form

LAYOUTS = st.sampled_from(
    [{}, {"dp_shard": 8}, {"dp_replicate": 8}, {"dp_shard": 8, "zero": 2}, {"tp": 4, **SPLIT}, {"dp_shard": 4, "cp": 2},
     {"pp": 4}, {"pp": 2, "dp_shard": 4}, {"tp": 2, "pp": 2, "dp_shard": 2, **SPLIT}]
)  # fmt: skip


def a_case(layout, model, micro, **recipe):
    schedule = {"schedule": "1f1b"} if "pp" in layout else {}
    return cases.of_jobs([a_job(layout, model, micro, **schedule, **recipe)])


def with_column(case: Cases, name: str, value: float) -> Cases:
    return replace(case, **{name: cases.column(value)})


@given(LAYOUTS, st.sampled_from([MODEL, EXPERTS]), st.sampled_from([4, 8]), st.booleans(), st.sampled_from([1, 2]))
def test_recomputation_and_smaller_sizes_never_need_more_memory(layout, model, micro, first, size):
    case = a_case(layout, model, micro, micro_batch_size=size)
    most = float(native_memory.peak(case, first).total[0])
    assert float(native_memory.peak(with_column(case, "activation_checkpoint", 2), first).total[0]) <= most * (1 + 1e-9)
    for name in ("micro_batch_size", "layers", "vocab", "seq_len"):
        grown = with_column(case, name, 2 * float(np.ravel(getattr(case, name))[0]))
        if name == "micro_batch_size":
            grown = with_column(grown, "samples", 2 * float(np.ravel(case.samples)[0]))
        assert float(native_memory.peak(grown, first).total[0]) >= most * (1 - 1e-9), name


@given(
    LAYOUTS, st.sampled_from([MODEL, EXPERTS]), st.sampled_from([1, 4]), st.sampled_from(["none", "selective", "full"])
)
def test_parts_are_not_negative_and_state_is_twice_the_weights(layout, model, micro, activation_checkpoint):
    case = a_case(layout, model, micro if "pp" not in layout else 4, activation_checkpoint=activation_checkpoint)
    memory = framework_memory.memory(case)
    for part, size in memory.parts().items():
        assert float(np.min(size)) >= 0, part
    assert float(memory.optimizer[0]) == pytest.approx(
        2 * float(memory.parameters[0]) / (layout.get("dp_shard", 1) if layout.get("zero") == 1 else 1)
    )


@given(st.sampled_from(schedules.SCHEDULES), st.integers(2, 6), st.integers(1, 4), st.integers(1, 24), st.booleans())
def test_in_flight_micro_batches_match_the_order_of_operations(name, pp, interleave, count, first):
    """Except for ZBV's last rank, whose peak comes after its first backward pass. With too few micro-batches to fill a
    ZBV pipeline the formula is an upper bound."""
    assume(schedules.takes(name, pp, count))
    interleave = 1 if name in schedules.ONE_STAGE else 2 if name in schedules.V_SHAPED else interleave
    case = a_case({"pp": pp, "interleave": interleave}, MODEL, count)
    case = with_column(case, "schedule", schedules.SCHEDULES.index(name))
    most = int(simulation.peak_in_flight(name, pp, interleave, count)[0 if first else -1])
    assume(first or name != "zbv")
    predicted_count = float(in_flight.native_in_flight(case, first)[0]) * interleave
    assert predicted_count == pytest.approx(most) or (name == "zbv" and count < 2 * pp and predicted_count > most)


@pytest.mark.torch
def test_chunks_and_buckets_are_those_of_the_training_code():
    pytest.importorskip("torch")
    from trainyard.train.model import cross_entropy
    from trainyard.train.parallel import all_gather_parts

    assert native_stage.LOSS_CHUNK_VALUES == cross_entropy.CHUNK_VALUES
    assert native_stage.GATHERED_ELEMENTS == all_gather_parts.BUCKET_ELEMENTS


def test_native_and_other_cases_cannot_be_mixed():
    mixed = with_column(cases.of_jobs([a_job(), a_job()]), "native", 0)
    mixed = replace(mixed, native=np.array([0.0, 1.0]))
    with refused(ValueError, 1, 2):
        framework_memory.memory(mixed)
