"""The arithmetic of a model, described layer by layer and summed by op class and phase. Needs no torch.

FLOPs: a multiply-add counts as two. Matrix products, convolutions and attention are exact. Backward, a product has two
products (one if the input is data, which needs no gradient), and attention five for its two in the forward pass, since
a fused kernel recomputes the scores (Dao 2023, arXiv:2307.08691, section 2). A convolution includes its zero padding,
as in torch. The other classes count a few FLOPs per element. Bytes: every operand read once and every result written
once, as in fused code; weights once per micro-batch. An op class is a category of operations, such as `matmul` or
`norm`; a phase is forward, recompute, backward, optimizer or other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.recipe import Recipe
from trainyard.train.rules.data_parallel_rules import shards
from trainyard.workloads.ops.update_ops import elementwise_update

_FLOAT32_BYTES = words.DTYPES["float32"]
_SAVED = ("matmul", "attention", "conv")
"""Op classes whose results selective checkpointing saves; a block recomputes all others."""


@dataclass
class _Work:
    """Work of one op class and phase."""

    calls: int = 0
    """Kernel calls per micro-batch."""
    flops: int = 0
    """FLOPs per sample."""
    moved: int = 0
    """Elements read and written per sample, in the compute dtype."""
    float32: int = 0
    """Bytes read and written per sample in float32, whatever the compute dtype."""
    weights: int = 0
    """Elements of weights read per micro-batch, in the compute dtype."""


class Tally:
    """Records the forward pass of one sample on one of `tp` ranks, layer by layer. Sizes given are of the whole sample.

    `last` of an operation: the backward pass of its block does not need the result, so recomputation stops before it.
    `parameters`: of the whole model. `local_parameters`: of one tp rank.
    """

    def __init__(self, recipe: Recipe, tp: int = 1) -> None:
        """Starts an empty tally. `tensors`: weight tensors recorded so far; `parameters`, `local_parameters`: see the
        class."""
        self.recipe = recipe
        self.tp = tp
        self.parameters = 0
        self.local_parameters = 0
        self.tensors = 0
        self._work: dict[tuple[str, str], _Work] = {}
        """Work by (op class, phase)."""
        self._blocks = 0
        """Blocks begun so far."""
        self._block_recomputes = False
        """Whether the current block is recomputed in the backward pass; False outside blocks."""

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
        """Adds weight tensors, given their element counts on this rank."""
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
        """A linear layer over `rows` rows. `input_is_data`: the input needs no gradient. `split`: over tp, by input or
        by output features. `last`: as in the class."""
        whole_parameters = (width_in + bias) * width_out
        width_in //= self.tp if split == "in" else 1
        width_out //= self.tp if split == "out" else 1
        self._product(
            "matmul",
            read=rows * width_in,
            written=rows * width_out,
            weights=width_in * width_out,
            rows=rows,
            bias=bias * width_out,
            input_is_data=input_is_data,
            last=last,
        )
        self.parameters += whole_parameters - (width_in + bias) * width_out  # the other tp ranks' parts

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
        """A convolution of a square map with `side_in` rows and columns to one with `side_out`. `kernel`: rows of the
        filter. `input_is_data`, `last`: as in `linear`."""
        weights, pixels = channels_in * channels_out * kernel**2, side_out**2
        self._product(
            "conv",
            read=side_in**2 * channels_in,
            written=pixels * channels_out,
            weights=weights,
            rows=pixels,
            bias=bias * channels_out,
            input_is_data=input_is_data,
            last=last,
        )

    def _product(
        self, op: str, *, read: int, written: int, weights: int, rows: int, bias: int, input_is_data: bool, last: bool
    ) -> None:
        """Adds a product of `weights` weight elements with each of `rows` rows of input, per sample. `read`, `written`:
        elements of its input and output; `bias`: elements of its bias; `input_is_data`, `last`: as in `linear`. `op`:
        its class."""
        flops, moved = 2 * rows * weights, read + written  # a multiplication and an addition per row and weight
        self.weights(weights, *([bias] if bias else []))
        self._forward(op, _Work(calls=1, flops=flops, moved=moved, weights=weights + bias), recomputed=not last)
        products = 1 if input_is_data else 2  # the gradient of the weights, and that of the input
        self._add(
            op,
            "backward",
            _Work(calls=products, flops=products * flops, moved=products * moved, weights=products * weights),
        )
        if bias:
            self._add("reduction", "backward", _Work(calls=1, flops=written, moved=written, weights=bias))

    def attention(self, queries: int, keys: int, heads: int, head_dim: int) -> None:
        """Attention of every query to every key; tp splits the heads. `queries`, `keys`: positions of a sample."""
        heads //= self.tp
        width = heads * head_dim
        product_flops = 2 * queries * keys * width  # of q k^T; that of the scores and v has as many
        operands = 2 * (queries + keys) * width  # elements of q, k, v and the output
        # The log-sum-exp of each row of scores, kept for the backward pass.
        lse_bytes = _FLOAT32_BYTES * queries * heads
        self._forward("attention", _Work(calls=1, flops=2 * product_flops, moved=operands, float32=lse_bytes))
        self._add(
            "attention",
            "backward",
            _Work(calls=1, flops=5 * product_flops, moved=2 * operands, float32=lse_bytes),  # also their gradients
        )

    def norm(self, elements: int, channels: int = 0, tensors: int = 2) -> None:
        """A norm with `tensors` weight tensors of `channels` each; without weights if `channels` is 0. `elements`:
        normalized, of a sample."""
        if channels:
            self.weights(*[channels] * tensors)
        weights = tensors * channels
        self._forward("norm", _Work(calls=1, flops=4 * elements, moved=2 * elements, weights=weights))
        self._add("norm", "backward", _Work(calls=1, flops=8 * elements, moved=3 * elements, weights=weights))

    def pointwise(
        self, elements: int, flops: int, moved: int, back_flops: int, back_moved: int, last: bool = False
    ) -> None:
        """An elementwise operation. FLOPs and elements moved are per element, forward and backward. `elements`: of a
        sample."""
        self._forward(
            "elementwise", _Work(calls=1, flops=flops * elements, moved=moved * elements), recomputed=not last
        )
        self._add("elementwise", "backward", _Work(calls=1, flops=back_flops * elements, moved=back_moved * elements))

    def add(self, elements: int, last: bool = False) -> None:
        """A sum of two tensors; backward, the sum of the gradients of a tensor used twice."""
        self.pointwise(elements, flops=1, moved=3, back_flops=1, back_moved=3, last=last)

    def gated_add(self, elements: int, last: bool = False) -> None:
        """x + gate * y."""
        self.pointwise(elements, flops=2, moved=3, back_flops=3, back_moved=5, last=last)

    def silu(self, elements: int) -> None:
        """x sigmoid(x) of each element."""
        self.pointwise(elements, flops=5, moved=2, back_flops=8, back_moved=3)

    def gelu(self, elements: int) -> None:
        self.pointwise(elements, flops=8, moved=2, back_flops=12, back_moved=3)

    def relu(self, elements: int) -> None:
        self.pointwise(elements, flops=1, moved=2, back_flops=1, back_moved=3)

    def reduce(self, read: int, written: int, flops: int) -> None:
        """Pooling of `read` elements to `written`, with `flops` in total; backward scatters the gradient."""
        self._forward("reduction", _Work(calls=1, flops=flops, moved=read + written))
        self._add("reduction", "backward", _Work(calls=1, flops=read, moved=read + written))

    def loss(self, elements: int, op: str = "softmax") -> None:
        """A loss over `elements` outputs in float32, with the casts of the outputs and of their gradient. `op`: its
        class."""
        for phase, flops in (("forward", 4), ("backward", 3)):
            self._add(
                op, phase, _Work(calls=1, flops=flops * elements, moved=elements, float32=_FLOAT32_BYTES * elements)
            )

    def _forward(self, op: str, work: _Work, recomputed: bool = True) -> None:
        """Adds forward work, and the same as recomputation if the block is checkpointed and the recipe does not save
        its result. `recomputed`: whether the backward pass of its block needs the result."""
        self._add(op, "forward", work)
        if (
            self._block_recomputes
            and recomputed
            and not (self.recipe.activation_checkpoint == "selective" and op in _SAVED)
        ):
            self._add(op, "recompute", work)

    def _add(self, op: str, phase: str, work: _Work) -> None:
        """Adds `work` to the total of the op class and phase."""
        total = self._work.setdefault((op, phase), _Work())
        for field in vars(work):
            setattr(total, field, getattr(total, field) + getattr(work, field))

    def model_flops(self, job: Job) -> int:
        """Model FLOPs of a step over all ranks, for MFU: three times the products of the forward pass, without
        recomputation. Only for a tally with tp = 1."""
        return 3 * job.batch * sum(self._work[op, "forward"].flops for op in _SAVED if (op, "forward") in self._work)

    def operations(self, job: Job) -> list[Operation]:
        """Operations of one step on one rank, including the update: one per op class and phase."""
        element_bytes = words.DTYPES[job.recipe.dtype]
        micro_batches = job.accumulate
        samples = micro_batches * job.recipe.micro_batch_size  # of this rank
        operations = [
            Operation(
                op=op,
                phase=phase,
                count=micro_batches * work.calls,
                flops=samples * work.flops,
                bytes=samples * (element_bytes * work.moved + work.float32)
                + micro_batches * element_bytes * work.weights,
                dtype=job.recipe.dtype,
            )
            for (op, phase), work in self._work.items()
        ]
        return _merged([*operations, *self._weight_operations(job, element_bytes), *self._update(job)])

    def _weight_operations(self, job: Job, element_bytes: int) -> list[Operation]:
        """Casts of weights and gradients to and from the compute dtype, and gradient accumulation. `element_bytes`: of
        the compute dtype."""
        micro_batches, dtype = job.accumulate, job.recipe.dtype
        cast_passes = micro_batches if dtype != "float32" else 0

        def over_all_weights(phase: str, passes: int, flops: int, moved: int) -> Operation:
            """`passes` passes over this rank's weights. `flops`, `moved`: FLOPs and bytes per weight and pass."""
            return Operation(
                op="elementwise",
                phase=phase,
                count=passes * self.tensors,
                flops=passes * flops * self.local_parameters,
                bytes=passes * moved * self.local_parameters,
                dtype=dtype,
            )

        casts = [
            over_all_weights(phase, cast_passes, flops=0, moved=_FLOAT32_BYTES + element_bytes)
            for phase in ("forward", "backward")
        ]
        return [*casts, over_all_weights("backward", micro_batches - 1, flops=1, moved=3 * _FLOAT32_BYTES)]

    def _update(self, job: Job) -> list[Operation]:
        """Gradient norm, clipping and optimizer; without the optimizer if its arithmetic is unknown."""
        shard = -(-self.local_parameters // job.layout.dp_shard)  # parameters that this rank updates
        local = shard if shards(job.layout) else self.local_parameters  # parameters whose gradients it has
        operations = [
            Operation(op="reduction", phase="other", count=1, flops=2 * local, bytes=_FLOAT32_BYTES * local),
            Operation(op="elementwise", phase="other", count=1, flops=local, bytes=2 * _FLOAT32_BYTES * local),
        ]
        if update := elementwise_update(job.recipe):
            flops, values = update  # per weight
            moved = values * _FLOAT32_BYTES * shard
            operations.append(Operation(op="optimizer", phase="optimizer", count=1, flops=flops * shard, bytes=moved))
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
