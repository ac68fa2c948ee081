"""Bytes and FLOPs of memory-bound ops, from the op's arguments.

Bytes: every input tensor is read once and every result written once. A look-up reads and writes each row as often as it
is indexed. A number passed as a tensor without dims moves nothing.
FLOPs: one per element of a pointwise result or of a reduction's input; zero for copies, fills and look-ups; four per
element for a norm and a softmax, eight for a norm's backward pass and three for a softmax's.

This module has the table of all formulas, and those of ops that move no data themselves. `memory_bound` states the
parameters of a formula.
"""

from __future__ import annotations

from trainyard.trace.flops import lookups, normalization, pointwise, reductions
from trainyard.trace.flops.memory_bound import Formula
from trainyard.trace.flops.operands import UNKNOWN_FORMAT, Cost, OpArguments

# Views and bookkeeping ops, which do not touch data.
_VIEW_OPS = (
    "view _unsafe_view _reshape_alias reshape view_as transpose t numpy_T permute as_strided expand expand_as select "
    "slice squeeze unsqueeze detach detach_ alias narrow unbind split split_with_sizes chunk flatten unflatten movedim "
    "swapaxes diagonal empty empty_strided empty_like new_empty resize_ resolve_conj resolve_neg result_type "
    "is_same_size set_ expand_copy lift_fresh broadcast_tensors"
)
# Ops that call other ops, which do the work.
_WRAPPER_OPS = (
    "einsum to _to_copy type_as clone contiguous zeros zeros_like new_zeros ones ones_like new_ones full full_like "
    "new_full scalar_tensor softmax log_softmax cross_entropy_loss nll_loss nll_loss_nd dropout batch_norm layer_norm "
    "group_norm rms_norm _batch_norm_impl_index embedding_bag max_pool2d adaptive_avg_pool2d slice_backward "
    "select_backward concat stack flatten_dense_tensors unflatten_dense_tensors item is_nonzero conv_transpose1d"
)


def _cost_unknown_bytes(args: OpArguments, in_place: bool) -> Cost:
    """Zero FLOPs; the bytes are those of another op, or unknown: files do not record the formats of tensor lists."""
    return Cost(flops=0, bytes=None, format=UNKNOWN_FORMAT)


def _cost_view(args: OpArguments, in_place: bool) -> Cost:
    return Cost(flops=0, bytes=0, format=UNKNOWN_FORMAT)


READS_RESULT = frozenset((*reductions.REDUCTIONS, "index", "cudnn_batch_norm", "miopen_batch_norm"))
"""Names of ops, without `aten::`, whose result determines their cost if the file does not record their values."""

FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(_VIEW_OPS.split(), _cost_view),
    **dict.fromkeys(_WRAPPER_OPS.split(), _cost_unknown_bytes),
    **pointwise.FORMULAS,
    **reductions.FORMULAS,
    **normalization.FORMULAS,
    **lookups.FORMULAS,
}
"""Name without `aten::` (and in-place underscore, unless the op has no other form) -> formula(args, in_place)."""

_FLOPS_PER_ELEMENT = {
    **pointwise.FLOPS_PER_ELEMENT,
    **reductions.FLOPS_PER_ELEMENT,
    **normalization.FLOPS_PER_ELEMENT,
}


def flops_per_element(name: str) -> int:
    """FLOPs of an ATen op (without `aten::`) per element of its result, or of a reduction's input; 0 for ops that move
    data, and for unknown ops."""
    return _FLOPS_PER_ELEMENT.get(name, 0)
