"""Steps on a device: timed by events, without waiting for each of them; synchronized in the profiled window only."""

from io import BytesIO

import msgspec
import pytest

torch = pytest.importorskip("torch")

from tests.simulated_device import SimulatedDevice  # noqa: E402
from trainyard.job import Job, Measure  # noqa: E402
from trainyard.launch import epoch  # noqa: E402
from trainyard.model import Model  # noqa: E402
from trainyard.recipe import Recipe  # noqa: E402
from trainyard.record import Sample  # noqa: E402
from trainyard.run.local.step_clock import StepClock  # noqa: E402
from trainyard.run.local.step_timer import StepTimer  # noqa: E402
from trainyard.run.local.worker import Rank  # noqa: E402
from trainyard.train.process_group import Ranks  # noqa: E402

pytestmark = pytest.mark.torch
ALONE = Ranks(0, 0, 1, 1, "cpu", torch.device("cpu"))
MODEL = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
LAUNCH_NS, STEP_NS = 2_000_000, 10_000_000
EPOCH_NS = 1_700_000_000_000_000_000


class Result:
    """The result of a step that the device ends at `ends_ns`; must not be read before that."""

    grad_norm = 1.0

    def __init__(self, device, ends_ns, loss):
        self.device, self.ends_ns, self._loss = device, ends_ns, loss

    @property
    def loss(self):
        assert self.device.host_ns >= self.ends_ns, "the host would wait for the step"
        return self._loss


class OnDevice:
    """A rank on a simulated device. `written`: the samples when each step is launched, and when each is saved.
    `ends_ns`: when the device ends each step."""

    def __init__(self, measure, saves_after=(), launch_ns=LAUNCH_NS):
        self.device, self.log, self.saves_after = SimulatedDevice(), BytesIO(), saves_after
        self.written_at_launch, self.written_at_save, self.ends_ns, self.launch_ns = [], [], [], launch_ns
        job = Job(model=MODEL, recipe=Recipe(seq_len=8, tokens_per_step=8), measure=measure)
        self.rank = Rank(
            job,
            ALONE,
            self,
            StepClock(self.device.synchronize, self.device.read_ns),
            self.log,
            lambda _: None,
            checkpoints=self,
            timer=StepTimer(lambda: self.device, self.device.read_ns),
        )

    def __call__(self, step):
        self.written_at_launch.append(len(self.samples()))
        self.device.launch(self.launch_ns, STEP_NS + step)
        self.ends_ns.append(self.device.free_ns)
        return Result(self.device, self.device.free_ns, 1 / (1 + step))

    def due(self, step):
        return step in self.saves_after

    def after(self, step):
        if self.due(step):
            self.written_at_save.append(len(self.samples()))

    def leave(self, step):
        self.written_at_save.append(len(self.samples()))

    def samples(self):
        return [msgspec.json.decode(line, type=Sample) for line in self.log.getvalue().splitlines()]


def test_steps_have_the_device_s_time_and_the_host_launches_ahead(tmp_path):
    run = OnDevice(Measure(warmup=1, steps=3, repeats=2, profiled=0))
    run.rank.run(tmp_path)
    samples = run.samples()
    first, *others = ((sample.step, sample.wall_ns) for sample in samples)
    assert first == (0, LAUNCH_NS + STEP_NS), "the device is idle until the first step is launched"
    assert others == [(step, STEP_NS + step) for step in range(1, 7)]
    assert [sample.loss for sample in samples] == [1 / (1 + step) for step in range(7)]
    assert {sample.clock for sample in samples} == {"events"}
    assert run.device.waits == 0
    assert run.device.host_ns == LAUNCH_NS + sum(STEP_NS + step for step in range(7)), "the device is never idle again"


@pytest.mark.parametrize("launch_ns", [1, LAUNCH_NS, STEP_NS + 3, 5 * STEP_NS], ids=["1", "2ms", "10ms", "50ms"])
def test_samples_have_the_time_at_which_the_device_ended_the_step(tmp_path, monkeypatch, launch_ns):
    """The host reads it after it has launched the next step, which takes longer than a step if it is slow."""
    run = OnDevice(Measure(warmup=1, steps=3, repeats=2, profiled=2), launch_ns=launch_ns)
    monkeypatch.setattr(epoch, "now_ns", lambda: EPOCH_NS + run.device.host_ns)
    run.device.launch(7, 3 * STEP_NS)  # work before the first step
    run.rank.run(tmp_path)
    ended_ns = [sample.ended_ns - EPOCH_NS for sample in run.samples()]
    assert ended_ns == run.ends_ns


def test_the_host_is_at_most_one_step_ahead(tmp_path):
    run = OnDevice(Measure(warmup=0, steps=6, repeats=1, profiled=0))
    run.rank.run(tmp_path)
    assert run.written_at_launch == [0, 0, 1, 2, 3, 4]


def test_waits_for_the_device_are_inside_steps(tmp_path):
    """Between steps they would count as the rank's own time, by which slow ranks are detected."""
    run, between, ended = OnDevice(Measure(warmup=0, steps=5, repeats=1, profiled=0)), [], [0]
    heartbeat = run.rank.heartbeat

    class Timed:
        clock = heartbeat.clock

        def begin(self, step, fresh=False):
            between.append(run.device.host_ns - ended[0])

        def end(self):
            ended[0] = run.device.host_ns

        def must_leave_before(self, step):
            return False

    run.rank.heartbeat = Timed()
    run.rank.run(tmp_path)
    assert between == [0] * 5


def test_samples_are_written_before_a_checkpoint_of_their_step(tmp_path):
    run = OnDevice(Measure(warmup=0, steps=6, repeats=1, profiled=0), saves_after=(2, 5))
    run.rank.run(tmp_path)
    assert run.written_at_save == [3, 6]


def test_a_rank_that_leaves_has_written_all_samples(tmp_path):
    run = OnDevice(Measure(warmup=0, steps=6, repeats=1, profiled=0))
    run.rank.heartbeat.must_leave_before = lambda step: step == 4
    try:
        with pytest.raises(SystemExit):
            run.rank.run(tmp_path)
    finally:
        del run.rank.heartbeat.must_leave_before
    assert run.written_at_save == [4]


def test_profiled_steps_are_synchronized(tmp_path):
    run = OnDevice(Measure(warmup=0, steps=2, repeats=1, profiled=2))
    run.rank.run(tmp_path)
    samples = run.samples()
    assert [(sample.profiled, sample.wall_ns) for sample in samples] == [
        (False, LAUNCH_NS + STEP_NS), (False, STEP_NS + 1),
        *((True, LAUNCH_NS + STEP_NS + step) for step in (2, 3, 4)),
    ]  # fmt: skip
    assert run.device.waits == 2 * 3
