"""The arithmetic of a model told layer by layer, added up by op class and phase. No torch here.

FLOPs: a multiplication and an addition are two. Matrix products, convolutions and attention are exact; backward they
are two products each (one where the input is data, which needs no gradient), and five where attention has two forward
(a fused kernel computes the scores again: Dao 2023, arXiv:2307.08691, section 2). A convolution counts the border it
fills with zeros, as torch does. The other classes count a few FLOPs an element.
Bytes: every operand read once and every result written once, as fused code would; weights once a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job, Recipe
from trainyard.train.rules.data_parallel_rules import shards
from trainyard.workloads.ops.update_ops import ELEMENTWISE

_F32 = words.DTYPES["float32"]
_KEPT = ("matmul", "attention", "conv")
"""Classes whose results are kept where a block computes all else again."""


@dataclass
class _Work:
    """Of one class and phase: calls a micro-batch; FLOPs, elements in the compute dtype and bytes of others a sample;
    elements of weights a micro-batch."""

    calls: int = 0
    flops: int = 0
    moved: int = 0
    float32: int = 0
    weights: int = 0


class Tally:
    """Told once what one sample does in a forward pass, on one of the ranks of `tp`; sizes are a whole sample's.

    `parameters`: of the whole model. `here`: those that a rank of tp has.
    """

    def __init__(self, recipe: Recipe, tp: int = 1) -> None:
        self.recipe = recipe
        self.tp = tp
        self.parameters = 0
        self.here = 0
        self.tensors = 0
        self._work: dict[tuple[str, str], _Work] = {}
        self._blocks = 0
        self._again = False

    @contextmanager
    def block(self) -> Iterator[None]:
        """Inside are the layers of the next block: what recomputation goes by."""
        self._again = self.recipe.remat != "none" and self._blocks % self.recipe.remat_every == 0
        self._blocks += 1
        yield
        self._again = False

    def weights(self, *tensors: int) -> None:
        """Parameters, by the elements of each."""
        self.parameters += sum(tensors)
        self.here += sum(tensors)
        self.tensors += len(tensors)

    def linear(
        self,
        rows: int,
        wide: int,
        high: int,
        bias: bool = False,
        of_data: bool = False,
        last: bool = False,
        split: Literal["", "in", "out"] = "",
    ) -> None:
        """`of_data`: the input needs no gradient. `last`: the result is needed by nothing backward in its block, so
        recomputing stops before. `split`: over tp, by what goes in or by what comes out."""
        whole = (wide + bias) * high
        wide //= self.tp if split == "in" else 1
        high //= self.tp if split == "out" else 1
        self._product("matmul", rows * wide, rows * high, wide * high, rows, bias * high, of_data, last)
        self.parameters += whole - (wide + bias) * high  # what the other ranks of tp have

    def conv(
        self,
        side_in: int,
        side_out: int,
        channels_in: int,
        channels_out: int,
        kernel: int,
        bias: bool = False,
        of_data: bool = False,
        last: bool = False,
    ) -> None:
        """Of a square map with `side_in` rows and columns to one with `side_out`."""
        weights, pixels = channels_in * channels_out * kernel**2, side_out**2
        read, written = side_in**2 * channels_in, pixels * channels_out
        self._product("conv", read, written, weights, pixels, bias * channels_out, of_data, last)

    def _product(
        self, op: str, read: int, written: int, weights: int, rows: int, bias: int, of_data: bool, last: bool
    ) -> None:
        flops, moved = 2 * rows * weights, read + written
        self.weights(weights, *([bias] if bias else []))
        self._forward(op, _Work(1, flops, moved, 0, weights + bias), again=not last)
        times = 1 if of_data else 2
        self._add(op, "backward", _Work(times, times * flops, times * moved, 0, times * weights))
        if bias:
            self._add("reduction", "backward", _Work(1, written, written, 0, bias))

    def attention(self, queries: int, keys: int, heads: int, head_dim: int) -> None:
        """Every query sees every key, on each rank of tp with heads of its own."""
        heads //= self.tp
        product, width = 2 * queries * keys * heads * head_dim, heads * head_dim
        sums = _F32 * queries * heads  # the log-sum-exp of each row of scores, kept for the backward pass
        self._forward("attention", _Work(1, 2 * product, 2 * (queries + keys) * width, sums))
        self._add("attention", "backward", _Work(1, 5 * product, 4 * (queries + keys) * width, sums))

    def norm(self, elements: int, channels: int = 0, tensors: int = 2) -> None:
        """`tensors` of `channels` weights; none where there are no channels."""
        if channels:
            self.weights(*[channels] * tensors)
        self._forward("norm", _Work(1, 4 * elements, 2 * elements, 0, tensors * channels))
        self._add("norm", "backward", _Work(1, 8 * elements, 3 * elements, 0, tensors * channels))

    def pointwise(
        self, elements: int, flops: int, moved: int, back_flops: int, back_moved: int, last: bool = False
    ) -> None:
        """FLOPs and elements moved for each of `elements`, forward and backward."""
        self._forward("elementwise", _Work(1, flops * elements, moved * elements), again=not last)
        self._add("elementwise", "backward", _Work(1, back_flops * elements, back_moved * elements))

    def add(self, elements: int, last: bool = False) -> None:
        """A sum of two, and of the gradients of what is used twice."""
        self.pointwise(elements, 1, 3, 1, 3, last)

    def gated_add(self, elements: int, last: bool = False) -> None:
        """x + gate * y."""
        self.pointwise(elements, 2, 3, 3, 5, last)

    def silu(self, elements: int) -> None:
        self.pointwise(elements, 5, 2, 8, 3)

    def gelu(self, elements: int) -> None:
        self.pointwise(elements, 8, 2, 12, 3)

    def relu(self, elements: int) -> None:
        self.pointwise(elements, 1, 2, 1, 3)

    def reduce(self, read: int, written: int, flops: int) -> None:
        """Pooling: `flops` in all; backward spreads what was gathered."""
        self._forward("reduction", _Work(1, flops, read + written))
        self._add("reduction", "backward", _Work(1, read, read + written))

    def loss(self, elements: int, op: str = "softmax") -> None:
        """In float32, with the casts of the outputs and of their gradient."""
        for phase, flops in (("forward", 4), ("backward", 3)):
            self._add(op, phase, _Work(1, flops * elements, elements, _F32 * elements))

    def _forward(self, op: str, work: _Work, again: bool = True) -> None:
        self._add(op, "forward", work)
        if self._again and again and not (self.recipe.remat == "op" and op in _KEPT):
            self._add(op, "recompute", work)

    def _add(self, op: str, phase: str, work: _Work) -> None:
        into = self._work.setdefault((op, phase), _Work())
        for field in vars(work):
            setattr(into, field, getattr(into, field) + getattr(work, field))

    def model_flops(self, job: Job) -> int:
        """FLOPs a step needs over all ranks, for MFU: three times the products of the forward pass, whatever is
        recomputed. Of a model told whole."""
        return 3 * job.batch * sum(self._work[op, "forward"].flops for op in _KEPT if (op, "forward") in self._work)

    def operations(self, job: Job) -> list[Operation]:
        """One step of one rank, the update with it: one a class and phase."""
        element = words.DTYPES[job.recipe.dtype]
        samples, micro = job.batch // job.layout.batch_ranks, job.accumulate
        told = [
            Operation(
                op=op,
                phase=phase,
                count=micro * work.calls,
                flops=samples * work.flops,
                bytes=samples * (element * work.moved + work.float32) + micro * element * work.weights,
                dtype=job.recipe.dtype,
            )
            for (op, phase), work in self._work.items()
        ]
        return _merged([*told, *self._of_weights(job, element), *self._update(job)])

    def _of_weights(self, job: Job, element: int) -> list[Operation]:
        """Casts of weights and of their gradients, where they are not computed with as they are; summing up
        micro-batches."""
        micro, dtype = job.accumulate, job.recipe.dtype
        casts = micro if dtype != "float32" else 0

        def each(phase: str, times: int, flops: int, moved: int) -> Operation:
            flops, moved = times * flops * self.here, times * moved * self.here
            count = times * self.tensors
            return Operation(op="elementwise", phase=phase, count=count, flops=flops, bytes=moved, dtype=dtype)

        cast = [each(phase, casts, 0, _F32 + element) for phase in ("forward", "backward")]
        return [*cast, each("backward", micro - 1, 1, 3 * _F32)]

    def _update(self, job: Job) -> list[Operation]:
        """The gradient norm, clipping by it, and the optimizer. Of an optimizer whose arithmetic is not known, none."""
        mine = -(-self.here // job.layout.dp_shard)
        here = mine if shards(job.layout) else self.here
        told = [
            Operation(op="reduction", phase="other", count=1, flops=2 * here, bytes=_F32 * here),
            Operation(op="elementwise", phase="other", count=1, flops=here, bytes=2 * _F32 * here),
        ]
        if job.recipe.optimizer in ELEMENTWISE:
            flops, moved = ELEMENTWISE[job.recipe.optimizer]
            size = moved * _F32 * mine
            told.append(Operation(op="optimizer", phase="optimizer", count=1, flops=flops * mine, bytes=size))
        return told


def _merged(operations: list[Operation]) -> list[Operation]:
    """Those of one class and phase as one, of the first one's dtype; what is called never, left out."""
    merged: dict[tuple[str, str], Operation] = {}
    for one in operations:
        if not one.count:
            continue
        if (first := merged.get((one.op, one.phase))) is not None:
            one = Operation(
                op=one.op,
                phase=one.phase,
                count=first.count + one.count,
                flops=first.flops + one.flops,
                bytes=first.bytes + one.bytes,
                dtype=first.dtype,
            )
        merged[one.op, one.phase] = one
    return list(merged.values())
