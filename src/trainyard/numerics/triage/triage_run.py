"""Diagnoses the losses of a stored run: spikes, values that are not finite, and how to record the steps around them."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from trainyard.errors import NotEnoughEvidence
from trainyard.job import SCRIPT
from trainyard.numerics.triage.find_spikes import LEAST_VALUES
from trainyard.numerics.triage.triage_record import spikes_of
from trainyard.numerics.triage.triage_result import StepTotals, Triage
from trainyard.record import Run, Sample

_STEPS_BEFORE, _STEPS_AFTER = 3, 1
"""Steps recorded around the first fault."""


def triage_run(run: Run, folder: Path) -> Triage:
    """Diagnoses the stored run in `folder`, complete or not. Raises `NotEnoughEvidence` if it has too few losses."""
    steps = _steps(run)
    spikes = spikes_of(steps)
    nonfinite = next((step.step for step in steps if step.loss is None), None)
    if nonfinite is None and len(steps) <= LEAST_VALUES:
        raise NotEnoughEvidence(
            f"run {run.id} has the losses of {len(steps)} steps, all finite; spikes are looked for after the first "
            f"{LEAST_VALUES}.",
            "Record its tensors with `trainyard numerics record`, and pass the folder of the record.",
        )
    first = min([spike.step for spike in spikes] + ([] if nonfinite is None else [nonfinite]), default=None)
    return Triage(
        folder=str(folder),
        command=(),
        device=run.provenance.devices[0].name if run.provenance.devices else "cpu",
        steps=steps,
        nonfinite=None,
        gradients=(),
        determinism=None,
        spikes=spikes,
        nonfinite_loss_step=nonfinite,
        is_run=True,
        replay=() if first is None or run.job.workload == SCRIPT else _replay(run.id, folder, first),
    )


def _steps(run: Run) -> tuple[StepTotals, ...]:
    """The steps of the lowest rank that reports losses, in order."""
    samples = [sample for sample in run.kept() if sample.loss is not None]
    rank = min((sample.rank for sample in samples), default=0)
    by_step: dict[int, Sample] = {sample.step: sample for sample in samples if sample.rank == rank}
    return tuple(
        StepTotals(
            step=step,
            loss=loss if (loss := by_step[step].loss) is not None and isfinite(loss) else None,
            gradient_norm=None,
            batch=(),
            skipped=by_step[step].skipped,
        )
        for step in sorted(by_step)
    )


def _replay(run_id: str, folder: Path, first: int) -> tuple[str, ...]:
    """The command that repeats the job from its start, recorded around the step `first`."""
    steps = f"{max(first - _STEPS_BEFORE, 0)}-{first + _STEPS_AFTER}"
    options = ("--replicas", "0", "--steps", steps, "--out", f"triage-{run_id}")
    return ("trainyard", "numerics", "record", *options, str(folder / "job.toml"))
