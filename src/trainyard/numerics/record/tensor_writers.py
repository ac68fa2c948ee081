"""The records whose values a tensor of the present step was computed from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

MOST_INPUTS = 32
"""Inputs of a record; of an operation on longer lists of tensors, the first."""


class TensorWriters:
    """Follows which records wrote the memory of each tensor. Memory, not tensors: views share it, and autograd passes
    saved tensors on as other objects."""

    def __init__(self) -> None:
        self._writers: dict[int, tuple[StorageWeakRef, tuple[int, ...]]] = {}
        """Identity of a storage -> indices of the records from which its contents were computed. The weak references
        keep identities from being used again, but not the memory."""

    def clear(self) -> None:
        """Forgets all tensors, at the start of a step."""
        self._writers.clear()

    def of(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        """The records from which any of the tensors was computed, without repetition."""
        storages = filter(None, map(_storage, tensors))
        entries = (self._writers.get(storage._cdata) for storage in storages)
        known = dict.fromkeys(writer for entry in entries if entry is not None for writer in entry[1])
        return tuple(known)[:MOST_INPUTS]

    def write(self, tensor: Tensor, writers: tuple[int, ...]) -> None:
        """Notes that a tensor was computed from the records `writers`."""
        if (storage := _storage(tensor)) is not None:
            self._writers[storage._cdata] = StorageWeakRef(storage), writers


def tensors_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors in the arguments of an operation, which are at most in lists."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, Tensor))


def _storage(tensor: Tensor) -> UntypedStorage | None:
    """The memory of a tensor; None if it has none that can be read."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if isinstance(local, FakeTensor) or local.is_meta:
        return None
    try:
        return local.untyped_storage()
    except NotImplementedError:  # sparse tensors, and those in the layout of oneDNN
        return None
