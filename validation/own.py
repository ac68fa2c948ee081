"""Runs on this machine compared with their plans: `python -m validation.own`.

Probes the machine with two ranks, trains fifteen small decoders in as many layouts, fits the machine's constants to
four of them, and compares the predicted ledger of each run with the measured one: with the probe only, and after the
fit. Needs torch and two cores or devices; ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from trainyard import job_file as jobs
from trainyard.api.probe_machine import measured_run
from trainyard.job import Job, Measure
from trainyard.layout import Layout
from trainyard.machine import Machine
from trainyard.machine_load import load_warning
from trainyard.model import Model
from trainyard.predict.calibrate import fit_constants, probed_machine
from trainyard.predict.calibrate.measured_run import MeasuredRun
from trainyard.predict.inputs import constant_sets
from trainyard.predict.inputs.ratio_surface import left_out_errors
from trainyard.recipe import Recipe
from trainyard.run.probe import devices
from trainyard.run.probe.wait_until_idle import wait_until_idle

_RANKS = 2
_LARGE = 0.1
"""Fraction of a step above which a part is compared separately."""
_SPLIT = {"tp": 2, "sequence_parallel": True, "loss_parallel": True}
ANCHORS = ("ddp", "tp", "pp", "fsdp")


def decoders() -> dict[str, Job]:
    """The jobs by name, anchors first."""
    small = Model(layers=4, hidden_size=256, ffn_hidden_size=768, heads=4, kv_heads=2, head_dim=64)
    wide = replace(small, hidden_size=512, ffn_hidden_size=1536, head_dim=128)
    shard, pair = {"dp_shard": 2}, {"pp": 2}
    return {
        "ddp": _job(small, {"dp_replicate": 2}), "tp": _job(small, _SPLIT), "pp": _job(small, pair, schedule="1f1b"),
        "fsdp": _job(small, shard), "fsdp full": _job(small, shard, activation_checkpoint="full"),
        "cp": _job(small, {"cp": 2}),
        "zero-1": _job(small, {**shard, "zero": 1}), "wide": _job(wide, shard),
        "ddp full": _job(small, {"dp_replicate": 2}, activation_checkpoint="full"),
        "zero-2": _job(small, {**shard, "zero": 2}),
        "deep": _job(replace(small, layers=8), shard, samples=8),
        "fsdp selective": _job(small, shard, activation_checkpoint="selective"),
        "interleaved": _job(small, {**pair, "interleave": 2}, schedule="interleaved"),
        "long": _job(small, {"dp_replicate": 2}, seq_len=512, samples=8, micro_batch_size=2),
        "tp wide": _job(wide, _SPLIT, samples=8),
    }  # fmt: skip


def _job(model: Model, layout: dict[str, Any], seq_len: int = 256, samples: int = 16, **recipe: Any) -> Job:
    settings = {"micro_batch_size": 4, **recipe}
    return Job(
        model=model, layout=Layout(**layout), measure=Measure(warmup=2, steps=5, repeats=2, profiled=3),
        recipe=Recipe(seq_len=seq_len, tokens_per_step=samples * seq_len, **settings),
    )  # fmt: skip


def measured(name: str, job: Job, folder: Path) -> MeasuredRun:
    path = folder / f"{name.replace(' ', '-')}.toml"
    path.write_text(jobs.write(job), "utf-8")
    command = [sys.executable, "-m", "trainyard.cli.main", "run", str(path), "--tag", path.stem, "--quiet"]
    subprocess.run(command, check=True, capture_output=True)
    return measured_run(path.stem, print)._replace(name=name)


class Line(NamedTuple):
    """Relative errors of the step (`error`) and of its large `parts`."""

    error: float
    parts: dict[str, float]


def line(machine: Machine, run: MeasuredRun) -> Line:
    constants = constant_sets.choose(machine, "fsdp").values()
    predicted = fit_constants.predicted(machine, constants, [run.job])
    mine = fit_constants.predicted_parts(predicted)[0]
    large = {part: seconds for part, seconds in run.parts().items() if seconds > _LARGE * run.seconds}
    errors = {part: mine.get(part, 0.0) / seconds - 1 for part, seconds in large.items()}
    return Line(float(np.ravel(predicted.wall)[0]) / run.seconds - 1, errors)


def summary(name: str, lines: list[Line]) -> str:
    steps = np.abs([entry.error for entry in lines])
    parts = np.abs([error for entry in lines for error in entry.parts.values()])
    return (
        f"{name}: steps {100 * steps.mean():.1f} % mean error, {100 * np.median(steps):.1f} % median, "
        f"{(steps <= 0.1).sum()} of {len(steps)} within 10 %; parts above a tenth of a step "
        f"{100 * parts.mean():.1f} %, {(parts <= 0.2).sum()} of {len(parts)} within 20 %"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINYARD_STORE"] = str(Path(folder) / "store")
        seen, ranks, _ = devices.devices(_RANKS, "float32")
        wait_until_idle(60, print)
        probes, load = devices.probe(seen.vendor, ranks, "float32")
        print(load_warning(load) or "The probe ran on an idle machine.")
        here = probed_machine.machine("here", seen, ranks, "float32", probes)
        runs = {name: measured(name, job, Path(folder)) for name, job in decoders().items()}
    anchors = [runs[name] for name in ANCHORS]
    after = fit_constants.calibrate_machine(here, constant_sets.choose(here, "fsdp").values(), anchors)
    print(f"{seen.name}, {ranks} ranks. Measured step; error with the probe alone; after {', '.join(ANCHORS)}.")
    for name, run in runs.items():
        alone, fitted = line(here, run), line(after, run)
        parts = ", ".join(f"{part} {100 * error:+.0f} %" for part, error in fitted.parts.items())
        errors = f"{100 * alone.error:+6.1f} %  {100 * fitted.error:+6.1f} %"
        print(f"{name:12} {run.seconds * 1e3:8.1f} ms  {errors}  ({parts})")
    if ratios := here.device.product_ratios:
        corrected, constants = left_out_errors(ratios)
        print(f"left-out products: {100 * constants:.1f} % by the constants, {100 * corrected:.1f} % corrected by size")
    others = [run for name, run in runs.items() if name not in ANCHORS]
    print(summary("probe alone, all", [line(here, run) for run in runs.values()]))
    print(summary("after four, the other eleven", [line(after, run) for run in others]))
    if after.prediction_interval:
        low, high = after.prediction_interval
        print(f"interval: {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
