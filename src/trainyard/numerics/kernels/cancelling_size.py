"""The size of an intermediate result of an operation that cancels, so that its rounding error remains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from trainyard.numerics.kernels.unchecked_reason import is_attention, named_arguments

_SATURATED = 6.0
"""|x| from which 1 - tanh(x) is below the unit round-off of float32."""


def cancelling_size(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], number: int) -> Tensor | float:
    """The size for each element of result `number`, or for all. Kernels of gelu compute x (1 + erf(x)), those of its
    gradient and of silu's the factor 1 - f(x) of a product with x; those of erf, 1 minus a polynomial, with an absolute
    error; those of logarithms of sums of exponentials, log(1 + x)."""
    if is_attention(func) and number == 1:
        return 1.0
    name: str = func.overloadpacket.__name__
    if name in ("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"):
        return _of_norm_gradient(named_arguments(func, args, kwargs)) if number == 0 else 0.0
    match name:
        case "gelu":
            return args[0].abs()
        case "_log_softmax_backward_data":
            return args[0].abs().sum(named_arguments(func, args, kwargs)["dim"], keepdim=True)
        case "gelu_backward":
            x = args[1].abs().clamp(max=_SATURATED)
            return args[0].abs() * (2 + 0.5 * x * (1 + 0.15 * x.square()))
        case "silu_backward":
            return (args[0] * args[1]).abs()
        case "glu_backward":
            return largest(args[0]) * largest(args[1])
        case "erf":
            return 2.0
        case "_log_softmax" | "logsumexp":
            return 1.0
        case _:
            return 0.0


def largest(tensor: Tensor) -> float:
    """The largest finite absolute value."""
    return float(tensor.abs().nan_to_num(nan=0.0, posinf=0.0).amax()) if tensor.numel() else 0.0


def _of_norm_gradient(given: Mapping[str, Any]) -> float:
    """For the gradient g of the input x, computed as r w g + c x + d with the inverse standard deviation r and the
    weight w, where the last two terms cancel up to (r x)^2 times the first."""
    inverse = given.get("rstd", given.get("save_invstd"))
    scale = 1.0 if inverse is None else largest(inverse)
    weight = given.get("weight")
    slope = scale * largest(given["grad_out"]) * (1.0 if weight is None else largest(weight))
    return slope * (1 + (scale * largest(given["input"])) ** 2)
