"""The first tensor of B that rounding does not explain, and others that do not follow from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from trainyard.numerics.compare.align_tensors import Alignment, TensorPair, Tensors
from trainyard.numerics.compare.comparison_result import Divergence, Kind, OneSidedOperation, ReadWeight, TensorPoint
from trainyard.numerics.compare.data_flow import DataFlow
from trainyard.numerics.compare.exact_checks import ExactFinding, random_state_differs
from trainyard.numerics.compare.judge_tensors import Judgements, finite_or_none
from trainyard.numerics.compare.logical_tensors import LogicalKey, is_initial_weight
from trainyard.numerics.compare.random_values import are_other_draws, describe_draws, drawn_from, has_random_values
from trainyard.numerics.tensor_record import TensorRecord

_MOST_OPERATIONS = 5
"""Operations listed that one side lacks."""
_OF_ROWS: tuple[Kind, ...] = ("value", "shape", "dtype", "non-finite")
"""Kinds that follow from an earlier divergence, unless the inputs of the module are right."""
_CORRECT = ("identical", "within rounding")


class Divergences(NamedTuple):
    first: Divergence | None
    further: tuple[Divergence, ...]


class _Candidate(NamedTuple):
    """`position`: step and index of execution. `pair`: the keys of the tensor; None if a side lacks it."""

    position: tuple[int, int]
    divergence: Divergence
    pair: TensorPair | None


class DivergenceFinder:
    """Finds divergences in the matched tensors of A and B, as they were judged."""

    def __init__(self, a: Tensors, b: Tensors, alignment: Alignment, judgements: Judgements) -> None:
        self.a, self.b, self.alignment, self.judgements = a, b, alignment, judgements
        self._pairs = {pair.a: pair for pair in alignment.pairs}

    def find(self, exact: Iterable[ExactFinding]) -> Divergences:
        """The first divergence in order of execution, and the others that do not follow from it: those of the exact
        checks, and in the same step modules whose inputs are right and whose outputs are not."""
        by_kind: dict[Kind, list[ExactFinding]] = defaultdict(list)
        for finding in exact:
            by_kind[finding.kind].append(finding)
        candidates = [self._of_finding(findings) for findings in by_kind.values()]
        different = [row for row, status in enumerate(self.judgements.status) if status == "different"]
        if different:
            candidates.append(self._of_row(different[0]))
        if not candidates:
            return Divergences(None, ())
        candidates.sort(key=lambda candidate: candidate.position)
        first, *others = candidates
        independent = [self._of_row(row) for row in self._independent_rows(first.divergence.tensor)]
        listed = {id(candidate.divergence): candidate for candidate in (*others, *independent)}
        further = [
            candidate
            for candidate in sorted(listed.values(), key=lambda candidate: candidate.position)
            if candidate.divergence.kind not in _OF_ROWS or candidate in independent
        ]
        return Divergences(self._recognise_draws(first), tuple(candidate.divergence for candidate in further))

    def find_all(self, exact: Iterable[ExactFinding], left_out: Collection[int]) -> list[tuple[LogicalKey, Divergence]]:
        """All divergences with the tensors of A, in order of execution: the first of each role in a module's phase.
        `left_out`: rows of pairs."""
        candidates = [(finding.key, self._of_finding([finding])) for finding in exact]
        listed: set[tuple[object, ...]] = set()
        for row, status in enumerate(self.judgements.status):
            pair = self.alignment.pairs[row]
            key = pair.a.tensor
            group = (key.module, key.phase, bool(key.operation), key.role)
            if status == "different" and group not in listed and row not in left_out:
                listed.add(group)
                candidates.append((pair.a, self._of_row(row)))
        candidates.sort(key=lambda candidate: candidate[1].position)
        return [(key, candidate.divergence) for key, candidate in candidates]

    def _of_finding(self, findings: Sequence[ExactFinding]) -> _Candidate:
        """The first of the findings of a kind."""
        finding = min(findings, key=lambda finding: finding.position)
        divergence = Divergence(
            kind=finding.kind,
            tensor=tensor_point(finding.key, finding.a, finding.b),
            last_correct=self._point_of(self._last_correct(finding.position)),
            detail=finding.detail,
            count=len(findings),
        )
        return _Candidate(finding.position, divergence, self._pairs.get(finding.key))

    def _of_row(self, row: int) -> _Candidate:
        """The divergence of a pair by its value, its shape, or elements that are not finite."""
        pair, judged = self.alignment.pairs[row], self.judgements
        record_a, record_b = self.a[pair.a], self.b[pair.b]
        position = (record_a.step, record_a.index)
        last = self._last_correct_input(row)
        kind = judged.kinds[row] or "value"
        divergence = Divergence(
            kind=kind,
            tensor=tensor_point(pair.a, record_a, record_b),
            error=finite_or_none(judged.error[row]),
            noise=finite_or_none(judged.noise[row]),
            limit=finite_or_none(judged.limit[row]),
            rho=finite_or_none(judged.rho[row]),
            last_correct=self._point_of(last),
            detail=_detail(kind, record_a, record_b),
            causes=self._causes(pair),
            only_a=_operations_before(self.alignment.only_a, self.a, pair.a, None if last is None else last.a),
            only_b=_operations_before(self.alignment.only_b, self.b, pair.b, None if last is None else last.b),
            read_weight=self._read_weight(pair.a),
            count=judged.status.count("different"),
        )
        return _Candidate(position, divergence, pair)

    def _read_weight(self, key: LogicalKey) -> ReadWeight | None:
        """The weight of the module of a forward tensor with the largest error relative to its limit, after the step
        before; None if all are identical, or for other tensors."""
        judged, step = self.judgements, key.tensor.step - 1
        rows = [
            row
            for row, (pair, status) in enumerate(zip(self.alignment.pairs, judged.status))
            if status == "within rounding"
            and (pair.a.tensor.step, pair.a.tensor.role, pair.a.tensor.phase) == (step, "weight", "optimizer")
            and pair.a.tensor.module == key.tensor.module
        ]
        if key.tensor.phase != "forward" or not rows:
            return None
        row = max(rows, key=lambda row: judged.error[row] / judged.limit[row])
        weight = self.alignment.pairs[row].a.tensor
        return ReadWeight(
            module=weight.module,
            name=weight.name,
            step=step,
            error=finite_or_none(judged.error[row]),
            limit=finite_or_none(judged.limit[row]),
        )

    def _recognise_draws(self, candidate: _Candidate) -> Divergence:
        """The divergence of a candidate; if it follows from random numbers that differ, as one of that kind."""
        first, pair = candidate.divergence, candidate.pair
        if pair is None or first.kind not in ("value", "data"):
            return first
        draws = self._draws(pair) or ("" if first.kind == "data" else self._other_random_state(pair))
        if not draws:
            return first
        return replace(
            first, kind="random values", detail=draws, error=None, noise=None, limit=None, rho=None, causes=()
        )

    def _draws(self, pair: TensorPair) -> str:
        """The operations of both sides that draw other random numbers and from which a pair of tensors follows; empty
        if there are none."""
        correct = [other for other, status in zip(self.alignment.pairs, self.judgements.status) if status in _CORRECT]
        drawn_a = drawn_from(self.a, pair.a, {other.a for other in correct})
        drawn_b = drawn_from(self.b, pair.b, {other.b for other in correct})
        if drawn_a is None or drawn_b is None:
            return ""
        if not (has_random_values(drawn_a) or has_random_values(drawn_b)):
            return ""
        record_a, record_b = self.a[drawn_a], self.b[drawn_b]
        are_paired = self._pairs.get(drawn_a) == (drawn_a, drawn_b)
        if are_paired and not are_other_draws(record_a, record_b):
            return ""
        if not are_paired and (is_initial_weight(drawn_a.tensor) or is_initial_weight(drawn_b.tensor)):
            return ""
        return describe_draws(record_a, record_b)

    def _other_random_state(self, pair: TensorPair) -> str:
        """In records without operations: the first random state that differs up to the step of a pair; empty if none
        does."""
        key = random_state_differs(self.a, self.b, self.alignment)
        if (
            key is None
            or key.tensor.step > pair.a.tensor.step
            or any(other.a.tensor.operation for other in self._pairs.values())
        ):
            return ""
        return f"a generator whose state differs at the start of step {key.tensor.step}"

    def _causes(self, pair: TensorPair) -> tuple[OneSidedOperation, ...]:
        """On each side, the nearest operation from which a tensor was computed and that the other side lacks; none if
        operations were not compared."""
        pairs = self.alignment.pairs
        if not any(other.a.tensor.operation for other in pairs):
            return ()
        causes = (
            _nearest_unmatched("A", self.a, pair.a, {other.a for other in pairs}),
            _nearest_unmatched("B", self.b, pair.b, {other.b for other in pairs}),
        )
        return tuple(cause for cause in causes if cause is not None)

    def _last_correct_input(self, row: int) -> TensorPair | None:
        """The latest correct tensor from which the tensor of a row was computed in A; without one, the last before."""
        pair = self.alignment.pairs[row]
        correct = {
            other.a: other for other, status in zip(self.alignment.pairs, self.judgements.status) if status in _CORRECT
        }
        record = self.a[pair.a]
        sources = DataFlow(self.a, record.step).sources(pair.a, correct)
        inputs = [source for source in sources if source in correct]
        if not inputs:
            return self._last_correct((record.step, record.index), pair.a.rank)
        return correct[max(inputs, key=lambda key: self.a[key].index)]

    def _independent_rows(self, first: TensorPoint) -> list[int]:
        """The first different tensor of each module, in the step of the first divergence, whose inputs are right. Not
        of the module of the first divergence and those around it: their inputs are right in any case."""
        inputs: dict[str, list[int]] = defaultdict(list)
        wrong: dict[str, int] = {}
        for row, pair in enumerate(self.alignment.pairs):
            key = pair.a.tensor
            if key.step != first.step or key.phase != "forward":
                continue
            if key.role == "input":
                inputs[key.module].append(row)
            elif self.judgements.status[row] == "different":
                wrong.setdefault(key.module, row)
        status = self.judgements.status
        right = [
            module for module in wrong if inputs[module] and all(status[row] in _CORRECT for row in inputs[module])
        ]
        right = [module for module in right if not _is_around(module, first.module)]
        innermost = [
            module for module in right if not any(_is_around(module, other) for other in right if other != module)
        ]
        return sorted([*(wrong[module] for module in innermost), *self._wrong_updates(first)])

    def _wrong_updates(self, first: TensorPoint) -> list[int]:
        """The first weight, in the step of the first divergence, that differs although its gradient is right; none if
        the first divergence is one of the optimizer's step itself."""
        if first.role in ("weight", "optimizer_state"):
            return []
        right: set[tuple[str, str]] = set()
        for pair, status in zip(self.alignment.pairs, self.judgements.status):
            key = pair.a.tensor
            if key.step == first.step and key.role == "gradient" and key.name and status in _CORRECT:
                right.add((key.module, key.name))
        rows = enumerate(zip(self.alignment.pairs, self.judgements.status))
        return [
            row
            for row, (pair, status) in rows
            if status == "different"
            and (pair.a.tensor.step, pair.a.tensor.role) == (first.step, "weight")
            and (pair.a.tensor.module, pair.a.tensor.name) in right
        ][:1]

    def _last_correct(self, position: tuple[int, int], rank: int | None = None) -> TensorPair | None:
        """The last tensor before a position that B computed within rounding. `rank`: only of this rank."""
        last: TensorPair | None = None
        for pair, status in zip(self.alignment.pairs, self.judgements.status):
            record = self.a[pair.a]
            if (record.step, record.index) >= position:
                break
            if status in _CORRECT and (rank is None or pair.a.rank == rank):
                last = pair
        return last

    def _point_of(self, pair: TensorPair | None) -> TensorPoint | None:
        return None if pair is None else tensor_point(pair.a, self.a[pair.a], self.b[pair.b])


def _nearest_unmatched(
    side: Literal["A", "B"], records: Tensors, key: LogicalKey, matched: Collection[LogicalKey]
) -> OneSidedOperation | None:
    """The nearest operation from which the tensor `key` was computed and that is not `matched`, nor a copy to another
    device."""
    flow = DataFlow(records, records[key].step)
    for source in flow.sources(key, matched):
        if source.tensor.operation and source not in matched and not _is_copy(records, flow, source):
            record = records[source]
            return OneSidedOperation(
                side=side, operation=record.operation, module=record.module, location=record.location
            )
    return None


def _is_copy(records: Tensors, flow: DataFlow, key: LogicalKey) -> bool:
    """Whether an operation only copies a tensor, in the same dtype: to another device, or to other memory."""
    record = records[key]
    sources = (records[source] for source in flow.inputs(key))
    return record.operation == "aten._to_copy" and any(
        source.hash == record.hash and source.dtype == record.dtype for source in sources if source.hash
    )


def _operations_before(
    keys: Iterable[LogicalKey], records: Tensors, until: LogicalKey, last: LogicalKey | None
) -> tuple[str, ...]:
    """The last operations among `keys` before the tensor `until`: in its module, phase and step, or after `last`, the
    last correct tensor."""
    end = records[until]
    since = (end.step, -1) if last is None else (records[last].step, records[last].index)
    listed: list[str] = []
    for key in keys:
        record = records[key]
        position = (record.step, record.index)
        is_near = key.tensor[:3] == until.tensor[:3] or position > since
        if is_near and key.tensor.operation and key.rank == until.rank and position < (end.step, end.index):
            listed.append(f"{record.operation} ({record.location})" if record.location else record.operation)
    return tuple(listed[-_MOST_OPERATIONS:])


def tensor_point(key: LogicalKey, a: TensorRecord | None, b: TensorRecord | None) -> TensorPoint:
    """The tensor `key`, with what each side recorded of it; None for a side that lacks it."""
    return TensorPoint(
        step=key.tensor.step,
        phase=key.tensor.phase,
        module=key.tensor.module,
        operation=key.tensor.operation,
        role=key.tensor.role,
        name=key.tensor.name,
        call=key.tensor.call,
        output=key.tensor.output,
        rank=key.rank,
        shape=next((record.shape for record in (a, b) if record is not None), ()),
        dtype_a="" if a is None else a.dtype,
        dtype_b="" if b is None else b.dtype,
        location_a="" if a is None else a.location,
        location_b="" if b is None else b.location,
    )


def _detail(kind: Kind, a: TensorRecord, b: TensorRecord) -> str:
    """The numbers of a divergence that is not of values."""
    if kind == "shape":
        return f"{list(a.shape)} in A, {list(b.shape)} in B"
    if kind == "dtype":
        return f"{a.dtype} in A, {b.dtype} in B"
    if kind == "non-finite" and b.nonfinite is not None:
        counts = (("NaN", b.nonfinite.nan), ("+Inf", b.nonfinite.positive), ("-Inf", b.nonfinite.negative))
        return ", ".join(f"{count:,} {name}" for name, count in counts if count)
    return ""


def _is_around(module: str, inner: str) -> bool:
    """Whether `module` is `inner` or contains it."""
    return not module or inner == module or inner.startswith(f"{module}.")
