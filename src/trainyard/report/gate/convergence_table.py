"""Results of the convergence gate, which compares the losses of two revisions, BASE and HEAD, trained with the same
seeds: a sentence, and a table with a row per seed."""

from __future__ import annotations

from trainyard import units
from trainyard.numerics.convergence.compare_curves import Convergence
from trainyard.numerics.convergence.mlperf_reference import ReferenceComparison
from trainyard.report.view.view import Column, Table

_TEST_NOTES = {
    "bits": "",
    "none": "",
    "relabelling": "Significance is from a permutation test that relabels which run of a seed is HEAD.",
    "student": "Significance is from Student's t on the differences of the seeds, assumed normal: a permutation test "
    "has too few outcomes here. Two bases per seed, or six seeds, are enough for one.",
}
"""Name of a significance test -> the note that explains it."""
_MOST_SEEDS = 20
"""Largest number of seeds that is suggested."""
_UNITS = {"samples_count": "samples", "epoch_num": "epochs"}
"""Key of an MLLOG line -> its unit in words."""


def sentence(convergence: Convergence) -> str:
    """The verdict on the loss in one line, with the difference or the step from which it shows (the onset)."""
    margin = f"{100 * convergence.margin:g} %"
    if convergence.identical:
        seeds = units.counted(convergence.pairs, "seed")
        return f"Same, bitwise: all losses of {units.counted(convergence.steps, 'step')} of {seeds}."
    if convergence.diverged:
        return f"Differs: HEAD's loss is not finite at step {_step(convergence.onset)}; all of BASE's are."
    comparison = (
        f"the loss of the last fifth is {_percent(convergence.difference)}{_interval(convergence)} against BASE"
    )
    if convergence.verdict == "same":
        return f"Same within {margin}: {comparison}."
    begins = f"from step {_step(convergence.onset)} on ({_percent(convergence.onset_difference)} there)"
    if convergence.healed:
        return f"Differs temporarily, {begins}; at the end {comparison}, the same within {margin}."
    if convergence.verdict == "differs":
        return f"Differs {begins}; {comparison}."
    if convergence.difference is None or convergence.low is None:
        return "Cannot tell: one pair of runs does not show how much equivalent runs differ. Pass three seeds."
    return f"Cannot tell whether it is the same within {margin}: {comparison}. {_what_settles(convergence)}"


def _what_settles(convergence: Convergence) -> str:
    """A sentence on the runs that would settle an open verdict at the least cost."""
    if convergence.test == "student":
        return "A second base of each seed would help: for example the same job with half the micro-batch."
    if convergence.pairs_needed and convergence.pairs_needed <= _MOST_SEEDS:
        return f"{units.counted(convergence.pairs_needed, 'seed')} would settle it, if there is no difference."
    return f"More than {_MOST_SEEDS} seeds would be needed, even if there is no difference: pass a wider --margin."


def table(convergence: Convergence) -> Table:
    """The differences of HEAD's loss from BASE's in percent: one row per seed, then a row for all seeds."""
    columns = (
        Column(title="seed"),
        Column(title="heads", digits=0),
        Column(title="bases", digits=0),
        Column(title="tail, %", digits=3),
        Column(title="low", digits=3),
        Column(title="high", digits=3),
        Column(title="from step", digits=0),
        Column(title="p", digits=4),
    )
    rows = tuple(
        (seed.seed, seed.heads, seed.bases, _to_percent(seed.difference), None, None, None, None)
        for seed in convergence.seeds
    )
    onset = None if convergence.onset is None else convergence.onset + 1
    difference = (_to_percent(convergence.difference), _to_percent(convergence.low), _to_percent(convergence.high))
    all_seeds = ("all", convergence.heads, convergence.bases, *difference, onset, convergence.p_value)
    notes = (
        f"Tail: the steps from {convergence.tail_from + 1} on, the last fifth. "
        f"Interval: {100 * (1 - convergence.alpha):g} %. False alarms: {100 * convergence.alpha:g} % at most.",
        *([_TEST_NOTES[convergence.test]] if _TEST_NOTES[convergence.test] else []),
        *convergence.notes,
    )
    return Table(title="Loss, HEAD against BASE", notes=notes, columns=columns, rows=(*rows, all_seeds))


def reached_sentence(comparison: ReferenceComparison) -> str:
    """The comparison with MLPerf's reference convergence points in one line."""
    unit = _UNITS[comparison.unit]
    if comparison.mean is None:
        return f"Converges slower than the reference: {comparison.missed} of {comparison.runs} runs missed the target."
    off = (
        f"{comparison.mean:,.6g} {unit} to the target, {_percent(comparison.mean / comparison.reference - 1)} against "
        "the reference"
    )
    rule = f"MLPerf's rule {'passes' if comparison.mlperf == 'pass' else 'fails'}"
    if comparison.verdict == "same":
        return f"Converges as the reference does: {off}. {rule}."
    return f"Converges {comparison.verdict} than the reference: {off}. {rule}."


def reached_table(comparison: ReferenceComparison) -> Table:
    """The table of the comparison with MLPerf's reference convergence points, with one row: samples or epochs to the
    target, of the runs and of the reference."""
    heads = ("benchmark", "batch", "runs", "missed", "mean", "reference", "fastest", "slowest", "MLPerf", "scale")
    digits = (None, 0, 0, 0, 3, 3, 3, 3, None, 4)
    return Table(
        title="Convergence points",
        notes=(
            f"In {_UNITS[comparison.unit]}, against {comparison.how}. Means leave out the fastest and the slowest "
            "runs; the bounds are of a one-sided t-test at 5 %.",
        ),
        columns=tuple(Column(title=head, digits=places) for head, places in zip(heads, digits)),
        rows=(
            (
                comparison.benchmark,
                comparison.batch,
                comparison.runs,
                comparison.missed,
                comparison.mean,
                comparison.reference,
                comparison.fastest,
                comparison.slowest,
                comparison.mlperf,
                comparison.scale,
            ),
        ),
    )


def _interval(convergence: Convergence) -> str:
    """The confidence interval of the difference in parentheses; empty if unknown."""
    return "" if convergence.low is None else f" ({_percent(convergence.low)} to {_percent(convergence.high)})"


def _percent(share: float | None) -> str:
    """A fraction as a signed percentage with its unit."""
    return "unknown" if share is None else f"{_to_percent(share):+.3f} %"


def _to_percent(share: float | None) -> float | None:
    """A fraction in percent, rounded to three decimals."""
    return None if share is None else round(100 * share, 3) + 0.0  # avoids -0.0


def _step(step: int | None) -> str:
    """The number of a step as shown, counted from 1; `step` counts from 0."""
    return "unknown" if step is None else f"{step + 1:,}"
