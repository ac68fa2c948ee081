"""Staging: copies of an asynchronous save overlap with the next step, and hold the state at the time of the save."""

import threading
import time

import pytest

torch = pytest.importorskip("torch")

from tests.one_module import OneModule  # noqa: E402
from tests.simulated_streams import SimulatedStreams  # noqa: E402
from trainyard import plugins  # noqa: E402
from trainyard.job import Checkpoint, Job  # noqa: E402
from trainyard.model import Model  # noqa: E402
from trainyard.recipe import Recipe  # noqa: E402
from trainyard.train.checkpoint import staging as staging_module  # noqa: E402
from trainyard.train.checkpoint.checkpoint_saver import Saver  # noqa: E402
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore  # noqa: E402
from trainyard.train.checkpoint.staging import DeviceStream, HostStream, Staging  # noqa: E402
from trainyard.train.optimizers import make_optimizer  # noqa: E402
from trainyard.train.process_group import Ranks  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
ON_CPU = Ranks(0, 0, 1, 1, "cpu", CPU)
MODEL = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)


class Tiny(OneModule):
    """A `Stateful` training whose forward pass changes buffers (batch norm) and whose steps change all of its state."""

    def __init__(self):
        torch.manual_seed(1)
        module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        super().__init__(module, torch.optim.AdamW(module.parameters(), lr=0.1))

    def forward_backward(self, step):
        self.module(torch.arange(20.0).reshape(5, 4).cos() + step).square().sum().backward()

    def step(self, step):
        self.forward_backward(step)
        self.optimizer.step()


def saver_of(run, training, mode, ranks=ON_CPU):
    job = Job(
        model=MODEL,
        recipe=Recipe(seq_len=8, tokens_per_step=8),
        checkpoint=Checkpoint(interval=1, mode=mode, keep_latest_k=3),
    )
    return Saver(run, job, ranks, training)


def saved_bytes(run, step):
    return (CheckpointStore(run).folder(step) / "rank0.bin").read_bytes()


def sync_bytes(run, steps=1):
    """The checkpoint of a synchronous save after `steps` steps."""
    training = Tiny()
    saver = saver_of(run, training, "sync")
    for step in range(steps):
        training.step(step)
    saver.save_if_due(steps - 1)
    return saved_bytes(run, steps - 1)


class SlowStream(HostStream):
    """Copies begin when `may_copy` is set, and then take long enough for a step that does not wait for them."""

    def __init__(self):
        self.may_copy = threading.Event()

    def copy(self, target, source):
        assert self.may_copy.wait(30)
        time.sleep(0.02)
        super().copy(target, source)


def test_copies_that_begin_after_the_next_backward_pass_hold_the_earlier_state(tmp_path):
    training = Tiny()
    saver = saver_of(tmp_path / "async", training, "async")
    saver._staging = Staging(slow := SlowStream())
    training.step(0)
    saver.save_if_due(0)
    training.forward_backward(1)  # changes the buffers of the batch norm
    weights = training.module[0].weight.detach().clone()
    slow.may_copy.set()
    training.optimizer.step()
    assert not torch.equal(weights, training.module[0].weight)
    saver.close()
    assert saved_bytes(tmp_path / "async", 0) == sync_bytes(tmp_path / "sync")


def test_only_the_optimizer_waits_for_the_copies(tmp_path):
    training, waits = Tiny(), []
    saver = saver_of(tmp_path, training, "async")
    saver._on_joined = lambda stalled_ns, step: waits.append((stalled_ns, step))
    saver._staging = Staging(slow := SlowStream())
    training.step(0)
    assert waits == []
    saver.save_if_due(0)
    training.forward_backward(1)
    before_ns = saver.stalled_ns
    threading.Timer(0.2, slow.may_copy.set).start()
    training.optimizer.step()
    ((waited_ns, step),) = waits
    assert (step, waited_ns > 0.1e9, saver.stalled_ns - before_ns) == (0, True, waited_ns)
    training.step(2)
    assert len(waits) == 1
    saver.close()


@pytest.mark.parametrize("name", plugins.names("optimizers"))
def test_every_optimizer_waits_before_it_changes_weights(tmp_path, name):
    training, weights = Tiny(), []
    training.module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    recipe = Recipe(seq_len=8, tokens_per_step=8, optimizer=name)
    training.optimizer = make_optimizer.make([training.module], recipe, None)
    saver = saver_of(tmp_path, training, "async")
    saver._on_joined = lambda *_: weights.append(training.module[0].weight.detach().clone())
    training.step(0)
    saver.save_if_due(0)
    before = training.module[0].weight.detach().clone()
    training.step(1)
    saver.close()
    (at_join,) = weights
    assert torch.equal(before, at_join)
    assert not torch.equal(before, training.module[0].weight)


def test_a_failed_copy_frees_the_optimizer(tmp_path):
    from trainyard.errors import EnvironmentFailed

    class Failing(HostStream):
        def copy(self, target, source):
            raise RuntimeError("no page-locked memory")

    training = Tiny()
    saver = saver_of(tmp_path, training, "async")
    saver._staging = Staging(Failing())
    training.step(0)
    saver.save_if_due(0)
    training.step(1)
    with pytest.raises(EnvironmentFailed, match="no page-locked memory"):
        saver.close()


class SimulatedDeviceStream(DeviceStream):
    """`may_wait`: set once the host may wait for the copies, so that the device executes nothing before that."""

    pins_memory = False  # without a device, torch cannot

    def __init__(self, device):
        super().__init__(CPU, device)
        self.may_wait = threading.Event()

    def wait(self):
        assert self.may_wait.wait(30)
        super().wait()


@pytest.mark.parametrize("newest_first", [False, True])
def test_device_copies_are_ordered_between_the_updates_before_and_after(tmp_path, monkeypatch, newest_first):
    """All work of the device is launched asynchronously, the updates in the default stream."""
    device = SimulatedStreams(newest_first)
    copy = staging_module.copy_bytes
    monkeypatch.setattr(staging_module, "copy_bytes", lambda *tensors: device.launch(lambda: copy(*tensors)))
    training = Tiny()
    saver = saver_of(tmp_path / "async", training, "async")
    training.step(0)  # creates the optimizer's state
    update = training.optimizer.step.__wrapped__  # without hooks: what the device executes
    saver._staging = Staging(stream := SimulatedDeviceStream(device))

    def step_on_device(step):
        def work():
            training.optimizer.zero_grad()
            training.forward_backward(step)
            update(training.optimizer)

        saver.join_staging()
        device.launch(work)

    step_on_device(1)
    monkeypatch.setattr(Tiny, "modules", lambda self: [self.module[0]])  # its buffers are copied by torch itself
    saver.save_if_due(1)
    step_on_device(2)
    stream.may_wait.set()
    saver.close()
    device.synchronize()

    reference = Tiny()
    saver = saver_of(tmp_path / "sync", reference, "sync")
    for step in (0, 1):
        reference.optimizer.zero_grad()
        reference.step(step)
    saver.save_if_due(1)
    assert saved_bytes(tmp_path / "async", 1) == saved_bytes(tmp_path / "sync", 1)
    assert not torch.equal(training.module[0].weight, reference.module[0].weight), "the second update was executed"
