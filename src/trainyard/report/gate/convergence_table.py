"""What the convergence gate found: a sentence, and a table by seed."""

from __future__ import annotations

from trainyard.numerics.convergence.compare_curves import Convergence
from trainyard.numerics.convergence.mlperf_reference import ReferenceComparison
from trainyard.report.view.view import Column, Table

_TESTS = {
    "bits": "",
    "none": "",
    "relabelling": "Chance is judged by relabelling: which run of a seed is called head.",
    "student": "Chance is judged by Student's t on the seeds' differences, taken as normal: relabelling has too few "
    "outcomes here. Two bases a seed are enough for it, or six seeds.",
}
_MANY = 20
"""Seeds that somebody may yet run."""
_UNITS = {"samples_count": "samples", "epoch_num": "epochs"}


def sentence(found: Convergence) -> str:
    """The verdict, for who reads one line."""
    margin = f"{100 * found.margin:g} %"
    if found.identical:
        return f"Same, to the bit, at all of {found.steps} steps of {found.pairs} seed{'s' * (found.pairs > 1)}."
    if found.diverged:
        return f"Differs: a loss of HEAD is no finite number at step {_step(found.onset)}; BASE's all are."
    said = f"the loss of the last fifth is {_percent(found.difference)}{_interval(found)} against BASE"
    if found.verdict == "same":
        return f"Same within {margin}: {said}."
    begins = f"from step {_step(found.onset)} on ({_percent(found.onset_difference)} there)"
    if found.healed:
        return f"Differs on the way, {begins}; in the end {said}: the same within {margin}."
    if found.verdict == "differs":
        return f"Differs {begins}; {said}."
    if found.difference is None or found.low is None:
        return "Cannot tell: one pair of runs says nothing of how far runs differ that should not. Give three seeds."
    return f"Cannot tell whether it is the same within {margin}: {said}. {_what_settles(found)}"


def _what_settles(found: Convergence) -> str:
    """A remedy that can be had."""
    if found.test == "student":
        return "A second base of each seed would tell more: the same job with half the micro-batch, say."
    if found.pairs_needed and found.pairs_needed <= _MANY:
        return f"{found.pairs_needed} seeds would settle it, were it the same."
    return f"More than {_MANY} seeds would be needed, were it the same: ask for a wider --margin."


def table(found: Convergence) -> Table:
    """A row a seed, and all together."""
    columns = (
        Column(head="seed"),
        Column(head="heads", digits=0),
        Column(head="bases", digits=0),
        Column(head="tail, %", digits=3),
        Column(head="low", digits=3),
        Column(head="high", digits=3),
        Column(head="from step", digits=0),
        Column(head="p", digits=4),
    )
    rows = tuple(
        (one.seed, one.heads, one.bases, _hundred(one.difference), None, None, None, None) for one in found.seeds
    )
    onset = None if found.onset is None else found.onset + 1
    ends = (_hundred(found.difference), _hundred(found.low), _hundred(found.high))
    whole = ("all", found.heads, found.bases, *ends, onset, found.p)
    notes = (
        f"Tail: the steps from {found.tail_from + 1} on, the last fifth. Interval: {100 * (1 - found.alpha):g} %. "
        f"False alarms: {100 * found.alpha:g} % at most.",
        *([_TESTS[found.test]] if _TESTS[found.test] else []),
        *found.notes,
    )
    return Table(title="Loss, HEAD against BASE", notes=notes, columns=columns, rows=(*rows, whole))


def reached_sentence(found: ReferenceComparison) -> str:
    unit = _UNITS[found.unit]
    if found.missed and found.mean == float("inf"):
        return f"Slower than the reference: {found.missed} of {found.runs} runs missed the target."
    off = f"{found.mean:,.6g} {unit} to the target, {_percent(found.mean / found.reference - 1)} against the reference"
    rule = f"MLPerf's rule {'passes' if found.mlperf == 'pass' else 'fails'}"
    if found.verdict == "same":
        return f"Converges as the reference does: {off}. {rule}."
    return f"Converges {found.verdict} than the reference: {off}. {rule}."


def reached_table(found: ReferenceComparison) -> Table:
    heads = ("benchmark", "batch", "runs", "missed", "mean", "reference", "fastest", "slowest", "MLPerf", "scale")
    digits = (None, 0, 0, 0, 3, 3, 3, 3, None, 4)
    return Table(
        title="Convergence points",
        notes=(
            f"In {_UNITS[found.unit]}, against {found.how}. Means leave out the fastest and the slowest runs; the "
            "bounds are of a one-sided t-test at 5 %.",
        ),
        columns=tuple(Column(head=head, digits=places) for head, places in zip(heads, digits)),
        rows=(
            (
                found.benchmark,
                found.batch,
                found.runs,
                found.missed,
                *(value if value < 1e300 else None for value in (found.mean, found.reference)),
                found.fastest,
                found.slowest,
                found.mlperf,
                found.scale,
            ),
        ),
    )


def _interval(found: Convergence) -> str:
    return "" if found.low is None else f" ({_percent(found.low)} to {_percent(found.high)})"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{_hundred(share):+.3f} %"


def _hundred(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 3) + 0.0  # no minus before a zero


def _step(step: int | None) -> str:
    return "unknown" if step is None else f"{step + 1:,}"
