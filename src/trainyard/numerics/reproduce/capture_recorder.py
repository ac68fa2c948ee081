"""Capture the operations that compute a tensor, with the values that enter them, while a training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.numerics.record.flat_values import flat_values
from trainyard.numerics.record.process_rank import process_rank
from trainyard.numerics.record.recorder import Recorder
from trainyard.numerics.reproduce.capture_operations import CaptureOperations
from trainyard.numerics.reproduce.captured_slice import CapturedInput, CapturedSlice, CaptureRequest
from trainyard.numerics.tensor_record import Role, TensorRecord


class CaptureRecorder(Recorder):
    """Follows a training as the recorder does, and captures the requested operations of one step."""

    def __init__(self, request: CaptureRequest) -> None:
        super().__init__(lambda records: None, [request.result.step])
        self.request, self._sources = request, frozenset(request.sources)
        self._is_written = False

    def _operation_mode(self) -> TorchDispatchMode:
        self.capture = CaptureOperations(self, self.request.operations, of_shards=self.request.is_update)
        return self.capture

    def _record(self, tensor: Tensor, role: Role, **options: Any) -> TensorRecord | None:
        record = super()._record(tensor, role, **options)
        if record is None:
            return None
        if record.key in self._sources:
            self.capture.note_inputs([tensor])
        if record.key == self.request.result:
            self.capture.note_result(tensor)
        return record

    def _before_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        super()._before_optimizer(optimizer)
        if not self.request.is_update or self._step != self.request.result.step:
            return
        for owner, name, parameter in self._parameters_of(optimizer):
            if owner == self.request.result.module and f"{self.request.result.name}.".startswith(f"{name}."):
                state = [value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, Tensor)]
                gradient = [] if parameter.grad is None else [parameter.grad]
                self.capture.note_inputs([parameter, *gradient, *state])
                self.capture.is_update = True

    def _after_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        self.capture.is_update = False
        super()._after_optimizer(optimizer)

    def flush(self) -> None:
        super().flush()
        if self._is_written or self._step != self.request.result.step:
            return
        if self.request.is_update and self.capture.result is None:  # the optimizer does not have the parameter
            result = self.request.result
            parameter = self.paths.find_parameter(result.module, result.name)
            if parameter is not None:
                self.capture.note_result(parameter)
        self._is_written = self._write_slice()

    def _write_slice(self) -> bool:
        """Writes the slice if this rank captured anything."""
        if self.capture.result is None and not self.capture.operations:
            return False
        folder, rank = Path(self.request.folder), process_rank()
        folder.mkdir(parents=True, exist_ok=True)
        inputs: list[CapturedInput] = []
        for described, value in self.capture.inputs:
            file = f"rank{rank}-{described.name}.bin"
            (folder / file).write_bytes(
                flat_values(value).view(torch.uint8).numpy().tobytes() if value.numel() else b""
            )
            inputs.append(msgspec.structs.replace(described, file=file))
        captured = CapturedSlice(
            inputs=tuple(inputs),
            operations=tuple(self.capture.operations),
            result=self.capture.result,
            versions={"torch": str(torch.__version__)},
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        )
        (folder / f"slice-rank{rank}.json").write_bytes(msgspec.json.encode(captured))
        return True
