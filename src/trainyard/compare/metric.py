"""The metrics of a run: those of words.METRICS and the accounts of its mean ledger.

An account is a category of time of the step ledger, such as `compute/matmul`.
"""

from __future__ import annotations

from statistics import median

from trainyard.record import Run
from trainyard.store.run_summary import step_walls, summarise


def compute_metrics(run: Run) -> dict[str, float]:
    """Metric -> value in its unit. Metrics that were not measured, and accounts that the ledger lacks, are absent.

    In a profiled run the accounts come from the profiled steps and all other metrics from the unprofiled ones."""
    summary = summarise(run)
    metrics: dict[str, float] = {
        "step_time": summary.step_ns,
        "tokens_per_s": summary.tokens_per_s,
        "memory": summary.memory_bytes,
        "mfu": summary.mfu.value if summary.mfu else 0.0,
        "startup": 1e9 * run.goodput.get("init", 0.0),
        "checkpoint_stall": 1e9 * run.goodput.get("save", 0.0),
        "compile_time": _estimate_compile_ns(run),
    }
    metrics = {name: float(value) for name, value in metrics.items() if value}
    if run.ledgers and not run.ledgers[-1].scope.partial:
        metrics |= {str(account): float(ns) for account, ns in run.ledgers[-1].by_account().items()}
    return metrics


def _estimate_compile_ns(run: Run) -> float:
    """Excess in ns of the first step over the median step, if the job is compiled and its first step is a warm-up step;
    else 0."""
    walls_ns = step_walls(run.measured())
    first_step = min((sample.step for sample in run.samples), default=0)
    cold_samples = [
        sample for sample in run.kept() if sample.step == first_step and sample.warmup and not sample.profiled
    ]
    if not (run.job.recipe.compile and walls_ns and cold_samples):
        return 0.0
    return max(0.0, max(sample.wall_ns for sample in cold_samples) - median(walls_ns))
