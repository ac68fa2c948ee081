"""Steps inferred from ranges: properties over any ranges, and words of names."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.trace.readers.annotate import find_phase
from trainyard.trace.readers.step_ranges import Range, find_steps, split_words

NAMES = st.sampled_from(["step {}", "iteration {}", "train", "layer {}", "saxpy", "epoch 1 batch {}", "x"])
RANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60), NAMES, st.integers(0, 9), st.integers(0, 1)))


@given(RANGES, st.lists(st.integers(0, 500)))
def test_steps_are_disjoint_ordered_and_busy(spans, times):
    ranges = [Range(start, start + length, name.format(n), thread) for start, length, name, n, thread in spans]
    launches = np.sort(np.array(times, np.int64))
    steps = find_steps(ranges, launches)
    if steps is None:
        return
    assert 0.7 <= steps.confidence <= 0.96
    chosen = [ranges[row] for row in steps.rows]
    assert len({item.thread for item in chosen}) == 1
    assert all(first.stop <= second.start for first, second in pairwise(chosen))
    assert len(set(steps.labels)) == len(steps.labels) == len(chosen) >= 2
    inside = sum(any(item.start <= time <= item.stop for item in chosen) for time in times)
    spanned = sum(chosen[0].start <= time <= chosen[-1].stop for time in times)
    assert 2 * inside >= spanned > 0
    assert not any(item.name.startswith("layer") for item in chosen)


@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 1000))
def test_planted_iterations_are_the_steps(count, kernels, first):
    """Iterations with parts inside, and a range around all of them."""
    ranges = [Range(0, 1000 * count + 500, "training", 0)]
    times = []
    for index in range(count):
        at = 100 + 1000 * index
        ranges += [
            Range(at, at + 900, f"iteration {first + index}", 0),
            *(Range(at + 10 + 100 * part, at + 100 + 100 * part, f"layer {part}", 0) for part in range(kernels)),
        ]
        times += [at + 50 + 100 * part for part in range(kernels)]
    steps = find_steps(ranges, np.array(times, np.int64))
    assert steps is not None
    assert steps.labels == [str(first + index) for index in range(count)]
    assert [ranges[row].start for row in steps.rows] == [100 + 1000 * index for index in range(count)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train_step", {"train", "step"}),
        ("trainStep", {"train", "step"}),
        ("DeepSpeedEngine.step", {"deep", "speed", "engine", "step"}),
        ("FWD pass 3", {"fwd", "pass"}),
        ("", set()),
    ],
)
def test_words_of_a_name(name, words):
    assert split_words(name) == words


@given(st.text(max_size=40))
def test_any_name_has_a_phase_or_none(name):
    assert find_phase(name) in (None, "forward", "backward", "optimizer")
