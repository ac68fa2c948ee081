"""Reads one run of a record, with the tensors of its ranks merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import BadInput
from trainyard.numerics.compare.logical_tensors import LogicalTensors, merge_ranks
from trainyard.numerics.record_files import read_variant
from trainyard.numerics.tensor_record import RecordHeader


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


def read_run(folder: Path, variant: str, known: Sequence[str]) -> RecordedRun:
    """The run `variant` of the record in `folder`, which has the variants `known`. Raises `BadInput` if it lacks it or
    has no tensors, `BadFile` if it cannot be read."""
    if variant not in known:
        raise BadInput(f"{folder} has no {variant} run, only {', '.join(known)}.", "Record it with that variant.")
    ranks = read_variant(folder, variant)
    tensors = merge_ranks(ranks)
    if not tensors.tensors:
        raise BadInput(f"{folder / variant} has no tensors.", "Record it again, and check that the command trains.")
    return RecordedRun(ranks[0].header, tensors, tuple(rank.header.rank for rank in ranks if rank.is_cut))
