"""The unit round-off in which an operation computes, which is not that of its result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from trainyard.numerics.compare.comparison_rule import UNIT_ROUNDOFF
from trainyard.numerics.kernels.unchecked_reason import is_attention

_TF32, _BFLOAT16 = 2.0**-11, 2.0**-8
_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "linear", "_addmm_activation", "mv", "addmv"))

_ADDS_IN_PLACE = frozenset(
    (
        *("index_put", "_index_put_impl", "_unsafe_index_put", "embedding_dense_backward", "index_add", "scatter_add"),
        "scatter_reduce",
    )
)
"""Sums of elements with the same index, each of which is rounded to the format of the result."""
_ACCUMULATES_IN_HALF = frozenset(
    ("native_layer_norm_backward", "nll_loss_forward", "convolution", "convolution_backward")
)
"""Operations whose CPU kernel adds in the format of its inputs: gradients of weight and bias, losses, images."""
_ROUNDS_TO_HALF = frozenset(
    (
        *("_softmax", "_log_softmax", "logsumexp", "rsqrt", "pow", "sigmoid_backward", "xlogy", "mse_loss"),
        *("mse_loss_backward", "_fused_adagrad", "glu_backward", "binary_cross_entropy_with_logits"),
    )
)
"""Operations whose CPU kernel rounds intermediate results to the format of its inputs."""


def roundoff_of(dtype: torch.dtype) -> float:
    """The unit round-off of a dtype."""
    return UNIT_ROUNDOFF[str(dtype).removeprefix("torch.")]


def compute_roundoff(func: Any, inputs: Iterable[Tensor]) -> float:
    """The unit round-off of the products and sums in an operation on these floating-point tensors.

    Half-precision formats are accumulated in float32, except where the settings of torch allow otherwise, and in
    the operations above.
    """
    tensors = list(inputs)
    finest = min(roundoff_of(tensor.dtype) for tensor in tensors)
    coarsest = max(roundoff_of(tensor.dtype) for tensor in tensors)
    plain: str = func.overloadpacket.__name__.rstrip("_")
    on_cuda = any(tensor.is_cuda for tensor in tensors)
    if plain in _ADDS_IN_PLACE or (plain in _ACCUMULATES_IN_HALF and not on_cuda):
        return coarsest
    roundoff = min(coarsest, UNIT_ROUNDOFF["float32"])
    is_product, is_convolution = plain in _PRODUCTS, "convolution" in plain
    if not (is_product or is_convolution):
        return roundoff
    if finest == UNIT_ROUNDOFF["float32"]:
        return max(roundoff, _allowed_roundoff(on_cuda, is_convolution))
    if on_cuda and is_product and finest > UNIT_ROUNDOFF["float32"] and _reduces_in_half(tensors):
        return coarsest
    return roundoff


def intermediate_roundoff(func: Any, inputs: Iterable[Tensor]) -> float:
    """The unit round-off of intermediate results that an operation keeps in the format of its inputs; 0 if there are
    none. A fused attention rounds the weights of the values."""
    tensors = list(inputs)
    is_on_cpu = not any(tensor.is_cuda for tensor in tensors)
    if is_attention(func) or (is_on_cpu and func.overloadpacket.__name__.rstrip("_") in _ROUNDS_TO_HALF):
        return max(roundoff_of(tensor.dtype) for tensor in tensors)
    return 0.0


def scalar_roundoff(inputs: Iterable[Tensor]) -> float:
    """The unit round-off of numbers among the arguments, which some kernels round to the format of the tensors."""
    return max(UNIT_ROUNDOFF["float32"], *(roundoff_of(tensor.dtype) for tensor in inputs))


def _allowed_roundoff(on_cuda: bool, is_convolution: bool) -> float:
    """The unit round-off to which the settings of torch allow to round factors in float32."""
    backend: Any = torch.backends.cuda if on_cuda else torch.backends.mkldnn
    of_convolutions: Any = torch.backends.cudnn if on_cuda else backend
    precision = of_convolutions.conv.fp32_precision if is_convolution else backend.matmul.fp32_precision
    return {"tf32": _TF32, "bf16": _BFLOAT16}.get(precision, 0.0)


def _reduces_in_half(tensors: Iterable[Tensor]) -> bool:
    """Whether matrix products may round partial sums to half precision."""
    settings = torch.backends.cuda.matmul
    if any(tensor.dtype == torch.float16 for tensor in tensors):
        return bool(settings.allow_fp16_reduced_precision_reduction)
    return bool(settings.allow_bf16_reduced_precision_reduction)
