"""The operations of a running training from which a tensor follows, and the values that enter them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trainyard.numerics.record.module_paths import tensors_in
from trainyard.numerics.record.recorder import Recorder, is_in_place
from trainyard.numerics.record.user_location import user_location
from trainyard.numerics.reproduce.captured_slice import MOST_INPUT_BYTES, CapturedInput, CapturedOperation
from trainyard.numerics.reproduce.encode_argument import encode_argument
from trainyard.numerics.reproduce.operation_source import tensor_names
from trainyard.numerics.tensor_record import TensorKey

_FIRST_IS_OUTPUT = frozenset(
    (
        *("alltoall_base_", "alltoall_", "_allgather_base_", "allgather_", "allgather_into_tensor_coalesced_"),
        *("_reduce_scatter_base_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_", "recv_"),
    )
)
"""Collectives that write their first argument without reading it."""
_WRAPPERS = frozenset(("_wrap_tensor_autograd",))
"""Operations that wrap a tensor without computing anything."""
_COPIES = frozenset((torch.ops.aten.copy_, torch.ops.aten.clone))
"""Copies of known tensors are captured like views: autograd copies a gradient to which there is another reference."""


class CaptureOperations(TorchDispatchMode):
    """Sees each operation before the recorder counts it.

    Tensors are followed by their identity and by the storage that they share, since views and the buckets of
    DistributedDataParallel write the memory of other tensors. Operations on a DTensor are those of the whole tensor,
    which all ranks gather if it becomes an input.
    """

    def __init__(self, recorder: Recorder, wanted: Iterable[TensorKey], *, of_shards: bool = False) -> None:
        """`of_shards`: the operations compute each shard of a DTensor alone, as an optimizer's do."""
        super().__init__()
        self._recorder, self._wanted, self._of_shards = recorder, frozenset(wanted), of_shards
        self._names: dict[int, Any] = {}
        """Identity of a tensor -> its reference. The tensors are kept, so that identities stay theirs."""
        self._kept: list[Tensor] = []
        self._bases: dict[int, Tensor] = {}
        """Identity of a storage -> a known tensor in it; one that covers it, if there is one."""
        self._bytes = 0
        self.inputs: list[tuple[CapturedInput, Tensor]] = []
        self.operations: list[CapturedOperation] = []
        self.result: Any = None
        """The reference to the requested tensor, once it was seen; nothing is captured afterwards."""
        self.is_update = False
        """Whether an optimizer updates a parameter among the inputs."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def note_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Notes tensors whose present values enter the operations."""
        for tensor in tensors if self.result is None else ():
            self._add_input(self._local(tensor))

    def note_result(self, tensor: Tensor) -> None:
        """Notes the requested tensor; one that no captured operation computed is an input."""
        if self.result is None:
            self.result = self._reference(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._is_captured(func, args, kwargs):
            result = func(*args, **kwargs)
        else:
            elements = self._known_elements(func, args)
            self._add_buffers(func, args)
            arguments = encode_argument(_with_groups(func, _select_elements(args, elements)), self._reference)
            keywords = {name: encode_argument(value, self._reference) for name, value in kwargs.items()}
            result = func(*args, **kwargs)
            self._add(func, arguments, keywords, _select_elements(result, elements))
        self._recorder._at_operation(func, args, kwargs, result)
        return result

    def _is_captured(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether an operation is one of the requested, or another one between them, such as a view."""
        if self.result is not None or func.overloadpacket.__name__ in _WRAPPERS:
            return False
        if not self.is_update:
            if not self._recorder.is_recording:
                return False
            key = self._recorder.next_key(func, args)
            if key in self._wanted:
                return True
            if key is not None and func.overloadpacket not in _COPIES:
                return False
        return any(self._is_known(tensor) for tensor in tensors_in([args, kwargs]))

    def _is_known(self, tensor: Tensor) -> bool:
        tensor = self._local(tensor)
        return id(tensor) in self._names or (_is_plain(tensor) and _storage(tensor) in self._bases)

    def _local(self, tensor: Tensor) -> Tensor:
        """The tensor of which a functional collective is still in flight; this rank's shard, if shards are followed."""
        local = tensor._local_tensor if isinstance(tensor, DTensor) and self._of_shards else tensor
        return local.elem if isinstance(local, AsyncCollectiveTensor) else local

    def _known_elements(self, func: Any, args: Sequence[Any]) -> _Elements | None:
        """The known elements of an operation on lists of independent tensors; None for other operations."""
        if not func.overloadpacket.__name__.startswith(("_foreach_", "_fused_")):
            return None
        lists = [value for value in args if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor)]
        count = len(lists[0]) if lists else 0
        columns = zip(*(each for each in lists if len(each) == count))
        return _Elements(count, [at for at, column in enumerate(columns) if any(map(self._is_known, column))])

    def _add_buffers(self, func: Any, args: Sequence[Any]) -> None:
        """Notes what an operation writes without reading it, and the whole storage of a part that it changes."""
        name = func.overloadpacket.__name__
        if func.namespace == "c10d":
            for tensor in tensors_in(args[0]) if name in _FIRST_IS_OUTPUT else ():
                if not self._is_known(tensor):
                    self._add_input(tensor, value=torch.zeros_like)
        elif is_in_place(func) and isinstance(args[0], Tensor) and _is_plain(self._local(args[0])):
            tensor = self._local(args[0])
            if not self._is_known(tensor) and not _covers(tensor):
                self._add_input(self._storage_owner(tensor))

    def _storage_owner(self, tensor: Tensor) -> Tensor:
        """A tensor with the whole storage of another: the parameter of the model that owns it, or a flat one."""
        parameter = self._parameter_of(tensor)
        if parameter is not None:
            return self._local(parameter)
        with torch.no_grad(), _disable_current_modes():
            return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())

    def _parameter_of(self, tensor: Tensor) -> Tensor | None:
        """The parameter of the model that owns the whole storage of a tensor."""
        for parameter in self._recorder.paths.parameters() if _is_plain(tensor) else ():
            local = self._local(parameter)
            if _is_plain(local) and _storage(local) == _storage(tensor) and _covers(local):
                return parameter
        return None

    def _parameter_path(self, tensor: Tensor) -> str:
        """Path of the parameter of which a tensor has all values; empty for other tensors."""
        parameter = self._parameter_of(tensor)
        if parameter is None or self._local(parameter).numel() != tensor.numel():
            return ""
        return ".".join(self._recorder.paths.parameter(parameter))

    def _add(self, func: Any, arguments: Any, keywords: Any, result: Any) -> None:
        name = f"v{len(self.operations)}"
        several = not isinstance(result, Tensor)
        if func.namespace != "c10d":  # collectives return their arguments
            for output, tensor in enumerate(tensors_in(result)):
                self._keep(self._local(tensor), {"tensor": name, "output": output} if several else {"tensor": name})
        is_forward = not self.is_update and torch._C._current_graph_task_id() == -1
        self.operations.append(
            CapturedOperation(
                name=name,
                operation=str(func),
                arguments=tuple(arguments),
                keywords=keywords,
                module=self._recorder.paths.current,
                location=user_location(sys._getframe(2)) if is_forward else "",
                is_alias=func.is_view or is_in_place(func),
                written=tuple(tensor_names(_written(func, arguments, keywords))),
            )
        )

    def _keep(self, tensor: Tensor, reference: Any) -> None:
        self._names[id(tensor)] = reference
        self._kept.append(tensor)
        if _is_plain(tensor) and (_storage(tensor) not in self._bases or _covers(tensor)):
            self._bases[_storage(tensor)] = tensor

    def _reference(self, tensor: Tensor) -> Any:
        """The reference to a tensor; one that no captured operation computed becomes an input, with its value."""
        tensor = self._local(tensor)
        known = self._names.get(id(tensor))
        if known is not None:
            return known
        base = self._bases.get(_storage(tensor)) if _is_plain(tensor) else None
        if base is None:
            return self._add_input(tensor)
        if base.dtype == tensor.dtype and _geometry(tensor) == _geometry(base):
            return self._names[id(base)]
        if not _covers(base) or base.element_size() != tensor.element_size():
            return self._add_input(tensor)
        return self._add_view(tensor, base)

    def _add_view(self, tensor: Tensor, base: Tensor) -> Any:
        """Adds operations that give another view of a known tensor."""
        reference = self._names[id(base)]
        if base.dtype != tensor.dtype:
            reference = self._add_view_operation("aten.view.dtype", reference, encode_argument(tensor.dtype, id))
        shape, stride, offset = _geometry(tensor)
        view = self._add_view_operation("aten.as_strided.default", reference, list(shape), list(stride), offset)
        self._keep(tensor, view)
        return view

    def _add_view_operation(self, operation: str, *arguments: Any) -> Any:
        name = f"v{len(self.operations)}"
        self.operations.append(
            CapturedOperation(
                name=name,
                operation=operation,
                arguments=arguments,
                keywords={},
                module="",
                location="",
                is_alias=True,
            )
        )
        return {"tensor": name}

    def _add_input(self, tensor: Tensor, value: Callable[[Tensor], Tensor] = torch.detach) -> Any:
        """Adds an input with the present value of a tensor, or another value of its shape and strides."""
        self._bytes += tensor.numel() * tensor.element_size()
        if not (_is_plain(tensor) or isinstance(tensor, DTensor)) or self._bytes > MOST_INPUT_BYTES:
            return {"opaque": type(tensor).__name__}
        name = f"x{len(self.inputs)}"
        with torch.no_grad(), _disable_current_modes():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            present = value(whole).to("cpu", copy=True).contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape, stride = tuple(whole.shape), tuple(whole.stride())
        described = CapturedInput(
            name=name, dtype=dtype, shape=shape, stride=stride, file="", parameter=self._parameter_path(tensor)
        )
        self.inputs.append((described, present))
        self._keep(tensor, {"tensor": name})
        return {"tensor": name}


class _Elements(NamedTuple):
    """Positions in lists of `count` elements."""

    count: int
    positions: Sequence[int]


def _select_elements(values: Any, elements: _Elements | None) -> Any:
    """Arguments or results, with these elements of the lists that have as many; all for None."""
    if elements is None or not isinstance(values, (list, tuple)):
        return values
    if len(values) == elements.count and not any(isinstance(value, (list, tuple)) for value in values):
        return [values[at] for at in elements.positions]
    return [_select_elements(value, elements) for value in values]


def _with_groups(func: Any, args: Sequence[Any]) -> list[Any]:
    """The arguments of an operation, with the process group of a functional collective instead of its name."""
    named = [argument.name == "group_name" for argument in func._schema.arguments]
    groups: Any = dist.distributed_c10d
    return [
        groups._resolve_process_group(value) if is_group and isinstance(value, str) else value
        for value, is_group in zip(args, named)
    ]


def _written(func: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operation writes to. The schemas of collectives do not say."""
    if func.namespace == "c10d":
        return list(arguments)
    names = [
        argument.name for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write
    ]
    positions = {argument.name: at for at, argument in enumerate(func._schema.arguments)}
    by_position = [arguments[positions[name]] for name in names if positions[name] < len(arguments)]
    return [*by_position, *(keywords[name] for name in names if name in keywords)]


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has values of its own, and does not wrap others."""
    own: Any = type(tensor)
    plain: Any = Tensor
    return own.__torch_dispatch__ is plain.__torch_dispatch__


def _storage(tensor: Tensor) -> int:
    """Identity of a tensor's storage; 0 without one."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0


def _geometry(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


def _covers(tensor: Tensor) -> bool:
    """Whether a tensor has each element of its storage, so that a copy of it has the same storage."""
    size = tensor.numel() * tensor.element_size()
    return size == tensor.untyped_storage().nbytes() and is_non_overlapping_and_dense_or_false(tensor)
