"""The history of the loss scale: of simulated histories, and of a script in float16 with planted overflows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from math import isinf
from pathlib import Path

import pytest

from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.record.record_command import RecordOptions, record_command
from trainyard.numerics.record_files import FORMAT, RecordWriter
from trainyard.numerics.tensor_record import NonFinite, RecordHeader, TensorRecord
from trainyard.numerics.triage.triage_record import triage_record
from trainyard.numerics.triage.triage_result import Triage

SCRIPT = Path(__file__).with_name("scaled_training.py")
INFINITE = NonFinite(positive=1)


def write_history(folder: Path, history: str, first: float = 1024.0) -> Path:
    """A record of steps that were taken (`.`) or skipped (`x`), with steps at which the scale then doubled (`+`)."""
    header = RecordHeader(format=FORMAT, variant="plain", rank=0, ranks=1, level="steps", steps=(0,), device="cpu")
    scale = first
    with RecordWriter(folder, header) as writer:
        for step, mark in enumerate(history):
            skipped = mark == "x"

            def scalar(index: int, name: str, value: float, step: int = step) -> TensorRecord:
                return TensorRecord(
                    index=index, step=step, phase="optimizer", role="scalar", name=name, dtype="float32", mean=value
                )

            gradient = TensorRecord(
                index=0,
                step=step,
                phase="optimizer",
                role="gradient",
                module="M",
                name="weight",
                dtype="float32",
                norm=1.0,
                nonfinite=INFINITE if skipped else None,
            )
            writer.write(gradient)
            writer.write(scalar(1, "loss_scale", scale))
            writer.write(scalar(2, "found_inf", float(skipped)))
            scale *= {"x": 0.5, "+": 2.0, ".": 1.0}[mark]
    return folder


@pytest.mark.parametrize(
    ("history", "first", "trend", "code"),
    [
        ("....", 1024, "steady", 0),
        ("xxx...", 2**16, "fell once", 0),
        ("...x..", 1024, "fell once", 0),
        ("...xx..", 1024, "fell once", 0),
        ("...x", 1024, "fell once", 0),
        ("..+x..+x..+x..", 1024, "fell once", 0),  # raised by the scaler, and back
        ("xx...x...", 2**16, "fell once", 0),
        ("..x..x..", 1024, "fell repeatedly", 1),
        ("...xx", 1024, "fell repeatedly", 1),
        ("xxxx", 2**16, "fell repeatedly", 1),
        ("xxxx..", 4, "fell repeatedly", 1),  # below 1
    ],
)
def test_trend_of_the_scale(tmp_path: Path, history: str, first: float, trend: str, code: int) -> None:
    triage = triage_record(write_history(tmp_path / "a", history, first))
    assert triage.loss_scale is not None
    assert (triage.loss_scale.trend, triage.exit_code) == (trend, code)
    assert [step.step for step in triage.loss_scale.skipped] == [at for at, mark in enumerate(history) if mark == "x"]
    assert [step.skipped for step in triage.steps] == [mark == "x" for mark in history]
    assert triage.steps[0].loss_scale == first
    assert (triage.nonfinite is None) == (code == 0)


def record(folder: Path, *options: str) -> tuple[Triage, list[list[str]]]:
    """The diagnosis of a recorded script, and what the script printed by step: scale and loss."""
    trainyard = Path(sys.executable).with_name("trainyard")
    command = [trainyard, "numerics", "record", "--replicas", "0", "--steps", "0-7", "--out", folder, "--"]
    done = subprocess.run(
        [*map(str, command), sys.executable, str(SCRIPT), *options], check=True, capture_output=True, text=True
    )
    printed = [line.split() for line in done.stderr.splitlines() if line[:1].isdigit()]
    return triage_record(folder), printed


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("overflow", "skipped", "trend", "phase", "code"),
    [
        ("start", [0, 1, 2, 3, 4, 5, 6], "fell once", "backward", 0),
        ("batch", [3], "fell once", "backward", 0),
        ("diverge", [3, 4, 5, 6, 7], "fell repeatedly", "backward", 1),
        ("forward", [4, 5, 6, 7], "fell repeatedly", "forward", 1),
    ],
)
def test_overflows_of_a_script_are_listed_with_the_scale(
    tmp_path: Path, overflow: str, skipped: list[int], trend: str, phase: str, code: int
) -> None:
    pytest.importorskip("torch")
    triage, printed = record(tmp_path / "a", "--overflow", overflow)
    alone = subprocess.run(
        [sys.executable, str(SCRIPT), "--overflow", overflow], check=True, capture_output=True, text=True
    )
    assert [line.split() for line in alone.stdout.splitlines()] == printed  # recording changes nothing
    scales = [step.loss_scale for step in triage.steps]
    assert scales[1:] == [float(scale) for _, scale, _ in printed[:-1]]
    losses = [step.loss for step in triage.steps]
    assert losses == [None if loss == "nan" else pytest.approx(float(loss), rel=1e-6) for _, _, loss in printed]
    history = triage.loss_scale
    assert history is not None
    assert [step.step for step in history.skipped] == skipped
    assert (history.trend, triage.exit_code) == (trend, code)
    for step in history.skipped:
        assert step.overflow is not None
        assert (step.overflow.phase, step.is_of_scale) == (phase, phase == "backward")
    first = history.skipped[0].overflow
    assert first is not None
    if overflow == "forward":
        assert (first.module, first.operation) == ("Sequential.1", "aten.mul")
        assert triage.nonfinite is not None
        assert triage.nonfinite.tensor == first
    else:
        assert first.dtype == "float16"


@pytest.mark.torch
@pytest.mark.slow
def test_fused_optimizers_have_unscaled_gradient_norms(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plain, _ = record(tmp_path / "a", "--overflow", "batch")
    fused, _ = record(tmp_path / "b", "--overflow", "batch", "--fused")
    assert [step.skipped for step in fused.steps] == [step.skipped for step in plain.steps]
    assert [step.loss_scale for step in fused.steps] == [step.loss_scale for step in plain.steps]
    for a, b in zip(plain.steps, fused.steps):
        if not a.skipped:
            assert b.gradient_norm == pytest.approx(a.gradient_norm, rel=1e-4)


@pytest.mark.torch
def test_loss_scale_of_our_own_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from tests.train.language_model import small_job, trainer_of
    from trainyard.model import Model
    from trainyard.numerics.record.recorder import Recorder
    from trainyard.train.step import loss_scaling

    monkeypatch.setattr(loss_scaling, "START", 2.0**26)
    header = RecordHeader(format=FORMAT, variant="plain", rank=0, ranks=1, level="operations", steps=(0,), device="cpu")
    model = Model(layers=1, hidden_size=16, ffn_hidden_size=32, heads=2, kv_heads=2, head_dim=8)
    trainer = trainer_of(small_job(model, dtype="float16"))
    with RecordWriter(tmp_path / "a", header) as writer:

        def write(records: Sequence[TensorRecord]) -> None:
            for record in records:
                writer.write(record)

        with Recorder(write, range(12)):
            scales: list[float] = []
            outcomes = []
            for step in range(12):
                scales.append(trainer.scaling.scale)
                outcomes.append(trainer(step))
    triage = triage_record(tmp_path / "a")
    skipped = [isinf(outcome.grad_norm) for outcome in outcomes]
    assert 0 < sum(skipped) < 12
    assert [step.skipped for step in triage.steps] == skipped
    assert [step.loss_scale for step in triage.steps] == scales
    assert triage.loss_scale is not None
    assert triage.loss_scale.trend == "fell once"
    for step, outcome in zip(triage.steps, outcomes):
        assert step.loss == pytest.approx(outcome.loss / trainer.job.accumulate, rel=0.1)  # of the first micro-batch
        assert (step.gradient_norm is None) == step.skipped
        if step.gradient_norm is not None:
            assert step.gradient_norm <= outcome.grad_norm * 1.001


@pytest.mark.torch
@pytest.mark.slow
def test_trainings_with_a_scaler_are_compared(tmp_path: Path) -> None:
    """A fused optimizer, which removes the scale itself, computes the same; a batch that overflows does not."""
    pytest.importorskip("torch")

    def write(name: str, replicas: int, *options: str) -> Path:
        command = [sys.executable, str(SCRIPT), *options]
        record_command(command, tmp_path / name, RecordOptions(steps=(2, 3, 4), replicas=replicas))
        return tmp_path / name

    reference = write("a", 2)
    fused = compare_records(reference, write("fused", 0, "--fused"))
    assert fused.verdict == "same"
    assert fused.counts.undetectable < 5 < 100 < fused.counts.compared
    overflow = compare_records(reference, write("overflow", 0, "--overflow", "batch")).first
    assert overflow is not None
    assert (overflow.tensor.step, overflow.tensor.phase) == (3, "backward")
