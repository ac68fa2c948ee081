"""The learning rate of each step, against closed forms and torch's schedulers."""

from math import cos, pi
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import job_file
from trainyard.recipe import Recipe
from trainyard.train.optimizers.learning_rate import rate

RECIPES = Path(__file__).parents[3] / "examples" / "recipes"
SHAPES = {
    "linear": lambda part: 1 - part,
    "cosine": lambda part: (1 + cos(pi * part)) / 2,
    "minus_sqrt": lambda part: 1 - part**0.5,
    "exponential": lambda part: 2 * 0.5**part - 1,
}
STEPS = st.integers(1, 40)
RISES = st.integers(2, 40)
FACTORS = st.floats(0, 1)


def rates(count, **recipe):
    """The rates of the first `count` steps."""
    recipe = Recipe(tokens_per_step=1, **{"learning_rate": 0.5, **recipe})
    return [rate(recipe, step) for step in range(count)]


def torch_rates(count, warmup, scheduler):
    """The rates of torch's LinearLR over `warmup` steps, then those of `scheduler(optimizer)`."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, scheduler(optimizer)], [warmup])
    result = []
    for _ in range(count):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return result


@given(warmup=STEPS, decay=st.integers(0, 50), factor=FACTORS)
def test_default_is_warmup_then_cosine_or_constant(warmup, decay, factor):
    got = rates(warmup + decay + 10, warmup_steps=warmup, decay_steps=decay, min_lr_factor=factor)
    assert got[:warmup] == pytest.approx([0.5 * (step + 1) / warmup for step in range(warmup)])
    after = [SHAPES["cosine"](min(1, step / decay)) if decay else 1.0 for step in range(decay + 10)]
    assert got[warmup:] == pytest.approx([0.5 * (factor + (1 - factor) * part) for part in after])


@given(warmup=STEPS, stable=st.integers(0, 30), decay=STEPS, factor=FACTORS, shape=st.sampled_from(list(SHAPES)))
def test_wsd_is_warmup_stable_decay(warmup, stable, decay, factor, shape):
    got = rates(
        warmup + stable + decay + 5,
        warmup_steps=warmup,
        stable_steps=stable,
        decay_steps=decay,
        min_lr_factor=factor,
        lr_decay_style="wsd",
        lr_wsd_decay_style=shape,
    )
    assert got[warmup - 1 : warmup + stable + 1] == pytest.approx([0.5] * (stable + 2))
    parts = [SHAPES[shape](min(1, step / decay)) for step in range(decay + 5)]
    assert got[warmup + stable :] == pytest.approx([0.5 * (factor + (1 - factor) * part) for part in parts])


def test_constant_style_never_decays():
    assert rates(50, lr_decay_style="constant", warmup_steps=2) == pytest.approx([0.25, *[0.5] * 49])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama2-7b", {999: 1.5e-4, 1999: 3e-4, 2000: 3e-4, 476_837: 3e-5, 500_000: 3e-5}),
        ("llama3-405b", {7999: 8e-5, 8000 + 600_000: (8e-5 + 8e-7) / 2, 1_208_000: 8e-7}),
        ("resnet50-step", {0: 0.1, 30 * 5005 - 1: 0.1, 30 * 5005: 0.01, 60 * 5005: 1e-3, 90 * 5005 - 1: 1e-3}),
        ("resnet50-cosine", {3127: 0.2, 6255: 0.4, 150_137: 0.0}),
        ("vit-b-16", {4999: 1.5e-3, 9999: 3e-3, 93_836: 0.0}),
    ],
)
def test_published_recipes_have_their_published_rates(name, expected):
    recipe = job_file.load(RECIPES / f"{name}.toml").recipe
    assert [rate(recipe, step) for step in expected] == pytest.approx(list(expected.values()), rel=1e-9, abs=1e-12)


@pytest.mark.torch
@given(warmup=RISES, decay=st.integers(2, 40), factor=FACTORS)
def test_cosine_matches_torch(warmup, decay, factor):
    """Until the end of the decay: torch's cosine rises again."""
    torch = pytest.importorskip("torch")
    got = rates(warmup + decay + 1, warmup_steps=warmup, decay_steps=decay, min_lr_factor=factor)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR
    expected = torch_rates(len(got), warmup, lambda optimizer: cosine(optimizer, decay, eta_min=0.5 * factor))
    assert got == pytest.approx(expected, abs=1e-9)


@pytest.mark.torch
@given(warmup=RISES, decay=STEPS, factor=FACTORS)
def test_linear_matches_torch(warmup, decay, factor):
    torch = pytest.importorskip("torch")
    got = rates(
        warmup + decay + 9, warmup_steps=warmup, decay_steps=decay, min_lr_factor=factor, lr_decay_style="linear"
    )
    linear = torch.optim.lr_scheduler.LinearLR
    expected = torch_rates(len(got), warmup, lambda optimizer: linear(optimizer, 1.0, factor, decay))
    assert got == pytest.approx(expected, abs=1e-9)


@pytest.mark.torch
@given(warmup=RISES, size=STEPS, gamma=st.floats(0.01, 1))
def test_step_matches_torch(warmup, size, gamma):
    torch = pytest.importorskip("torch")
    got = rates(warmup + 3 * size, warmup_steps=warmup, lr_step_size=size, lr_gamma=gamma, lr_decay_style="step")
    steps = torch.optim.lr_scheduler.StepLR
    expected = torch_rates(len(got), warmup, lambda optimizer: steps(optimizer, size, gamma))
    assert got == pytest.approx(expected)
