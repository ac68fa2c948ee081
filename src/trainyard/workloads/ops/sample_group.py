"""The ranks that train on the same samples (tp, cp, pp), taken together: what they do, and what several of them repeat.

Their work differs (the first stage of a pipeline looks up embeddings, the last has the head), so what one rank is
expected to do is the mean over them: the whole of it, repetitions included, divided by their number.
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
    """`tokens` and `micro`-batches are of one step. `between`: how many ranks of tp do all of what lies between the
    split matrices; one, where each has its part. `dtype`: of activations."""

    ranks: int
    tp: int
    cp: int
    between: int
    tokens: int
    micro: int
    dtype: str

    @property
    def calls(self) -> int:
        """How often in a step something happens that each layer does once, on all ranks that do it."""
        return self.micro * self.tp * self.cp

    def pointwise(
        self, op: str, phase: str, calls: int, width: int, flops: int, moved: int, times: int = 1
    ) -> Operation:
        """`calls` a micro-batch and rank, each over `width` elements a token, with `flops` and `moved` elements for
        each element; done by `times` ranks alike."""
        elements = calls * self.tokens * width * times
        return Operation(
            op=op,
            phase=phase,
            count=calls * self.calls if width else 0,
            flops=flops * elements,
            bytes=moved * elements * words.DTYPES[self.dtype],
            dtype=self.dtype,
        )

    def mean(self, operation: Operation) -> Operation:
        """Of one rank. Calls are rounded up: a call that only one rank makes is not none."""
        return msgspec.structs.replace(
            operation,
            count=-(-operation.count // self.ranks),
            flops=operation.flops // self.ranks,
            bytes=operation.bytes // self.ranks,
        )


def group(job: Job) -> SampleGroup:
    layout, recipe = job.layout, job.recipe
    return SampleGroup(
        ranks=layout.tp * layout.cp * layout.pp,
        tp=layout.tp,
        cp=layout.cp,
        between=1 if layout.sequence_parallel else layout.tp,
        tokens=job.accumulate * recipe.microbatch * recipe.seq_len,
        micro=job.accumulate,
        # These are formats of products alone.
        dtype={"float8": "bfloat16", "tf32": "float32"}.get(recipe.dtype, recipe.dtype),
    )


def joined(parts: Iterable[Operation]) -> list[Operation]:
    """One operation for each op class, phase and format, in the order of their first; none without a call."""
    sums: dict[tuple[str, str, str], Operation] = {}
    for part in parts:
        key = (part.op, part.phase, part.dtype)
        sums[key] = _added(sums[key], part) if key in sums else part
    return [operation for operation in sums.values() if operation.count]


def _added(one: Operation, other: Operation) -> Operation:
    return msgspec.structs.replace(
        one, count=one.count + other.count, flops=one.flops + other.flops, bytes=one.bytes + other.bytes
    )
