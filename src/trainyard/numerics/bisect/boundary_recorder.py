"""A recorder that handles the values of tensors at the boundaries of modules and of the optimizer's step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainyard.numerics.record.recorder import Recorder
from trainyard.numerics.tensor_record import Role, TensorKey, TensorRecord

_ROLES = frozenset[Role](("output", "data", "input", "gradient", "weight", "optimizer_state"))


class BoundaryRecorder(Recorder):
    """Records a training, and handles the inputs and outputs of modules, the gradients of both, and gradients, weights
    and states of the optimizer, each after it was recorded. Inputs of inner modules are recorded, too, and their
    gradients are not."""

    @abstractmethod
    def _at_value(self, key: TensorKey, tensor: Tensor) -> None:
        """Handles a tensor that may be changed in place. `tensor`: the part that this rank holds."""

    @abstractmethod
    def _at_gradient(self, key: TensorKey, gradient: Tensor) -> Tensor | None:
        """Handles the gradient of an input or output. Returns another one that takes its place, or None."""

    def _record(self, tensor: Tensor, role: Role, **options: Any) -> TensorRecord | None:
        record = super()._record(tensor, role, **options)
        if record is None or role not in _ROLES or record.operation or (role == "gradient" and not record.name):
            return record
        local = local_values(tensor)
        if local is not None:
            self._at_value(record.key, local)
        return record

    def _at_output_gradient(self, gradient: Tensor, path: str, call: int, output: int) -> Tensor | None:
        record = self._record(gradient, "gradient", module=path, call=call, output=output)
        return self._at_gradient(record.key, gradient) if record and local_values(gradient) is gradient else None

    def _at_boundary(
        self, path: str, call: int, role: Literal["data", "input", "output"], tensors: list[Tensor]
    ) -> None:
        super()._at_boundary(path, call, role, tensors)
        if role != "input" or not self.is_recording or self.paths.recomputes:
            return
        for number, tensor in enumerate(tensors):
            self._record(tensor, "input", module=path, call=call, output=number)
            if tensor.requires_grad and torch.is_grad_enabled():
                key = TensorKey(self._step, "backward", path, "", "gradient", "input", call, number)
                tensor.register_hook(self._input_hook(key))

    def _input_hook(self, key: TensorKey) -> Callable[[Tensor | None], Tensor | None]:
        def hook(gradient: Tensor | None) -> Tensor | None:
            if gradient is None or not self.is_recording or key.step != self._step:
                return None
            return self._at_gradient(key, gradient) if local_values(gradient) is gradient else None

        return hook


def local_values(tensor: Tensor) -> Tensor | None:
    """The part of a tensor that this rank holds; None for other classes than torch's own."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local if type(local) in (Tensor, nn.Parameter, nn.Buffer) else None
