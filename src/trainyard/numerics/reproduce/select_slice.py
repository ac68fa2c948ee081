"""The operations that compute the first different tensor from tensors that are right, on each side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.compare.align_tensors import TensorPair, Tensors
from trainyard.numerics.compare.compare_records import MatchedRecords
from trainyard.numerics.compare.comparison_result import Divergence, Kind, Status, TensorPoint
from trainyard.numerics.compare.data_flow import DataFlow
from trainyard.numerics.compare.find_divergences import tensor_point
from trainyard.numerics.compare.judge_tensors import NO_REFERENCE
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.tensor_record import Role, TensorKey

_MOST_OPERATIONS = 300
_MOST_ADDED = 40
"""Operations that are added so that both sides begin with the same tensors."""
_WITHOUT_SLICE: dict[Kind, str] = {
    "data": "the batches differ, before any operation",
    "random values": "the sides draw other random numbers, which no operation computes",
    "not deterministic": "the bits differ between runs",
}
"""Kinds of differences that no operation of the training shows, and why."""
_OF_UPDATE: frozenset[Kind] = frozenset(("missing gradient", "extra gradient", "not updated"))
"""Kinds of differences that show in the weight after the optimizer's step."""


class Slice(NamedTuple):
    """Operations of a side, whose `output` is 0; the recorded tensors that enter them; the tensor that they compute."""

    operations: tuple[TensorKey, ...]
    sources: tuple[TensorKey, ...]
    result: TensorKey


class Slices(NamedTuple):
    """`point`: the tensor that the operations compute. `is_compiled`: B compiled them, so that its operations are not
    known."""

    point: TensorPoint
    a: Slice
    b: Slice
    is_compiled: bool


def select_slices(matched: MatchedRecords) -> tuple[Divergence, Slices]:
    """The first difference and its slices. Raises `NotEnoughEvidence` if there is none that operations show."""
    first = matched.divergences.first
    if first is None and NO_REFERENCE in matched.judgements.reasons:
        raise NotEnoughEvidence(
            "A has no float64 reference, without which no difference is judged.",
            "Pass the record with the reference first, or record A without --replicas 0.",
        )
    if first is None:
        raise NotEnoughEvidence("the records do not differ: there is nothing to reproduce.")
    if first.kind in _WITHOUT_SLICE:
        raise NotEnoughEvidence(f"{_WITHOUT_SLICE[first.kind]}.", "The comparison names the parameter or batch.")
    if first.kind in _OF_UPDATE:
        return first, _update_of(matched, first.tensor, "weight")
    pair = _pair(matched, first.tensor)
    if pair.a.tensor.phase == "optimizer" and pair.a.tensor.role != "gradient":
        return first, _update_of(matched, first.tensor, first.tensor.role)
    a, b = _Follower(matched.a.tensors, pair.a), _Follower(matched.b.tensors, pair.b)
    statuses = zip(matched.alignment.pairs, matched.judgements.status)
    right = [other for other, status in statuses if _is_source(matched, other, status)]
    a.follow({other.a for other in right})
    b.follow({other.b for other in right})
    if not a.has_operations and not b.has_operations:
        a.add_writers()
        b.add_writers()
    is_compiled = _is_compiled(matched.b.tensors, pair.b)
    if not is_compiled:
        _begin_alike(a, b, right)
    of_a, of_b = a.slice(), b.slice()
    if not of_a.operations and not of_b.operations:
        raise NotEnoughEvidence(
            "the records have no operations that compute the first different tensor.",
            "Record both sides with --level operations.",
        )
    count = max(len(of_a.operations), len(of_b.operations))
    if count > _MOST_OPERATIONS:
        raise NotEnoughEvidence(
            f"{count:,} operations lie between the last right tensors and the first different one, of at most "
            f"{_MOST_OPERATIONS}.",
            "Compare programs that are more alike.",
        )
    return first, Slices(first.tensor, of_a, of_b, is_compiled)


def select_update(matched: MatchedRecords, parameter: str, before: int) -> tuple[Divergence, Slices] | None:
    """The first step of the optimizer, before step `before`, after which a parameter has other bits, as a difference
    with its operations; None if no recorded step is. `parameter`: its path."""
    module, _, name = parameter.rpartition(".")
    for pair in matched.alignment.pairs:
        key = pair.a.tensor
        is_update = key.role == "weight" and key.phase == "optimizer" and key.step < before
        if is_update and (key.module, key.name) == (module, name):
            a, b = matched.a.tensors[pair.a], matched.b.tensors[pair.b]
            if a.hash != b.hash:
                first = Divergence(kind="value", tensor=tensor_point(pair.a, a, b))
                return first, _update_of(matched, first.tensor, "weight")
    return None


def _update_of(matched: MatchedRecords, point: TensorPoint, role: Role) -> Slices:
    """The operations of the optimizer on a parameter, which are not recorded and follow from the parameter."""
    result = TensorKey(point.step, "optimizer", point.module, "", role, point.name, 0, 0)
    a, b = matched.a.tensors, matched.b.tensors
    of_a, of_b = Slice((), (), _own_name(result, a, b)), Slice((), (), _own_name(result, b, a))
    return Slices(point, of_a, of_b, is_compiled=False)


def _own_name(parameter: TensorKey, tensors: Tensors, others: Tensors) -> TensorKey:
    """A parameter that only the other side may know by its name, by the name of the parameter of this side that began
    with the same values."""
    name = parameter.module, parameter.name
    own, other = _initial_hashes(tensors), _initial_hashes(others)
    if name in own or name not in other:
        return parameter
    same = (known for known, value in own.items() if value == other[name] and known not in other)
    module, last = next(same, name)
    return parameter._replace(module=module, name=last)


def _initial_hashes(tensors: Tensors) -> dict[tuple[str, str], str]:
    """Module and name of a weight -> hash of its initial values."""
    return {
        (key.tensor.module, key.tensor.name): record.hash
        for key, record in tensors.items()
        if key.tensor.role == "weight" and key.tensor.phase == "forward" and record.hash
    }


def _pair(matched: MatchedRecords, point: TensorPoint) -> TensorPair:
    key = LogicalKey(
        TensorKey(
            point.step, point.phase, point.module, point.operation, point.role, point.name, point.call, point.output
        ),
        point.rank,
    )
    return next(pair for pair in matched.alignment.pairs if pair.a == key)


def _is_source(matched: MatchedRecords, pair: TensorPair, status: Status) -> bool:
    """Whether the operations may start from a tensor: not from a wrong one. Integers that differ have no status of
    their own."""
    a, b = matched.a.tensors[pair.a], matched.b.tensors[pair.b]
    is_exact = a.dtype == b.dtype and not a.dtype.startswith(("float", "bfloat", "complex"))
    is_other_integer = is_exact and a.hash != "" and b.hash != "" and a.hash != b.hash
    return status not in ("different", "compensated") and not is_other_integer


def _is_compiled(records: Tensors, key: LogicalKey) -> bool:
    """Whether a tensor is the output of a module whose operations were not recorded."""
    return key.tensor.role == "output" and not key.tensor.operation and not records[key].inputs


class _Follower:
    """The tensors of a side from which `key` follows. `chosen`: those whose operations belong to the slice."""

    def __init__(self, records: Tensors, key: LogicalKey) -> None:
        self.records, self.key, self.flow = records, key, DataFlow(records, records[key].step)
        self.chosen = [key]

    @property
    def has_operations(self) -> bool:
        return any(each.tensor.operation for each in self.chosen)

    @property
    def sources(self) -> list[LogicalKey]:
        """The tensors that enter the chosen operations."""
        chosen = set(self.chosen)
        entering = (source for each in self.chosen for source in self.flow.inputs(each))
        return [source for source in dict.fromkeys(entering) if source not in chosen]

    def follow(self, right: Collection[LogicalKey]) -> None:
        """Chooses all operations back to tensors that are right."""
        self.chosen += [source for source in self.flow.sources(self.key, right) if source not in right]

    def add_writers(self) -> None:
        """Chooses the operations that wrote `key`, such as a gradient."""
        self.chosen += [source for source in self.flow.inputs(self.key) if source.tensor.operation]

    def slice(self) -> Slice:
        in_order = sorted(self.chosen, key=lambda each: self.records[each].index)
        operations = dict.fromkeys(each.tensor._replace(output=0) for each in in_order if each.tensor.operation)
        return Slice(tuple(operations), tuple(source.tensor for source in self.sources), self.key.tensor)


def _begin_alike(a: _Follower, b: _Follower, right: Sequence[TensorPair]) -> None:
    """Adds the operation before the latest source that is not a source of the other side, until both begin with the
    same tensors, or leaves them as they are if that takes too many. A side may read right tensors that the other does
    not read, such as a residual that the other omits, if the other reads no tensors of its own."""
    to_b, to_a = {pair.a: pair.b for pair in right}, {pair.b: pair.a for pair in right}
    chosen_a, chosen_b = list(a.chosen), list(b.chosen)
    for _ in range(_MOST_ADDED):
        sources_a, sources_b = a.sources, b.sources
        alone_a = [each for each in sources_a if to_b.get(each) not in sources_b and a.flow.inputs(each)]
        alone_b = [each for each in sources_b if to_a.get(each) not in sources_a and b.flow.inputs(each)]
        if (not alone_a and to_a.keys() >= set(alone_b)) or (not alone_b and to_b.keys() >= set(alone_a)):
            return
        alone = [*((a, each) for each in alone_a), *((b, each) for each in alone_b)]
        side, latest = max(alone, key=lambda each: each[0].records[each[1]].index)
        side.chosen.append(latest)
    a.chosen, b.chosen = chosen_a, chosen_b
