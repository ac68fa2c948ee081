"""Capture the operations that compute a tensor, with the values that enter them, while a training runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trainyard.numerics.record.module_paths import tensors_in
from trainyard.numerics.record.recorder import Recorder
from trainyard.numerics.record.tensor_writers import tensors_among
from trainyard.numerics.record.user_location import user_location
from trainyard.numerics.reproduce.captured_slice import (
    MOST_INPUT_BYTES,
    CapturedInput,
    CapturedOperation,
    CapturedSlice,
    CaptureRequest,
)
from trainyard.numerics.reproduce.encode_argument import encode_argument
from trainyard.numerics.tensor_record import Role


class CaptureRecorder(Recorder):
    """Follows a training as the recorder does, and captures the requested operations of one step."""

    def __init__(self, request: CaptureRequest) -> None:
        super().__init__(lambda records: None, [request.result.step])
        self.request = request

    def _operation_mode(self) -> TorchDispatchMode:
        self.capture = _Capture(self, self.request)
        return self.capture

    def _record(self, tensor: Tensor, role: Role, **options: Any) -> None:
        super()._record(tensor, role, **options)
        if self._records and self._records[-1].key == self.request.result:
            self.capture.note_result(tensor)

    def flush(self) -> None:
        super().flush()
        if self._step == self.request.result.step:
            self.capture.write()


class _Capture(TorchDispatchMode):
    """Sees each operation before the recorder counts it."""

    def __init__(self, recorder: CaptureRecorder, request: CaptureRequest) -> None:
        super().__init__()
        self._recorder, self._wanted, self._request = recorder, frozenset(request.operations), request
        self._names: dict[int, Any] = {}
        """Identity of a tensor -> its reference. The tensors are kept, so that identities stay theirs."""
        self._kept: list[Tensor] = []
        self._inputs: list[tuple[CapturedInput, Tensor]] = []
        self._operations: list[CapturedOperation] = []
        self._bytes = 0
        self._result: Any = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._is_captured(func, args, kwargs):
            result = func(*args, **kwargs)
        else:
            arguments = encode_argument(args, self._reference)
            keywords = {name: encode_argument(value, self._reference) for name, value in kwargs.items()}
            result = func(*args, **kwargs)
            self._add(func, arguments, keywords, result)
        self._recorder._at_operation(func, args, kwargs, result)
        return result

    def _is_captured(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether an operation is one of the requested, or another one between them, such as a view."""
        if not self._recorder.is_recording:
            return False
        key = self._recorder.next_key(func, args)
        if key is not None:
            return key in self._wanted
        return any(id(tensor) in self._names for tensor in tensors_among(args, kwargs))

    def _add(self, func: Any, arguments: Any, keywords: Any, result: Any) -> None:
        name = f"v{len(self._operations)}"
        several = not isinstance(result, Tensor)
        for output, tensor in enumerate(tensors_in(result)):
            self._keep(tensor, {"tensor": name, "output": output} if several else {"tensor": name})
        self._operations.append(
            CapturedOperation(
                name=name,
                operation=str(func),
                arguments=tuple(arguments),
                keywords=keywords,
                module=self._recorder.paths.current,
                location="" if torch._C._current_graph_task_id() != -1 else user_location(sys._getframe(2)),
                is_tuple=several,
            )
        )

    def _keep(self, tensor: Tensor, reference: Any) -> None:
        self._names[id(tensor)] = reference
        self._kept.append(tensor)

    def _reference(self, tensor: Tensor) -> Any:
        """The reference to a tensor; one that no captured operation computed becomes an input, with its value."""
        known = self._names.get(id(tensor))
        if known is not None:
            return known
        self._bytes += tensor.numel() * tensor.element_size()
        if type(tensor) not in (Tensor, torch.nn.Parameter) or self._bytes > MOST_INPUT_BYTES:
            return {"opaque": type(tensor).__name__}
        name = f"x{len(self._inputs)}"
        with torch.no_grad(), _disable_current_modes():
            value = tensor.detach().to("cpu", copy=True).contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        described = CapturedInput(name=name, dtype=dtype, shape=shape, stride=stride, file="")
        self._inputs.append((described, value))
        self._keep(tensor, {"tensor": name})
        return {"tensor": name}

    def note_result(self, tensor: Tensor) -> None:
        """Notes the requested tensor; one that no captured operation computed is an input."""
        self._result = self._reference(tensor)

    def write(self) -> None:
        """Writes the slice, once, if the requested tensor was seen."""
        if self._result is None:
            return
        folder, rank = Path(self._request.folder), _rank()
        folder.mkdir(parents=True, exist_ok=True)
        inputs: list[CapturedInput] = []
        for described, value in self._inputs:
            file = f"rank{rank}-{described.name}.bin"
            (folder / file).write_bytes(value.view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
            inputs.append(msgspec.structs.replace(described, file=file))
        captured = CapturedSlice(
            inputs=tuple(inputs),
            operations=tuple(self._operations),
            result=self._result,
            versions={"torch": str(torch.__version__)},
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        )
        (folder / f"slice-rank{rank}.json").write_bytes(msgspec.json.encode(captured))
        self._result = None


def _rank() -> int:
    is_group = dist.is_available() and dist.is_initialized()
    return dist.get_rank() if is_group else int(os.environ.get("RANK", "0"))
