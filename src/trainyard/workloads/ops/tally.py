"""The arithmetic of a model, described layer by layer and summed by op class and phase. Needs no torch.

FLOPs: a multiply-add counts as two. Matrix products, convolutions and attention are exact. Backward, a product has two
products (one if the input is data, which needs no gradient), and attention five for its two in the forward pass, since
a fused kernel recomputes the scores (Dao 2023, arXiv:2307.08691, section 2). A convolution includes its zero padding,
as in torch. The other classes count a few FLOPs per element.
Bytes: every operand read once and every result written once, as in fused code; weights once per micro-batch.
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
_SAVED = ("matmul", "attention", "conv")
"""Op classes whose results selective checkpointing saves; a block recomputes all others."""


@dataclass
class _Work:
    """Work of one op class and phase. Per micro-batch: `calls`, and elements of `weights`. Per sample: `flops`,
    elements `moved` in the compute dtype, and bytes moved in `float32`."""

    calls: int = 0
    flops: int = 0
    moved: int = 0
    float32: int = 0
    weights: int = 0


class Tally:
    """Records the forward pass of one sample on one of `tp` ranks, layer by layer. Sizes given are of the whole sample.

    `parameters`: of the whole model. `local_parameters`: of one tp rank.
    """

    def __init__(self, recipe: Recipe, tp: int = 1) -> None:
        """Starts an empty tally. `tensors`: weight tensors recorded so far."""
        self.recipe = recipe
        self.tp = tp
        self.parameters = 0
        self.local_parameters = 0
        self.tensors = 0
        self._work: dict[tuple[str, str], _Work] = {}
        self._blocks = 0
        self._block_recomputes = False

    @contextmanager
    def block(self) -> Iterator[None]:
        """Groups the layers of the next block, the unit of activation checkpointing."""
        self._block_recomputes = (
            self.recipe.activation_checkpoint != "none" and self._blocks % self.recipe.activation_checkpoint_every == 0
        )
        self._blocks += 1
        yield
        self._block_recomputes = False

    def weights(self, *tensors: int) -> None:
        """Adds parameters; `tensors` are their element counts."""
        self.parameters += sum(tensors)
        self.local_parameters += sum(tensors)
        self.tensors += len(tensors)

    def linear(
        self,
        rows: int,
        width_in: int,
        width_out: int,
        bias: bool = False,
        input_is_data: bool = False,
        last: bool = False,
        split: Literal["", "in", "out"] = "",
    ) -> None:
        """A linear layer. `input_is_data`: the input needs no gradient. `last`: the backward pass of the block does not
        need the result, so recomputation stops before. `split`: over tp, by input or by output features."""
        whole = (width_in + bias) * width_out
        width_in //= self.tp if split == "in" else 1
        width_out //= self.tp if split == "out" else 1
        self._product(
            "matmul",
            rows * width_in,
            rows * width_out,
            width_in * width_out,
            rows,
            bias * width_out,
            input_is_data,
            last,
        )
        self.parameters += whole - (width_in + bias) * width_out  # the other tp ranks' parts

    def conv(
        self,
        side_in: int,
        side_out: int,
        channels_in: int,
        channels_out: int,
        kernel: int,
        bias: bool = False,
        input_is_data: bool = False,
        last: bool = False,
    ) -> None:
        """A convolution of a square map with `side_in` rows and columns to one with `side_out`."""
        weights, pixels = channels_in * channels_out * kernel**2, side_out**2
        read, written = side_in**2 * channels_in, pixels * channels_out
        self._product("conv", read, written, weights, pixels, bias * channels_out, input_is_data, last)

    def _product(
        self, op: str, read: int, written: int, weights: int, rows: int, bias: int, input_is_data: bool, last: bool
    ) -> None:
        """Adds a product of `weights` and `rows` rows of input, per sample: `read` and `written` are elements of its
        input and output, `bias` the elements of its bias."""
        flops, moved = 2 * rows * weights, read + written
        self.weights(weights, *([bias] if bias else []))
        self._forward(op, _Work(1, flops, moved, 0, weights + bias), recomputed=not last)
        times = 1 if input_is_data else 2
        self._add(op, "backward", _Work(times, times * flops, times * moved, 0, times * weights))
        if bias:
            self._add("reduction", "backward", _Work(1, written, written, 0, bias))

    def attention(self, queries: int, keys: int, heads: int, head_dim: int) -> None:
        """Attention of every query to every key; tp splits the heads."""
        heads //= self.tp
        product, width = 2 * queries * keys * heads * head_dim, heads * head_dim
        sums = _F32 * queries * heads  # the log-sum-exp of each row of scores, kept for the backward pass
        self._forward("attention", _Work(1, 2 * product, 2 * (queries + keys) * width, sums))
        self._add("attention", "backward", _Work(1, 5 * product, 4 * (queries + keys) * width, sums))

    def norm(self, elements: int, channels: int = 0, tensors: int = 2) -> None:
        """A norm with `tensors` weight tensors of `channels` each; without weights if `channels` is 0."""
        if channels:
            self.weights(*[channels] * tensors)
        self._forward("norm", _Work(1, 4 * elements, 2 * elements, 0, tensors * channels))
        self._add("norm", "backward", _Work(1, 8 * elements, 3 * elements, 0, tensors * channels))

    def pointwise(
        self, elements: int, flops: int, moved: int, back_flops: int, back_moved: int, last: bool = False
    ) -> None:
        """An elementwise operation. FLOPs and elements moved are per element, forward and backward."""
        self._forward("elementwise", _Work(1, flops * elements, moved * elements), recomputed=not last)
        self._add("elementwise", "backward", _Work(1, back_flops * elements, back_moved * elements))

    def add(self, elements: int, last: bool = False) -> None:
        """A sum of two tensors; backward, the sum of the gradients of a tensor used twice."""
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
        """Pooling with `flops` in total; backward scatters the gradient."""
        self._forward("reduction", _Work(1, flops, read + written))
        self._add("reduction", "backward", _Work(1, read, read + written))

    def loss(self, elements: int, op: str = "softmax") -> None:
        """A loss in float32, with the casts of the outputs and of their gradient."""
        for phase, flops in (("forward", 4), ("backward", 3)):
            self._add(op, phase, _Work(1, flops * elements, elements, _F32 * elements))

    def _forward(self, op: str, work: _Work, recomputed: bool = True) -> None:
        """Adds forward work, and the same as recomputation if the block is checkpointed and the recipe does not save
        its result."""
        self._add(op, "forward", work)
        if (
            self._block_recomputes
            and recomputed
            and not (self.recipe.activation_checkpoint == "selective" and op in _SAVED)
        ):
            self._add(op, "recompute", work)

    def _add(self, op: str, phase: str, work: _Work) -> None:
        total = self._work.setdefault((op, phase), _Work())
        for field in vars(work):
            setattr(total, field, getattr(total, field) + getattr(work, field))

    def model_flops(self, job: Job) -> int:
        """Model FLOPs of a step over all ranks, for MFU: three times the products of the forward pass, without
        recomputation. Only for a tally with tp = 1."""
        return 3 * job.batch * sum(self._work[op, "forward"].flops for op in _SAVED if (op, "forward") in self._work)

    def operations(self, job: Job) -> list[Operation]:
        """Operations of one step on one rank, including the update: one per op class and phase."""
        element = words.DTYPES[job.recipe.dtype]
        samples, micro = job.batch // job.layout.batch_ranks, job.accumulate
        operations = [
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
        return _merged([*operations, *self._weight_operations(job, element), *self._update(job)])

    def _weight_operations(self, job: Job, element: int) -> list[Operation]:
        """Casts of weights and gradients to and from the compute dtype, and gradient accumulation."""
        micro, dtype = job.accumulate, job.recipe.dtype
        casts = micro if dtype != "float32" else 0

        def each(phase: str, times: int, flops: int, moved: int) -> Operation:
            flops, moved = times * flops * self.local_parameters, times * moved * self.local_parameters
            count = times * self.tensors
            return Operation(op="elementwise", phase=phase, count=count, flops=flops, bytes=moved, dtype=dtype)

        cast = [each(phase, casts, 0, _F32 + element) for phase in ("forward", "backward")]
        return [*cast, each("backward", micro - 1, 1, 3 * _F32)]

    def _update(self, job: Job) -> list[Operation]:
        """Gradient norm, clipping and optimizer; without the optimizer if its arithmetic is unknown."""
        shard = -(-self.local_parameters // job.layout.dp_shard)
        local = shard if shards(job.layout) else self.local_parameters
        operations = [
            Operation(op="reduction", phase="other", count=1, flops=2 * local, bytes=_F32 * local),
            Operation(op="elementwise", phase="other", count=1, flops=local, bytes=2 * _F32 * local),
        ]
        if job.recipe.optimizer in ELEMENTWISE:
            flops, moved = ELEMENTWISE[job.recipe.optimizer]
            size = moved * _F32 * shard
            operations.append(Operation(op="optimizer", phase="optimizer", count=1, flops=flops * shard, bytes=size))
        return operations


def _merged(operations: list[Operation]) -> list[Operation]:
    """One operation per op class and phase, with the dtype of the first; without those that are never called."""
    merged: dict[tuple[str, str], Operation] = {}
    for operation in operations:
        if not operation.count:
            continue
        if (first := merged.get((operation.op, operation.phase))) is not None:
            operation = Operation(
                op=operation.op,
                phase=operation.phase,
                count=first.count + operation.count,
                flops=first.flops + operation.flops,
                bytes=first.bytes + operation.bytes,
                dtype=first.dtype,
            )
        merged[operation.op, operation.phase] = operation
    return list(merged.values())
