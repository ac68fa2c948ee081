"""Finds the first non-finite tensor of a step: in its inputs, the model's state, or a repeated pass.

The step's forward and backward pass is repeated with checks of all outputs of modules and of their gradients.

Outputs that are only negatively infinite rank last among forward tensors, since masks use them.

The order of tensors is (category, stage, event): categories are below, stages those of a pipeline (negative in the
backward pass, which visits the last stage first), events count the tensors of a rank's pass, in the same way on ranks
with the same modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from trainyard.train.optimizers.row_gradients import RowGradients
from trainyard.train.parallel.local_part import local_part
from trainyard.train.step.outcome import NonFiniteTensor

_INPUT, _STATE, _FORWARD, _LOSS, _MASK, _BACKWARD, _GRADIENT, _OTHER_STATE = range(8)
"""Categories: inputs; weights, each after its optimizer state; outputs of modules; the loss; outputs that are only
negatively infinite; gradients in the backward pass; gradients of the failing step itself, after their reduction;
optimizer state of finite weights."""


def first_non_finite(
    *,
    rank: int,
    stages: Mapping[int, nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    rows: RowGradients | None,
    inputs: Iterable[Tensor],
    repeat: Callable[[], Tensor],
) -> NonFiniteTensor | None:
    """The first non-finite tensor of this rank, None if it has none. Collective, as `repeat` is.

    `stages`: this rank's pipeline stages by number, {0: the model} without a pipeline, with the gradients of the
    failing step. `rows`: its gradients of rows of embedding tables. `inputs`: of that step. `repeat`: clears the
    gradients, repeats the forward and backward pass and returns this rank's loss.
    """
    pass_checks = _PassChecks(rank)
    tensors = [
        *_check_inputs(inputs, rank),
        *_check_state(stages, optimizers, rank),
        *_check_gradients(stages, rows, rank),
    ]
    # Compiled code does not call hooks.
    with torch.compiler.set_stance("force_eager"), pass_checks.hooks(stages):
        loss = repeat()
    tensors += pass_checks.first_of_category.values()
    tensors += _check(loss, (_LOSS, 0, 0), "the loss", rank)
    return min(tensors, default=None)


def _check(tensor: Tensor, order: tuple[int, ...], label: str, rank: int) -> list[NonFiniteTensor]:
    """The tensor if this rank's part of it has non-finite values, else nothing. Waits for the device."""
    part = local_part(tensor.detach())
    if not part.is_floating_point() or not part.numel():
        return []
    count = int(part.isfinite().logical_not().sum())
    return [NonFiniteTensor(order, rank, label, count, part.numel())] if count else []


def _check_inputs(inputs: Iterable[Tensor], rank: int) -> Iterator[NonFiniteTensor]:
    for number, tensor in enumerate(inputs):
        yield from _check(tensor, (_INPUT, 0, number), f"input {number} of the batch", rank)


def _check_state(
    stages: Mapping[int, nn.Module], optimizers: Sequence[torch.optim.Optimizer], rank: int
) -> Iterator[NonFiniteTensor]:
    """Weights, buffers and optimizer state."""
    for stage, module in stages.items():
        for name, parameter in module.named_parameters():
            weight = _check(parameter, (_STATE, stage, 1), f"weight {name}", rank)
            yield from weight
            category = _STATE if weight else _OTHER_STATE
            for key, value in _optimizer_state(optimizers, parameter):
                yield from _check(value, (category, stage, 0), f"optimizer state {key} of {name}", rank)
        for name, buffer in module.named_buffers():
            if _has_nan_or_positive_infinity(buffer):
                yield from _check(buffer, (_STATE, stage, 1), f"buffer {name}", rank)


def _optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], parameter: nn.Parameter
) -> Iterator[tuple[str, Tensor]]:
    for optimizer in optimizers:
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield key, value


def _check_gradients(
    stages: Mapping[int, nn.Module], rows: RowGradients | None, rank: int
) -> Iterator[NonFiniteTensor]:
    """Gradients of the failing step, also those of rows. The backward pass visits the last parameters first."""
    rows_by_table = {id(table.weight): table.values for table in rows.by_table()} if rows is not None else {}
    for stage, module in stages.items():
        for event, (name, parameter) in enumerate(reversed(list(module.named_parameters()))):
            gradient = rows_by_table.get(id(parameter), parameter.grad)
            if gradient is not None:
                yield from _check(gradient, (_GRADIENT, -stage, event), f"the gradient of {name}", rank)


class _PassChecks:
    """Checks the outputs of all modules and the gradients of a forward and backward pass. `first_of_category`: category
    -> its first non-finite tensor."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.first_of_category: dict[int, NonFiniteTensor] = {}
        self._events = 0
        self._handles: list[RemovableHandle] = []
        self._watched: set[int] = set()
        """Ids of the parameters whose gradients are checked. FSDP's unsharded ones exist in the forward pass only."""

    @contextmanager
    def hooks(self, stages: Mapping[int, nn.Module]) -> Iterator[None]:
        """Context in which passes through the stages are checked."""
        for stage, module in stages.items():
            for name, part in module.named_modules():
                self._handles += [
                    part.register_forward_pre_hook(partial(self._watch_weights, stage, name)),
                    part.register_forward_hook(partial(self._check_outputs, stage, name or "the model")),
                ]
        try:
            yield
        finally:
            for handle in self._handles:
                handle.remove()

    def _watch_weights(self, stage: int, name: str, part: nn.Module, _: Any) -> None:
        """Checks the local gradients of a module's own weights, before they are reduced."""
        for own_name, parameter in part.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in self._watched:
                self._watched.add(id(parameter))
                label = f"the gradient of {name}.{own_name}".replace(" .", " ")
                self._handles.append(parameter.register_hook(partial(self._check_gradient, stage, label)))

    def _check_outputs(self, stage: int, name: str, _part: nn.Module, _inputs: Any, outputs: Any) -> None:
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._add(output, _FORWARD, stage, f"the output of {name}")
                if output.requires_grad:
                    label = f"the gradient of the output of {name}"
                    self._handles.append(output.register_hook(partial(self._check_gradient, stage, label)))

    def _check_gradient(self, stage: int, label: str, gradient: Tensor) -> None:
        self._add(gradient, _BACKWARD, -stage, label)

    def _add(self, tensor: Tensor, category: int, stage: int, label: str) -> None:
        """Adds a non-finite tensor, unless an earlier one of its category is known."""
        self._events += 1
        if category in self.first_of_category:
            return
        checked = _check(tensor, (category, stage, self._events), label, self.rank)
        if checked and category == _FORWARD and not _has_nan_or_positive_infinity(tensor):
            checked = [checked[0]._replace(order=(_MASK, stage, self._events))]
        for fault in checked:
            self.first_of_category.setdefault(fault.order[0], fault)


def _has_nan_or_positive_infinity(tensor: Tensor) -> bool:
    """Whether this rank's part has non-finite values that a mask does not have."""
    part = local_part(tensor)
    return bool((part.isnan() | (part == torch.inf)).any())
