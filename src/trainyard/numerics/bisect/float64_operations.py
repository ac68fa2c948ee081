"""Compute single operations of a training in float64, and round their results to the script's formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.numerics.record.float64_mode import copy_back, widened_copies
from trainyard.numerics.record.module_paths import tensors_in
from trainyard.numerics.record.operation_name import operation_name
from trainyard.numerics.record.tensor_writers import tensors_among


class Float64Operations(TorchDispatchMode):
    """Context in which chosen operations of eager code compute in float64 from the values of their arguments. Results
    have the dtypes and strides of the script. Operations without a float64 kernel, views and random numbers are left
    as they are."""

    def __init__(self, is_swapped: Callable[[str], bool], narrow: set[str]) -> None:
        """`is_swapped`: whether an operation, such as `aten.mm`, that is about to run is computed in float64. `narrow`:
        operations that have no float64 kernel are added to it."""
        super().__init__()
        self._is_swapped, self._narrow = is_swapped, narrow

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _can_swap(func, args, kwargs) or not self._is_swapped(operation_name(func)):
            return func(*args, **kwargs)
        wide_args, wide_kwargs = widened_copies(list(args), dict(kwargs))
        try:
            wide = func(*wide_args, **wide_kwargs)
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError):  # torch raises either if a kernel does not take the format
            result = func(*args, **kwargs)  # if this fails too, the script has caused the error
            self._narrow.add(str(func))
            return result
        result = func(*args, **kwargs)
        for rounded, value in zip(tensors_in(result), tensors_in(wide)):
            _round_into(rounded, value)
        copy_back(func, args, wide_args)
        return result


def _can_swap(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation rounds: results that alias an argument without writing it are views."""
    if func.namespace != "aten" or func.is_view or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns):
        return False
    return any(each.is_floating_point() or each.is_complex() for each in tensors_among(args, kwargs))


def _round_into(result: Tensor, wide: Tensor) -> None:
    """Replaces the values of a result by those in float64. Integers, such as positions, are those of the script."""
    if (result.is_floating_point() or result.is_complex()) and result.shape == wide.shape:
        result.copy_(wide)
