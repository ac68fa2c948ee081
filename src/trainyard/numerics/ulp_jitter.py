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


_POOL_VALUES = 2**16
"""Smallest number of random directions drawn at a time."""


class UlpJitter(TorchDispatchMode):
    """Context in which each value that a summation computes moves by one unit in the last place of its dtype, up or
    down at random. Zeros, infinities and NaN stay. `seed`: of the directions; torch's own generators are not used.

    Directions are drawn once per dtype, and each result takes them from a random position on: drawing them for each
    result took longer than the training of a small model.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._pools: dict[torch.dtype, Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _SUMMATIONS:
            for part in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(part, Tensor) and part.is_floating_point():
                    self._move_sums(part)
        return result

    def _move_sums(self, part: Tensor) -> None:
        """Moves a result. Sparse gradients that are not coalesced are not summed yet."""
        if not part.is_sparse:
            self._move(part)
        elif part.is_coalesced():
            self._move(part.values())

    def _move(self, values: Tensor) -> None:
        """Moves each finite value in place. Half a unit relative to it, rounded, is one unit in the last place."""
        pool = self._pool(values.dtype, values.numel())
        start = int(torch.randint(len(pool) - values.numel() + 1, (), generator=self._generator))
        directions = pool[start : start + values.numel()].view(values.shape)
        finite = values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)  # an infinity minus its part would be NaN
        values.addcmul_(finite, directions, value=torch.finfo(values.dtype).eps / 2)

    def _pool(self, dtype: torch.dtype, values: int) -> Tensor:
        """Random directions, 1 or -1, at least twice as many as `values`."""
        pool = self._pools.get(dtype)
        if pool is None or len(pool) < 2 * values:
            empty = torch.empty(max(_POOL_VALUES, 2 * values), dtype=dtype)
            pool = self._pools[dtype] = empty.bernoulli_(0.5, generator=self._generator).mul_(2).sub_(1)
        return pool
