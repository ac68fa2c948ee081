"""Compute in float64 what a script computes in any floating-point format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from trainyard.numerics.record.float64_loading import widened_loading

_RANDOM = frozenset(
    ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_")
)
"""Operations that fill a tensor with random numbers: float64 draws another stream than the script's format."""
_FACTORIES = frozenset(("rand", "randn", "rand_like", "randn_like", "normal", "bernoulli", "multinomial"))
"""Operations that return random numbers."""


class _BitView(NamedTuple):
    """A copy of the bits of a tensor `values`, in the script's format."""

    values: ref[Tensor]
    bits: Tensor


class Float64(TorchDispatchMode):
    """Context in which every floating-point operation of eager code computes in float64: arguments are widened, and a
    format that the script asks for becomes float64, so that casts do nothing. Random numbers are drawn in the script's
    format and then widened, so that the streams are the same; bits are those of that format. Complex numbers become
    complex128. Tensors that are loaded from files are widened, too.

    `narrow`: the operations that have no float64 kernel and were computed in the script's format.
    """

    def __init__(self, default: torch.dtype = torch.float32) -> None:
        """`default`: the script's format, in which random numbers are drawn."""
        super().__init__()
        self._default = default
        self.narrow: set[str] = set()
        self._bits: dict[int, _BitView] = {}
        """Identity of a storage -> the bits in it."""
        self._loading = ExitStack()

    def __enter__(self) -> Self:
        self._loading.enter_context(widened_loading(widened))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._loading.close()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return False  # compiled functions run eagerly under this mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        kwargs = dict(kwargs or {})
        if name in _RANDOM and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            return _fill(func, args, kwargs, self._default)
        if name == "native_dropout":
            return _drop(func, args[0], args[1], args[2], self._default)
        if func is torch.ops.aten.view.dtype:
            return self._view_bits(func, args[0], args[1])
        if name in _FACTORIES:
            return tree_map(widened, func(*_narrowed(args, self._default), **_narrowed(kwargs, self._default)))
        wide_args, wide_kwargs = tree_map(widened, list(args)), tree_map(widened, kwargs)
        try:
            result = func(*wide_args, **wide_kwargs)
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError):  # torch raises either if a kernel does not take the format
            return self._compute_narrow(func, args, kwargs)
        copy_back(func, args, wide_args)
        if self._bits and func._schema.is_mutable:
            self._write_bits(args)
        return tree_map(widened, result)

    def _view_bits(self, func: Any, values: Tensor, dtype: torch.dtype) -> Tensor:
        """The bits of a tensor as `dtype`: of a float64 tensor, those in the script's format, unless the script reads
        64 bits. Operations in place on them are then followed, as they change the tensor."""
        if values.dtype != torch.float64 or dtype.itemsize == 8:
            return widened(func(values, dtype))
        bits: Tensor = func(values.to(self._default), dtype)
        self._bits = {key: view for key, view in self._bits.items() if view.values() is not None}
        self._bits[bits.untyped_storage()._cdata] = _BitView(ref(values), bits)
        return widened(bits)

    def _write_bits(self, args: Sequence[Any]) -> None:
        """Copies bits that an operation in place has changed to the tensor whose bits they are."""
        if not isinstance(args[0], Tensor) or args[0].layout != torch.strided:
            return
        view = self._bits.get(args[0].untyped_storage()._cdata)
        if view is not None and (values := view.values()) is not None:
            values.copy_(view.bits.view(self._default))

    def _compute_narrow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation that failed in float64, computed in the script's format. If it fails there too,
        the script has caused the error, which is raised."""
        narrow_args = _narrowed(list(args), self._default)
        result = func(*narrow_args, **_narrowed(kwargs, self._default))
        self.narrow.add(str(func))
        copy_back(func, args, narrow_args)
        return tree_map(widened, result)


def widened(value: Any) -> Any:
    """A tensor in float64 or complex128, and these formats instead of narrower ones; other values unchanged."""
    if isinstance(value, torch.dtype):
        if value.is_floating_point:
            return torch.float64
        return torch.complex128 if value.is_complex else value
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point() and value.dtype != torch.float64:
        return value.to(torch.float64)
    if value.is_complex() and value.dtype != torch.complex128:
        return value.to(torch.complex128)
    return value


def widened_copies(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with floating-point tensors in float64, which the operation may write without changing the
    originals; a tensor that is passed twice has one copy. Formats of floating-point numbers become float64."""
    copies: dict[int, Tensor] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return widened(value)
        if id(value) not in copies:
            wide = widened(value)
            copies[id(value)] = wide.clone() if wide is value else wide
        return copies[id(value)]

    return tree_map(copy, args), tree_map(copy, kwargs)


def _narrowed(values: Any, dtype: torch.dtype) -> Any:
    """Arguments of a random operation with its float64 tensors in the script's format."""
    return tree_map(
        lambda value: value.to(dtype) if isinstance(value, Tensor) and value.dtype == torch.float64 else value, values
    )


def _fill(func: Any, args: Sequence[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Fills a float64 tensor with the random numbers that it would have in `dtype`."""
    target = args[0]
    drawn = torch.empty_like(target, dtype=dtype)
    func(drawn, *_narrowed(list(args[1:]), dtype), **kwargs)
    return target.copy_(drawn)


def _drop(func: Any, values: Tensor, p: float, train: bool | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Dropout of float64 values, with the mask that is drawn in `dtype`."""
    _, mask = func(values.to(dtype), p, train)
    scale = 1 / (1 - p) if train is not False and p < 1 else 1.0
    return widened(values) * mask * scale, mask


def copy_back(func: Any, args: Sequence[Any], converted_args: Sequence[Any]) -> None:
    """Copies the results of an operation in place from the tensors that were converted for it."""
    for schema, given, converted in zip(func._schema.arguments, args, converted_args):
        if schema.alias_info is None or not schema.alias_info.is_write:
            continue
        pairs = zip(given, converted) if isinstance(given, (list, tuple)) else ((given, converted),)
        for original, result in pairs:
            if isinstance(original, Tensor) and original is not result:
                original.copy_(result)
