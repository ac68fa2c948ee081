"""Moves results of operations by one unit in the last place, as another order of summation does.

Monte Carlo arithmetic (Parker 1997, UCLA CSD-970002): the spread of a training's results over such replicas is
the part of a difference that rounding explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATTENTION = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm", "convolution", "convolution_backward")
_SUMS = ("sum", "mean", "cumsum", "add", "add_", "index_add", "index_add_", "scatter_add", "scatter_add_")
_NORMS = ("linalg_vector_norm", "_foreach_norm")
_NORMALIZATIONS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm")
_SOFTMAX = ("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "_safe_softmax")
_LOOKUPS = (
    "embedding_dense_backward", "_embedding_bag", "_embedding_bag_backward", "_coalesce", "upsample_nearest2d_backward",
)  # fmt: skip
_LOSSES = ("nll_loss_forward", "mse_loss", "binary_cross_entropy_with_logits")
_SUMMATIONS = frozenset(
    (
        *(*_ATTENTION, *_PRODUCTS, *_SUMS, *_NORMS, *_SOFTMAX, *_LOOKUPS, *_LOSSES, *_NORMALIZATIONS),
        *(f"{name}_backward" for name in _NORMALIZATIONS),
    )
)
"""ATen operations that add values, in an order that a layout may change. The results of all others (products of two
values, activations, casts, the update of AdamW) are the same in any layout if their inputs are."""


_EXACT = frozenset(
    (
        *("clone", "copy_", "_to_copy", "detach", "empty", "zeros", "ones", "full", "zero_", "fill_", "cat", "stack"),
        *(
            "index",
            "index_select",
            "index_put_",
            "gather",
            "scatter",
            "embedding",
            "where",
            "masked_fill",
            "masked_fill_",
        ),
        *("neg", "abs", "relu", "relu_", "sign", "sort", "topk", "max", "min", "amax", "amin", "maximum", "minimum"),
        *("clamp", "floor", "ceil", "round", "threshold_backward", "max_pool2d_with_indices", "arange", "tril", "triu"),
        *(
            "slice_backward",
            "select_backward",
            "constant_pad_nd",
            "flip",
            "roll",
            "repeat",
            "_local_scalar_dense",
            "set_",
        ),
        *("rand", "randn", "normal_", "uniform_", "bernoulli_", "random_", "native_dropout", "dropout", "lift_fresh"),
        *("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_full", "new_ones"),
        *("empty_strided", "new_empty_strided", "scalar_tensor", "_foreach_zero_", "_foreach_copy_"),
    )
)
"""ATen operations whose results are exact, or random: they are the same in any implementation."""


_POOL_VALUES = 2**16
"""Smallest number of random directions drawn at a time."""
_FEW_VALUES = 64
"""Values that are looked at before all others."""


class UlpJitter(TorchDispatchMode):
    """Context in which each value that a summation computes moves by one unit in the last place of its dtype, up or
    down at random. Zeros, infinities and NaN stay, as do tensors of integers. `seed`: of the directions; torch's own
    generators are not used. `ulps`: units in the last place. `all_operations`: move the results of every operation
    that rounds, as another library or compiler may, not only of summations, as another layout does.

    Directions are drawn once per dtype and device, and each result takes them from a random position on: drawing them
    for each result took longer than the training of a small model.
    """

    def __init__(self, seed: int, ulps: float = 1, all_operations: bool = False) -> None:
        super().__init__()
        self._ulps, self._all_operations = ulps, all_operations
        self._generator = torch.Generator().manual_seed(seed)
        self._pools: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._rounds(func):
            for part in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(part, Tensor) and part.is_floating_point():
                    self._move_sums(part)
        return result

    def _rounds(self, func: Any) -> bool:
        """Whether the results of an operation are moved."""
        name = func.overloadpacket.__name__
        if not self._all_operations:
            return name in _SUMMATIONS
        return func.namespace == "aten" and not func.is_view and name not in _EXACT

    def _move_sums(self, part: Tensor) -> None:
        """Moves a result. Sparse gradients that are not coalesced are not summed yet."""
        local: Tensor | None = getattr(part, "_local_tensor", None)  # of a DTensor
        if local is not None:
            self._move_sums(local)
        elif not part.is_sparse:
            self._move(part)
        elif part.is_coalesced():
            self._move(part.values())

    def _move(self, values: Tensor) -> None:
        """Moves each finite value in place. Half a unit relative to it, rounded, is one unit in the last place."""
        if _are_integers(values):
            return
        pool = self._pool(values)
        start = int(torch.randint(len(pool) - values.numel() + 1, (), generator=self._generator))
        directions = pool[start : start + values.numel()].view(values.shape)
        finite = values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)  # an infinity minus its part would be NaN
        values.addcmul_(finite, directions, value=self._ulps * torch.finfo(values.dtype).eps / 2)

    def _pool(self, values: Tensor) -> Tensor:
        """Random directions, 1 or -1, in the dtype and on the device of `values`, and at least twice as many."""
        key = (values.dtype, values.device)
        pool = self._pools.get(key)
        if pool is None or len(pool) < 2 * values.numel():
            empty = torch.empty(max(_POOL_VALUES, 2 * values.numel()), dtype=values.dtype)
            drawn = empty.bernoulli_(0.5, generator=self._generator).mul_(2).sub_(1)
            pool = self._pools[key] = drawn.to(values.device)
        return pool


def _are_integers(values: Tensor) -> bool:
    """Whether all values are integers that the format has without gaps. Sums of such values, which are counts as a
    rule, are exact in any order, and a script may convert them to indices. Most tensors show in a few values that they
    are not."""
    if not values.numel():
        return True
    row = values[(0,) * (values.dim() - 1)] if values.dim() else values.view(1)
    largest = 1 / torch.finfo(values.dtype).eps
    return all(bool(((part.frac() == 0) & (part.abs() < largest)).all()) for part in (row[:_FEW_VALUES], values))
