"""Loss curves: one per run, by step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

import msgspec

from trainyard.errors import BadInput, WrongRunState
from trainyard.job import SCRIPT
from trainyard.record import Run

_SEED = re.compile(r"--?seed[= ](\d{1,19})(?!\S)")


class LossCurve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`losses[i]` at `steps[i]` (counted from 0, increasing), None if it was not finite. `seed`: of data order and
    initial weights, None if unknown. `work`: description of a step's data; only curves with the same data are compared.
    `start`: digest of the initial weights, if known."""

    name: str
    seed: int | None = None
    steps: tuple[int, ...]
    losses: tuple[float | None, ...]
    work: str = ""
    start: str = ""

    def __post_init__(self) -> None:
        """Raises `BadInput` unless steps increase, with one finite or null loss each."""
        if len(self.steps) != len(self.losses):
            raise BadInput(f"{self.name}: {len(self.steps)} steps, but {len(self.losses)} losses.")
        if any(after <= before for before, after in zip(self.steps, self.steps[1:])):
            raise BadInput(f"{self.name}: its steps are not increasing.")
        if any(loss is not None and not isfinite(loss) for loss in self.losses):
            raise BadInput(f"{self.name}: a loss is infinite or not a number.", "Write such a loss as null.")


def curve_of(run: Run, name: str = "") -> LossCurve:
    """The loss at each step of the lowest rank that reports one, from all samples, timed or not, without skipped steps.

    Raises `WrongRunState` for a run that is not complete, `BadInput` for one without losses.
    """
    name = name or run.id
    if run.state != "complete":
        raise WrongRunState(
            f"run {name} is {run.state}: {run.failure or 'it did not end'}",
            "Only complete runs are compared: run it again, or resume it (`trainyard run resume`).",
        )
    samples = [sample for sample in run.kept() if sample.loss is not None and not sample.skipped]
    if not samples:
        raise BadInput(
            f"run {name} reports no loss at any step.",
            "Report it in your script: `with trainyard.step(loss=...)`.",
        )
    rank = min(sample.rank for sample in samples)
    loss_by_step = {sample.step: sample.loss for sample in samples if sample.rank == rank}
    steps = sorted(loss_by_step)
    losses = tuple(loss if (loss := loss_by_step[step]) is not None and isfinite(loss) else None for step in steps)
    return LossCurve(
        name=name,
        seed=seed_of(run),
        steps=tuple(steps),
        losses=losses,
        work=_work(run),
        start=run.provenance.digests.get("weights_initial", ""),
    )


def seed_of(run: Run) -> int | None:
    """The seed that the ranks reported, else the job's; for the user's own script, `--seed N` in its command."""
    if run.job.workload == SCRIPT:
        match = _SEED.search(str(run.job.sizes.get("command", "")))
        return int(match[1]) if match else None
    return run.provenance.seeds.get("samples", run.job.recipe.seed)


def _work(run: Run) -> str:
    """Description of a step's data: tokens, sample length, digest of the text."""
    if run.job.workload == SCRIPT:
        return ""
    recipe, text = run.job.recipe, run.provenance.digests.get("text", "")
    return f"{recipe.tokens_per_step} tokens a step, samples of {recipe.seq_len}, text {text[:12] or 'unknown'}"


def same_work(curves: Sequence[LossCurve]) -> None:
    """Raises `BadInput` if two curves have different data."""
    name_by_work = {curve.work: curve.name for curve in reversed(curves) if curve.work}  # the first curve of each
    if len(name_by_work) > 1:
        listed = "; ".join(f"{name}: {work}" for work, name in name_by_work.items())
        raise BadInput(
            f"the runs train on different data, so their losses cannot be compared: {listed}.",
            "Compare runs with the same text and tokens per step.",
        )
