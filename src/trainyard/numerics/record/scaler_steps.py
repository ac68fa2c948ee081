"""The optimizer steps that `torch.amp.GradScaler` takes or skips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from trainyard.scaled_steps import ScaledStep

ScalarName = Literal["loss_scale", "loss_factor", "found_inf"]


class ScalerSteps:
    """Follows `GradScaler.step` of all scalers of this process. Use as a context manager."""

    def __init__(self, on_skip: Callable[[Optimizer], object]) -> None:
        """`on_skip`: called in place of a step of an optimizer that its scaler skips."""
        self._on_skip = on_skip
        self._scaler: GradScaler | None = None
        """The scaler whose step is running."""
        self._has_stepped = False

    def __enter__(self) -> ScalerSteps:
        self._step = step = GradScaler.step

        def followed(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
            if not scaler.is_enabled() or self._scaler is not None:
                return step(scaler, optimizer, *args, **kwargs)
            self._scaler, self._has_stepped = scaler, False
            try:
                result = step(scaler, optimizer, *args, **kwargs)
                if not self._has_stepped:
                    self._on_skip(optimizer)
                return result
            finally:
                self._scaler = None

        GradScaler.step = followed  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def __exit__(self, *_: object) -> None:
        GradScaler.step = self._step

    def note_step(self) -> None:
        """Notes that an optimizer steps."""
        self._has_stepped = True

    def state(self, optimizer: Optimizer) -> Iterator[tuple[ScalarName, Tensor]]:
        """The scale of the loss of the step of `optimizer` that is running, and by device whether gradients are not
        finite: the step is skipped unless all are 0. Nothing if the step is not that of a scaler."""
        scaler = self._scaler
        if scaler is None or scaler._scale is None:
            return
        yield "loss_scale", scaler._scale
        for is_overflow in scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            yield "found_inf", is_overflow

    def divisor(self, optimizer: Optimizer) -> float:
        """The scale that the gradients still have when `optimizer` steps: fused optimizers divide by it themselves."""
        scale = getattr(optimizer, "grad_scale", None)
        if self._scaler is None or not isinstance(scale, Tensor):
            return 1.0
        with _disable_current_modes():
            return float(scale)


def own_state(step: ScaledStep) -> list[tuple[ScalarName, Tensor]]:
    """As `ScalerSteps.state`, of a step of our own training. `loss_factor`: of this rank's loss."""
    values: list[tuple[ScalarName, float]] = [
        ("loss_scale", step.scale),
        ("loss_factor", step.factor),
        ("found_inf", float(step.is_skipped)),
    ]
    with _disable_current_modes():
        return [(name, torch.tensor(value)) for name, value in values]
