"""Table of parity results. A mix is a combination of parallelism; parity is the equality of its losses and gradient
norms with those of one process, within a tolerance."""

from __future__ import annotations

from math import isfinite

from trainyard import units
from trainyard.numerics.parity import Parity
from trainyard.numerics.rounding_tolerance import ToleranceRule
from trainyard.report.view.parity_results import ParityResults
from trainyard.report.view.view import Column, Table

_MOST_MIXES = 24
"""Number of mixes on one screen."""
_MOST_REASONS = 6
"""Number of reasons on one screen."""
_ORDER = ("different", "refused", "equal")
"""Verdicts, the most important first."""


def headline(parity: ParityResults) -> str:
    """A sentence on how many mixes have each verdict."""
    verdicts = [result.verdict for result in parity.results]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in _ORDER if verdict in verdicts)
    return (
        f"Parity with one process over {units.counted(parity.steps, 'step')}: "
        f"{counts} of {units.counted(len(verdicts), 'mix', 'mixes')}"
    )


def table(parity: ParityResults, full: bool = True) -> Table:
    """One row per mix, in the order they were run; one screen unless `full`, largest errors first."""
    shown = parity.results
    if not full and len(shown) > _MOST_MIXES + 1:
        shown = tuple(sorted(shown, key=_urgency)[:_MOST_MIXES])
    reasons = [f"{result.mix}: {result.verdict}: {result.reason}" for result in shown if result.reason]
    listed = reasons if full else reasons[:_MOST_REASONS]
    folded = len(parity.results) - len(shown)
    notes = (
        f"{units.counted(folded, 'more mix', 'more mixes')} with --full, the errors smaller." if folded else "",
        *listed,
        f"{units.counted(len(reasons) - len(listed), 'more reason')} with --full." if listed != reasons else "",
        "Errors are relative, of the loss and of the global gradient norm, in the step where they are the largest part "
        "of their tolerance; the larger part is listed. The reference is one process that runs the same micro-batches "
        "in sequence in the same number format, without recomputation, compilation or offloading.",
        explain(parity.tolerance),
    )
    return Table(
        title="Mix",
        notes=tuple(filter(None, notes)),
        columns=(
            Column(title="mix"),
            Column(title="ranks", digits=0, optional=True),
            Column(title="format", id=True),
            Column(title="loss error", id=True),
            Column(title="norm error", id=True),
            Column(title="of tolerance", id=True, optional=True),
            Column(title="verdict", id=True),
            Column(title="time, s", digits=1, optional=True),
        ),
        rows=tuple(
            (
                result.mix,
                result.ranks,
                result.dtype,
                result.loss and result.loss.error_text,
                result.grad_norm and result.grad_norm.error_text,
                f"{100 * fraction:.0f} %" if isfinite(fraction := _largest_fraction(result)) else None,
                result.verdict,
                result.seconds,
            )
            for result in shown
        ),
    )


def explain(rule: ToleranceRule) -> str:
    """A sentence on the origin of the tolerances."""
    return (
        f"A tolerance is {rule.factor:.1f} times the root mean square deviation of {rule.replicas} replicas of the "
        f"reference in which every sum moves by one unit in the last place, and at least {rule.floor:.1e}: "
        f"{100 * rule.false_alarm:g} % of layouts that differ by normally distributed rounding only exceed it; float16 "
        "has longer tails."
    )


def _urgency(result: Parity) -> tuple[int, float]:
    """Sort key: the verdict, then the largest error relative to its tolerance, the largest first."""
    return _ORDER.index(result.verdict), -_largest_fraction(result)


def _largest_fraction(result: Parity) -> float:
    """The larger one of the loss's and the gradient norm's error, each as a fraction of its tolerance."""
    return max((part.fraction for part in (result.loss, result.grad_norm) if part is not None), default=0.0)
