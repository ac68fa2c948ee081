"""The work of all ranks that train on the same samples (tp, cp, pp), including work that several of them repeat.

Their work differs (the first pipeline stage has the embedding, the last the head). The expectation for one rank is
therefore the mean: the total, repetitions included, divided by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job

FLOAT32 = words.DTYPES["float32"]


class SampleGroup(NamedTuple):
    """The ranks that train on the same samples: tp x cp x pp of them. `tokens` and `micro_batches` are per step.
    `repeating_ranks`: the tp ranks that each repeat the operations between the split matrices (`tp`); 1 if each has its
    part of the sequence. `dtype`: of activations."""

    ranks: int
    tp: int
    cp: int
    repeating_ranks: int
    tokens: int
    micro_batches: int
    dtype: str

    @property
    def calls_per_layer(self) -> int:
        """Calls per step, over all ranks of the group, of an operation that one layer runs once per micro-batch."""
        return self.micro_batches * self.tp * self.cp

    def pointwise(
        self, op: str, phase: str, calls: int, width: int, flops: int, moved: int, repeats: int = 1
    ) -> Operation:
        """An elementwise operation, summed over a step and the group, with `calls` per micro-batch and rank, each over
        `width` elements per token. `flops`, `moved`: FLOPs and elements moved per element. `repeats`: ranks that repeat
        it."""
        elements = calls * self.tokens * width * repeats
        return Operation(
            op=op,
            phase=phase,
            count=calls * self.calls_per_layer if width else 0,
            flops=flops * elements,
            bytes=moved * elements * words.DTYPES[self.dtype],
            dtype=self.dtype,
        )

    def mean(self, operation: Operation) -> Operation:
        """The mean over the ranks. Calls are rounded up, so that a call of a single rank counts."""
        return msgspec.structs.replace(
            operation,
            count=-(-operation.count // self.ranks),
            flops=operation.flops // self.ranks,
            bytes=operation.bytes // self.ranks,
        )


def find_group(job: Job) -> SampleGroup:
    """The ranks that share the samples of one data-parallel rank of the job."""
    layout, recipe = job.layout, job.recipe
    return SampleGroup(
        ranks=layout.tp * layout.cp * layout.pp,
        tp=layout.tp,
        cp=layout.cp,
        repeating_ranks=1 if layout.sequence_parallel else layout.tp,
        tokens=job.accumulate * recipe.micro_batch_size * recipe.seq_len,
        micro_batches=job.accumulate,
        # float8 and tf32 are formats of matrix products only.
        dtype={"float8": "bfloat16", "tf32": "float32"}.get(recipe.dtype, recipe.dtype),
    )


def merged(operations: Iterable[Operation]) -> list[Operation]:
    """One operation per op class, phase and dtype, in order of first appearance; without those never called."""
    sums: dict[tuple[str, str, str], Operation] = {}
    for operation in operations:
        key = (operation.op, operation.phase, operation.dtype)
        sums[key] = _added(sums[key], operation) if key in sums else operation
    return [operation for operation in sums.values() if operation.count]


def _added(first: Operation, second: Operation) -> Operation:
    """The sum of the work of two operations of the same op class, phase and dtype."""
    return msgspec.structs.replace(
        first, count=first.count + second.count, flops=first.flops + second.flops, bytes=first.bytes + second.bytes
    )
