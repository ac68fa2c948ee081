"""The operations that compute the first different tensor from tensors that are right, on each side."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.compare.align_tensors import TensorPair, Tensors
from trainyard.numerics.compare.compare_records import MatchedRecords
from trainyard.numerics.compare.comparison_result import Divergence, Kind, TensorPoint
from trainyard.numerics.compare.data_flow import DataFlow
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.tensor_record import TensorKey

_MOST_OPERATIONS = 300
_WITHOUT_SLICE: dict[Kind, str] = {
    "data": "the batches differ, before any operation",
    "missing gradient": "B has no gradient of the parameter, which no operation shows",
    "random values": "the sides draw other random numbers, which no operation computes",
    "extra gradient": "only B has a gradient of the parameter, which no operation shows",
    "not updated": "the optimizer of B does not update the parameter, which no operation shows",
    "replicas differ": "replicas of B differ, which one process does not show",
    "not deterministic": "the bits differ between runs",
}
"""Kinds of differences that no operation of the training shows, and why."""


class Slices(NamedTuple):
    """Operations of A and of B, whose `output` is 0. `point`: the tensor that they compute; `result_a`, `result_b`: its
    keys. `is_compiled`: B compiled them, so that its operations are not known."""

    point: TensorPoint
    result_a: TensorKey
    result_b: TensorKey
    operations_a: tuple[TensorKey, ...]
    operations_b: tuple[TensorKey, ...]
    is_compiled: bool


def select_slices(matched: MatchedRecords) -> tuple[Divergence, Slices]:
    """The first difference and its slices. Raises `NotEnoughEvidence` if there is none that operations show."""
    first = matched.divergences.first
    if first is None:
        raise NotEnoughEvidence("the records do not differ: there is nothing to reproduce.", "Compare them first.")
    if first.kind in _WITHOUT_SLICE:
        raise NotEnoughEvidence(f"{_WITHOUT_SLICE[first.kind]}.", "The comparison names the parameter or batch.")
    pair = _pair(matched, first.tensor)
    if pair.a.tensor.phase == "optimizer":
        raise NotEnoughEvidence(
            "the first difference is a result of the optimizer, whose operations are not recorded.",
            "Compare the optimizers and their options.",
        )
    pairs = matched.alignment.pairs
    operations_a = _operations(matched.a.tensors, pair.a, {other.a for other in pairs})
    operations_b = _operations(matched.b.tensors, pair.b, {other.b for other in pairs})
    if not operations_a and not operations_b:
        raise NotEnoughEvidence(
            "the records have no operations that compute the first different tensor.",
            "Record both sides with --level operations.",
        )
    count = max(len(operations_a), len(operations_b))
    if count > _MOST_OPERATIONS:
        raise NotEnoughEvidence(
            f"{count:,} operations lie between the last right tensors and the first different one, of at most "
            f"{_MOST_OPERATIONS}.",
            "Compare programs that are more alike.",
        )
    is_compiled = _is_compiled(matched.b.tensors, pair.b)
    return first, Slices(first.tensor, pair.a.tensor, pair.b.tensor, operations_a, operations_b, is_compiled)


def _pair(matched: MatchedRecords, point: TensorPoint) -> TensorPair:
    key = LogicalKey(
        TensorKey(
            point.step, point.phase, point.module, point.operation, point.role, point.name, point.call, point.output
        ),
        point.rank,
    )
    return next(pair for pair in matched.alignment.pairs if pair.a == key)


def _is_compiled(records: Tensors, key: LogicalKey) -> bool:
    """Whether a tensor is the output of a module whose operations were not recorded."""
    return key.tensor.role == "output" and not key.tensor.operation and not records[key].inputs


def _operations(records: Tensors, key: LogicalKey, matched: Collection[LogicalKey]) -> tuple[TensorKey, ...]:
    """The operation `key` and those before it that the other side lacks, in order of execution; if `key` is not an
    operation, at least the one that wrote it."""
    flow = DataFlow(records, records[key].step)
    chosen = [key, *(source for source in flow.sources(key, matched) if source not in matched)]
    if not any(each.tensor.operation for each in chosen):
        chosen += [source for source in flow.inputs(key) if source.tensor.operation]
    chosen.sort(key=lambda chosen: records[chosen].index)
    return tuple(dict.fromkeys(each.tensor._replace(output=0) for each in chosen if each.tensor.operation))
