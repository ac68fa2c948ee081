"""A simulated accelerator: its tensors compute on the host and report another device, so that copies are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
"""A build of torch without accelerators has no other device whose name tensors may report."""
_WAITING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "item")
"""Operations whose result depends on values, for which a device has to finish."""


class DeviceTensor(Tensor):
    """Holds the values of a tensor in host memory."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> DeviceTensor:
        tensor: Any = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} ran outside of the simulated device")


class SimulatedDevice(TorchDispatchMode):
    """Computes what belongs to the device. `to_host`: elements of each copy from the device; `to_device`: of each copy
    to it; `waits`: names of the operations that wait for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.to_host: list[int] = []
        self.to_device: list[int] = []
        self.waits: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        is_on_device = any(isinstance(leaf, DeviceTensor) for leaf in tree_leaves((args, kwargs)))
        name = func.overloadpacket.__name__
        target = kwargs.get("device")
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        if is_on_device and name in _WAITING:
            self.waits.append(name)
        if target is not None and name == "_to_copy" and is_on_device != (target == DEVICE):
            (self.to_host if is_on_device else self.to_device).append(args[0].numel())
        result = func(*tree_map(_unwrap, args), **tree_map(_unwrap, kwargs))
        if not (is_on_device if target is None else target == DEVICE):
            return result
        if func._schema.is_mutable:  # in place, or into the tensor `out`
            return kwargs.get("out", args[0])
        return tree_map(lambda value: DeviceTensor(value) if isinstance(value, Tensor) else value, result)


def _unwrap(value: Any) -> Any:
    return value.values if isinstance(value, DeviceTensor) else value
