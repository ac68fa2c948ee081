"""The reason for which an operation cannot be checked against float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.numerics.record.tensor_writers import tensors_among

VIEW = "views"
RANDOM = "random numbers"
DISCONTINUOUS = "discontinuous operations"
UNINITIALISED = "uninitialised memory"
CUSTOM = "custom operations and collectives"
NO_FLOATS = "no floating-point inputs or results"
FLOAT64 = "computed in float64"
COMPLEX = "complex numbers"
SUBCLASS = "distributed, sparse or other special tensors"
LARGE = "more elements than --elements"
CALLS = "more calls than --calls"
RECOMPUTED = "recomputation in the backward pass"
NO_KERNEL = "no float64 kernel"
MEMORY = "not enough memory"
FAILED = "error in the check"

_DISCONTINUOUS = frozenset(
    (
        *("round", "floor", "ceil", "trunc", "fix", "frac", "sign", "sgn", "heaviside", "remainder", "fmod"),
        *("floor_divide", "histc", "nextafter", "signbit", "bucketize", "fake_quantize_per_tensor_affine"),
        *("grid_sampler_2d", "grid_sampler_3d", "grid_sampler_2d_backward", "grid_sampler_3d_backward"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "frexp", "ldexp"),
        *("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward"),
    )
)
_EMPTY = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"))
_ATTENTION = "scaled_dot_product"


def unchecked_reason(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The reason for which a call of an operation cannot be checked; empty if it can."""
    name: str = func.overloadpacket.__name__
    tensors = list(tensors_among(args, kwargs))
    if func.namespace != "aten":
        return CUSTOM
    if func.is_view or _returns_alias(func):
        return VIEW
    if name in _EMPTY:
        return UNINITIALISED
    if torch.Tag.nondeterministic_seeded in func.tags and not _is_without_dropout(func, args, kwargs):
        return RANDOM
    if _is_discontinuous(func, args, kwargs):
        return DISCONTINUOUS
    if any(map(is_special, tensors)):
        return SUBCLASS
    if any(tensor.is_complex() for tensor in tensors):
        return COMPLEX
    return _format_reason(tensor for tensor in tensors if tensor.is_floating_point())


def is_attention(func: Any) -> bool:
    """Whether an operation is a fused attention."""
    return _ATTENTION in func.overloadpacket.__name__


def _format_reason(inputs: Iterable[Tensor]) -> str:
    dtypes = {tensor.dtype for tensor in inputs}
    if not dtypes:
        return NO_FLOATS
    return FLOAT64 if dtypes == {torch.float64} else ""


def _returns_alias(func: Any) -> bool:
    """Whether a result is an argument that is not written, as of `aten.contiguous`."""
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def is_special(tensor: Tensor) -> bool:
    """Whether a tensor has no plain values: DTensor and other subclasses, sparse tensors, and those without data."""
    return type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta


def _is_without_dropout(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an attention drops nothing."""
    if not is_attention(func):
        return False
    given = named_arguments(func, args, kwargs)
    return not given.get("dropout_p", 0.0)


def _is_discontinuous(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    name: str = func.overloadpacket.__name__
    plain = name.removeprefix("_foreach_").rstrip("_")
    is_rounded_division = plain == "div" and named_arguments(func, args, kwargs).get("rounding_mode") is not None
    return plain in _DISCONTINUOUS or is_rounded_division


def named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The given arguments of an operation by their names in the schema."""
    return {**{argument.name: value for argument, value in zip(func._schema.arguments, args)}, **kwargs}
