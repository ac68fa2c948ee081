"""Store the values of the tensors at the boundaries of modules and of the optimizer's step, while a training runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from trainyard.numerics.bisect.boundary_recorder import BoundaryRecorder
from trainyard.numerics.bisect.value_files import ValueWriter
from trainyard.numerics.record.process_rank import process_rank
from trainyard.numerics.tensor_record import TensorKey


class ValueRecorder(BoundaryRecorder):
    """Follows a training as the recorder does, and writes values instead of summaries."""

    def __init__(self, folder: Path, steps: Collection[int]) -> None:
        super().__init__(lambda records: None, steps, "modules")
        self._folder = folder
        self._writer: ValueWriter | None = None

    def _at_value(self, key: TensorKey, tensor: Tensor) -> None:
        with torch.no_grad(), _disable_current_modes():
            values = tensor.detach().to("cpu")
            try:
                self._writer = self._writer or ValueWriter(self._folder, process_rank())
                self._writer.write(key, values)
            except OSError as error:
                self._fail(error)

    def _at_gradient(self, key: TensorKey, gradient: Tensor) -> None:
        self._at_value(key, gradient)

    def flush(self) -> None:
        super().flush()
        if self._writer is not None:
            self._writer.flush()
