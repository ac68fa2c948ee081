"""What the trainer asks of a workload: its model, its samples, its loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from trainyard.train.parallel.mesh import Meshes


class Batch(NamedTuple):
    """Samples, stacked: every tensor has a row a sample. The model gets `inputs`, the loss its output and `targets`."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]

    def to(self, device: torch.device) -> Batch:
        """The same on `device`; from page-locked memory without waiting."""
        inputs, targets = (
            tuple(part.to(device, non_blocking=part.is_pinned()) for part in parts)
            for parts in (self.inputs, self.targets)
        )
        return Batch(inputs, targets)

    def split(self, parts: int) -> list[Batch]:
        """In order, into batches of equal size."""
        inputs = zip(*(part.chunk(parts) for part in self.inputs))
        targets = zip(*(part.chunk(parts) for part in self.targets))
        return [Batch(one, other) for one, other in zip(inputs, targets)]


class Samples(Protocol):
    """A stream of samples that depends on (seed, step, index in the global batch) alone."""

    source: str
    """Where the samples come from, without saying where that lies on this machine."""
    sha256: str

    def batch(self, step: int, indices: range) -> Batch:
        """Samples `indices` of the global batch of `step`, on the host."""
        ...


class Task(Protocol):
    """A workload's model and loss. Modules are built on the meta device; their weights are drawn later, by name."""

    def module(self) -> nn.Module:
        """The whole model: inputs of a batch to outputs."""
        ...

    def blocks(self, module: nn.Module) -> Mapping[str, nn.Module]:
        """The repeated parts by name, in order: each is sharded, recomputed and compiled on its own."""
        ...

    def draw(self, name: str, shape: torch.Size) -> Tensor:
        """The initial value of a parameter or buffer, float32 on the host; a function of (seed, name) alone."""
        ...

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        """The mean over the samples, a float32 scalar; equal micro-batches weigh the same."""
        ...


@runtime_checkable
class SplitTask(Protocol):
    """A task whose model can be divided within a sample."""

    def split(self, module: nn.Module, meshes: Meshes) -> None:
        """Divides the model, or a stage of it, over tp, ep and cp, before anything else is done to it."""
        ...


@runtime_checkable
class Shares(Protocol):
    """A task whose samples can be cut, since a model's parts on other ranks see the rest of them (cp)."""

    def share(self, batch: Batch, meshes: Meshes) -> Batch:
        """This rank's part of every sample; the losses of the parts count alike."""
        ...


@runtime_checkable
class Staged(Protocol):
    """A task whose model can be cut into pipeline stages: each a module with the whole model's names."""

    def stage(self, number: int, of: int) -> nn.Module: ...

    def handed(self, samples: int) -> tuple[Tensor, ...]:
        """What a stage hands to the next on this rank: the shapes and dtypes, as tensors on the meta device."""
        ...


@runtime_checkable
class Places(Protocol):
    """A module that spreads its parameters over the ranks of data parallelism itself, and averages their gradients."""

    def lone(self) -> Sequence[nn.Parameter]:
        """Those that are on this rank and on no other: some on each rank, or none on any."""
        ...


@runtime_checkable
class Counts(Protocol):
    """A module that changes between steps by what it counted, over the global batch (a router's balance)."""

    def after_step(self) -> None:
        """Called on every rank after the optimizer's step."""
        ...


@runtime_checkable
class Weighs(Protocol):
    """A module with losses of its own, which no one reports: their gradients join those of the loss."""

    def weigh(self, share: float) -> None:
        """Called before a step. `share`: what each micro-batch's loss is multiplied by."""
        ...


@runtime_checkable
class Tallies(Protocol):
    """A module that can say what it counted."""

    def tallies(self) -> Mapping[str, Sequence[int]]:
        """Of the last step, over the global batch: tokens of each expert, by layer."""
        ...
