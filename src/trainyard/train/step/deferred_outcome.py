"""Loss and gradient norm of a step on a device, copied to the host without waiting for the step's end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class DeferredOutcome:
    """A `StepResult` whose values are copied to page-locked memory once the device has computed them.

    Reading a value waits for the copy. The host can thus launch the next step before this one has ended.
    """

    def __init__(self, loss: Tensor, grad_norm: Tensor, loss_divisor: float, cuda: Any = torch.cuda) -> None:
        """`loss`, `grad_norm`: scalars on the device; the reported loss is `loss` divided by `loss_divisor`. `cuda`:
        the module of the device's events; tests pass their own."""
        self._divisor = loss_divisor
        values = torch.stack((loss.detach(), grad_norm.detach().to(loss)))
        self._values = torch.empty_like(values, device="cpu", pin_memory=values.is_cuda)
        copy_to_host(self._values, values)
        self._copied = cuda.Event()
        self._copied.record()

    @property
    def loss(self) -> float:
        return self._read(0) / self._divisor

    @property
    def grad_norm(self) -> float:
        return self._read(1)

    def _read(self, index: int) -> float:
        self._copied.synchronize()
        return float(self._values[index])


def copy_to_host(target: Tensor, source: Tensor) -> None:
    """Launches a copy from the device into page-locked memory."""
    target.copy_(source, non_blocking=True)
