"""Prints a machine's noise and the smallest slowdown that a gate can detect there."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard import words
from trainyard.compare.gate.machine_noise import Noise
from trainyard.compare.gate.verdict import Rule
from trainyard.report.gate import sentences
from trainyard.report.gate.gate_report import SelfCheckReport
from trainyard.report.render.terminal import next_steps
from trainyard.report.view.next_step import NextStep

_SIGNIFICANT = 0.01
"""p-value below which a drift is reported."""
_SMALLEST_SHOWN = 0.001
"""Smallest fraction that is printed as a number."""


def headline(noise: Noise) -> str:
    """A sentence with the smallest slowdown that the gate detects reliably on this machine."""
    name = words.metric(noise.metric).label
    if noise.smallest_detected is None:
        return f"{name}: not even the largest slowdown tried is detected reliably here, in {noise.runs} identical runs."
    return (
        f"{name}: a slowdown of {_show_share(noise.smallest_detected)} is detected here in 9 of 10 cases, "
        f"by {noise.runs} identical runs."
    )


def describe_noise(noise: Noise, rule: Rule) -> Iterator[str]:
    """Yields sentences on the sources of the noise (variation of runs and steps, autocorrelation, drift, two modes),
    and on the rate of false alarms under `rule`."""
    within = "" if noise.within_run is None else f"; the steps of a run by {_show_share(noise.within_run)}"
    yield f"Runs vary by {_show_share(noise.between_runs)} (standard deviation){within}."
    if noise.autocorrelation is not None:
        yield (
            f"Consecutive steps have a correlation of {noise.autocorrelation:.2f}: steps are not independent samples."
            if abs(noise.autocorrelation) >= _WEAK
            else f"Consecutive steps are hardly correlated ({noise.autocorrelation:.2f})."
        )
    if noise.drift_p_value < _SIGNIFICANT:
        drift = sentences.percent(noise.drift)
        yield f"Runs drift by {drift} from the first to the last. Interleaved pairs compensate for it."
    if noise.modes:
        yield f"Run times are bimodal, {noise.modes[1] / noise.modes[0] - 1:.1%} apart: something has two states here."
    yield (
        f"False alarms: {_show_share(noise.false_alarms)} with this gate (at most {_show_share(rule.alpha)}), "
        f"{_show_share(noise.threshold_alarms)} with a threshold of 5 % on one run each."
    )
    label = sentences.LABELS[noise.verdict.outcome]
    yield f"Verdict on these pairs of identical runs: {label}, {sentences.describe_verdict(noise.verdict)}."


_WEAK = 0.2
"""Correlation below which steps count as hardly correlated."""


def print_noise(noise: SelfCheckReport, console: Console) -> None:
    """Prints, for each size of a slowdown, the share of slowdowns detected and the mean number of pairs of runs
    needed. `noise.power`: size of a slowdown, as a fraction of the step -> (share detected, mean number of pairs)."""
    console.print(Text(noise.headline, style="bold"))
    for line in noise.sentences:
        console.print(Text(line))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("slowdown", "detected", "mean pairs"):
        table.add_column(head, justify="right")
    for share, (power, pairs) in noise.power.items():
        table.add_row(_show_share(float(share)), _show_share(power), f"{pairs:.1f}")
    console.print(table)
    margin = noise.smallest_detected
    if margin is not None and margin != noise.rule.margin:
        command = f"trainyard gate run JOB --base BASE --margin {100 * margin:g}%"
        console.print(
            *next_steps([NextStep(command=command, purpose="with a margin that is detected here")], console.width),
            sep="\n",
        )


def _show_share(share: float) -> str:
    """A fraction as a percentage with two significant digits; `<0.1 %` if it is positive but smaller."""
    if 0 < share < _SMALLEST_SHOWN:
        return "<0.1 %"
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"
