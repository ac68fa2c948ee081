"""The records whose values a tensor of the present step was computed from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

MOST_INPUTS = 32
"""Inputs of a record; of an operation on longer lists of tensors, the first."""


class TensorWriters:
    """Follows which records wrote the memory of each tensor. Memory, not tensors: views share it, and autograd passes
    saved tensors on as other objects."""

    def __init__(self) -> None:
        self._writers: dict[int, tuple[int, ...]] = {}
        """Address of a storage -> indices of the records from which its contents were computed."""

    def clear(self) -> None:
        """Forgets all tensors, at the start of a step."""
        self._writers.clear()

    def of(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        """The records from which any of the tensors was computed, without repetition."""
        known = dict.fromkeys(writer for tensor in tensors for writer in self._writers.get(_address(tensor), ()))
        return tuple(known)[:MOST_INPUTS]

    def write(self, tensor: Tensor, writers: tuple[int, ...]) -> None:
        """Notes that a tensor was computed from the records `writers`."""
        if address := _address(tensor):
            self._writers[address] = writers


def tensors_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors in the arguments of an operation, which are at most in lists."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, Tensor))


def _address(tensor: Tensor) -> int:
    """The address of the memory of a tensor; 0 if it has none that can be read."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if isinstance(local, FakeTensor) or local.is_meta:
        return 0
    try:
        return local.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and nested tensors
        return 0
