"""The error of a variance that a norm computes as the mean of squares minus the square of the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from trainyard.numerics.kernels.cancelling_size import largest
from trainyard.numerics.kernels.unchecked_reason import named_arguments

_NORMS = frozenset(
    ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
)


def variance_noise(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], references: Sequence[Tensor], number: int
) -> Tensor | float:
    """The error of result `number` of a norm in units of the round-off of a variance: its condition times the absolute
    value of the result without the bias. 0 for other operations and results. `references`: the results in float64, the
    last of which is the inverse standard deviation of each group."""
    condition = _condition(func, args[0], references, number)
    bias = named_arguments(func, args, kwargs).get("bias") if number == 0 else None
    return condition * (references[number].abs() + (0.0 if bias is None else largest(bias)))


def _condition(func: Any, x: Any, references: Sequence[Tensor], number: int) -> Tensor | float:
    """The largest square of a normalised group of elements, divided by its variance; 0 for other operations and
    results."""
    name: str = func.overloadpacket.__name__
    if name not in _NORMS or not references[-1].numel():
        return 0.0
    scale = references[-1]
    magnitude = x.abs()
    if name == "native_layer_norm":
        groups = magnitude.amax([at for at, size in enumerate(scale.shape) if size == 1] or [-1], keepdim=True)
    elif name == "native_group_norm":
        groups = magnitude.reshape(*scale.shape, -1).amax(-1)
    else:
        groups = magnitude.transpose(0, 1).flatten(1).amax(1)
    condition = (groups * scale).square()
    if number == len(references) - 1:
        return condition
    if number != len(references) - 3:
        return 0.0
    if name == "native_layer_norm":
        return condition
    channels = condition.reshape(-1, condition.shape[-1]).repeat_interleave(x.shape[1] // condition.shape[-1], 1)
    return channels.reshape(-1, x.shape[1], *(1 for _ in x.shape[2:]))
