"""Summary figures of a run. Times in ns, rates per second, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from trainyard.job import SCRIPT
from trainyard.record import Run, Sample


class ModelFlopsShare(msgspec.Struct, frozen=True, kw_only=True):
    """`value` = `flops` / (`step_ns` / 1e9) / (`ranks` * `rate`): utilisation, the model FLOPs of a step relative to
    `rate` FLOP/s on each rank. `of`: description of that rate."""

    value: float
    flops: float
    step_ns: int
    ranks: int
    rate: float
    of: str


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step lasts as long as its slowest rank. `step_ns`: median over the measured steps; `repeats_ns`: median of each
    repeat, whose range is the spread; `profiler_ns`: excess of the median profiled step over `step_ns`, negative if the
    profiled steps happened to be faster, in which case the profiler's overhead is unknown. Zero: not measured.

    `mfu` is relative to the device's published peak in the format of the matrix products, `matmul_share` to the rate
    that matrix products reached on the device. `no_mfu`: why there is no MFU although FLOPs were counted, or because
    they cannot be; `no_matmul_share`: why there is none, if the job was faster than the reference rate.
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
    """Summarise a run in any state; fields that were not measured keep their default."""
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
    """Wall time of each step (ns): that of its slowest rank."""
    slowest: dict[int, int] = {}
    for sample in samples:
        slowest[sample.step] = max(slowest.get(sample.step, 0), sample.wall_ns)
    return list(slowest.values())


def _share(run: Run, step_ns: int, rate: str, reference: str) -> ModelFlopsShare | None:
    """Utilisation relative to the run's claim `rate` ("peak" or "matmul_rate", in FLOP/s per rank), described by
    `reference`; None if something needed for it was not measured."""
    flops, reached = run.claims.get("model_flops"), run.claims.get(rate)
    if flops is None or reached is None or not reached.value or not step_ns:
        return None
    ranks = len({sample.rank for sample in run.measured()})  # a job that lost a node may have had fewer
    possible = reached.value * ranks * step_ns / 1e9
    if not possible:  # too small for a float
        return None
    value = flops.value / possible
    return ModelFlopsShare(
        value=value, flops=flops.value, step_ns=step_ns, ranks=ranks, rate=reached.value, of=reference
    )


def _no_mfu(run: Run, step_ns: int) -> str:
    """Why the run has no MFU although its steps were measured; empty if it has one or FLOPs do not apply."""
    if run.job.workload == SCRIPT and step_ns:
        return "the model FLOPs of a script are unknown"
    if "model_flops" not in run.claims or "peak" in run.claims or not step_ns:
        return ""
    device = run.provenance.devices[0].name if run.provenance.devices else "the device"
    return f"the peak of {device} in {run.job.recipe.dtype} is unknown"
