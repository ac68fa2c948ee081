"""A small training run on this machine's accelerators, through the command line."""

# ruff: noqa: T201  what is printed here is kept as evidence

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.one_module import OneModule
from trainyard import ledger as ledgers
from trainyard import plugins
from trainyard.events import KERNEL
from trainyard.machine import find_device
from trainyard.record import DeviceSeen, Run
from trainyard.run.local.host_devices import find_devices
from trainyard.run.local.step_clock import StepClock
from trainyard.store.run_summary import summarise
from trainyard.store.store import Store
from trainyard.trace.measure import measure, read
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.workloads.ops import transformer_ops

pytestmark = [pytest.mark.device, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(120)]

JOB = """name = "device"
[model]
layers = 4
hidden_size = 1024
ffn_hidden_size = 3584
heads = 8
kv_heads = 2
head_dim = 128
[layout]
{layout}
[recipe]
seq_len = 512
tokens_per_step = 4096
micro_batch_size = 2
dtype = "bfloat16"
learning_rate = 1e-3
compile = {compile}
[measure]
warmup = 10
steps = 5
repeats = 2
profiled = 3
"""


class Done(NamedTuple):
    """A run, its output, and the ledgers booked again from its trace files."""

    run: Run
    printed: str
    measured: MeasuredTrace


def trained(folder: Path, layout: str, devices: int, compile: bool = False) -> Done:
    job = folder / "job.toml"
    job.write_text(JOB.format(layout=layout, compile=str(compile).lower()), "utf-8")
    command = [sys.executable, "-m", "trainyard.cli.main", "run", str(job), "--quiet"]
    given = {**os.environ, "TRAINYARD_STORE": str(folder / "store")}
    assert len(find_devices(plugins.load_all("vendors"))) >= devices
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    store = Store(folder / "store")
    row = store.rows()[0]
    run = store.load(row.id)
    traces = [store.runs / row.id / name for name in run.trace]
    return Done(run, done.stdout, measure(read(traces), axis=run.job.layout.only_axis))


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Done:
    """One rank on one device."""
    done = trained(tmp_path_factory.mktemp("alone"), "dp_shard = 1", 1)
    print(done.printed)
    return done


@pytest.fixture(scope="module")
def device() -> DeviceSeen:
    return find_devices(plugins.load_all("vendors"))[0]


def test_run_is_complete_and_ledgers_balance(alone):
    assert alone.run.state == "complete"
    assert len(alone.run.samples) == 10 + 5 * 2 + 1 + 3
    assert len(alone.run.ledgers) >= 3
    for ledger in alone.run.ledgers:  # each was refused on reading unless it balanced; the mean is of full steps
        assert sum(entry.ns for entry in ledger.entries) == ledger.wall_ns > 0
    assert not alone.run.ledgers[-1].scope.partial


def test_ledgers_from_files_are_the_same(alone):
    again = ledgers.from_json(ledgers.to_json(alone.measured.ledgers))
    expected = [(ledger.wall_ns, ledger.entries) for ledger in alone.run.ledgers]
    assert [(ledger.wall_ns, ledger.entries) for ledger in again] == expected


def test_device_kernels_are_booked_not_host_operations(alone):
    (rank,) = alone.measured.ranks
    assert int((rank.events.work.what == KERNEL).sum()) > 100 * 3
    assert rank.events.device, "the trace names no device"
    assert (rank.classified.launcher >= 0).mean() > 0.95
    assert len(rank.classified.start) == len(rank.events.work)


def test_matmul_attention_and_update_are_classified(alone):
    booked = {str(account): ns for account, ns in alone.run.ledgers[-1].by_account().items()}
    for account in ("compute/matmul", "compute/attention", "compute/norm", "compute/optimizer"):
        assert booked.get(account, 0) > 0, booked
    assert {"forward", "backward", "optimizer"} <= alone.run.ledgers[-1].by_phase().keys()


def test_more_than_97_percent_is_classified(alone):
    mean = alone.run.ledgers[-1]
    print(f"coverage {1 - mean.unrecognised_ns / mean.wall_ns:.3%}")
    assert mean.unrecognised_ns < 0.03 * mean.wall_ns


def test_loss_falls(alone):
    losses = [sample.loss for sample in alone.run.samples]
    assert losses[0] == pytest.approx(math.log(256), rel=0.1)
    assert losses[-1] < 0.8 * losses[0]


def test_peak_memory_is_that_of_the_allocator(alone, device):
    state = 16 * transformer_ops.parameters(alone.run.job.decoder)
    peaks = [sample.memory_bytes for sample in alone.run.samples]
    print(f"peak {peaks[-1] / 1e9:.2f} GB, of it {state / 1e9:.2f} GB weights, gradients and moments")
    assert peaks == sorted(peaks)
    # Activations of 1,024 tokens through four blocks take some tenths of a gigabyte, without host memory.
    assert state <= peaks[-1] < state + 1.5e9
    assert peaks[-1] < device.memory_bytes


def test_probe_matrices_do_not_count_in_the_peak():
    torch = pytest.importorskip("torch")
    from trainyard.run.local.worker import forget_peak, peak_memory
    from trainyard.run.probe.matmul_rate import matmul_rate

    cuda = torch.device("cuda", 0)
    held = torch.ones(2**20, device=cuda)
    matmul_rate(cuda, torch.bfloat16, StepClock(synchronize=torch.cuda.synchronize))
    assert peak_memory(cuda) >= held.nbytes + 3 * 2 * 256**2
    forget_peak(cuda)
    assert held.nbytes <= peak_memory(cuda) == torch.cuda.memory_allocated(cuda)


def test_prefetched_batches_arrive_before_the_step_that_reads_them():
    torch = pytest.importorskip("torch")
    from trainyard.train.data.device_batches import DeviceBatches
    from trainyard.train.task import Batch

    cuda, rows = torch.device("cuda", 0), 2**24
    batches = DeviceBatches(lambda step: Batch((torch.full((rows,), float(step)),), ()).pin(), cuda, prefetches=True)
    sums = []
    for step in range(5):
        sums.append(batches(step).inputs[0].sum())  # its memory is reused by later batches
        batches.prefetch(step + 1)
    assert [float(part) for part in sums] == [float(step * rows) for step in range(5)]


def test_async_checkpoints_equal_synchronous_ones(tmp_path):
    """The state is large enough that its copies, without an order, would last into the next update."""
    torch = pytest.importorskip("torch")
    from tests.train.checkpoint.test_staging import saved_bytes, saver_of
    from trainyard.train.process_group import find_ranks

    ranks, files = find_ranks(find_devices(plugins.load_all("vendors"))[0].vendor), []
    for mode in ("sync", "async"):
        torch.manual_seed(1)
        training = WideLayer(ranks.device)
        saver = saver_of(tmp_path / mode, training, mode, ranks)
        for step in range(3):
            training.step(step)
            saver.save_if_due(step)
        saver.close()
        files.append([saved_bytes(tmp_path / mode, step) for step in (1, 2)])
    assert files[0] == files[1]


class WideLayer(OneModule):
    """A `Stateful` training of one matrix of 256 MB, whose steps launch their work without waiting for it."""

    def __init__(self, device):
        import torch

        module = torch.nn.Linear(8192, 8192, device=device)
        super().__init__(module, torch.optim.AdamW(module.parameters(), lr=0.1, fused=True))
        self.x = torch.randn(64, 8192, device=device)

    def step(self, step):
        self.optimizer.zero_grad()
        self.module(self.x + step).square().sum().backward()
        self.optimizer.step()


def test_compilation_and_accumulation_keep_losses(alone, tmp_path):
    compiled = trained(tmp_path, "dp_shard = 1", 1, compile=True).run
    assert compiled.job.accumulate == 4
    plain, other = ([sample.loss for sample in run.samples] for run in (alone.run, compiled))
    assert other[0] == pytest.approx(plain[0], rel=1e-3)
    assert other == pytest.approx(plain, rel=2e-2)


def test_matmul_rate_is_near_and_below_the_peak(alone, device):
    if find_device(device.name) is None:
        pytest.skip(f"no machine file knows {device.name!r}")
    rate, peak = alone.run.claims["matmul_rate"].value, alone.run.claims["peak"].value
    print(f"matmul {rate / 1e12:.0f} of {peak / 1e12:.0f} TFLOP/s")
    assert peak / 10 < rate < peak


def test_mfu_is_printed(alone, device):
    share = summarise(alone.run).mfu
    if find_device(device.name) is None:
        pytest.skip(f"no machine file knows {device.name!r}")
    assert share is not None
    mfu = share.value
    print(f"MFU {mfu:.2%}")
    assert 0 < mfu < alone.run.claims["matmul_rate"].value / alone.run.claims["peak"].value
    assert "MFU" in alone.printed
    assert f"{100 * mfu:.1f}" in alone.printed


def test_profiler_overhead_is_reported(alone):
    cost = alone.run.claims["profiler_cost"]
    print(f"profiler {cost.value / 1e6:.2f} ms a step: {cost.source}")
    assert cost.measured
    assert cost.unit == "ns"
    assert "profiler's cost" in alone.printed


def test_run_records_device_and_driver(alone, device):
    seen = alone.run.provenance
    assert [seen_device.name for seen_device in seen.devices][:1] == [device.name]
    assert device.vendor != "cpu"
    assert seen.driver
    assert seen.torch_build.get("cuda") or seen.torch_build.get("hip")


def test_telemetry_has_clocks(device):
    telemetry = plugins.load("vendors", device.vendor).telemetry()
    clocks = {name: value for name, value in telemetry.items() if "clock" in name}
    print(telemetry)
    assert "problem" not in telemetry
    assert any(int("".join(filter(str.isdigit, value)) or 0) > 0 for value in clocks.values()), telemetry


def test_device_is_known(device):
    known = find_device(device.name)
    if known is None:
        pytest.skip(f"no machine file knows {device.name!r}")
    assert known.vendor == device.vendor
    assert device.memory_bytes == pytest.approx(known.memory.value, rel=0.1)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[str, Done]:
    """Two ranks, replicated and sharded."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("one device on this machine; two are needed")
    axes = ("dp_replicate", "dp_shard")
    return {axis: trained(tmp_path_factory.mktemp(axis), f"{axis} = 2", 2) for axis in axes}


def test_replicated_and_sharded_losses_agree(pairs):
    ddp, fsdp = ([sample.loss for sample in done.run.samples if sample.rank == 0] for done in pairs.values())
    assert ddp[0] == pytest.approx(fsdp[0], rel=1e-3)
    assert ddp == pytest.approx(fsdp, rel=2e-2)  # bfloat16, and attention's backward sums in any order
    assert ddp[-1] < 0.8 * ddp[0]


@pytest.mark.parametrize(
    ("axis", "collectives"),
    [("dp_replicate", {"all_reduce"}), ("dp_shard", {"all_gather", "reduce_scatter"})],
)
def test_collectives_are_named_with_their_axis(pairs, axis, collectives):
    done = pairs[axis]
    mean = done.run.ledgers[-1]
    names = {
        (entry.account.what, entry.account.group)
        for entry in mean.entries
        if entry.account.kind == "comm" and entry.ns + entry.hidden_ns > 0
    }
    assert {(collective, axis) for collective in collectives} <= names
    assert {group for _, group in names} == {axis}
    assert mean.scope.aligned == "host"
    assert mean.scope.ranks == (0, 1)
    assert mean.unrecognised_ns < 0.03 * mean.wall_ns
