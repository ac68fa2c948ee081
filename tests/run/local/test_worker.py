"""A rank's run: what it does in which order, and what it leaves behind, also when it is killed."""

import gzip
import json
import os
import signal
import subprocess
import sys
from io import BytesIO
from itertools import islice
from types import SimpleNamespace

import msgspec
import pytest

from tests.refused import missing_values, refused

torch = pytest.importorskip("torch")

from trainyard import job_file as jobs  # noqa: E402
from trainyard.errors import BadFile, DeviceUnusable, EnvironmentFailed  # noqa: E402
from trainyard.job import Measure  # noqa: E402
from trainyard.record import Sample  # noqa: E402
from trainyard.run.local import worker  # noqa: E402
from trainyard.run.local.planned_steps import PlannedStep, leave_out, plan_steps, remaining_steps  # noqa: E402
from trainyard.run.local.rank_facts import RankFacts, read_facts  # noqa: E402
from trainyard.run.local.step_clock import StepClock  # noqa: E402
from trainyard.run.local.step_faults import Rollbacks  # noqa: E402
from trainyard.run.local.worker import Rank  # noqa: E402
from trainyard.store.run_folder import read_samples  # noqa: E402
from trainyard.train.process_group import Ranks, detect_vendor  # noqa: E402
from trainyard.train.step.outcome import Outcome  # noqa: E402
from trainyard.vendors.cpu_vendor import Cpu  # noqa: E402

pytestmark = pytest.mark.torch

JOB = """
[model]
layers = 1
hidden_size = 16
ffn_hidden_size = 16
heads = 2
kv_heads = 1
head_dim = 8
[recipe]
seq_len = 16
tokens_per_step = 32
[measure]
warmup = 1
steps = {steps}
repeats = 2
profiled = 1
"""
PARAMETERS = 2 * 256 * 16 + (2 * 16 * 16 + 2 * 16 * 8) + 3 * 16 * 16 + 3 * 16
ALONE = Ranks(0, 0, 1, 1, "cpu", torch.device("cpu"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job.toml").write_text(JOB.format(steps=2))
    return tmp_path


class Pretend:
    """A training that takes as long as it is told and loses ever less."""

    def __init__(self, walls=()):
        self.walls = iter(walls)
        self.now = 0
        self.steps = []

    def __call__(self, step):
        self.now += next(self.walls, 1)
        self.steps.append(step)
        return Outcome(loss=1 / (1 + step), grad_norm=0.5)

    def about(self):
        raise AssertionError("nobody asks here")


def test_clocks_are_read_once_by_rank_0_after_the_warm_up(folder, monkeypatch):
    class Vendor:
        def telemetry(self):
            return {"steps": str(len(training.steps))}

    load = worker.plugins.load
    monkeypatch.setattr(
        worker.plugins, "load", lambda group, name: Vendor() if group == "vendors" else load(group, name)
    )
    job = jobs.parse(JOB.format(steps=2).replace("profiled = 1", "profiled = 0"), "job")
    cold = msgspec.structs.replace(job, measure=msgspec.structs.replace(job.measure, warmup=0))
    reported = []
    for tried, ranks in ((job, ALONE), (job, ALONE._replace(rank=1)), (cold, ALONE)):
        training = Pretend()
        rank = Rank(tried, ranks, training, StepClock(), BytesIO(), reported.append)
        rank.run(folder)
        reported.append(rank.telemetry)
    assert [clocks for clocks in reported if isinstance(clocks, dict)] == [{"steps": "1"}, {}, {}]


@pytest.mark.parametrize("left_out", [set(), {4}, {3, 4}, {1, 2, 3, 4}], ids=str)
def test_clocks_are_read_at_the_end_if_no_measured_step_remains(folder, monkeypatch, left_out):
    training = Pretend()
    job = jobs.parse(JOB.format(steps=2).replace("profiled = 1", "profiled = 0"), "job")
    rank = Rank(job, ALONE, training, StepClock(), BytesIO(), lambda _: None)
    rank.step_faults = SimpleNamespace(
        earlier=Rollbacks(1, frozenset(left_out)), training=SimpleNamespace(fault=None), handle=lambda _: None
    )
    monkeypatch.setattr(rank, "_read_telemetry", lambda: {"steps": str(training.steps)})
    rank.run(folder, begin=4 if not left_out else min(left_out) - 1)
    assert rank.telemetry == {"steps": str(training.steps)}


def test_turns_are_warmup_repeats_window():
    assert list(plan_steps(Measure(warmup=1, steps=2, repeats=2, profiled=1))) == [
        PlannedStep(0, 0, warmup=True),
        PlannedStep(1, 0, starts_repeat=True),
        PlannedStep(2, 0),
        PlannedStep(3, 1, starts_repeat=True),
        PlannedStep(4, 1),
        PlannedStep(5, 2, warmup=True, profiled=True, starts_repeat=True),
        PlannedStep(6, 2, profiled=True),
    ]
    assert not [turn for turn in plan_steps(Measure(profiled=0)) if turn.profiled]


def test_steps_are_planned_as_they_are_taken():
    planned_steps = plan_steps(Measure(warmup=2, steps=10**9, repeats=3, profiled=1), begin=2 + 10**9)
    taken = remaining_steps(leave_out(planned_steps, {2 + 10**9}), warmup_steps=2)
    assert [(step.step - 10**9, step.repeat, step.warmup) for step in islice(taken, 3)] == [
        (3, 1, True),
        (4, 1, True),
        (5, 1, False),
    ]
    assert next(planned_steps).step < 10 + 10**9


def test_left_out_steps_pass_their_barrier_on():
    planned = list(plan_steps(Measure(warmup=1, steps=2, repeats=2, profiled=1)))
    assert list(leave_out(planned, ())) == planned
    remaining = list(leave_out(planned, {1, 5}))
    assert [step.step for step in remaining] == [0, 2, 3, 4, 6]
    assert [step.step for step in remaining if step.starts_repeat] == [2, 3, 6]


def test_a_rank_writes_each_step_as_it_ends(folder):
    training, log, lines = Pretend(walls=[7, 10, 20, 30, 40]), BytesIO(), []
    clock = StepClock(read_ns=lambda: training.now)
    Rank(jobs.load(folder / "job.toml"), ALONE, training, clock, log, lines.append).run(folder)
    samples = [msgspec.json.decode(line, type=Sample) for line in log.getvalue().splitlines()]
    assert [sample.wall_ns for sample in samples if not sample.profiled] == [7, 10, 20, 30, 40]
    assert [sample.step for sample in samples] == training.steps == list(range(7))
    assert [(s.warmup, s.profiled) for s in samples] == [
        (True, False),
        *[(False, False)] * 4,
        (True, True),
        (False, True),
    ]
    assert {sample.tokens for sample in samples} == {32}
    assert samples[1].loss == 0.5
    assert lines[1].startswith("step 2 loss 0.5000 ")
    traces = list((folder / "traces").iterdir())
    assert [trace.name for trace in traces] == ["rank0.json.gz"], "and nothing half-written beside it"
    names = {event.get("name") for event in json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]}
    assert "ProfilerStep#1" in names


def test_a_whole_run_alone(folder):
    command = [sys.executable, "-m", "trainyard.run.local.worker", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout.splitlines()[0].startswith(b"step 1 loss 5.")
    (facts,) = read_facts(folder)
    assert facts.digests.keys() == {"text", "weights_initial", "weights_final"}
    assert facts.digests["weights_initial"] != facts.digests["weights_final"]
    assert facts.text.startswith("Python ")
    assert facts.matmul_rate.measured
    assert facts.threads == 1
    assert (facts.vendor, facts.device) == ("cpu", Cpu().devices()[0].name)
    assert float(facts.clocks["load"]) >= 0
    assert (facts.world, facts.backend, facts.parameters) == (1, "", PARAMETERS)
    trace = json.loads(gzip.decompress((folder / "traces" / "rank0.json.gz").read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"embed", "layers.0", "layers.0.attention", "layers.0.mlp", "norm", "head", "loss"} <= names
    assert len(read_samples(folder)) == 7


@pytest.mark.slow
def test_a_killed_rank_leaves_what_it_measured(tmp_path):
    (tmp_path / "job.toml").write_text(JOB.format(steps=1_000_000))
    process = subprocess.Popen(
        [sys.executable, "-m", "trainyard.run.local.worker", str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(5):
        assert process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    assert process.wait(30) == -signal.SIGKILL
    samples = read_samples(tmp_path)
    assert [sample.step for sample in samples] == list(range(len(samples)))
    assert len(samples) >= 5
    assert read_facts(tmp_path) == []


def test_an_error_is_a_traceback_and_exit_code_1(folder):
    path = folder / "job.toml"
    path.write_text(path.read_text().replace("seq_len = 16", 'dataset = "nowhere"\nseq_len = 16'))
    done = subprocess.run(
        [sys.executable, "-m", "trainyard.run.local.worker", str(folder)], capture_output=True, check=False, text=True
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert missing_values(last, "trainyard.errors.BadJob", "dataset = 'nowhere'", "$.recipe") == []


def test_other_than_the_layouts_ranks_is_refused(folder, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with refused(EnvironmentFailed, "3 ranks", "one rank", 1):
        worker.main(folder)


def test_more_ranks_than_devices_is_refused(monkeypatch):
    from trainyard.train import process_group

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with refused(DeviceUnusable, "4 ranks", 2, "$.layout", "CUDA_VISIBLE_DEVICES"):
        process_group.find_ranks("nvidia")


def test_unusable_devices_are_an_error_without_cpu_fallback(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {detect_vendor(), detect_vendor("cpu"), detect_vendor("pretend")} == {"cpu"}
    with refused(DeviceUnusable, "nvidia", f"torch {torch.__version__}", "CUDA_VISIBLE_DEVICES"):
        worker.main(folder, "nvidia")
    assert not (folder / "samples").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert detect_vendor("cpu") == detect_vendor("nvidia") == "nvidia"
    with refused(DeviceUnusable, "amd", f"torch {torch.__version__}", "nvidia"):
        detect_vendor("amd")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update."), "11040"),
        (
            RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
            "GetDevice",
        ),
        (AssertionError("Torch not compiled with CUDA enabled"), "compiled with CUDA"),
    ],
)
def test_devices_that_torch_cannot_initialise_are_refused_with_its_reason(monkeypatch, error, reason):
    def fail():
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)
    with refused(DeviceUnusable, "nvidia", f"torch {torch.__version__}", "CUDA_VISIBLE_DEVICES") as caught:
        detect_vendor("nvidia")
    assert reason in str(caught.value)


LATE = """
import time
from datetime import timedelta
from trainyard.train import process_group
process_group.TIMEOUT = timedelta(seconds=2)
here = process_group.find_ranks("cpu")
with process_group.process_group_context(here):
    time.sleep(4 * here.rank)
    process_group.patient_barrier(here)
    process_group.barrier(here)
"""


@pytest.mark.slow
def test_slow_trace_compression_does_not_time_out_peers(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, str(tmp_path / "late.py")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_facts_that_are_none_name_the_file(tmp_path):
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "rank0.json").write_text("{")
    with refused(BadFile, tmp_path / "facts" / "rank0.json"):
        read_facts(tmp_path)


def test_facts_forbid_what_they_do_not_know():
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b'{"surprise": 1}', type=RankFacts)
    assert missing_values(str(caught.value), "surprise") == []
