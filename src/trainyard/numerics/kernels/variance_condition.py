"""The condition of a variance that a norm computes as the mean of squares minus the square of the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

_NORMS = frozenset(
    ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
)


def variance_condition(func: Any, x: Any, references: Sequence[Tensor], number: int) -> Tensor | float:
    """The factor by which the relative error of result `number` may exceed the unit round-off: the largest square of a
    normalised group of elements, divided by its variance. 0 for other operations and results. `references`: the results
    in float64, the last of which is the inverse standard deviation of each group."""
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
