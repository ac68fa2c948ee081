"""Checks of what must be equal bit by bit, or must be there at all, whatever the rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trainyard.numerics.compare.align_tensors import Alignment, Tensors
from trainyard.numerics.compare.comparison_result import Kind
from trainyard.numerics.compare.logical_tensors import LogicalKey, LogicalTensors
from trainyard.numerics.tensor_record import TensorRecord

_MOST_RANKS = 8
"""Ranks listed in a detail."""


class ExactFinding(NamedTuple):
    """A violated check. `key`: of the tensor in A, or in B if A lacks it. `a`, `b`: the records of the two sides, None
    on a side that lacks it."""

    kind: Kind
    key: LogicalKey
    a: TensorRecord | None
    b: TensorRecord | None
    detail: str = ""

    @property
    def position(self) -> tuple[int, int]:
        """Step and index of execution, in A if it has the tensor."""
        records = [record for record in (self.a, self.b) if record is not None]
        return records[0].step, records[0].index


def check_exactly(a: LogicalTensors, b: LogicalTensors, alignment: Alignment, identical: bool) -> list[ExactFinding]:
    """All violated checks. `identical`: both records must be equal bit by bit."""
    findings = [
        *_different_data(a.tensors, b.tensors, alignment),
        *_missing_gradients(a.tensors, b.tensors, alignment),
        *_differing_replicas(a, b, alignment),
    ]
    without_gradient = {_parameter(finding.key) for finding in findings if finding.kind == "missing gradient"}
    findings.extend(
        finding
        for finding in _not_updated(a.tensors, b.tensors, alignment)
        if _parameter(finding.key) not in without_gradient
    )
    return [*findings, *_not_identical(a.tensors, b.tensors, alignment)] if identical else findings


def _different_data(a: Tensors, b: Tensors, alignment: Alignment) -> Iterator[ExactFinding]:
    """Batches that differ."""
    for pair in alignment.pairs:
        if pair.a.tensor.role == "data" and _has_other_bits(a[pair.a], b[pair.b]):
            yield ExactFinding("data", pair.a, a[pair.a], b[pair.b])


def _missing_gradients(a: Tensors, b: Tensors, alignment: Alignment) -> Iterator[ExactFinding]:
    """Parameters that have a gradient on one side only."""
    for key in (*alignment.only_a, *alignment.parameters_a):
        if key.tensor.role == "gradient" and key.tensor.name:
            yield ExactFinding("missing gradient", key, a[key], None)
    for key in alignment.only_b:
        if key.tensor.role == "gradient" and key.tensor.name:
            yield ExactFinding("extra gradient", key, None, b[key])


def _differing_replicas(a: LogicalTensors, b: LogicalTensors, alignment: Alignment) -> Iterator[ExactFinding]:
    """Replicas that differ between the ranks of B, unless they do between those of A."""
    keys = {pair.b: pair.a for pair in alignment.pairs}
    known = {replicas.key for replicas in a.differing}
    for replicas in b.differing:
        key = keys.get(replicas.key)
        if key is None or key not in known:
            first, *others = replicas.ranks
            listed = ", ".join(map(str, others[:_MOST_RANKS])) + (", …" if len(others) > _MOST_RANKS else "")
            detail = f"rank {first} and rank{'s' * (len(others) > 1)} {listed}"
            record = None if key is None else a.tensors[key]
            if replicas.key in b.tensors:
                yield ExactFinding("replicas differ", key or replicas.key, record, b.tensors[replicas.key], detail)


def _not_updated(a: Tensors, b: Tensors, alignment: Alignment) -> Iterator[ExactFinding]:
    """Weights that a step of A changes and the same step of B does not."""
    before: dict[tuple[object, ...], tuple[TensorRecord, TensorRecord]] = {}
    reported: set[tuple[object, ...]] = set()
    for pair in alignment.pairs:
        if pair.a.tensor.role != "weight":
            continue
        parameter = _parameter(pair.a)
        now_a, now_b = a[pair.a], b[pair.b]
        if parameter in before and parameter not in reported and now_a.dtype == now_b.dtype:
            was_a, was_b = before[parameter]
            if _has_other_bits(was_a, now_a) and now_b.hash and was_b.hash == now_b.hash:
                reported.add(parameter)
                yield ExactFinding("not updated", pair.a, now_a, now_b)
        before[parameter] = (now_a, now_b)


def _parameter(key: LogicalKey) -> tuple[str, str, int]:
    """The parameter whose weight or gradient a tensor is."""
    return key.tensor.module, key.tensor.name, key.rank


def _not_identical(a: Tensors, b: Tensors, alignment: Alignment) -> Iterator[ExactFinding]:
    """Tensors whose bits differ."""
    for pair in alignment.pairs:
        if _has_other_bits(a[pair.a], b[pair.b]):
            yield ExactFinding("not deterministic", pair.a, a[pair.a], b[pair.b])


def _has_other_bits(a: TensorRecord, b: TensorRecord) -> bool:
    """Whether tensors of the same dtype have other bits. Hashes of other dtypes say nothing."""
    return a.dtype == b.dtype and bool(a.hash and b.hash) and a.hash != b.hash


def random_state_differs(a: Mapping[LogicalKey, TensorRecord], b: Tensors, alignment: Alignment) -> LogicalKey | None:
    """The first state of a random-number generator that differs; None if none does."""
    for pair in alignment.pairs:
        if pair.a.tensor.role == "random_state" and _has_other_bits(a[pair.a], b[pair.b]):
            return pair.a
    return None
