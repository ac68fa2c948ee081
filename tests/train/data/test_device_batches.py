"""Batches on devices: the next one is copied in a stream of its own, and the step's work waits for it."""

import pytest

torch = pytest.importorskip("torch")

from tests.simulated_streams import SimulatedStreams  # noqa: E402
from trainyard.errors import BadJob  # noqa: E402
from trainyard.job import Job  # noqa: E402
from trainyard.model import Model  # noqa: E402
from trainyard.recipe import Recipe  # noqa: E402
from trainyard.train.data import loader as loaders  # noqa: E402
from trainyard.train.data.device_batches import DeviceBatches  # noqa: E402
from trainyard.train.data.loader import Loader, enabled_on_accelerator, workers  # noqa: E402
from trainyard.train.task import Batch  # noqa: E402

pytestmark = pytest.mark.torch
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Part:
    """A tensor on a simulated device, which has its `value` once its copy is executed."""

    def __init__(self, device, value):
        self.device, self.value, self.used_in = device, value, []

    def is_pinned(self):
        return True

    def to(self, where, non_blocking):
        assert non_blocking
        copied = Part(self.device, None)
        self.device.launch(lambda: setattr(copied, "value", self.value))
        return copied

    def record_stream(self, stream):
        self.used_in.append(stream)


class Simulated:
    """`values`: what the steps read on the device; `loaded`: steps in the order in which the host loaded them."""

    def __init__(self, newest_first=False, prefetches=True):
        self.device = SimulatedStreams(newest_first)
        self.values, self.loaded, self.batches_seen = [], [], []
        self.batches = DeviceBatches(self.load, GPU, prefetches, self.device)

    def load(self, step):
        self.loaded.append(step)
        return Batch((Part(self.device, step),), (Part(self.device, -step),))

    def take_step(self, step):
        batch = self.batches(step)
        self.batches_seen.append(batch)
        self.device.launch(lambda: self.values.append((batch.inputs[0].value, batch.targets[0].value)))
        self.batches.prefetch(step + 1)


@pytest.mark.parametrize("newest_first", [False, True])
def test_steps_read_their_own_batch_after_its_copy(newest_first):
    run = Simulated(newest_first)
    for step in range(4):
        run.take_step(step)
    run.device.synchronize()
    assert run.values == [(step, -step) for step in range(4)]
    assert run.loaded == [0, 1, 2, 3, 4], "each once, one ahead"


def test_copies_do_not_wait_for_the_step_before():
    run = Simulated()
    run.take_step(0)
    (copies,) = run.device.streams[1:]
    run.device.streams.remove(run.device.default)  # the step is not executed
    run.device.run_until(lambda: not copies.work)
    _, following, _ = run.batches._next
    assert (run.values, following.inputs[0].value) == ([], 1)


def test_memory_of_a_prefetched_batch_is_kept_for_the_step_that_reads_it():
    run = Simulated()
    for step in range(2):
        run.take_step(step)
    first, second = ([*batch.inputs, *batch.targets] for batch in run.batches_seen)
    assert [part.used_in for part in first] == [[], []], "copied in the stream of the step itself"
    assert [part.used_in for part in second] == [[run.device.default]] * 2


def test_a_jump_loads_the_batch_of_the_new_step():
    run = Simulated()
    run.take_step(0)
    run.take_step(7)
    run.device.synchronize()
    assert run.values == [(0, 0), (7, -7)]


def test_without_prefetching_nothing_is_loaded_ahead():
    run = Simulated(prefetches=False)
    for step in range(2):
        run.take_step(step)
    run.device.synchronize()
    assert (run.loaded, run.values, len(run.device.streams)) == ([0, 1], [(0, 0), (1, -1)], 1)


def recipe(**keys):
    return Recipe(seq_len=8, tokens_per_step=8, **keys)


def test_defaults_differ_between_accelerators_and_cpus():
    assert [workers(recipe(), device) for device in (CPU, GPU)] == [0, 2]
    assert [workers(recipe(num_workers=number), GPU) for number in (0, 3)] == [0, 3]
    assert [enabled_on_accelerator(None, device) for device in (CPU, GPU)] == [False, True]
    assert [enabled_on_accelerator(False, GPU), enabled_on_accelerator(True, CPU)] == [False, False]


@pytest.mark.parametrize("number", [-1, 10**6])
def test_numbers_of_workers_out_of_range_are_refused(number):
    with pytest.raises(BadJob, match="num_workers"):
        recipe(num_workers=number)


class Stepwise:
    source, sha256 = "steps", ""

    def batch(self, step, indices):
        return Batch((torch.tensor([step, *indices]),), ())


@pytest.mark.parametrize("number", [0, 2])
def test_batches_are_pinned_by_default_on_accelerators(monkeypatch, number):
    """Without an accelerator torch cannot pin: the request is recorded, in this process or by torch's loader."""
    requested = []
    monkeypatch.setattr(Batch, "pin", lambda self: requested.append(True) or self)
    data_loader = loaders.DataLoader

    def without_pinning(*given, pin_memory, **options):
        requested.append(pin_memory)
        return data_loader(*given, pin_memory=False, **options)

    monkeypatch.setattr(loaders, "DataLoader", without_pinning)
    model = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
    for device, keys, expected in ((GPU, {}, [True]), (GPU, {"pin_memory": False}, [False] * (number > 0))):
        requested.clear()
        job = Job(model=model, recipe=recipe(num_workers=number, **keys))
        load = Loader(job, Stepwise(), 0, device)
        assert load(5).inputs[0].tolist() == [5, 0]
        assert requested == expected
