"""Operations that only move, choose or round values: their results are those in float64, rounded to nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.numerics.kernels.unchecked_reason import named_arguments

_EXACT = frozenset(
    (
        *("clone", "copy", "_to_copy", "cat", "stack", "index", "index_select", "gather", "embedding", "where", "take"),
        *("masked_fill", "masked_select", "masked_scatter", "constant_pad_nd", "slice_scatter", "select_scatter"),
        *("slice_backward", "select_backward", "diagonal_backward", "flip", "roll", "repeat", "tril", "triu", "fill"),
        *("zero", "abs", "neg", "relu", "threshold", "threshold_backward", "clamp", "clamp_min", "clamp_max"),
        *("maximum", "minimum", "max", "min", "amax", "amin", "fmax", "fmin", "sort", "topk", "median", "kthvalue"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "hardtanh"),
        *("hardtanh_backward", "index_copy", "scatter", "reflection_pad1d", "reflection_pad2d", "replication_pad2d"),
        *("_unsafe_view", "_reshape_copy", "lift_fresh_copy", "split_with_sizes_copy", "maximum_", "unfold_copy"),
        *("max_pool1d", "mkldnn_max_pool2d", "quantized_max_pool2d", "cummax", "cummin", "diag_embed"),
    )
)


def is_exact(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation rounds at most once, in the conversion to the dtype of its result."""
    name: str = func.overloadpacket.__name__
    plain = name.removeprefix("_foreach_").rstrip("_")
    given = named_arguments(func, args, kwargs)
    if plain in ("index_put", "_index_put_impl", "_unsafe_index_put"):
        return not given.get("accumulate", False)
    if plain == "scatter" and given.get("reduce") is not None:
        return False
    return plain in _EXACT
