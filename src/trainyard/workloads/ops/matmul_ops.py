"""Matrix products and attention of a decoder's step, in FLOPs and bytes. No torch here.

Matrix products are exact. Causal attention counts the pairs a causal mask keeps, T (T + 1) / 2 a head: 2 C FLOPs a pair
for the scores and 2 V for the values forward; a fused kernel computes the scores again backward, so that five products
stand there (Dao 2023, arXiv:2307.08691, section 2), three of width C and two of width V.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job, Model
from trainyard.workloads.ops.matrices import Matrix
from trainyard.workloads.ops.sample_group import FLOAT32, SampleGroup

Counted = Iterable[tuple[int, Matrix]]
"""(how many layers have it, the matrix), ..."""


def model_flops(counted: Counted, tokens: int) -> int:
    """Of the forward pass of `tokens` tokens, each matrix once."""
    return sum(2 * tokens * layers * matrix.wide * matrix.high * matrix.uses for layers, matrix in counted)


def products(job: Job, ranks: SampleGroup, phase: str, counted: Counted, times: int) -> list[Operation]:
    """`times`: 1 forward; 2 backward, for the gradients of operand and matrix."""
    return [_product(job, ranks, phase, layers, matrix, times) for layers, matrix in counted]


def _product(job: Job, ranks: SampleGroup, phase: str, layers: int, matrix: Matrix, times: int) -> Operation:
    """Each rank reads its part of operand and matrix and writes its part of the result; all its experts are read."""
    dtype = multiplied(matrix, job.recipe.dtype)
    alike = 1 if matrix.split != "none" else ranks.tp
    wide = matrix.wide * (1 if matrix.split == "rows" else ranks.tp)
    high = matrix.high * (1 if matrix.split == "columns" else ranks.tp)
    held = matrix.wide * matrix.high * matrix.copies * alike * ranks.cp
    held = held // job.layout.ep if matrix.copies > 1 else held
    return Operation(
        op="matmul",
        phase=phase,
        count=times * layers * ranks.calls,
        flops=times * layers * 2 * ranks.tokens * matrix.wide * matrix.high * matrix.uses * alike,
        bytes=times * layers * words.DTYPES[dtype] * (ranks.tokens * matrix.uses * (wide + high) + ranks.micro * held),
        dtype=dtype,
    )


def multiplied(matrix: Matrix, dtype: str) -> str:
    """The format of a product in a recipe of `dtype`: float8 kernels take multiples of 16 (train/step/float8.py)."""
    if dtype == "float8" and (not matrix.linear or matrix.wide % 16 or matrix.high % 16):
        dtype = "bfloat16"
    return "float32" if matrix.float32 and dtype != "tf32" else dtype


def rounding(job: Job, ranks: SampleGroup, phase: str, counted: Counted) -> list[Operation]:
    """What a float8 product does to its operands first: finds their largest values, and writes them as float8. Forward
    operand and matrix; backward the same again and the gradient of the result."""
    made: list[Operation] = []
    for layers, m in counted:
        if multiplied(m, job.recipe.dtype) == "float8":
            elements = ranks.tokens * (m.wide + (m.high if phase == "backward" else 0)) + ranks.micro * m.wide * m.high
            elements *= layers
            count = (3 if phase == "backward" else 2) * layers * ranks.calls
            moved = (2 * words.DTYPES[ranks.dtype] + words.DTYPES["float8"]) * elements
            work = {"count": count, "flops": 3 * elements, "bytes": moved}
            made.append(Operation(op="elementwise", phase=phase, dtype=ranks.dtype, **work))
    return made


def pair_flops(job: Job, tokens: int, width: int) -> int:
    """Of one product of `width` channels a head over all query-key pairs that the mask keeps, in one layer."""
    length = job.recipe.seq_len
    return 2 * (tokens // length) * (length * (length + 1) // 2) * job.decoder.heads * width


def widths(model: Model) -> tuple[int, int]:
    """Channels a head of queries and keys, and of values."""
    return (model.head_dim + model.rope_dim, model.value_dim) if model.kv_rank else (model.head_dim, model.head_dim)


def attention(job: Job, ranks: SampleGroup, phase: str, layers: int) -> Operation:
    """Heads are divided over tp, queries over cp; keys and values of all positions are read by every rank of cp, unless
    that divides heads too (`ulysses`)."""
    model = job.decoder
    key, value = widths(model)
    backward = phase == "backward"
    kv_heads = model.heads if model.kv_rank else model.kv_heads
    readers = ranks.cp if job.layout.cp_method != "ulysses" else 1
    flops = pair_flops(job, ranks.tokens, 3 * key + 2 * value if backward else key + value)
    # q and the result; k and v; backward also their gradients, and the result once more.
    queries = model.heads * (2 * (key + value) if backward else key + value)
    shared = kv_heads * (key + value) * (2 if backward else 1) * readers
    element = words.DTYPES[ranks.dtype]
    sums = model.heads * FLOAT32  # the log-sum-exp of each row of scores, kept for the backward pass
    return Operation(
        op="attention",
        phase=phase,
        count=layers * ranks.calls,
        flops=layers * flops,
        bytes=layers * ranks.tokens * ((queries + shared) * element + sums),
        dtype="tf32" if job.recipe.dtype == "tf32" else ranks.dtype,
    )
