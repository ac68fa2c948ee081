"""Record a training in which each module and each update starts from the values of another run.

Inputs and outputs of modules, the gradients of both, the gradients of parameters, weights and states of the optimizer
are replaced by those of the other run, after they were recorded as this training computes them. A difference of a
module therefore does not reach any other: each is compared with the other run's from the same values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from trainyard.errors import BadFile
from trainyard.numerics.bisect.boundary_recorder import BoundaryRecorder
from trainyard.numerics.bisect.replaced_values import ReplacedValues, write_replaced
from trainyard.numerics.bisect.value_files import ValueReader
from trainyard.numerics.record.process_rank import process_rank
from trainyard.numerics.tensor_record import Level, TensorKey, TensorRecord


class ReplacingRecorder(BoundaryRecorder):
    """Records a training, and replaces each recorded tensor by the values in a folder."""

    def __init__(
        self,
        values: Path,
        folder: Path,
        write: Callable[[Sequence[TensorRecord]], object],
        steps: Collection[int],
        level: Level = "operations",
        most_elements: int = 0,
    ) -> None:
        """`values`: the folder that `ValueRecorder` wrote. `folder`: of the record, for the numbers of tensors. Other
        arguments: as of `Recorder`."""
        super().__init__(write, steps, level, most_elements)
        self._other_values, self._folder = values, folder
        self._reader: ValueReader | None = None
        self._counts: Counter[Literal["replaced", "missing", "kept"]] = Counter()

    def _at_value(self, key: TensorKey, tensor: Tensor) -> None:
        if tensor.is_inference() or _shares_elements(tensor):
            self._counts["kept"] += 1
            return
        values = self._values(key, tensor.shape)
        if values is not None:
            with torch.no_grad(), _disable_current_modes():
                tensor.data.copy_(values)  # without counting a version, so that saved tensors stay valid
            self._last = None

    def _at_gradient(self, key: TensorKey, gradient: Tensor) -> Tensor | None:
        values = self._values(key, gradient.shape)
        if values is None:
            return None
        with torch.no_grad(), _disable_current_modes():
            return torch.empty_like(gradient).copy_(values)  # other tensors may share the memory of this one

    def _values(self, key: TensorKey, shape: torch.Size) -> Tensor | None:
        """The other run's values of a tensor; None if it has none of this shape."""
        try:
            self._reader = self._reader or ValueReader(self._other_values, process_rank())
            values = self._reader.read(key)
        except (BadFile, OSError) as error:
            self._fail(error)
            return None
        if values is None or values.shape != shape:
            self._counts["missing" if values is None else "kept"] += 1
            return None
        self._counts["replaced"] += 1
        return values

    def flush(self) -> None:
        super().flush()
        if self._reader is not None:
            write_replaced(self._folder, process_rank(), ReplacedValues(**self._counts))


def _shares_elements(tensor: Tensor) -> bool:
    """Whether elements of a tensor are at the same address, as after `expand`."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape))
