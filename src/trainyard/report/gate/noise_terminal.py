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

_SURE = 0.01


def print_noise(noise: Noise, rule: Rule, console: Console) -> None:
    name = words.metric(noise.metric).label
    if noise.smallest is None:
        shows = "none of the tried slowdowns can be detected here"
    else:
        shows = f"a slowdown of {_share(noise.smallest)} is detected here in nine cases of ten"
    console.print(Text(f"{name}: {shows}, in {noise.runs} identical runs.", style="bold"))
    for line in _lines(noise, rule):
        console.print(Text(line))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("slowdown", "detected", "pairs it takes"):
        table.add_column(head, justify="right")
    for share, (often, pairs) in noise.seen.items():
        table.add_row(_share(float(share)), f"{100 * often:.0f} %", f"{pairs:.1f}")
    console.print(table)


def _lines(noise: Noise, rule: Rule) -> Iterator[str]:
    within = "" if noise.within is None else f"; steps within a run by {_share(noise.within)}"
    yield f"Runs vary by {_share(noise.between)} (standard deviation){within}."
    if noise.carried is not None:
        yield f"Consecutive steps correlate by {noise.carried:.2f}: steps are not independent samples."
    if noise.drift_chance < _SURE:
        drift = sentences.percent(noise.drift)
        yield f"Runs drift: {drift} from the first to the last. Interleaved pairs compensate for it."
    if noise.modes:
        yield f"Run times are bimodal, {noise.modes[1] / noise.modes[0] - 1:.1%} apart: something has two states here."
    yield (
        f"False alarms of the gate, over all signs of these differences: {_share(noise.false_alarms)} "
        f"(at most {_share(rule.alpha)}); of a threshold of 5 % on one run each: {_share(noise.threshold_alarms)}."
    )
    yield f"These pairs themselves: {sentences.LABELS[noise.verdict.says]}, {sentences.decided(noise.verdict)}."


def _share(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"
