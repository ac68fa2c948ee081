"""`python -m tests.faulty_steps FOLDER VENDOR`: a rank of a real run with faulty batches, by the variable FAULTY_STEPS.

FAULTY_STEPS is a list of KIND:RANK:STEP, separated by blanks. `activation`: an activation of that rank is NaN in the
step; `batch`: its samples are a constant byte.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import torch

from trainyard.run.local import worker
from trainyard.train.model.language_task import Bytes
from trainyard.train.step.trainer import Trainer

MODULE = "layers.1.attention.out"
_FAULTS = [entry.split(":") for entry in os.environ.get("FAULTY_STEPS", "").split()]


def is_faulty(kind: str, step: int) -> bool:
    return [kind, os.environ.get("RANK", "0"), str(step)] in _FAULTS


def plant() -> None:
    """Wraps the step and the samples of this process."""
    take_step, read_batch, current = Trainer.__call__, Bytes.batch, [-1]

    def spoil(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        return output * math.nan if is_faulty("activation", current[0]) else None

    def spoilt_step(self: Trainer, step: int) -> Any:
        if current[0] < 0:
            for module in self.modules():
                for name, part in module.named_modules():
                    if name == MODULE:
                        part.register_forward_hook(spoil)
        current[0] = step
        return take_step(self, step)

    def spoilt_batch(self: Bytes, step: int, indices: range) -> Any:
        batch = read_batch(self, step, indices)
        if is_faulty("batch", step):
            for tensor in (*batch.inputs, *batch.targets):
                tensor.fill_(255)
        return batch

    setattr(Trainer, "__call__", spoilt_step)  # noqa: B010
    setattr(Bytes, "batch", spoilt_batch)  # noqa: B010


if __name__ == "__main__":
    plant()
    worker.main(Path(sys.argv[1]), *sys.argv[2:])
