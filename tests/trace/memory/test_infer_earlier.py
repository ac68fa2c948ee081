"""What allocations from before the trace hold, against simulated runs whose truth is known."""

import pickle
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.caching_allocator import MIB, CachingAllocator
from tests.conftest import PUBLIC_DATA
from tests.memory_runs import BACKWARD, OPTIMIZER, linear
from trainyard import words
from trainyard.trace.memory.measure_snapshot import MeasuredMemory, measure, notes

WIDTH = 768


def weights(layers: int, width: int = WIDTH) -> list[int]:
    """Bytes of a decoder's parameters in 32 bits: four square matrices, three wide ones, two norms per layer; two
    embeddings and a last norm."""
    layer = [4 * width * width] * 4 + [16 * width * width] * 3 + [4 * width] * 2
    return [layer[0]] * 0 + layer * layers + [4 * width * 10_000] * 2 + [4 * width]


class Job:
    """A run whose model was built, and whose optimizer has stepped, before recording began."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.run = CachingAllocator()
        self.truth: Counter[str] = Counter()
        self.earlier = 0

    def before(self, sizes: list[int], truth: str) -> list[int]:
        """Allocates blocks whose stacks will not be known."""
        self.earlier += len(sizes)
        addresses = [self.run.malloc(size) for size in sizes]
        self.truth[truth] += sum(sizes)
        return addresses

    def record(self) -> None:
        """Starts the trace."""
        self.run.trace.clear()

    def forward(self) -> list[int]:
        return [self.run.malloc(3 * MIB + 512 * index, linear(index % 9)) for index in range(2 * len(self.sizes))]

    def backward(self, activations: list[int], keeps: bool) -> list[int]:
        """Frees the activations; returns the gradients that it keeps."""
        kept = []
        for size in reversed(self.sizes):
            self.run.free(self.run.malloc(5 * MIB + 512, BACKWARD))
            gradient = self.run.malloc(size, BACKWARD)
            if keeps:
                kept.append(gradient)
            else:
                self.run.free(gradient)
        for address in activations:
            self.run.free(address)
        return kept

    def step(self, gradients: list[int]) -> None:
        self.run.free(self.run.malloc(self.sizes[0], OPTIMIZER))
        for gradient in gradients:
            self.run.free(gradient)

    def measure(self, folder: Path) -> MeasuredMemory:
        path = folder / "snapshot.pickle"
        path.write_bytes(pickle.dumps(self.run.snapshot()))
        self.snapshot, (memory,) = measure(path)
        return memory

    def inferred(self, folder: Path) -> dict[str, int]:
        """Requested bytes by category of the blocks from before the trace."""
        memory = self.measure(folder)
        lives = memory.replay.lives
        sums: Counter[str] = Counter()
        for size, start, kind in zip(lives.requested.tolist(), lives.start.tolist(), memory.category.tolist()):
            if start < 0:
                sums[tuple(words.MEMORY)[kind]] += size
        return dict(sums)


@pytest.mark.parametrize("states", [0, 1, 2])
@pytest.mark.parametrize("steps", [1, 3])
def test_states_of_the_optimizer_are_inferred(tmp_path, states, steps):
    """No state: SGD; one: momentum; two: Adam."""
    job = Job(weights(4))
    job.before(job.sizes, "parameter_inferred")
    for size in job.sizes:
        job.before([size] * states, "optimizer_state_inferred")
    job.record()
    for _ in range(steps):
        job.step(job.backward(job.forward(), keeps=True))
    assert job.inferred(tmp_path) == {kind: size for kind, size in job.truth.items() if size}


@pytest.mark.parametrize("wide", [2, 3])
def test_wide_states_of_narrow_parameters_are_inferred(tmp_path, wide):
    """16-bit parameters with two 32-bit states, and perhaps a 32-bit copy."""
    job = Job([size // 2 for size in weights(3)])
    job.before(job.sizes, "parameter_inferred")
    for size in job.sizes:
        job.before([2 * size] * wide, "optimizer_state_inferred")
    job.record()
    for _ in range(2):
        job.step(job.backward(job.forward(), keeps=True))
    assert job.inferred(tmp_path) == dict(job.truth)


@pytest.mark.parametrize("states", [0, 1, 2])
def test_gradients_that_are_added_to_are_inferred(tmp_path, states):
    job = Job(weights(4))
    job.before(job.sizes, "parameter_inferred")
    job.before(job.sizes, "gradient_inferred")
    for size in job.sizes:
        job.before([size] * states, "optimizer_state_inferred")
    job.record()
    for _ in range(2):
        assert not job.backward(job.forward(), keeps=False)
    assert job.inferred(tmp_path) == {kind: size for kind, size in job.truth.items() if size}


def test_gradients_of_the_step_before_are_inferred(tmp_path):
    job = Job(weights(4))
    job.before(job.sizes, "parameter_inferred")
    old = job.before(job.sizes, "gradient_inferred")
    job.record()
    for address in old:
        job.run.free(address)
    job.step(job.backward(job.forward(), keeps=True))
    assert job.inferred(tmp_path) == dict(job.truth)


def test_frozen_weights_are_parameters(tmp_path):
    """Small adapters have gradients and states; the weights that they adapt have none."""
    frozen = weights(4)
    job = Job([4 * WIDTH * 8] * 16)
    job.before(frozen, "parameter_inferred")
    job.before(job.sizes, "parameter_inferred")
    for size in job.sizes:
        job.before([size] * 2, "optimizer_state_inferred")
    job.record()
    job.step(job.backward(job.forward(), keeps=True))
    inferred = job.inferred(tmp_path)
    assert inferred["optimizer_state_inferred"] == job.truth["optimizer_state_inferred"]
    # The norms are smaller than any adapter, and stay unknown with the two embeddings.
    assert inferred["parameter_inferred"] > 0.8 * job.truth["parameter_inferred"]


def test_forward_passes_show_parameters_by_their_sizes(tmp_path):
    job = Job(weights(6))
    job.before(job.sizes, "parameter_inferred")
    job.before([8 * 4 * 128 + 8], "unknown")
    job.before([8_519_680] * 2, "unknown")
    job.before([47_040_001 * 13], "unknown")
    job.record()
    job.forward()
    assert job.inferred(tmp_path) == dict(job.truth)
    text = notes(job.snapshot, job.measure(tmp_path))
    assert text[0].startswith("Parameters (inferred): 57 blocks")


def test_further_tensors_stay_unknown_without_a_backward_pass(tmp_path):
    job = Job(weights(5))
    job.before(job.sizes, "parameter_inferred")
    for size in job.sizes:
        job.before([size] * 2, "unknown")
    job.record()
    job.forward()
    assert job.inferred(tmp_path) == dict(job.truth)


@pytest.mark.parametrize("how", ["no trace", "short trace"])
def test_without_enough_of_a_trace_nothing_is_inferred(tmp_path, how):
    job = Job(weights(4))
    job.before(job.sizes, "unknown")
    job.record()
    if how == "short trace":
        job.run.malloc(MIB, linear(0))
    assert job.inferred(tmp_path) == dict(job.truth)


def test_tensors_of_no_model_stay_unknown(tmp_path):
    chance = random.Random(4)  # noqa: S311
    sizes = [chance.randrange(1, 9 * MIB) for _ in range(60)]
    job = Job(sizes[:1])
    job.before(sizes, "unknown")
    job.record()
    for _ in range(30):
        job.forward()
    assert job.inferred(tmp_path) == dict(job.truth)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 2), st.booleans(), st.booleans(), st.data()
)
def test_inference_never_changes_totals_or_known_categories(tmp_path, widths, states, keeps, trains, data):
    sizes = [512 * width * data.draw(st.sampled_from([1, width])) for width in widths] * data.draw(st.integers(1, 3))
    job = Job(sizes)
    job.before(sizes * (1 + states), "any")
    job.before(data.draw(st.lists(st.integers(1, 4 * MIB), max_size=4)), "any")
    job.record()
    activations = job.forward()
    if trains:
        job.step(job.backward(activations, keeps))
    memory = job.measure(tmp_path)
    assert (memory.by_kind.sum(axis=0) == memory.replay.allocated).all()
    in_trace = memory.replay.lives.start >= 0
    kinds = {tuple(words.MEMORY)[kind] for kind in memory.category[in_trace].tolist()}
    assert not any(kind.endswith("_inferred") for kind in kinds)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        (
            "kk_memory_files_memory_ctx128_forward.pickle",
            {"parameter_inferred": 13_763_487_744, "activation": 5_734_928_384, "unknown": 4_096},
        ),
        ("magma.pickle", {"parameter_inferred": 515_976_192, "gradient_inferred": 516_860_928}),
    ],
)
def test_public_snapshots(name, held):
    path = PUBLIC_DATA / "foreign" / "memory" / name
    if not path.exists():
        pytest.skip(f"the public snapshot {name} is not on this machine")
    _, (memory,) = measure(path)
    assert {kind: memory.peak.held[kind] for kind in held} == held
    assert sum(memory.peak.held.values()) == memory.peak.allocated
