"""What of a training is kept: its weights and kept buffers, the optimizer's state, and small numbers, all by name.

model/<name>        a weight or kept buffer, under the whole model's name
optim/<name>/<key>  what the optimizer keeps of that weight: exp_avg, momentum, step ...
rng/rank<N>/<which> the state of a rank's generator of random numbers

A tensor in parts is a DTensor and stays one, so that it can be read back into other parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

_KEPT = (Tensor, bool, int, float)


@runtime_checkable
class Stateful(Protocol):
    """A `Training` that can be saved and gone on with. Collective, as the training is."""

    def modules(self) -> Sequence[nn.Module]:
        """What this rank has of the model, under the whole model's names."""
        ...

    def optimizers(self) -> Sequence[torch.optim.Optimizer]: ...

    def numbers(self) -> Mapping[str, float]:
        """State that is no tensor, by name, the same on every rank: a loss scale."""
        ...

    def set_numbers(self, numbers: Mapping[str, float]) -> None:
        """Those of a checkpoint; empty when it had none."""
        ...


def weights(training: Stateful) -> dict[str, Tensor]:
    """Each tensor once, whatever number of names it has."""
    found: dict[int, tuple[str, Tensor]] = {}
    for module in training.modules():
        for name, value in module.state_dict(keep_vars=True).items():
            if isinstance(value, Tensor):
                found.setdefault(id(value), (f"model/{name}", value))
    return dict(found.values())


def of_optimizers(training: Stateful) -> dict[str, Tensor]:
    """Numbers that an optimizer keeps as such are tensors here; `set_numbers_of` gives them back."""
    return {
        f"optim/{name}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, kept in _kept(training)
        for key, value in kept.items()
        if isinstance(value, _KEPT)
    }


def generators(rank: int, device: torch.device) -> dict[str, Tensor]:
    """The generators that torch draws from where a model draws anything (dropout)."""
    found = {f"rng/rank{rank}/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found[f"rng/rank{rank}/cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_generators(found: Mapping[str, Tensor], device: torch.device) -> None:
    for name, value in found.items():
        if name.endswith("/cuda"):
            torch.cuda.set_rng_state(value, device)
        else:
            torch.set_rng_state(value)


def begin(training: Stateful) -> None:
    """Makes the optimizers' state exist, where no step was taken yet, so that it can be read into: a step of zero
    gradients at a rate of zero. Whatever it does to the weights is overwritten by what is read."""
    for optimizer in training.optimizers():
        rates = [group["lr"] for group in optimizer.param_groups]
        for parameter in _parameters(training):
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        optimizer.zero_grad()
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate


def settle(training: Stateful, read: Mapping[str, Tensor]) -> None:
    """After reading: numbers that an optimizer keeps as such, and no state where the checkpoint had none."""
    for name, kept in _kept(training):
        for key, value in list(kept.items()):
            mine = f"optim/{name}/{key}"
            if not isinstance(value, _KEPT):
                continue
            if mine not in read:
                del kept[key]
            elif not isinstance(value, Tensor):
                kept[key] = type(value)(read[mine].item())


def _parameters(training: Stateful) -> Iterator[nn.Parameter]:
    for module in training.modules():
        yield from module.parameters()


def _kept(training: Stateful) -> Iterator[tuple[str, dict[str, object]]]:
    """(whole model's name, what an optimizer keeps of it) of each weight that has state on this rank."""
    for module in training.modules():
        for name, parameter in module.named_parameters():
            for optimizer in training.optimizers():
                if parameter in optimizer.state:
                    yield name, optimizer.state[parameter]
