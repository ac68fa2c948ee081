"""The few figures a run is known by. Times in ns, rates a second, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from trainyard.job import SCRIPT
from trainyard.record import Run, Sample


class ModelFlopsShare(msgspec.Struct, frozen=True, kw_only=True):
    """`value` = `flops` / (`step_ns` / 1e9) / (`ranks` * `rate`): model FLOPs of a step over what all ranks could have
    done in it at `rate` FLOP/s each, which is `of`."""

    value: float
    flops: float
    step_ns: int
    ranks: int
    rate: float
    of: str


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step lasts as long as its slowest rank. `step_ns` is the median over the measured steps;
    `repeats_ns` holds each repeat's own median, whose range is the spread; `profiler_ns` is what the median profiled
    step took more: below zero where those happened to be faster, so that the profiler's cost cannot be told. Zero: not
    measured.

    `mfu` is a share of the device's stated peak in the format that products are computed in, `matmul_share` of the rate
    that its own products reached. `no_mfu`: why there is none, where FLOPs were counted or never can be;
    `no_matmul_share` likewise, where the job was faster than what it is held against.
    """

    step_ns: int = 0
    repeats_ns: tuple[int, ...] = ()
    tokens_per_s: float = 0.0
    loss_first: float | None = None
    loss_last: float | None = None
    memory_bytes: int = 0
    profiler_ns: int | None = None
    mfu: ModelFlopsShare | None = None
    matmul_share: ModelFlopsShare | None = None
    no_mfu: str = ""
    no_matmul_share: str = ""


def summarise(run: Run) -> Summary:
    """Works for a run in any state; what was not measured stays at its default."""
    repeats = {sample.repeat for sample in run.measured()}
    walls = {repeat: step_walls(s for s in run.measured() if s.repeat == repeat) for repeat in sorted(repeats)}
    every = [wall for repeat in walls.values() for wall in repeat]
    step_ns = round(median(every)) if every else 0
    losses = [
        sample.loss
        for sample in sorted(run.kept(), key=lambda s: s.step)
        if sample.rank == 0 and sample.loss is not None
    ]
    profiled = step_walls(sample for sample in run.kept() if sample.profiled and not sample.warmup)
    of_products = _share(run, step_ns, "matmul_rate", "the rate that matrix products reached here")
    possible = of_products is None or of_products.value <= 1
    return Summary(
        step_ns=step_ns,
        repeats_ns=tuple(round(median(repeat)) for repeat in walls.values()),
        tokens_per_s=run.job.recipe.tokens_per_step * 1e9 / step_ns if step_ns else 0.0,
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        memory_bytes=max((sample.memory_bytes for sample in run.samples), default=0),
        profiler_ns=round(median(profiled)) - step_ns if profiled and every else None,
        mfu=_share(run, step_ns, "peak", f"the peak in {run.job.recipe.dtype}"),
        matmul_share=of_products if possible else None,
        no_mfu=_no_mfu(run, step_ns),
        no_matmul_share="" if possible else "the probe reached less than the job",
    )


def step_walls(samples: Iterable[Sample]) -> list[int]:
    """Wall time of each step: its slowest rank's."""
    slowest: dict[int, int] = {}
    for sample in samples:
        slowest[sample.step] = max(slowest.get(sample.step, 0), sample.wall_ns)
    return list(slowest.values())


def _share(run: Run, step_ns: int, rate: str, of: str) -> ModelFlopsShare | None:
    flops, reached = run.claims.get("model_flops"), run.claims.get(rate)
    if flops is None or reached is None or not reached.value or not step_ns:
        return None
    ranks = len({sample.rank for sample in run.measured()})  # a job that lost a node may have had fewer
    possible = reached.value * ranks * step_ns / 1e9
    if not possible:  # too small for a float
        return None
    value = flops.value / possible
    return ModelFlopsShare(value=value, flops=flops.value, step_ns=step_ns, ranks=ranks, rate=reached.value, of=of)


def _no_mfu(run: Run, step_ns: int) -> str:
    if run.job.workload == SCRIPT and step_ns:
        return "no model FLOPs are known of a script"
    if "model_flops" not in run.claims or "peak" in run.claims or not step_ns:
        return ""
    device = run.provenance.devices[0].name if run.provenance.devices else "the device"
    return f"no peak in {run.job.recipe.dtype} is known of {device}"
