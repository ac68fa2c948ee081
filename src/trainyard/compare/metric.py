"""The figures that a run is judged by, under their names in words.METRICS; accounts of its mean ledger beside them."""

from __future__ import annotations

from statistics import median

from trainyard.record import Run
from trainyard.store.run_summary import step_walls, summarise


def values(run: Run) -> dict[str, float]:
    """Metric -> value in its unit. What the run did not measure is absent; an account that it has not is absent too.

    Of a run that was profiled the accounts are those of its profiled steps, the other figures those of the others."""
    told = summarise(run)
    found: dict[str, float] = {
        "step_time": told.step_ns,
        "tokens_per_s": told.tokens_per_s,
        "memory": told.memory_bytes,
        "mfu": told.mfu.value if told.mfu else 0.0,
        "startup": 1e9 * run.goodput.get("init", 0.0),
        "checkpoint_stall": 1e9 * run.goodput.get("save", 0.0),
        "compile_time": _compile_ns(run),
    }
    found = {name: float(value) for name, value in found.items() if value}
    if run.ledgers and not run.ledgers[-1].scope.partial:
        found |= {str(account): float(ns) for account, ns in run.ledgers[-1].by_account().items()}
    return found


def _compile_ns(run: Run) -> float:
    """The first step's time above the median, where the job is compiled and its first step was a warm-up; else 0."""
    measured = step_walls(run.measured())
    first = min((sample.step for sample in run.samples), default=0)
    cold = [sample for sample in run.kept() if sample.step == first and sample.warmup and not sample.profiled]
    if not (run.job.recipe.compile and measured and cold):
        return 0.0
    return max(0.0, max(sample.wall_ns for sample in cold) - median(measured))
