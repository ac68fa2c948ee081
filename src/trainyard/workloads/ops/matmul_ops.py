"""Matrix products and attention of a decoder's step, in FLOPs and bytes. Needs no torch.

Matrix products are exact. Causal attention counts the unmasked pairs, T (T + 1) / 2 per head. Forward takes 2 C FLOPs
per pair for the scores and 2 V for the values. Backward has five products, since a fused kernel recomputes the scores
(Dao 2023, arXiv:2307.08691, section 2): three of width C and two of width V. A sample group is the ranks that process
the same samples (tp x cp x pp): `group.tokens` is its tokens per step, and `group.calls_per_layer` the calls of an
operation of one layer over its ranks and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.model import Model
from trainyard.workloads.ops.matrices import Matrix
from trainyard.workloads.ops.sample_group import FLOAT32, SampleGroup

_FLOAT8_MULTIPLE = 16
"""Float8 kernels need matrices whose dimensions are multiples of it (train/step/float8.py)."""
LayerMatrices = Iterable[tuple[int, Matrix]]
"""(number of layers with the matrix, the matrix), ..."""


def model_flops(layer_matrices: LayerMatrices, tokens: int) -> int:
    """FLOPs of the matrix products of the forward pass over `tokens` tokens, without repeated work."""
    return sum(
        2 * tokens * layer_count * matrix.width_in * matrix.width_out * matrix.experts_per_token
        for layer_count, matrix in layer_matrices
    )


def products(
    job: Job, group: SampleGroup, phase: str, layer_matrices: LayerMatrices, products_per_matrix: int
) -> list[Operation]:
    """Matrix products of a phase, one operation per matrix, summed over a step and the group. `products_per_matrix`: 1
    for forward and recompute; 2 for backward, for the gradients of operand and matrix."""
    return [
        _product(job, group, phase, layer_count, matrix, products_per_matrix) for layer_count, matrix in layer_matrices
    ]


def _product(
    job: Job, group: SampleGroup, phase: str, layer_count: int, matrix: Matrix, products_per_matrix: int
) -> Operation:
    """The products with one matrix in `layer_count` layers: each rank reads its part of operand and matrix, with all
    its experts, and writes its part of the result."""
    dtype = product_dtype(matrix, job.recipe.dtype)
    repeating_ranks = 1 if matrix.split != "none" else group.tp  # ranks of tp with the whole matrix
    # Widths of operand and result summed over the ranks of tp: those that tp does not divide are read or written by
    # each.
    width_in = matrix.width_in * (1 if matrix.split == "rows" else group.tp)
    width_out = matrix.width_out * (1 if matrix.split == "columns" else group.tp)
    weight_elements = matrix.width_in * matrix.width_out * matrix.expert_count * repeating_ranks * group.cp
    weight_elements = weight_elements // job.layout.ep if matrix.expert_count > 1 else weight_elements
    return Operation(
        op="matmul",
        phase=phase,
        count=products_per_matrix * layer_count * group.calls_per_layer,
        flops=products_per_matrix
        * layer_count
        * 2
        * group.tokens
        * matrix.width_in
        * matrix.width_out
        * matrix.experts_per_token
        * repeating_ranks,
        bytes=products_per_matrix
        * layer_count
        * words.DTYPES[dtype]
        * (group.tokens * matrix.experts_per_token * (width_in + width_out) + group.micro_batches * weight_elements),
        dtype=dtype,
    )


def product_dtype(matrix: Matrix, dtype: str) -> str:
    """The dtype in which `matrix` is multiplied in a recipe of `dtype`."""
    if dtype == "float8" and (
        not matrix.linear or matrix.width_in % _FLOAT8_MULTIPLE or matrix.width_out % _FLOAT8_MULTIPLE
    ):
        dtype = "bfloat16"
    return "float32" if matrix.float32 and dtype != "tf32" else dtype


def rounding(job: Job, group: SampleGroup, phase: str, layer_matrices: LayerMatrices) -> list[Operation]:
    """Quantization of float8 operands: computing their largest values and casting, one operation per float8 matrix,
    summed over a step and the group. Forward: operand and matrix; backward: both again, and the gradient of the
    result."""
    operations: list[Operation] = []
    for layer_count, matrix in layer_matrices:
        if product_dtype(matrix, job.recipe.dtype) == "float8":
            # Elements that are cast; each is read twice, for the largest value and for the cast, and written once.
            elements = (
                group.tokens * (matrix.width_in + (matrix.width_out if phase == "backward" else 0))
                + group.micro_batches * matrix.width_in * matrix.width_out
            )
            elements *= layer_count
            count = (3 if phase == "backward" else 2) * layer_count * group.calls_per_layer
            moved = (2 * words.DTYPES[group.dtype] + words.DTYPES["float8"]) * elements
            work = {"count": count, "flops": 3 * elements, "bytes": moved}
            operations.append(Operation(op="elementwise", phase=phase, dtype=group.dtype, **work))
    return operations


def pair_flops(job: Job, tokens: int, width: int) -> int:
    """FLOPs of one product of `width` channels per head over all unmasked query-key pairs of one layer and all heads.
    `tokens`: of all sequences."""
    seq_len = job.recipe.seq_len
    return 2 * (tokens // seq_len) * (seq_len * (seq_len + 1) // 2) * job.decoder.heads * width


def widths(model: Model) -> tuple[int, int]:
    """Channels per head: (queries and keys, values)."""
    return (
        (model.head_dim + model.qk_rope_head_dim, model.v_head_dim)
        if model.kv_lora_rank
        else (model.head_dim, model.head_dim)
    )


def attention(job: Job, group: SampleGroup, phase: str, layer_count: int) -> Operation:
    """Attention of `layer_count` layers, summed over a step and the group. tp splits heads, cp splits queries. Every cp
    rank reads the keys and values of all positions, unless cp splits heads too (`ulysses`)."""
    model = job.decoder
    key_width, value_width = widths(model)
    backward = phase == "backward"
    kv_heads = model.heads if model.kv_lora_rank else model.kv_heads
    kv_readers = group.cp if job.layout.cp_method != "ulysses" else 1
    flops = pair_flops(job, group.tokens, 3 * key_width + 2 * value_width if backward else key_width + value_width)
    # Elements moved per token: of q and the output; of k and v. Backward also their gradients.
    query_elements = model.heads * (2 * (key_width + value_width) if backward else key_width + value_width)
    kv_elements = kv_heads * (key_width + value_width) * (2 if backward else 1) * kv_readers
    element_bytes = words.DTYPES[group.dtype]
    lse_bytes = model.heads * FLOAT32  # the log-sum-exp of each row of scores, kept for the backward pass
    return Operation(
        op="attention",
        phase=phase,
        count=layer_count * group.calls_per_layer,
        flops=layer_count * flops,
        bytes=layer_count * group.tokens * ((query_elements + kv_elements) * element_bytes + lse_bytes),
        dtype="tf32" if job.recipe.dtype == "tf32" else group.dtype,
    )
