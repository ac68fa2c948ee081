"""Steps of a command are timed on the device, and ranks of several agents on a host have a device each."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainyard.record import Run
from trainyard.run.local.step_timer import PendingSteps, StepTimer
from trainyard.store.store import Store

pytestmark = [pytest.mark.device, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import time, torch
weight = torch.nn.Parameter(torch.randn(4096, 4096, device="cuda"))
optimizer = torch.optim.SGD([weight], 1e-6)
for step in range(40):
    x = weight
    for _ in range(20):
        x = x @ weight * 1e-2
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""
JOB = """name = "agents"
[model]
layers = 1
hidden_size = 64
ffn_hidden_size = 64
heads = 2
kv_heads = 2
head_dim = 32
[layout]
dp_replicate = 2
[recipe]
seq_len = 64
tokens_per_step = 128
[measure]
profiled = 0
[recovery]
nodes = 2
"""


def run(folder: Path, *command: str) -> Run:
    given = {**os.environ, "TRAINYARD_STORE": str(folder / "store")}
    ended = subprocess.run(
        [sys.executable, "-m", "trainyard.cli.main", "run", *command],
        env=given, capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    store = Store(folder / "store")
    return store.load(store.rows()[0].id)


def test_event_times_agree_with_synchronized_times() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(8192, 8192, device="cuda")
    walls: list[int] = []
    timer, pending = StepTimer(lambda: torch.cuda), PendingSteps[int](lambda _, time: walls.append(time.wall_ns))
    for _ in range(3):
        x @ x
    torch.cuda.synchronize()
    began_ns, begin = time.perf_counter_ns(), timer.mark()
    for step in range(20):
        for _ in range(4):
            x @ x
        end = timer.mark()
        pending.add(begin, end, step)
        pending.drain()
        begin = end
    launched_ns = time.perf_counter_ns() - began_ns
    assert pending.finish() == 0
    torch.cuda.synchronize()
    waited_ns = time.perf_counter_ns() - began_ns
    assert sum(walls) == pytest.approx(waited_ns, rel=0.02)
    assert launched_ns < 0.5 * waited_ns


def test_command_is_timed_by_events(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    stored = run(tmp_path, "--", sys.executable, str(script))
    assert stored.step_clocks == ("events",)
    x = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(60):  # forward and backward: 20 and 40 products
        x @ x
    torch.cuda.synchronize()
    products_ns = time.perf_counter_ns() - begin
    assert statistics.median(sample.wall_ns for sample in stored.measured()) > 0.8 * products_ns


def test_ranks_of_two_agents_have_a_device_each(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("one device on this machine; two are needed")
    (tmp_path / "job.toml").write_text(JOB)
    stored = run(tmp_path, "job.toml")
    assert [device.index for device in stored.provenance.devices] == [0, 1]
