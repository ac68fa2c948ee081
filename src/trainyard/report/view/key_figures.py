"""A run's key figures, and the time of its matrix products at the best known rate."""

from __future__ import annotations

from trainyard import plugins, units, words
from trainyard.record import Run
from trainyard.report.view.view import KeyFigure
from trainyard.store.run_summary import summarise

_COMPARABLE_WITHIN = 0.25
"""Relative difference of profiled and timed steps above which they are not comparable."""


def ideal_ns(run: Run) -> tuple[int, str] | None:
    """(ns of a rank's matrix products at the best known rate, description of the rate); None if no rate is known."""
    flops = run.claims.get("matmul_flops")
    for claim, phrase in (("peak", "at peak"), ("matmul_rate", "at the matmul rate measured here")):
        rate = run.claims[claim].value if claim in run.claims else 0.0
        if claim == "matmul_rate" and summarise(run).no_matmul_share:
            continue
        if flops and rate:
            matmul_flops = units.show_rate(flops.value, "FLOP")
            return int(flops.value / rate * 1e9), f"{matmul_flops} a rank {phrase}, {units.show_rate(rate, 'FLOP/s')}"
    return None


def figures_of_run(run: Run) -> list[KeyFigure]:
    """Step time, throughput, MFU or share of the matmul rate, peak memory and loss, as far as they were measured."""
    summary = summarise(run)
    figures: list[KeyFigure] = []
    if summary.step_ns:
        spread = (max(summary.repeats_ns) - min(summary.repeats_ns)) / 2 / summary.step_ns
        figures.append(
            figure(
                "step time",
                units.show_time(summary.step_ns),
                "Median over unprofiled steps of the slowest rank; half the range of the repeats' medians."
                + "".join(f" Clock: {words.STEP_CLOCKS[clock].label}." for clock in run.step_clocks),
                f"± {100 * spread:.1f} % over {len(summary.repeats_ns)} repeats" if len(summary.repeats_ns) > 1 else "",
            )
        )
        if summary.tokens_per_s:
            unit = plugins.unit_of(run.job)
            rate = units.show_rate(summary.tokens_per_s, f" {unit}/s")
            figures.append(figure("throughput", rate, f"{unit.capitalize()} of all ranks."))
    figures += shares_of_run(run)
    if summary.memory_bytes:
        figures.append(figure("peak memory", units.show_size(summary.memory_bytes), "The fullest rank's."))
    if summary.profiler_ns is not None and summary.step_ns:
        figures.append(_profiling_cost(summary.profiler_ns, summary.step_ns))
    if summary.loss_first is not None and summary.loss_last is not None:
        first_loss = f"from {summary.loss_first:.3f}"
        description = (
            "Nats a token."
            if plugins.unit_of(run.job) == "tokens"
            else f"Mean over the {plugins.unit_of(run.job)} of a step."
        )
        figures.append(
            KeyFigure(label="loss", value=f"{summary.loss_last:.3f}", change=first_loss, description=description)
        )
    return figures


def _profiling_cost(added_ns: int, step_ns: int) -> KeyFigure:
    """The key figure of the profiler's cost: `added_ns`, by which a profiled step is longer than an unprofiled one of
    `step_ns`; unknown if it is negative."""
    label, description = (
        "profiler's cost",
        "How much longer the median profiled step took than the median unprofiled one.",
    )
    if added_ns < 0:
        faster = f"the median profiled step was {units.show_time(-added_ns)} faster"
        return KeyFigure(label=label, value="cannot tell", change=faster, description=description)
    added = f"{units.show_time(added_ns)} a step, by medians"
    return figure(label, units.show_share(added_ns, step_ns), description, added)


def profiled_step_warning(run: Run, wall_ns: int) -> str:
    """A warning if the profiled steps of the ledger (mean `wall_ns`) differ much from the timed ones; else empty."""
    step_ns = summarise(run).step_ns
    if not step_ns or abs(wall_ns - step_ns) <= _COMPARABLE_WITHIN * step_ns:
        return ""
    profiled_step, timed_step = units.show_time(wall_ns), units.show_time(step_ns)
    return f"The ledger is of profiled steps, which took {profiled_step}; the timed ones took {timed_step}."


def shares_of_run(run: Run) -> list[KeyFigure]:
    """Key figures of how fast the run computed: its model FLOPs per second over the devices' peak (MFU), and over the
    rate of matrix products that was measured before the run. A figure that was not measured is left out; the second is
    unknown if the steps were faster than that rate."""
    summary = summarise(run)
    figures: list[KeyFigure] = []
    for share, label in ((summary.mfu, "MFU"), (summary.matmul_share, "of matmul rate")):
        if share is None:
            continue
        no_mfu = f" (no MFU: {summary.no_mfu})" if summary.no_mfu else ""
        flops_source, rate_name = run.claims["model_flops"].source, share.of
        figures.append(
            KeyFigure(
                label=label,
                value=f"{100 * share.value:.1f}",
                unit="%",
                description=f"Model FLOPs ({flops_source}) a second, over {rate_name} of all ranks.",
                calculation=(
                    f"{units.show_rate(share.flops, 'FLOP', 2)} a step / {units.show_time(share.step_ns)} / "
                    f"({share.ranks} × {units.show_rate(share.rate, 'FLOP/s')}, {rate_name}){no_mfu}"
                ),
            )
        )
    if reason := summary.no_matmul_share:
        matmul_rate = units.show_rate(run.claims["matmul_rate"].value, "FLOP/s")
        description = (
            f"Matrix products alone reached {matmul_rate} per rank before the run, the steps more: the device was busy."
        )
        figures.append(KeyFigure(label="of matmul rate", value="cannot tell", change=reason, description=description))
    return figures


def figure(label: str, shown: str, description: str, change: str = "") -> KeyFigure:
    """A key figure from `shown`, a formatted value with its unit such as `418.0 ms`; `change`: a comparison."""
    value, unit = shown.split(" ", 1)
    return KeyFigure(label=label, value=value, unit=unit.strip(), description=description, change=change)
