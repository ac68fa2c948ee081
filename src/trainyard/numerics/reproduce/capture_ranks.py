"""Repeat the command of a record, and capture the operations of a difference on the ranks that take part in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import NotEnoughEvidence
from trainyard.numerics.record.record_command import repeat_command
from trainyard.numerics.record.record_process import RecordRequest
from trainyard.numerics.reproduce.captured_slice import CapturedSlice, CaptureRequest, read_slice
from trainyard.numerics.reproduce.collective_calls import ranks_of
from trainyard.numerics.reproduce.operation_source import needed_operations
from trainyard.numerics.reproduce.select_slice import Slice
from trainyard.numerics.tensor_record import RecordHeader

_MOST_RANKS = 16
"""Processes of a script."""


class CapturedRanks(NamedTuple):
    """`by_rank`: in ascending order of ranks. `folder`: has the values of the inputs."""

    folder: Path
    by_rank: Mapping[int, CapturedSlice]


def capture(header: RecordHeader, chosen: Slice, folder: Path, say: Callable[[str], object]) -> None:
    """Repeats the command of a record, whose ranks write what they capture to a folder. Raises `BadInput` for a command
    that is not in the record as it was."""
    request = RecordRequest(
        variant="plain",
        steps=(chosen.result.step,),
        level="operations",
        capture=CaptureRequest(
            folder=str(folder), operations=chosen.operations, sources=chosen.sources, result=chosen.result
        ),
    )
    repeat_command(header, folder, request, say)


def read_ranks(folders: Collection[Path], rank: int) -> list[CapturedRanks]:
    """What `rank`, and the ranks with which it shares collectives in any of the folders, captured in each of them."""
    ranks, pending = {rank}, [rank]
    while pending:
        current = pending.pop()
        for folder in folders:
            operations = needed_operations(read_slice(folder, current))
            others = {other for group in ranks_of(operations) for other in group} - ranks
            ranks |= others
            pending += others
    if len(ranks) > _MOST_RANKS:
        raise NotEnoughEvidence(
            f"{len(ranks):,} ranks take part in the collectives, of at most {_MOST_RANKS}.",
            "Record a run on fewer ranks that shows the difference.",
        )
    return [CapturedRanks(folder, {each: read_slice(folder, each) for each in sorted(ranks)}) for folder in folders]
