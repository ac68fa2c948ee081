"""The state that a checkpoint contains: weights, persistent buffers, optimizer state and scalars, all by name.

model/<name>        a weight or persistent buffer, under its name in the unsharded model
optim/<name>/<key>  optimizer state of that weight: exp_avg, momentum, step ...
rng/rank<N>/<which> the state of a rank's random number generator

A sharded tensor is a DTensor and stays one, so that it can be loaded under another layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

_STORED_TYPES = (Tensor, bool, int, float)


@runtime_checkable
class Stateful(Protocol):
    """A `Training` that can be saved and resumed. Collective, like the training itself.

    Between two steps of the optimizers, parameters and optimizer state must not change, except by loading: an
    asynchronous save copies them while the next step computes, and only the optimizers' `step` waits for the copies.
    Scalars and buffers may change at any time, since a save copies them before it returns.
    """

    def modules(self) -> Sequence[nn.Module]:
        """This rank's modules, with the parameter names of the unsharded model."""
        ...

    def optimizers(self) -> Sequence[torch.optim.Optimizer]: ...

    def numbers(self) -> Mapping[str, float]:
        """Scalar state by name, the same on every rank, such as the loss scale."""
        ...

    def set_numbers(self, numbers: Mapping[str, float]) -> None:
        """Restores the scalars of a checkpoint; `numbers` is empty if it has none."""
        ...


@runtime_checkable
class SkipsInitialWeights(Stateful, Protocol):
    """A `Stateful` training that can be built without initial weights, if a checkpoint is expected to provide them."""

    def draw_weights(self) -> None:
        """Draws the initial weights if the training was built without them. Called if no checkpoint was loaded.
        Collective."""
        ...

    def digests(self) -> Mapping[str, str]:
        """Digests that a later process cannot compute, by name, such as that of the initial weights."""
        ...

    def set_digests(self, digests: Mapping[str, str]) -> None:
        """Restores the digests of a checkpoint; `digests` is empty if it has none."""
        ...


def weights(training: Stateful) -> dict[str, Tensor]:
    """Weights and persistent buffers by name. A tensor with several names (tied weights) is listed once."""
    by_id: dict[int, tuple[str, Tensor]] = {}
    for module in training.modules():
        for name, value in module.state_dict(keep_vars=True).items():
            if isinstance(value, Tensor):
                by_id.setdefault(id(value), (f"model/{name}", value))
    return dict(by_id.values())


def optimizer_state(training: Stateful) -> dict[str, Tensor]:
    """Optimizer state by name. Python numbers become tensors; `finish_load` converts them back."""
    return {
        f"optim/{name}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, state in _parameter_states(training)
        for key, value in state.items()
        if isinstance(value, _STORED_TYPES)
    }


def copy_buffers(tensors: Mapping[str, Tensor], training: Stateful) -> dict[str, Tensor]:
    """Replaces the buffers among the state's `tensors` by copies on the same device. Modules change buffers at any
    time, as batch normalization does in the forward pass; the other tensors change only in an optimizer's step."""
    buffers = {id(buffer) for module in training.modules() for buffer in module.buffers()}
    return {name: value.clone() if id(value) in buffers else value for name, value in tensors.items()}


def generators(rank: int, device: torch.device) -> dict[str, Tensor]:
    """States of torch's random number generators, which models with dropout draw from."""
    states = {f"rng/rank{rank}/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"rng/rank{rank}/cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restores the states of the random number generators, by the names that `generators` gave them (`.../cuda` or
    CPU)."""
    for name, value in states.items():
        if name.endswith("/cuda"):
            torch.cuda.set_rng_state(value, device)
        else:
            torch.set_rng_state(value)


def initialize_optimizer_state(training: Stateful) -> None:
    """Creates the optimizer's state tensors, which torch does at the first step, so that a checkpoint can be loaded
    into them.

    Takes one step with zero gradients and a learning rate of zero. Loading overwrites any effect on the weights.
    Parameters that have state already need no gradient.
    """
    with_state = {id(parameter) for optimizer in training.optimizers() for parameter in optimizer.state}
    for optimizer in training.optimizers():
        rates = [group["lr"] for group in optimizer.param_groups]
        for parameter in _parameters(training):
            if parameter.requires_grad and id(parameter) not in with_state:
                parameter.grad = torch.zeros_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        optimizer.zero_grad()
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate


def finish_load(training: Stateful, loaded: Mapping[str, Tensor]) -> None:
    """Completes a load of the optimizer state: converts state that was a Python number back to one, and deletes state
    that was not loaded. `loaded`: the tensors that were loaded, by name (`optim/<name>/<key>`)."""
    for name, state in _parameter_states(training):
        for key, value in list(state.items()):
            full_name = f"optim/{name}/{key}"
            if not isinstance(value, _STORED_TYPES):
                continue
            if full_name not in loaded:
                del state[key]
            elif not isinstance(value, Tensor):
                state[key] = type(value)(loaded[full_name].item())


def _parameters(training: Stateful) -> Iterator[nn.Parameter]:
    for module in training.modules():
        yield from module.parameters()


def _parameter_states(training: Stateful) -> Iterator[tuple[str, dict[str, object]]]:
    """(name in the unsharded model, optimizer state) of each parameter that has state on this rank."""
    for module in training.modules():
        for name, parameter in module.named_parameters():
            for optimizer in training.optimizers():
                if parameter in optimizer.state:
                    yield name, optimizer.state[parameter]
