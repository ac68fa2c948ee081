"""Matrix products and attention of a decoder's step, in FLOPs and bytes. Needs no torch.

Matrix products are exact. Causal attention counts the unmasked pairs, T (T + 1) / 2 per head. Forward takes 2 C FLOPs
per pair for the scores and 2 V for the values. Backward has five products, since a fused kernel recomputes the scores
(Dao 2023, arXiv:2307.08691, section 2): three of width C and two of width V.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job, Model
from trainyard.workloads.ops.matrices import Matrix
from trainyard.workloads.ops.sample_group import FLOAT32, SampleGroup

LayerMatrices = Iterable[tuple[int, Matrix]]
"""(number of layers with the matrix, the matrix), ..."""


def model_flops(layer_matrices: LayerMatrices, tokens: int) -> int:
    """FLOPs of the forward pass over `tokens` tokens, without repeated work."""
    return sum(2 * tokens * layers * matrix.wide * matrix.high * matrix.uses for layers, matrix in layer_matrices)


def products(job: Job, ranks: SampleGroup, phase: str, layer_matrices: LayerMatrices, times: int) -> list[Operation]:
    """Matrix products of a phase. `times`: 1 forward; 2 backward, for the gradients of operand and matrix."""
    return [_product(job, ranks, phase, layers, matrix, times) for layers, matrix in layer_matrices]


def _product(job: Job, ranks: SampleGroup, phase: str, layers: int, matrix: Matrix, times: int) -> Operation:
    """One matrix product: each rank reads its part of operand and matrix, with all its experts, and writes its part of
    the result."""
    dtype = multiplied(matrix, job.recipe.dtype)
    replicas = 1 if matrix.split != "none" else ranks.tp
    width_in = matrix.wide * (1 if matrix.split == "rows" else ranks.tp)
    width_out = matrix.high * (1 if matrix.split == "columns" else ranks.tp)
    weights = matrix.wide * matrix.high * matrix.copies * replicas * ranks.cp
    weights = weights // job.layout.ep if matrix.copies > 1 else weights
    return Operation(
        op="matmul",
        phase=phase,
        count=times * layers * ranks.calls,
        flops=times * layers * 2 * ranks.tokens * matrix.wide * matrix.high * matrix.uses * replicas,
        bytes=times
        * layers
        * words.DTYPES[dtype]
        * (ranks.tokens * matrix.uses * (width_in + width_out) + ranks.micro * weights),
        dtype=dtype,
    )


def multiplied(matrix: Matrix, dtype: str) -> str:
    """The dtype of a product in a recipe of `dtype`. float8 kernels need multiples of 16 (train/step/float8.py)."""
    if dtype == "float8" and (not matrix.linear or matrix.wide % 16 or matrix.high % 16):
        dtype = "bfloat16"
    return "float32" if matrix.float32 and dtype != "tf32" else dtype


def rounding(job: Job, ranks: SampleGroup, phase: str, layer_matrices: LayerMatrices) -> list[Operation]:
    """Quantization of float8 operands: computing their largest values and casting. Forward: operand and matrix;
    backward: both again, and the gradient of the result."""
    operations: list[Operation] = []
    for layers, m in layer_matrices:
        if multiplied(m, job.recipe.dtype) == "float8":
            elements = ranks.tokens * (m.wide + (m.high if phase == "backward" else 0)) + ranks.micro * m.wide * m.high
            elements *= layers
            count = (3 if phase == "backward" else 2) * layers * ranks.calls
            moved = (2 * words.DTYPES[ranks.dtype] + words.DTYPES["float8"]) * elements
            work = {"count": count, "flops": 3 * elements, "bytes": moved}
            operations.append(Operation(op="elementwise", phase=phase, dtype=ranks.dtype, **work))
    return operations


def pair_flops(job: Job, tokens: int, width: int) -> int:
    """FLOPs of one product of `width` channels per head over all unmasked query-key pairs of one layer."""
    length = job.recipe.seq_len
    return 2 * (tokens // length) * (length * (length + 1) // 2) * job.decoder.heads * width


def widths(model: Model) -> tuple[int, int]:
    """Channels per head: (queries and keys, values)."""
    return (
        (model.head_dim + model.rope_dim, model.value_dim) if model.kv_lora_rank else (model.head_dim, model.head_dim)
    )


def attention(job: Job, ranks: SampleGroup, phase: str, layers: int) -> Operation:
    """Attention of `layers` layers. tp splits heads, cp splits queries. Every cp rank reads the keys and values of all
    positions, unless cp splits heads too (`ulysses`)."""
    model = job.decoder
    key_width, value_width = widths(model)
    backward = phase == "backward"
    kv_heads = model.heads if model.kv_lora_rank else model.kv_heads
    readers = ranks.cp if job.layout.cp_method != "ulysses" else 1
    flops = pair_flops(job, ranks.tokens, 3 * key_width + 2 * value_width if backward else key_width + value_width)
    # q and the output; k and v; backward also their gradients, and the output once more.
    query_elements = model.heads * (2 * (key_width + value_width) if backward else key_width + value_width)
    kv_elements = kv_heads * (key_width + value_width) * (2 if backward else 1) * readers
    element_bytes = words.DTYPES[ranks.dtype]
    lse_bytes = model.heads * FLOAT32  # the log-sum-exp of each row of scores, kept for the backward pass
    return Operation(
        op="attention",
        phase=phase,
        count=layers * ranks.calls,
        flops=layers * flops,
        bytes=layers * ranks.tokens * ((query_elements + kv_elements) * element_bytes + lse_bytes),
        dtype="tf32" if job.recipe.dtype == "tf32" else ranks.dtype,
    )
