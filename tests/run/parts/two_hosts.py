"""A training script and a shifted clock, for tests of several hosts on this one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHIFT_S = 1000
LATE_SCRIPT = """
import sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(20):
    if rank == last:
        time.sleep(0.06)
    if rank == int(sys.argv[1]) and step == 8:
        raise SystemExit(7)
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
"""Trains 20 steps, to each of which the last rank comes 60 ms late. Its argument: the rank that dies in step 8, -1 for
none."""


@pytest.fixture(scope="module")
def shifted_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a library that shifts the wall clock of the processes that preload it by CLOCK_SHIFT_S seconds."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler to build the shifted clock with")
    library = tmp_path_factory.mktemp("clock") / "shift.so"
    source = Path(__file__).with_name("shift_clock.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
