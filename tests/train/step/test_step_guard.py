"""The decision on a step from its loss and gradient norm: faults, limits, and the rate of false alarms."""

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.loss_spikes import KINDS, detected_share, false_alarms
from tests.refused import refused
from trainyard.errors import BadJob
from trainyard.job import Checkpoint, Job
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import recipe_rules
from trainyard.train.step.loss_spikes import spike_score
from trainyard.train.step.outcome import StepFault
from trainyard.train.step.step_guard import StepGuard, stop_after_rollbacks


def guard(**recipe):
    return StepGuard(Recipe(**{"tokens_per_step": 1, "loss_spike_window": 16, **recipe}))


def steady(spikes, losses=16):
    """A guard after losses of 2.0 and 2.2 in turn."""
    for number in range(losses):
        assert spikes.judge(2.0 + 0.2 * (number % 2), True) is None
    return spikes


@given(st.floats(), st.booleans(), st.sampled_from(["stop", "skip", "rollback"]))
def test_a_step_is_faulty_exactly_if_loss_or_norm_is_not_finite(loss, is_norm_finite, action):
    fault = guard(on_non_finite=action).judge(loss, is_norm_finite)
    if math.isfinite(loss) and is_norm_finite:
        assert fault is None
    else:
        assert (fault.kind, fault.action) == ("non_finite", action)


def test_ignored_non_finite_values_are_neither_faults_nor_in_the_window_of_spikes():
    guarded = steady(guard(on_non_finite="ignore", on_loss_spike="skip"))
    recent = list(guarded.recent)
    assert guarded.checks
    assert guarded.judge(math.nan, True) is None
    assert list(guarded.recent) == recent
    assert guarded.judge(99.0, True).kind == "loss_spike"
    assert not guard(on_non_finite="ignore").checks


finite = st.floats(0.1, 100.0)


@given(st.lists(finite, min_size=8, max_size=40), finite, st.floats(0.5, 20), st.floats(0.1, 10))
def test_score_does_not_depend_on_the_unit_of_the_loss(recent, loss, above, unit):
    score = spike_score(loss, recent)
    assert spike_score(unit * loss, [unit * value for value in recent]) == pytest.approx(score, rel=1e-6, abs=1e-6)
    assert spike_score(loss + above, recent) > score
    assert (score > 0) == (loss > median(recent))


def test_score_of_a_minority_of_spikes_in_the_window_stays_high():
    calm = [2.0 + 0.01 * (number % 5) for number in range(100)]
    assert spike_score(4.0, calm + [50.0] * 20) > 20, "a mean and standard deviation give 0"


@pytest.mark.parametrize("kind", KINDS)
def test_false_alarms_are_rare(kind):
    """In 4,000 steps without a spike. Heavy tails are outliers of the data, not of the rule."""
    assert false_alarms(kind, 4000, 1, 6.0) <= (12 if kind == "heavy-tailed" else 0)
    assert false_alarms(kind, 4000, 1, 0.5) > 20, "the rule does judge these losses"


def test_detected_spikes_grow_with_their_height():
    low, middle, high = (detected_share(height, 60, 1, 6.0) for height in (4, 6, 9))
    assert low < 0.1 < middle < 0.9 < high


def test_a_loss_is_judged_once_half_of_the_window_is_known():
    for count, is_faulty in ((7, False), (8, True)):
        spikes = steady(guard(on_loss_spike="skip"), count)
        assert (spikes.judge(9.0, True) is not None) == is_faulty
    assert steady(guard()).judge(9.0, True) is None, "ignored by default"
    assert steady(guard(on_loss_spike="skip")).judge(0.1, True) is None, "a low loss is not a spike"


def test_a_spike_does_not_change_the_window():
    spikes = steady(guard(on_loss_spike="skip", max_consecutive_skips=100))
    messages = {spikes.judge(9.0, True).message for _ in range(50)}
    assert len(messages) == 1
    (message,) = messages
    assert "9.0000" in message
    assert "2.1000" in message


@given(st.integers(0, 5), st.integers(0, 5))
def test_consecutive_skips_are_limited(most, before):
    skips = guard(on_non_finite="skip", max_consecutive_skips=most)
    for _ in range(before):
        skips.judge(math.nan, True)
        skips.judge(1.0, True)  # a good step begins the count again
    actions = [skips.judge(math.nan, True).action for _ in range(most + 1)]
    assert actions == ["skip"] * most + ["stop"]


def test_state_survives_a_checkpoint():
    spikes = steady(guard(on_loss_spike="skip"))
    spikes.judge(math.inf, True)
    spikes.judge(9.0, True)
    again = guard(on_loss_spike="skip")
    again.restore({"scale": 1.0, **spikes.state()})
    assert (list(again.recent), again.skips) == (list(spikes.recent), spikes.skips)
    assert again.judge(9.0, True) == spikes.judge(9.0, True)
    again.restore({})
    assert (list(again.recent), again.skips) == ([], 0)
    assert guard().state() == {}


def test_rollbacks_are_limited():
    fault, recipe = StepFault("loss_spike", "rollback", "9 is high"), Recipe(tokens_per_step=1, max_rollbacks=2)
    assert [stop_after_rollbacks(fault, count, recipe).action for count in range(3)] == ["rollback", "rollback", "stop"]
    skip = fault._replace(action="skip")
    assert stop_after_rollbacks(skip, 9, recipe) == skip


@pytest.mark.parametrize("key", ["on_non_finite", "on_loss_spike"])
def test_rollback_without_checkpoints_is_refused(key):
    model = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
    recipe = Recipe(tokens_per_step=8, seq_len=8, **{key: "rollback"})
    with refused(BadJob, f"{key} = 'rollback'", "$.recipe", "interval = 0", "$.checkpoint", "'skip'"):
        recipe_rules.check(Job(model=model, recipe=recipe))
    recipe_rules.check(Job(model=model, recipe=recipe, checkpoint=Checkpoint(interval=5)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loss_spike_threshold", 0.0),
        ("loss_spike_threshold", math.nan),
        ("loss_spike_window", 7),
        ("loss_spike_window", 10**9),
        ("rollback_skip_steps", 0),
        ("max_rollbacks", -1),
        ("max_consecutive_skips", -1),
    ],
)
def test_numbers_out_of_range_are_refused(key, value):
    with refused(BadJob, f"{key} = {value}"):
        Recipe(tokens_per_step=1, **{key: value})
