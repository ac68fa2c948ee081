"""The number of terms that an operation adds for an element of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainyard.numerics.kernels.unchecked_reason import is_attention, named_arguments
from trainyard.numerics.record.tensor_writers import tensors_among

_PRODUCTS: dict[str, str] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), "self"),
    **dict.fromkeys(("linear", "mkldnn_linear", "_mkl_linear"), "input"),
    **dict.fromkeys(("addmm", "addmv", "_addmm_activation"), "mat1 mat"),
    "baddbmm": "batch1",
}
"""Matrix product -> name of the argument whose last dimension is summed."""
_SCATTERS = frozenset(
    (
        *("embedding_dense_backward", "index_add", "index_put", "_index_put_impl", "_unsafe_index_put", "scatter_add"),
        *("scatter_reduce", "index_reduce", "scatter", "gather_backward", "put", "_embedding_bag_dense_backward"),
    )
)
"""Sums of the elements with the same index."""


def is_pointwise(func: Any) -> bool:
    """Whether an operation computes each element of its result from one element of each tensor."""
    name: str = func.overloadpacket.__name__
    if name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_")):
        return name.rstrip("_") not in ("_foreach_norm", "_foreach_powsum", "_foreach_max")
    return torch.Tag.pointwise in func.tags


def added_terms(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Tensor]) -> int:
    """The largest number of terms, at least 1; for operations that are not known, the largest dimension or quotient of
    sizes."""
    if is_pointwise(func):
        return 1
    plain: str = func.overloadpacket.__name__.rstrip("_")
    given = named_arguments(func, args, kwargs)
    tensors = list(tensors_among(args, kwargs))
    if plain in _PRODUCTS:
        factor = next(given[name] for name in _PRODUCTS[plain].split() if name in given)
        return max(1, factor.shape[-1])
    if "convolution" in plain and "weight" in given:
        return _convolution_terms(given, results)
    if plain in _SCATTERS:
        return max([1, *(tensor.numel() for tensor in tensors if not tensor.is_floating_point())])
    values = [tensor for tensor in tensors if tensor.is_floating_point()]
    sizes = [tensor.numel() for tensor in (*values, *results) if tensor.numel()]
    quotient = max(sizes) // min(sizes) if sizes else 1
    if torch.Tag.reduction in func.tags:
        return max(1, quotient)
    dimensions = [size for tensor in values for size in tensor.shape]
    if is_attention(func):
        return max(1, *dimensions)
    return max([1, quotient, *dimensions])


def _convolution_terms(given: Mapping[str, Any], results: Sequence[Tensor]) -> int:
    """Those of the result: channels times positions in the kernel; of the gradients of weight and bias: positions in
    the batch of images."""
    weight: Tensor = given["weight"]
    window = weight[0, 0].numel()
    of_gradient = given.get("grad_output")
    positions = 0 if of_gradient is None else of_gradient.numel() // max(1, of_gradient.shape[1])
    return max(1, window * max(weight.shape[:2]), positions)
