"""Sums up the judged tensors by module, and by phase of each step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import asdict, replace

from trainyard.numerics.compare.align_tensors import Alignment
from trainyard.numerics.compare.comparison_result import (
    ModuleComparison,
    ModuleErrors,
    Status,
    StepComparison,
    TensorCounts,
    TensorPoint,
)
from trainyard.numerics.compare.exact_checks import ExactFinding
from trainyard.numerics.compare.judge_tensors import Judgements, finite_or_none
from trainyard.numerics.compare.logical_tensors import is_initial_weight
from trainyard.numerics.compare.noise_levels import F64

_SEVERITY: tuple[Status, ...] = ("different", "within rounding", "compensated", "undetectable", "identical")
"""Statuses in the order in which they decide that of several tensors."""
JUDGED: tuple[Status, ...] = ("identical", "within rounding", "different")
"""Statuses of tensors whose errors are shown."""


def count_tensors(alignment: Alignment, judgements: Judgements) -> TensorCounts:
    """The numbers of tensors by status."""
    counts = Counter(judgements.status)
    return TensorCounts(
        identical=counts["identical"],
        within_rounding=counts["within rounding"],
        compensated=counts["compensated"],
        different=counts["different"],
        undetectable=counts["undetectable"],
        only_a=len(alignment.only_a),
        only_b=len(alignment.only_b),
    )


def summarise_modules(
    alignment: Alignment, judgements: Judgements, exact: Iterable[ExactFinding], first: TensorPoint | None
) -> tuple[ModuleComparison, ...]:
    """A row for each module, in order of execution. `exact`: violated checks, whose modules differ. `first`: the tensor
    of the first divergence."""
    violated = Counter(finding.key.tensor.module for finding in exact)
    executed = [pair.a.tensor.module for pair in alignment.pairs if not is_initial_weight(pair.a.tensor)]
    rows: dict[str, list[int]] = {module: [] for module in executed}
    for row, pair in enumerate(alignment.pairs):
        rows.setdefault(pair.a.tensor.module, []).append(row)
    return tuple(
        _summarise_module(module, chosen, alignment, judgements, violated[module], first)
        for module, chosen in rows.items()
    )


def _summarise_module(
    module: str,
    rows: Sequence[int],
    alignment: Alignment,
    judgements: Judgements,
    violated: int,
    first: TensorPoint | None,
) -> ModuleComparison:
    """The row of a module with the pairs `rows` and as many `violated` exact checks."""
    keys = [(row, alignment.pairs[row].a.tensor) for row in rows]
    different = next((key for row, key in keys if judgements.status[row] == "different"), None)
    near = [row for row, key in keys if first is not None and (key.step, key.phase) == (first.step, first.phase)]
    errors = _largest_errors(rows, alignment, judgements)
    return ModuleComparison(
        **asdict(replace(errors, status="different") if violated else errors),
        module=module,
        tensors=len(rows),
        different=sum(judgements.status[row] == "different" for row in rows) + violated,
        undetectable=sum(judgements.status[row] == "undetectable" for row in rows),
        first_step=None if different is None else different.step,
        first_phase=None if different is None else different.phase,
        near_fault=_largest_errors(near, alignment, judgements) if near else None,
        is_first_fault=first is not None and first.module == module,
    )


def _largest_errors(rows: Sequence[int], alignment: Alignment, judgements: Judgements) -> ModuleErrors:
    """The status of some tensors of a module together, and the largest errors among them."""
    worst = _worst(rows, judgements)
    statuses: list[Status] = [judgements.status[row] for row in rows]
    status = min(statuses, key=_SEVERITY.index)
    if worst is None:
        return ModuleErrors(status=status)
    key = alignment.pairs[worst].a.tensor
    return ModuleErrors(
        status=status,
        rho=finite_or_none(judgements.rho[worst]),
        of_limit=finite_or_none(judgements.of_limit[worst]),
        noise=finite_or_none(judgements.noise[worst]),
        worst=" ".join(filter(None, (key.operation or key.role, key.name))),
    )


def summarise_steps(alignment: Alignment, judgements: Judgements) -> tuple[StepComparison, ...]:
    """A row for each phase of each step, in order of execution."""
    rows: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, pair in enumerate(alignment.pairs):
        rows[pair.a.tensor.step, pair.a.tensor.phase].append(row)
    summaries: list[StepComparison] = []
    for chosen in rows.values():
        key = alignment.pairs[chosen[0]].a.tensor
        statuses = [judgements.status[row] for row in chosen]
        worst = _worst(chosen, judgements)
        summaries.append(
            StepComparison(
                step=key.step,
                phase=key.phase,
                tensors=len(chosen),
                different=statuses.count("different"),
                undetectable=statuses.count("undetectable"),
                rho=None if worst is None else finite_or_none(judgements.rho[worst]),
                of_limit=None if worst is None else finite_or_none(judgements.of_limit[worst]),
                noise=_median(judgements.noise[chosen]),
                error=_median(judgements.error[chosen]),
            )
        )
    return tuple(summaries)


def _worst(rows: Sequence[int], judgements: Judgements) -> int | None:
    """The row with the largest error relative to its limit, among those that are judged by value."""
    judged = [row for row in rows if judgements.status[row] in JUDGED and not np.isnan(judgements.error[row])]
    return max(judged, key=lambda row: float(judgements.of_limit[row]), default=None)


def _median(values: F64) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None
