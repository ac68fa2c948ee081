"""The collectives of all ranks by process group and sequence number: which ranks entered each, and how they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from trainyard.hangs.flight_record import COMPLETED, SCHEDULED, FlightRecord, Operation

DEFAULT_GROUP = "default_pg"
_UNEVEN = frozenset({"all_to_all", "all_to_all_single", "alltoall", "alltoall_base", "all_to_all_v_single"})
"""Collectives whose ranks may exchange different numbers of elements."""
_BY_INPUT = frozenset({"gather"})
_BY_OUTPUT = frozenset({"scatter"})
"""Collectives of which only the root has outputs, or inputs, of all ranks."""


class Call(NamedTuple):
    """A rank's entry into a collective: one operation, or several that are coalesced under one sequence number.

    `index`: position among the calls of the rank, over all groups, oldest first. `group`: index of the process group
    in `CollectiveTable.groups`. `operations`: in the order in which they were issued. `state`: as in `Operation`.
    """

    rank: int
    index: int
    group: int
    sequence: int
    operations: tuple[Operation, ...]
    state: int

    @property
    def first(self) -> Operation:
        """The first operation, which stands for the call in messages."""
        return self.operations[0]

    @property
    def name(self) -> str:
        """Name of the operation; of coalesced operations, the names joined by `+`."""
        return "+".join(dict.fromkeys(operation.name for operation in self.operations))

    @property
    def is_ended(self) -> bool:
        return self.state == COMPLETED


class GroupCalls(NamedTuple):
    """The collectives of a process group. `name`, `description`: in torch; `members`: global ranks, ascending; `calls`:
    sequence number -> global rank -> its call."""

    name: str
    description: str
    members: tuple[int, ...]
    calls: dict[int, dict[int, Call]]


class CollectiveTable:
    """The collectives of a job. `groups`: all process groups with a collective; `by_rank`: global rank -> its calls,
    oldest first; `transfers`: the sends and receives of all ranks; `records`: global rank -> its flight record;
    `world`: number of ranks, as far as is known; `unreadable`: ranks whose record is damaged."""

    def __init__(self, records: Sequence[FlightRecord], unreadable: Iterable[int] = ()) -> None:
        """`records`: those of the job's ranks; some ranks may be missing. `unreadable`: ranks with a damaged record."""
        self.unreadable = frozenset(unreadable)
        self.records = {record.rank: record for record in records}
        ranks_of_groups = {rank for record in records for group in record.groups.values() for rank in group.ranks}
        stated_world = max((record.world for record in records), default=0)
        highest_rank = max({*self.records, *ranks_of_groups, *self.unreadable}, default=-1)
        self.world = max(stated_world, highest_rank + 1)
        self.is_world_known = bool(stated_world or ranks_of_groups)
        """Whether a record states the number of ranks or the members of the groups; else ranks above the highest one
        may be missing."""
        self.groups: list[GroupCalls] = []
        self.transfers: list[Call] = []
        self._indices: dict[tuple[str, tuple[int, ...]], int] = {}
        """Name and members of a group -> its index. Groups that different ranks create may share a name."""
        members = self._members_by_name()
        self.by_rank = {rank: self._calls_of(record, members) for rank, record in self.records.items()}
        self._lowest_sequences: dict[tuple[int, int], int] = {}
        """(Rank, index of the group) -> the lowest sequence number of the rank's calls in the group."""
        for call in chain.from_iterable(self.by_rank.values()):
            key = call.rank, call.group
            self._lowest_sequences[key] = min(call.sequence, self._lowest_sequences.get(key, call.sequence))

    def _members_by_name(self) -> Mapping[str, tuple[int, ...]]:
        """The members of the groups whose members no record lists: the whole job for the default group, else the ranks
        that used the group."""
        users: dict[str, set[int]] = defaultdict(set)
        for record in self.records.values():
            for operation in record.operations:
                users[operation.group].add(record.rank)
        members = {}
        for name, ranks in users.items():
            listed = {record.groups[name].ranks for record in self.records.values() if name in record.groups}
            listed -= {()}
            if len(listed) == 1:
                members[name] = listed.pop()
            elif self._is_default(name):
                members[name] = tuple(range(self.world))
            else:
                members[name] = tuple(sorted(ranks))
        return members

    def _is_default(self, name: str) -> bool:
        descriptions = {record.groups[name].description for record in self.records.values() if name in record.groups}
        return DEFAULT_GROUP in descriptions or (name == "0" and descriptions <= {"", "undefined"})

    def _calls_of(self, record: FlightRecord, members: Mapping[str, tuple[int, ...]]) -> list[Call]:
        """The calls of a rank, oldest first. Operations with one sequence number become one call; those of a batch of
        sends and receives remain separate."""
        merged: dict[tuple[str, bool, int], list[Operation]] = {}
        for operation in record.operations:
            merged.setdefault((operation.group, operation.is_p2p, operation.sequence), []).append(operation)
        calls: list[Call] = []
        for (name, is_p2p, sequence), operations in merged.items():
            group = self._group_index(record, name, members[name])
            state = _state(record, name, sequence, is_p2p, operations)
            distinct = _distinct(operations)
            for part in [[operation] for operation in distinct] if is_p2p else [distinct]:
                call = Call(record.rank, len(calls), group, sequence, tuple(part), state)
                calls.append(call)
                if is_p2p:
                    self.transfers.append(call)
                else:
                    self.groups[group].calls.setdefault(sequence, {})[record.rank] = call
        return calls

    def _group_index(self, record: FlightRecord, name: str, inferred_members: tuple[int, ...]) -> int:
        """Index of a rank's group in `groups`, which it is added to if necessary."""
        group = record.groups.get(name)
        ranks = (group.ranks if group else ()) or inferred_members
        index = self._indices.setdefault((name, ranks), len(self.groups))
        if index == len(self.groups):
            self.groups.append(GroupCalls(name, group.description if group else "", ranks, {}))
        return index

    def first_retained(self, rank: int, group: int) -> int:
        """The lowest sequence number of a group that the buffer of `rank` still holds; 0 if the rank recorded no
        collective of the group, or none was overwritten."""
        record = self.records.get(rank)
        if record is None or not record.operations or record.operations[0].record == 0:
            return 0
        return self._lowest_sequences.get((rank, group), 0)

    def passed(self, rank: int, group: int, sequence: int) -> bool:
        """Whether `rank` has ended a collective: by its call, its status, or because the entry was overwritten."""
        call = self.groups[group].calls.get(sequence, {}).get(rank)
        if call is not None:
            return call.is_ended
        record = self.records.get(rank)
        if record is None:
            return False
        status = record.status.get(self.groups[group].name)
        if status is not None and status.completed >= sequence > 0:
            return True
        return sequence < self.first_retained(rank, group)


def _distinct(operations: list[Operation]) -> list[Operation]:
    """The operations without the entry `coalesced`, which stands for all of them, unless it is the only one."""
    return [operation for operation in operations if operation.name != "coalesced"] or operations


def _state(record: FlightRecord, group: str, sequence: int, is_p2p: bool, operations: list[Operation]) -> int:
    """State of a call. Only the entry `coalesced` of coalesced operations is updated, so that the furthest state of any
    entry counts. The group's status counts collectives only. A process that ended without an error has ended them all,
    whatever its last record shows."""
    if record.state.exit_code == 0:
        return COMPLETED
    status = record.status.get(group)
    if not is_p2p and status is not None and status.completed >= sequence > 0:
        return COMPLETED
    return max((operation.state for operation in operations), default=SCHEDULED)


def differences(call: Call, other: Call, exact: bool = False) -> set[str]:
    """The respects in which two calls of one collective do not match: "operation", "dtype" and "size".

    Sizes are compared as numbers of elements, as the communication libraries do. Collectives that allow ranks to send
    different numbers of elements are compared by operation and number format only, unless `exact` is true.
    """
    if [_kind(operation) for operation in call.operations] != [_kind(operation) for operation in other.operations]:
        return {"operation"}
    differences = set()
    for mine, theirs in zip(call.operations, other.operations, strict=True):
        if _dtypes(mine) and _dtypes(theirs) and _dtypes(mine) != _dtypes(theirs):
            differences.add("dtype")
        if not _sizes_match(mine, theirs, exact):
            differences.add("size")
    return differences


def _kind(operation: Operation) -> tuple[str, int, int]:
    """The name of an operation, and the peers of a send or receive."""
    return operation.name, operation.source, operation.target


def _dtypes(operation: Operation) -> set[str]:
    if operation.name in _BY_INPUT:
        return set(operation.input_dtypes)
    if operation.name in _BY_OUTPUT:
        return set(operation.output_dtypes)
    return {*operation.input_dtypes, *operation.output_dtypes}


def _sizes_match(mine: Operation, theirs: Operation, exact: bool) -> bool:
    if mine.name in _UNEVEN:
        return not exact or mine.input_elements == theirs.input_elements
    if mine.name in _BY_OUTPUT:
        return mine.output_elements == theirs.output_elements
    if mine.name in _BY_INPUT:
        return mine.input_elements == theirs.input_elements
    if mine.name == "reduce" and not (mine.input_sizes and theirs.input_sizes):
        return True
    if len(set(mine.output_sizes)) > 1 and mine.output_sizes == theirs.output_sizes:
        return True  # an all-gather of tensors of different sizes
    if len(set(mine.input_sizes)) > 1 and mine.input_sizes == theirs.input_sizes:
        return True  # a reduce-scatter of tensors of different sizes
    return mine.input_elements == theirs.input_elements
