"""Reads one run of a record, with the tensors of its ranks merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from sys import intern
from typing import NamedTuple

from msgspec.structs import replace

from trainyard.errors import BadInput
from trainyard.numerics.compare.logical_tensors import LogicalTensors, merge_ranks
from trainyard.numerics.record_files import RankRecord, rank_readers
from trainyard.numerics.tensor_record import RecordHeader, TensorRecord


class RecordedRun(NamedTuple):
    """`header`: that of the first rank. `cut`: ranks whose files end early."""

    header: RecordHeader
    tensors: LogicalTensors
    cut: tuple[int, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """The recorded steps, in order."""
        return tuple(sorted({key.tensor.step for key in self.tensors.tensors}))

    def only(self, steps: frozenset[int]) -> LogicalTensors:
        """The tensors of these steps."""
        tensors = self.tensors
        return LogicalTensors(
            {key: record for key, record in tensors.tensors.items() if key.tensor.step in steps},
            tuple(replicas for replicas in tensors.differing if replicas.key.tensor.step in steps),
            tuple(key for key in tensors.incomplete if key.tensor.step in steps),
        )


def read_run(folder: Path, variant: str, known: Sequence[str], values_only: bool = False) -> RecordedRun:
    """The run `variant` of the record in `folder`, which has the variants `known`, without the samples of tensors.
    `values_only`: without lines of code and inputs of operations, too. Raises `BadInput` if the record lacks the run or
    the run has no tensors, `BadFile` if it cannot be read."""
    if variant not in known:
        raise BadInput(f"{folder} has no {variant} run, only {', '.join(known)}.", "Record it with that variant.")
    ranks = [
        RankRecord(reader.header, [_compact(record, values_only) for record in reader], reader.is_cut)
        for reader in rank_readers(folder, variant)
    ]
    tensors = merge_ranks(ranks)
    if not tensors.tensors:
        raise BadInput(f"{folder / variant} has no tensors.", "Record it again, and check that the command trains.")
    return RecordedRun(ranks[0].header, tensors, tuple(rank.header.rank for rank in ranks if rank.is_cut))


def _compact(record: TensorRecord, values_only: bool) -> TensorRecord:
    """The record without its sample, in about half of the memory: text that many records have is kept once."""
    return replace(
        record,
        module=intern(record.module),
        operation=intern(record.operation),
        name=intern(record.name),
        dtype=intern(record.dtype),
        location="" if values_only else intern(record.location),
        inputs=() if values_only else record.inputs,
        sample=b"",
    )
