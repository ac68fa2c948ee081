"""A run's key figures: from its unprofiled samples, and its claims."""

from __future__ import annotations

from statistics import median

from trainyard import units
from trainyard.record import Run
from trainyard.report.view import Figure


def step_times(run: Run) -> list[int]:
    """ns of each measured step: the slowest rank's, since the step is over when all are done."""
    steps: dict[tuple[int, int], int] = {}
    for sample in run.measured():
        key = (sample.repeat, sample.step)
        steps[key] = max(steps.get(key, 0), sample.wall_ns)
    return [steps[key] for key in sorted(steps)]


def repeat_times(run: Run) -> list[int]:
    """The median step of each repeat, ns."""
    times: dict[int, dict[int, int]] = {}
    for sample in run.measured():
        own = times.setdefault(sample.repeat, {})
        own[sample.step] = max(own.get(sample.step, 0), sample.wall_ns)
    return [int(median(own.values())) for _, own in sorted(times.items())]


def rate_share(run: Run, claim: str) -> float | None:
    """Model FLOP/s a rank over a claimed rate (`peak`: MFU; `matmul_rate`: share of what a matmul reached here)."""
    times = step_times(run)
    if not times or claim not in run.claims or "model_flops" not in run.claims:
        return None
    per_rank = run.claims["model_flops"].value / run.job.layout.ranks / (median(times) / 1e9)
    return per_rank / run.claims[claim].value if run.claims[claim].value else None


def ideal_ns(run: Run) -> tuple[int, str] | None:
    """(ns the model's FLOPs take a rank at the best known rate, which rate that is), if there is one."""
    flops = run.claims.get("model_flops")
    for claim, says in (("peak", "at peak"), ("matmul_rate", "at the matmul rate measured here")):
        if flops and claim in run.claims and run.claims[claim].value:
            rate = run.claims[claim].value
            each = flops.value / run.job.layout.ranks
            return int(each / rate * 1e9), (
                f"{units.show_count(each)}FLOP a rank {says}, {units.show_rate(rate, 'FLOP/s')}"
            )
    return None


def figures_of_run(run: Run) -> list[Figure]:
    """Step time, tokens/s, MFU or share of the matmul rate, peak memory, loss: each where it is known."""
    times = step_times(run)
    made: list[Figure] = []
    if times:
        middle = int(median(times))
        repeats = repeat_times(run)
        value, unit = units.show_time(middle).rsplit(" ", 1)
        spread = (max(repeats) - min(repeats)) / 2 / middle
        made.append(
            Figure(
                label="step time", value=value, unit=unit, change=f"± {100 * spread:.1f} % over {len(repeats)} repeats",
                means="Median over unprofiled steps of the slowest rank; half the range of the repeats' medians.",
            )
        )  # fmt: skip
        rate = units.show_rate(run.job.recipe.tokens_per_step / (middle / 1e9), " tok/s")
        value, unit = rate.split(" ", 1)
        made.append(Figure(label="throughput", value=value, unit=unit.strip(), means="Tokens of all ranks."))
    for claim, label, means in (
        ("peak", "MFU", "Model FLOPs over the device's peak."),
        ("matmul_rate", "of matmul rate", "Model FLOPs over what a matmul of this dtype reached on this machine."),
    ):
        share = rate_share(run, claim)
        if share is not None:
            made.append(Figure(label=label, value=f"{100 * share:.1f}", unit="%", means=means))
    if run.samples:
        value, unit = units.show_size(max(sample.memory_bytes for sample in run.samples)).rsplit(" ", 1)
        made.append(Figure(label="peak memory", value=value, unit=unit, means="The fullest rank's."))
        first, last = run.samples[0].loss, run.samples[-1].loss
        made.append(Figure(label="loss", value=f"{last:.3f}", change=f"from {first:.3f}", means="Nats a token."))
    return made
