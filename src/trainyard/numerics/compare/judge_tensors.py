"""Judges each matched tensor: is its error in B one that rounding explains?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb, isfinite, prod
from typing import NamedTuple

import numpy as np

from trainyard.numerics.compare.adaptive_updates import update_errors
from trainyard.numerics.compare.align_tensors import TensorPair, Tensors
from trainyard.numerics.compare.coarsest_formats import coarsest_in_module, coarsest_so_far
from trainyard.numerics.compare.comparison_result import Kind, Status
from trainyard.numerics.compare.comparison_rule import (
    MIN_REPLICAS,
    OTHER_PRECISION,
    UNINFORMATIVE,
    UNIT_ROUNDOFF,
    ComparisonRule,
)
from trainyard.numerics.compare.compensated_operations import compensated_rows
from trainyard.numerics.compare.logical_tensors import has_other_size
from trainyard.numerics.compare.noise_levels import F64, I64, degrees_of_freedom, noise_levels, relative_errors
from trainyard.numerics.compare.rounded_choices import rows_after_choice
from trainyard.numerics.compare.run_columns import RunColumns, sketches_of
from trainyard.numerics.compare.summation_errors import summation_errors, summed_terms
from trainyard.numerics.tensor_record import BUCKETS, NonFinite, TensorRecord

_MOST_VALUES = 1 << 20
"""Numbers of sketches of pairs of runs that are in memory at a time, in several copies."""
_ROUNDED_SUMS = 1e-9
"""Difference of sketches, relative to the norm, that follows from adding shards in another order."""
_UNDEFINED = ("aten.empty", "aten.new_empty", "aten.resize")
"""Beginnings of the names of operations whose results are not initialised."""

NO_REFERENCE = "no float64 reference"
FEW_REPLICAS = "too few jittered replicas"
NOISY = "rounding is of the order of the values"
INTEGERS = "integers that differ, compared for equality only"
NOT_FINITE = "not finite in A"
UNINITIALISED = "memory that is not initialised"
OTHER_CHOICE = "a choice before it, such as the experts of a token, is changed by rounding"
DAMAGED = "numbers in the record are not finite"
NOT_COMPARED = (INTEGERS, UNINITIALISED)
"""Reasons of tensors whose values are not to be compared."""


@dataclass(frozen=True)
class Judgements:
    """Columns of all pairs [t]: the status; the relative error of B, the noise and the limit, NaN if the value was not
    judged; the reason if it is undetectable, else empty; the kind of difference if it is not of the value. `rule`: None
    if no value could be judged."""

    status: list[Status]
    error: F64
    noise: F64
    limit: F64
    reasons: list[str]
    kinds: Sequence[Kind | None]
    rule: ComparisonRule | None

    @cached_property
    def of_limit(self) -> F64:
        """The error as a fraction of the limit."""
        return _ratio(self.error, self.limit)

    @cached_property
    def rho(self) -> F64:
        """The error relative to the noise."""
        return _ratio(self.error, self.noise)


def _ratio(error: F64, level: F64) -> F64:
    """The error relative to a level; 0 for no error, whatever the level."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / level)


def finite_or_none(value: float) -> float | None:
    """A number of `Judgements` as a document has it: None for NaN and infinity."""
    return float(value) if isfinite(value) else None


class RunsOfA(NamedTuple):
    """`plain`: the run that is compared; `replicas`: of it, jittered; `reference`: in float64, None without one. The
    columns are those of all pairs. `is_isolated`: in all runs, as in B, modules and updates start from the same
    values."""

    plain: Tensors
    replicas: Sequence[RunColumns]
    reference: RunColumns | None
    is_isolated: bool = False

    @property
    def others(self) -> list[RunColumns]:
        """The reference, if there is one, and the replicas."""
        return [*([self.reference] if self.reference is not None else []), *self.replicas]


class _Row(NamedTuple):
    """The number of a pair and its records of A and B."""

    at: int
    pair: TensorPair
    a: TensorRecord
    b: TensorRecord


def judge_tensors(pairs: Sequence[TensorPair], a: RunsOfA, b: Tensors) -> Judgements:
    """Judges all pairs, which are in order of execution."""
    rows = [_Row(at, pair, a.plain[pair.a], b[pair.b]) for at, pair in enumerate(pairs)]
    other_precision = _has_other_precision(rows)
    kinds: list[Kind | None] = [_other_kind(row, a.others, other_precision) for row in rows]
    replicas = np.sum([run.present for run in a.replicas], axis=0) if a.replicas else np.zeros(len(rows), np.int64)
    reasons = [_unjudgeable(row, a.reference, int(replicas[row.at])) for row in rows]
    judged = [at for at, reason in enumerate(reasons) if not (reason or kinds[at] in ("shape", "non-finite"))]
    error, noise, limit = (np.full(len(pairs), np.nan) for _ in range(3))
    rule = ComparisonRule(replicas=len(a.replicas), tensors=len(judged)) if judged else None
    if rule is not None and a.reference is not None:
        terms = summed_terms(a.plain)
        error[judged], noise[judged], limit[judged] = _compare_values(
            rule,
            [rows[at] for at in judged],
            a.reference,
            a,
            [terms[pairs[at].a] for at in judged],
            _coarsest(rows, a, b) if other_precision else None,
        )
    status: list[Status] = []
    for at, row in enumerate(rows):
        if kinds[at] is not None:
            status.append("different")
        elif _is_identical(row):
            status.append("identical")
        elif reasons[at]:
            status.append("undetectable")
        else:
            judgement, reasons[at] = _judge(float(error[at]), float(noise[at]), float(limit[at]))
            status.append(judgement)
    for at in compensated_rows(pairs, status):
        if kinds[at] != "dtype" or not _is_coarser(rows[at]):
            status[at] = "compensated"
    are_integers = [reason == INTEGERS for reason in reasons]
    for at in rows_after_choice(pairs, a.plain, status, are_integers, of_module=a.is_isolated):
        if status[at] == "different" and kinds[at] in (None, "shape"):
            status[at], reasons[at], kinds[at] = "undetectable", OTHER_CHOICE, None
    reasons = [reason if status[at] == "undetectable" else "" for at, reason in enumerate(reasons)]
    return Judgements(status, error, noise, limit, reasons, kinds, rule)


def _judge(error: float, noise: float, limit: float) -> tuple[Status, str]:
    """The status of a tensor by its value, and the reason if it is undetectable."""
    if not np.isfinite(limit) or noise >= UNINFORMATIVE:
        return "undetectable", NOISY
    if np.isnan(error):
        return "undetectable", DAMAGED
    if error > limit:
        return "different", ""
    return ("undetectable", NOISY) if limit >= UNINFORMATIVE else ("within rounding", "")


def _compare_values(
    rule: ComparisonRule,
    rows: Sequence[_Row],
    reference: RunColumns,
    runs: RunsOfA,
    terms: Sequence[float],
    coarsest: tuple[F64, F64] | None,
) -> tuple[F64, F64, F64]:
    """(error of B, noise, limit) of each tensor, all of which have a reference. `terms`: see `summed_terms`.
    `coarsest`: see `_coarsest`; None if both sides compute in the same formats."""
    side_a, side_b, replicas = [row.a for row in rows], [row.b for row in rows], runs.replicas
    at = np.array([row.at for row in rows])
    norms = _reference_norms(reference.norms[at], side_a)
    error = np.empty(len(norms))
    errors = np.empty((1 + len(replicas), len(norms)))
    degrees = np.empty(len(norms), np.int64)
    pairs_of_runs = max(1, comb(len(errors), 2))
    chunk = max(1, _MOST_VALUES // (BUCKETS * pairs_of_runs))
    for begin in range(0, len(norms), chunk):
        part = slice(begin, begin + chunk)
        exact = reference.sketches[at[part]]
        sketches = np.stack([sketches_of(side_a[part]), *(run.sketches[at[part]] for run in replicas)])
        error[part] = relative_errors(sketches_of(side_b[part]), exact, norms[part])
        errors[:, part] = relative_errors(sketches, exact, norms[part])
        degrees[part] = degrees_of_freedom(sketches - exact)
    roundoff, scale = _roundoffs(side_a, side_b, None if coarsest is None else [side[at] for side in coarsest])
    noise, limit = noise_levels(rule, errors, degrees, roundoff=roundoff, scale=scale, groups=_groups(side_a))
    updates = 0.0 if runs.is_isolated else update_errors(side_a, reference.sketches[at], norms, noise)
    allowed = rule.margin * np.maximum(updates, summation_errors(terms, roundoff))
    return error, np.maximum(noise, updates), np.maximum(limit, allowed)


def _reference_norms(norms: F64, records: Sequence[TensorRecord]) -> F64:
    """The norm of each tensor of the reference, from those of the record. `records`: of the plain run. Errors of a
    tensor of zeros are relative to the median size of an element of the phase: rounding does not turn zeros into values
    of that size."""
    norms = norms.copy()
    elements = np.sqrt([max(1, prod(record.shape)) for record in records])
    for phase in {record.phase for record in records}:
        in_phase = np.array([record.phase == phase for record in records])
        sizes = (norms / elements)[in_phase & (norms > 0)]
        if len(sizes):
            is_zero = in_phase & (norms == 0)
            norms[is_zero] = np.median(sizes) * elements[is_zero]
    return norms


def _coarsest(rows: Sequence[_Row], a: RunsOfA, b: Tensors) -> tuple[F64, F64]:
    """The round-off of the coarsest format of each side up to each pair; within a module, if modules start from the
    same values."""
    if not a.is_isolated:
        return coarsest_so_far([row.a for row in rows]), coarsest_so_far([row.b for row in rows])
    of_a, of_b = coarsest_in_module(a.plain), coarsest_in_module(b)
    return np.array([of_a[row.pair.a] for row in rows]), np.array([of_b[row.pair.b] for row in rows])


def _roundoffs(a: Sequence[TensorRecord], b: Sequence[TensorRecord], coarsest: Sequence[F64] | None) -> tuple[F64, F64]:
    """(round-off, scale) of each tensor, as `noise_levels` takes them. `coarsest`: of A and B; None if both compute in
    the same formats.

    If B computes in other number formats, and in a coarser one than A up to this tensor, A's rounding in that format is
    expected: it grows with the round-off, whatever the dtype of the tensor itself. A coarser format in single places is
    a fault, and gets no allowance.
    """
    own_a, own_b = (np.array([UNIT_ROUNDOFF.get(record.dtype, 0.0) for record in side]) for side in (a, b))
    if coarsest is None:
        return own_a, np.ones(len(own_a))
    coarsest_a, coarsest_b = coarsest
    is_coarser = coarsest_b > coarsest_a
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(is_coarser & (coarsest_a > 0), coarsest_b / coarsest_a, 1.0)
    return np.where(is_coarser, coarsest_b, np.maximum(own_a, own_b)), scale


def _groups(records: Sequence[TensorRecord]) -> I64:
    """The number of each tensor's step and phase."""
    numbers: dict[tuple[int, str], int] = {}
    return np.array([numbers.setdefault((record.step, record.phase), len(numbers)) for record in records], np.int64)


def _has_other_precision(rows: Sequence[_Row]) -> bool:
    """Whether B computes in other number formats than A as a whole, not in single places."""
    floats = [row for row in rows if _is_float(row)]
    return sum(row.a.dtype != row.b.dtype for row in floats) >= OTHER_PRECISION * max(1, len(floats))


def _other_kind(row: _Row, others: Sequence[RunColumns], has_other_precision: bool) -> Kind | None:
    """The kind of a difference that shows without comparing values; None if there is none. `others`: runs of A."""
    if has_other_size(row.a, row.b):
        return "shape"
    if _is_less_finite(row, others):
        return "non-finite"
    return "dtype" if _is_float(row) and row.a.dtype != row.b.dtype and not has_other_precision else None


def _unjudgeable(row: _Row, reference: RunColumns | None, replicas: int) -> str:
    """The reason for which a tensor cannot be judged by value; empty if it can. `replicas`: the number that have it."""
    if row.pair.a.tensor.operation.startswith(_UNDEFINED):
        return UNINITIALISED
    if not _is_float(row):
        return INTEGERS
    if reference is None or not reference.comparable[row.at]:
        return NO_REFERENCE
    if replicas < MIN_REPLICAS:
        return FEW_REPLICAS
    return NOT_FINITE if row.a.nonfinite is not None and (row.a.nonfinite.nan or row.a.nonfinite.positive) else ""


def _is_float(row: _Row) -> bool:
    """Whether both sides have a floating-point tensor, whose values were recorded."""
    has_sketches = bool(row.a.sketch and row.b.sketch)
    return has_sketches and row.a.dtype in UNIT_ROUNDOFF and row.b.dtype in UNIT_ROUNDOFF


def _is_coarser(row: _Row) -> bool:
    """Whether B has a dtype of less precision than A."""
    return UNIT_ROUNDOFF.get(row.b.dtype, 0.0) > UNIT_ROUNDOFF.get(row.a.dtype, 0.0)


def _is_identical(row: _Row) -> bool:
    """Whether B has the bits of A: hashes collide rarely, but then sketches do not."""
    if not row.a.hash or row.a.hash != row.b.hash or row.a.dtype != row.b.dtype:
        return False
    if row.a.sketch == row.b.sketch:
        return True
    scale = max(abs(row.a.norm), 1e-300)
    return bool(np.all(np.abs(sketches_of([row.a]) - sketches_of([row.b])) <= _ROUNDED_SUMS * scale))


def _is_less_finite(row: _Row, others: Sequence[RunColumns]) -> bool:
    """Whether B has more elements of a kind that is not finite than every run of A."""
    runs = [row.a.nonfinite, *(run.nonfinite.get(row.at) for run in others)]
    counts = zip(*map(_unexpected, runs))
    return any(count > max(kind) for count, kind in zip(_unexpected(row.b.nonfinite), counts))


def _unexpected(count: NonFinite | None) -> tuple[int, int, int]:
    """The numbers of NaN, +Inf and -Inf; 0 for the last if a mask wrote them."""
    return (count.nan, count.positive, 0 if count.masked else count.negative) if count else (0, 0, 0)
