"""Claims of a run in addition to its ledgers: rates, costs and peaks, each with its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec.structs import replace

from trainyard import plugins
from trainyard.job import Job
from trainyard.machine import Claim
from trainyard.plugins import Vendor
from trainyard.record import Run
from trainyard.run.local.rank_facts import RankFacts
from trainyard.store.run_summary import summarise


def derive_claims(run: Run, facts: Sequence[RankFacts], vendors: Mapping[str, Vendor]) -> dict[str, Claim]:
    """Derive the claims of a run, name -> number with unit and source.

    `matmul_rate` and `peak` are FLOP/s per rank, `model_flops` FLOPs per step over all ranks, `matmul_flops` FLOPs per
    step and rank, `profiler_cost` ns per step. `run.provenance.devices` are those that trained; `facts`: of each rank
    that reported any; `vendors`: name -> vendor plugin.

    A claim without data is left out.
    """
    claims: dict[str, Claim] = {}
    rates = [fact.matmul_rate for fact in facts if fact.matmul_rate.value]
    if rates:
        source = f"{rates[0].source}; mean of {len(rates)} ranks"
        claims["matmul_rate"] = replace(rates[0], value=fmean(rate.value for rate in rates), source=source)
    if facts and facts[0].model_flops:
        source = "3 x the products of the forward pass, of attention the pairs that a mask keeps, nothing recomputed"
        claims["model_flops"] = Claim(value=facts[0].model_flops, unit="FLOP", source=source)
        source = "matrix products of one rank's step in all phases, the mean over ranks, counted from the job"
        claims["matmul_flops"] = Claim(value=matmul_flops(run.job), unit="FLOP", source=source)
    if cost := _profiler_cost(run):
        claims["profiler_cost"] = cost
    if facts and (peak := _peak(run, vendors)):
        claims["peak"] = peak
    return claims


def matmul_flops(job: Job) -> float:
    """FLOPs of the matrix products of a rank's step, the mean over data-parallel replicas."""
    workload, replicas_by_count = plugins.load("workloads", job.workload), Counter(job.micro_batches)
    flops = sum(
        replicas * operation.flops
        for micro_batches, replicas in replicas_by_count.items()
        for operation in workload.expect(job.with_equal_shares(micro_batches))
        if operation.op == "matmul"
    )
    return flops / job.layout.batch_ranks


def _peak(run: Run, vendors: Mapping[str, Vendor]) -> Claim | None:
    """The peak FLOP/s of the run's device in the recipe's matmul format; None if the vendor plugin does not know it.

    For float8 it is the float8 peak, although operations outside of a block's layers (attention, the head) stay in
    bfloat16; for float32 that of true float32, without tf32.
    """
    device = run.provenance.devices[0]
    return vendors[device.vendor].peaks(device).get(run.job.recipe.dtype) if device.vendor in vendors else None


def _profiler_cost(run: Run) -> Claim | None:
    """Median profiled step time minus median measured step time; None if that is negative."""
    summary = summarise(run)
    if summary.profiler_ns is None or summary.profiler_ns < 0:
        return None
    return Claim(
        value=summary.profiler_ns,
        unit="ns",
        source="median of the profiled steps less median of the measured ones",
        date=run.started[:10],
        measured=True,
    )
