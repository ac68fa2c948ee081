"""A run's key figures as a report shows them, and the time its arithmetic would take at the best known rate."""

from __future__ import annotations

from trainyard import units
from trainyard.record import Run
from trainyard.report.view import Figure
from trainyard.store.summary import summarise


def ideal_ns(run: Run) -> tuple[int, str] | None:
    """(ns a rank's matrix products take at the best known rate, which rate that is), if there is one."""
    flops = run.claims.get("matmul_flops")
    for claim, says in (("peak", "at peak"), ("matmul_rate", "at the matmul rate measured here")):
        rate = run.claims[claim].value if claim in run.claims else 0.0
        if flops and rate:
            counted = units.show_rate(flops.value, "FLOP")
            return int(flops.value / rate * 1e9), f"{counted} a rank {says}, {units.show_rate(rate, 'FLOP/s')}"
    return None


def figures_of_run(run: Run) -> list[Figure]:
    """Step time, throughput, MFU or share of the matmul rate, peak memory, loss: each where it was measured."""
    summary = summarise(run)
    made: list[Figure] = []
    if summary.step_ns:
        spread = (max(summary.repeats_ns) - min(summary.repeats_ns)) / 2 / summary.step_ns
        made.append(
            _figure(
                "step time",
                units.show_time(summary.step_ns),
                "Median over unprofiled steps of the slowest rank; half the range of the repeats' medians.",
                f"± {100 * spread:.1f} % over {len(summary.repeats_ns)} repeats" if len(summary.repeats_ns) > 1 else "",
            )
        )
        if summary.tokens_per_s:
            made.append(_figure("throughput", units.show_rate(summary.tokens_per_s, " tok/s"), "Tokens of all ranks."))
    made += shares_of_run(run)
    if summary.memory_bytes:
        made.append(_figure("peak memory", units.show_size(summary.memory_bytes), "The fullest rank's."))
    if summary.profiler_ns is not None and summary.step_ns:
        made.append(
            _figure(
                "profiler's cost",
                units.show_share(summary.profiler_ns, summary.step_ns),
                "How much longer the median profiled step took than the median unprofiled one.",
                f"{units.show_time(summary.profiler_ns)} a step",
            )
        )
    if summary.loss_first is not None and summary.loss_last is not None:
        change = f"from {summary.loss_first:.3f}"
        made.append(Figure(label="loss", value=f"{summary.loss_last:.3f}", change=change, means="Nats a token."))
    return made


def shares_of_run(run: Run) -> list[Figure]:
    """MFU, and the share of the measured matmul rate, each with its numerator and denominator. Without MFU, why."""
    summary = summarise(run)
    made: list[Figure] = []
    for share, label in ((summary.mfu, "MFU"), (summary.matmul_share, "of matmul rate")):
        if share is None:
            continue
        why = f" (no MFU: {summary.no_mfu})" if summary.no_mfu else ""
        counted = run.claims["model_flops"].source
        made.append(
            Figure(
                label=label,
                value=f"{100 * share.value:.1f}",
                unit="%",
                means=f"Model FLOPs ({counted}) a second, over {share.of} of all ranks.",
                worked=(
                    f"{units.show_rate(share.flops, 'FLOP', 2)} a step / {units.show_time(share.step_ns)} / "
                    f"({share.ranks} × {units.show_rate(share.rate, 'FLOP/s')}, {share.of}){why}"
                ),
            )
        )
    return made


def _figure(label: str, shown: str, means: str, change: str = "") -> Figure:
    value, unit = shown.split(" ", 1)
    return Figure(label=label, value=value, unit=unit.strip(), means=means, change=change)
