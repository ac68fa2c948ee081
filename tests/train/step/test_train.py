"""The training step: it learns, and its result does not depend on the layout."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import on_ranks
from tests.refused import refused
from tests.train.language_model import trainer_of
from trainyard.errors import BadJob
from trainyard.job import Job, Measure
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.data import text as texts
from trainyard.train.rules import trainable
from trainyard.workloads.ops import transformer_ops

MODEL = Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
STEPS = 6
EXAMPLES = Path(__file__).parents[3] / "examples"


def a_job(model=MODEL, spread=None, machine="", **recipe):
    recipe = {"seq_len": 32, "tokens_per_step": 512, "micro_batch_size": 2, "learning_rate": 1e-2, "seed": 7, **recipe}
    return Job(
        machine=machine,
        model=model,
        layout=spread or Layout(),
        recipe=Recipe(**recipe),
        measure=Measure(warmup=0, steps=STEPS, repeats=1, profiled=0),
    )


def train(job, steps=STEPS):
    """Losses and gradient norms of a single rank in this process, and its trainer."""
    trainer = trainer_of(job)
    return [trainer(step) for step in range(steps)], trainer


def train_rank(ranks, job):
    """Outcomes of all steps of one rank of several, and its facts about the training."""
    from trainyard import plugins

    training = plugins.load("workloads", job.workload).build(job, "cpu")
    return [training(step) for step in range(STEPS)], training.about()


# Text and samples


def test_default_text_is_the_standard_library():
    first, again = texts.read("python"), texts.read("python")
    assert first.sha256 == again.sha256
    assert re.fullmatch(r"Python 3\.\d+\.\S+ standard library, \d+ files, \d+\.\d MB(, cut at 32 MB)?", first.source)
    assert len(first.data) > 10**6
    assert b"def " in first.data[: 10**6].tobytes()


def test_folder_is_read_in_order_without_hidden_files_or_path(tmp_path):
    for name, data in (("b/2", b"two"), ("a", b"one"), (".git/x", b"no"), ("b/.hidden", b"no")):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_bytes(data)
    text = texts.read(str(tmp_path / "corpus"))
    assert text.data.tobytes() == b"onetwo"
    assert text.source == "folder corpus, 2 files, 0.0 MB"


def test_text_is_cut_at_the_cap(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "MAX_BYTES", 10)
    (tmp_path / "long").write_bytes(b"x" * 25)
    text = texts.read(str(tmp_path / "long"))
    assert len(text.data) == 10
    assert "cut at" in text.source


def test_missing_or_short_text_is_refused(tmp_path):
    with refused(BadJob, f"dataset = {str(tmp_path / 'nowhere')!r}", "$.recipe"):
        texts.read(str(tmp_path / "nowhere"))
    (tmp_path / "short").write_bytes(b"abcd")
    text = texts.read(str(tmp_path / "short"))
    assert texts.sample(text, 3, seed=0, step=0, index=0).tobytes() == b"abcd"
    with refused(BadJob, "4 bytes", "seq_len 4 + 1 = 5"):
        texts.sample(text, 4, seed=0, step=0, index=0)


def test_text_is_checked_without_reading_it(tmp_path):
    def check(source, seq_len):
        texts.check(Recipe(seq_len=seq_len, tokens_per_step=seq_len, dataset=str(source)))

    check("python", 4096)
    with refused(BadJob, f"dataset = {str(tmp_path / 'nowhere')!r}", "$.recipe"):
        check(tmp_path / "nowhere", 4)
    (tmp_path / "short").write_bytes(b"abcd")
    (tmp_path / ".hidden").write_bytes(b"abcd")
    for source in (tmp_path, tmp_path / "short"):
        check(source, 3)
        with refused(BadJob, "4 bytes", "seq_len 4 + 1 = 5"):
            check(source, 4)


PLACES = texts.TrainingText(np.arange(251, dtype=np.uint8), "numbers", "")


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_samples_do_not_depend_on_the_number_of_ranks(seed, step, ranks):
    whole = texts.batch(PLACES, 8, seed, step, range(12))
    share = 12 // ranks
    parts = [texts.batch(PLACES, 8, seed, step, range(rank * share, (rank + 1) * share)) for rank in range(ranks)]
    assert np.array_equal(np.concatenate(parts), whole)


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_samples_are_in_the_text_and_differ_by_step(seed, step):
    drawn = texts.batch(PLACES, 8, seed, step, range(16))
    assert (np.diff(drawn.astype(int), axis=1) == 1).all()
    assert not np.array_equal(drawn, texts.batch(PLACES, 8, seed, step + 1, range(16)))


# What can be trained


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"model": msgspec.structs.replace(MODEL, vocab=200)}, ["vocab = 200", "256 - 200 = 56", "vocab = 256"]),
        ({"dtype": "float4"}, ["dtype = 'float4'", "$.recipe", "'float8'"]),
        ({"offload": True}, ["offload = true", "$.recipe", "one rank"]),
    ],
)
def test_refusal_shows_arithmetic_and_next_step(change, values):
    with refused(BadJob, *values):
        transformer_ops.check(a_job(**change))


def test_job_that_names_a_machine_is_trained():
    transformer_ops.check(a_job(machine="h100"))


@pytest.mark.parametrize(
    "path", sorted([*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("recipes/*.toml")]), ids=lambda path: path.stem
)
def test_examples_can_be_trained(path):
    from trainyard import job_file as jobs

    trainable.check(jobs.load(path))


# The step


@pytest.mark.torch
def test_loss_falls_on_text(text):
    outcomes, _ = train(a_job(dataset=text, tokens_per_step=1024, micro_batch_size=8), steps=40)
    losses = [outcome.loss for outcome in outcomes]
    assert losses[0] == pytest.approx(np.log(256), rel=0.02), "an untrained model knows nothing"
    assert np.mean(losses[-5:]) < 3.5
    assert all(outcome.grad_norm > 0 for outcome in outcomes)


@pytest.mark.torch
@pytest.mark.parametrize(
    "change",
    [{"micro_batch_size": 16}, {"micro_batch_size": 1}, {"activation_checkpoint": "full"}],
    ids=["one micro-batch", "many", "activation_checkpoint"],
)
def test_computation_options_do_not_change_the_step(text, change):
    (plain, _), (other, _) = train(a_job(dataset=text)), train(a_job(dataset=text, **change))
    assert np.allclose(plain, other, rtol=0, atol=1e-5)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.nightly
def test_compiled_blocks_give_the_same_losses(text):
    plain, _ = train(a_job(dataset=text), steps=3)
    compiled, _ = train(a_job(dataset=text, compile=True, activation_checkpoint="full"), steps=3)
    assert np.allclose(plain, compiled, rtol=0, atol=1e-4)


@pytest.mark.torch
def test_bfloat16_keeps_float32_weights_and_is_close(text):
    torch = pytest.importorskip("torch")
    (plain, _), (half, trainer) = train(a_job(dataset=text)), train(a_job(dataset=text, dtype="bfloat16"))
    assert {parameter.dtype for parameter in trainer.parallel_model.parameters} == {torch.float32}
    assert plain != half
    assert np.allclose([o.loss for o in plain], [o.loss for o in half], rtol=0.01)


@pytest.mark.torch
@pytest.mark.parametrize("max_norm", [0.25, 0.0])
def test_gradients_are_clipped_by_their_global_norm(text, max_norm):
    outcomes, trainer = train(a_job(dataset=text, max_norm=max_norm), steps=1)
    assert outcomes[0].grad_norm > 0.25
    squares = sum(float(p.grad.square().sum()) for p in trainer.parallel_model.parameters)
    assert squares**0.5 == pytest.approx(max_norm or outcomes[0].grad_norm, rel=1e-4)


@pytest.mark.torch
def test_weights_depend_on_the_seed_only(text):
    digests = [
        train(a_job(dataset=text, **change), steps=0)[1].about().digests["weights_initial"]
        for change in ({}, {"micro_batch_size": 4, "activation_checkpoint": "full"}, {"seed": 8})
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.torch
def test_weights_too_large_to_digest_are_reported(text, monkeypatch):
    pytest.importorskip("torch")
    from trainyard.train.model import initial_weights

    monkeypatch.setattr(initial_weights, "MAX_DIGEST_BYTES", 1000)
    _, trainer = train(a_job(dataset=text), steps=1)
    about = trainer.about()
    assert about.digests.keys() == {"text", "weights"}
    assert about.digests["weights"].startswith("none: they are larger than")


@pytest.mark.torch
def test_attention_is_causal():
    torch = pytest.importorskip("torch")
    from trainyard.train.model import initial_weights
    from trainyard.train.model.language_task import Language

    task = Language(a_job())
    decoder = task.module()
    initial_weights.fill(decoder, task)
    tokens = torch.randint(256, (1, 16))
    other = tokens.clone()
    other[0, 9] = (tokens[0, 9] + 1) % 256
    changed = (decoder(tokens) != decoder(other)).any(dim=2)[0]
    assert not changed[:9].any()
    assert changed[9:].all()


@pytest.mark.torch
@pytest.mark.slow
def test_parallel_training_matches_one_rank(text):
    alone, trainer = train(a_job(dataset=text))
    about = trainer.about()
    layout = Layout(dp_replicate=2, dp_shard=2)
    results = on_ranks(layout.ranks, train_rank, a_job(dataset=text, spread=layout))
    assert len(results) == layout.ranks
    for outcomes, _ in results:
        losses = [outcome.loss for outcome in outcomes]
        assert np.allclose(losses, [outcome.loss for outcome in alone], rtol=0, atol=1e-5)
    facts = [fact for _, fact in results]
    assert {fact.digests["weights_initial"] for fact in facts} == {about.digests["weights_initial"]}
    assert len({fact.digests["weights_final"] for fact in facts}) == 1
    assert {fact.parameters for fact in facts} == {about.parameters}
