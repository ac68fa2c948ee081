"""Summary figures of a run. Times in ns, rates per second, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from trainyard.job import SCRIPT
from trainyard.record import Run, Sample
from trainyard.stats.medians import median


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
    """Summarise a run in any state; fields that were not measured keep their default.

    `run.measured()` are the samples of timed steps, without warm-up and without the profiler.
    """
    repeat_numbers = {sample.repeat for sample in run.measured()}
    walls_ns_by_repeat = {
        repeat: step_walls(s for s in run.measured() if s.repeat == repeat) for repeat in sorted(repeat_numbers)
    }
    all_walls_ns = [wall for repeat in walls_ns_by_repeat.values() for wall in repeat]
    step_ns = round(median(all_walls_ns)) if all_walls_ns else 0
    losses = [
        sample.loss
        for sample in sorted(run.kept(), key=lambda s: s.step)
        if sample.rank == 0 and sample.loss is not None
    ]
    profiled_walls_ns = step_walls(sample for sample in run.kept() if sample.profiled and not sample.warmup)
    matmul_share = _utilisation(run, step_ns, "matmul_rate", "the rate that matrix products reached here")
    is_share_possible = matmul_share is None or matmul_share.value <= 1
    return Summary(
        step_ns=step_ns,
        repeats_ns=tuple(round(median(repeat)) for repeat in walls_ns_by_repeat.values()),
        tokens_per_s=run.job.recipe.tokens_per_step * 1e9 / step_ns if step_ns else 0.0,
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        memory_bytes=max((sample.memory_bytes for sample in run.samples), default=0),
        profiler_ns=round(median(profiled_walls_ns)) - step_ns if profiled_walls_ns and all_walls_ns else None,
        mfu=_utilisation(run, step_ns, "peak", f"the peak in {run.job.recipe.dtype}"),
        matmul_share=matmul_share if is_share_possible else None,
        no_mfu=_explain_missing_mfu(run, step_ns),
        no_matmul_share="" if is_share_possible else "the probe reached less than the job",
    )


def step_walls(samples: Iterable[Sample]) -> list[int]:
    """Wall time of each step in ns, that of its slowest rank, in the order in which the steps first occur in
    `samples`."""
    # Number of a step -> its wall time on the slowest rank so far.
    slowest_ns: dict[int, int] = {}
    for sample in samples:
        slowest_ns[sample.step] = max(slowest_ns.get(sample.step, 0), sample.wall_ns)
    return list(slowest_ns.values())


def _utilisation(run: Run, step_ns: int, claim: str, reference: str) -> ModelFlopsShare | None:
    """The model FLOPs of a step relative to those possible in its time: FLOPs / (rate * ranks * seconds).

    `step_ns`: time of the step; `claim`: name of the run's claim with the rate in FLOP/s per rank, `peak` or
    `matmul_rate`; `reference`: a description of that rate. None if something needed for it was not measured.
    """
    flops, rate = run.claims.get("model_flops"), run.claims.get(claim)
    if flops is None or rate is None or not rate.value or not step_ns:
        return None
    ranks = len({sample.rank for sample in run.measured()})  # a job that lost a node may have had fewer
    reachable_flops = rate.value * ranks * step_ns / 1e9
    if not reachable_flops:  # too small for a float
        return None
    value = flops.value / reachable_flops
    return ModelFlopsShare(value=value, flops=flops.value, step_ns=step_ns, ranks=ranks, rate=rate.value, of=reference)


def _explain_missing_mfu(run: Run, step_ns: int) -> str:
    """Why the run has no MFU although its steps were measured; empty if it has one or FLOPs do not apply."""
    if run.job.workload == SCRIPT and step_ns:
        return "the model FLOPs of a script are unknown"
    if "model_flops" not in run.claims or "peak" in run.claims or not step_ns:
        return ""
    device = run.provenance.devices[0].name if run.provenance.devices else "the device"
    return f"the peak of {device} in {run.job.recipe.dtype} is unknown"
