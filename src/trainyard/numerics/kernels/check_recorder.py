"""Check the operations of some steps of a training, and write the result of this rank."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.numerics.kernels.check_operation import OperationCheck
from trainyard.numerics.kernels.check_result import CheckedOperation, KernelCheckRequest, RankCheck, UncheckedOperation
from trainyard.numerics.kernels.checked_operations import CheckedOperations
from trainyard.numerics.kernels.merge_checks import merge_operations
from trainyard.numerics.kernels.unchecked_reason import CALLS, RECOMPUTED
from trainyard.numerics.record.operation_name import operation_name
from trainyard.numerics.record.process_rank import process_rank, process_ranks
from trainyard.numerics.record.recorder import Recorder
from trainyard.numerics.record.user_location import user_location
from trainyard.numerics.tensor_record import Phase, Role, TensorRecord

_Key = tuple[str, str, Phase]
"""Module, operation and phase."""


class CheckRecorder(Recorder):
    """Follows a training as the recorder does, and checks its operations, also those of optimizers, instead of
    recording tensors."""

    def __init__(self, folder: Path, steps: Collection[int], request: KernelCheckRequest) -> None:
        """`folder`: of the results of the ranks."""
        super().__init__(lambda records: None, steps)
        self._folder, self._request = folder, request
        self._in_optimizer = False
        self._calls_in_step: Counter[_Key] = Counter()
        self._checked: dict[_Key, CheckedOperation] = {}
        self._unchecked: Counter[tuple[str, str]] = Counter()
        self._devices: set[str] = set()
        self._finished = 0
        """Steps at whose end the optimizer has stepped."""

    def _operation_mode(self) -> TorchDispatchMode:
        return CheckedOperations(self._choose, self._note_check, self._note_unchecked, self._request.most_elements)

    def _record(self, tensor: Tensor, role: Role, **options: Any) -> TensorRecord | None:
        """Notes the device of a tensor, which is not recorded."""
        if role != "random_state":
            self._devices.add(tensor.device.type)

    def _key(self, func: Any) -> _Key:
        if self._in_optimizer:
            return "", operation_name(func), "optimizer"
        phase: Phase = "backward" if torch._C._current_graph_task_id() != -1 else "forward"
        return self.paths.current[:1000], operation_name(func), phase

    def _choose(self, func: Any, reason: str) -> str | None:
        """See `CheckedOperations`. Operations of steps that are not requested, and of data loaders, are not counted."""
        if self._step not in self._steps or os.getpid() != self._process:
            return None
        if self.paths.recomputes:
            return RECOMPUTED
        if reason:
            return reason
        key = self._key(func)
        self._calls_in_step[key] += 1
        return CALLS if self._calls_in_step[key] > self._request.most_calls else ""

    def _note_unchecked(self, func: Any, reason: str) -> None:
        self._unchecked[operation_name(func), reason] += 1

    def _note_check(self, func: Any, check: OperationCheck) -> None:
        key = self._key(func)
        worst = check.worst
        if worst is not None:
            location = "" if key[2] == "backward" else user_location(sys._getframe(1))
            call = self._calls_in_step[key] - 1
            worst = replace(worst, location=location, step=self._step, call=call, rank=process_rank())
        module, operation, phase = key
        checked = CheckedOperation(
            module=module,
            operation=operation,
            phase=phase,
            calls=1,
            elements=check.elements,
            undetectable=check.undetectable,
            exceeding=check.exceeding,
            ratio=check.ratio,
            worst=worst,
        )
        before = self._checked.get(key)
        self._checked[key] = checked if before is None else merge_operations(before, checked)

    def _before_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        super()._before_optimizer(optimizer)
        self._in_optimizer = True

    def _after_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        self._in_optimizer = False
        super()._after_optimizer(optimizer)

    def _end_step(self) -> None:
        self._finished = self._step + 1
        super()._end_step()

    def _begin_step(self) -> None:
        super()._begin_step()
        self._calls_in_step.clear()

    def flush(self) -> None:
        """Writes what was checked so far, if this process trains."""
        if not self._trains or os.getpid() != self._process or self._step not in self._steps:
            return
        result = RankCheck(
            rank=process_rank(),
            ranks=process_ranks(),
            device=", ".join(sorted(self._devices - {"cpu"})) or "cpu",
            steps=self._finished,
            operations=tuple(self._checked.values()),
            unchecked=tuple(
                UncheckedOperation(operation=operation, reason=reason, calls=calls)
                for (operation, reason), calls in self._unchecked.items()
            ),
        )
        path = self._folder / f"rank{result.rank}.json"
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(result))
        part.replace(path)
