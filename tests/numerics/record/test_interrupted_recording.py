"""Recordings that are killed, interrupted or fail: the next call continues, and the record is that of a single call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import alive, until
from trainyard import api, fault_points
from trainyard.errors import BadInput, CommandFailed, RunInUse
from trainyard.numerics.record_files import read_variant, variants
from trainyard.numerics.record_state import read_state

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import json, os, pathlib, sys, time
import torch

folder = pathlib.Path(sys.argv[1])
variant = json.loads(os.environ["TRAINYARD_NUMERICS_REQUEST"])["variant"]
with (folder / "runs").open("a") as runs:
    runs.write(f"{variant} {os.getpid()}\\n")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and (folder / f"fail-{variant}").exists():
        raise SystemExit(3)
    if step == 1 and (folder / f"hold-{variant}").exists():
        time.sleep(600)
"""


class Training:
    """A script in a folder whose runs are counted, and the folder of its record."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "record"
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.command = [sys.executable, str(script), str(folder)]

    def record(self, replicas: int = 1, out: Path | None = None) -> list[str]:
        """Records in this process. Returns the variants of the report."""
        report = api.record_numerics(self.command, out or self.out, replicas=replicas)
        return [run.variant for run in report.runs]

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Records with the command, in a process of its own group."""
        words = ["numerics", "record", "--replicas", "1", "--out", str(self.out), "--", *self.command]
        return subprocess.Popen(
            [sys.executable, "-m", "trainyard.cli.main", *words],
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def runs(self) -> list[list[str]]:
        """Variant and process of each run of the script so far."""
        path = self.folder / "runs"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def variants(self) -> list[str]:
        """The variants that the script was run for, in order."""
        return [variant for variant, _ in self.runs()]

    def check_complete(self, tmp_path: Path, replicas: int) -> None:
        """The record has the same tensors as that of a single call."""
        self.record(replicas, tmp_path / "single")
        assert variants(self.out) == variants(tmp_path / "single")
        for variant in variants(self.out):
            (interrupted,), (single,) = (read_variant(out, variant) for out in (self.out, tmp_path / "single"))
            assert [record.hash for record in interrupted.tensors] == [record.hash for record in single.tensors]
            assert interrupted.header == single.header


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_recording_continues_after_a_signal_within_a_run(training: Training, sent: signal.Signals):
    hold = training.folder / "hold-float64"
    hold.write_text("")
    recording = training.start()
    assert until(lambda: training.variants() == ["plain", "float64"])
    partial = training.out / "float64" / "rank0.jsonl.gz"
    assert until(lambda: partial.exists() and partial.stat().st_size > 0)
    with pytest.raises(RunInUse):
        training.record()
    recording.send_signal(sent)
    assert recording.wait(120) == (130 if sent == signal.SIGINT else -sent)
    script = int(training.runs()[-1][1])
    assert until(lambda: not alive(script), 120)
    state = read_state(training.out)
    assert state is not None
    assert state.missing == ("float64", "replica-1")
    hold.unlink()
    assert training.record() == ["plain", "float64", "replica-1"]
    assert training.variants() == ["plain", "float64", "float64", "replica-1"]


def test_recording_continues_after_a_kill_between_two_runs(training: Training, tmp_path: Path):
    recording = training.start(**{fault_points.VARIABLE: "store.renamed:3"})  # begin, plain, float64
    assert recording.wait(120) == -signal.SIGKILL
    assert training.variants() == ["plain", "float64"]
    assert training.record() == ["plain", "float64", "replica-1"]
    assert training.variants() == ["plain", "float64", "replica-1"]
    training.check_complete(tmp_path, 1)


def test_a_kill_before_the_state_is_replaced_repeats_the_run(training: Training):
    recording = training.start(**{fault_points.VARIABLE: "store.part:2"})
    assert recording.wait(120) == -signal.SIGKILL
    assert training.record(0) == ["plain"]
    assert training.variants() == ["plain", "plain"]
    assert [path.name for path in training.out.iterdir() if "part" in path.name] == []


def test_recording_continues_after_a_run_that_failed_and_adds_replicas(training: Training):
    fail = training.folder / "fail-replica-1"
    fail.write_text("")
    with pytest.raises(CommandFailed):
        training.record()
    assert {record.step for record in read_variant(training.out, "replica-1")[0].tensors} >= {0, 1}
    fail.unlink()
    assert training.record() == ["plain", "float64", "replica-1"]
    assert training.record(2) == ["plain", "float64", "replica-1", "replica-2"]
    assert training.record(2) == ["plain", "float64", "replica-1", "replica-2"]
    assert training.variants() == ["plain", "float64", "replica-1", "replica-1", "replica-2"]
    assert len({read_variant(training.out, f"replica-{number}")[0].header.seed for number in (1, 2)}) == 2
    with pytest.raises(BadInput):
        api.record_numerics([*training.command, "--other"], training.out, replicas=2)
    with pytest.raises(BadInput):
        api.record_numerics(training.command, training.out, replicas=2, level="modules")
