"""The interfaces between the trainer and a workload: model, samples and loss.

A workload implements `Samples` and `Task`, and the further protocols that its model needs; the trainer checks for them
with `isinstance`. tp, ep, cp and pp are tensor, expert, context and pipeline parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from trainyard.train.model.distributions import Distribution
from trainyard.train.parallel.mesh import Meshes


class Batch(NamedTuple):
    """Stacked samples, one row each. The model takes `inputs`; the loss takes its outputs and `targets`."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]

    def to(self, device: torch.device) -> Batch:
        """Copies the batch to `device`, asynchronously if it is in page-locked memory."""
        inputs, targets = (
            tuple(part.to(device, non_blocking=part.is_pinned()) for part in parts)
            for parts in (self.inputs, self.targets)
        )
        return Batch(inputs, targets)

    def pin(self) -> Batch:
        """Copies the batch to page-locked memory."""
        inputs, targets = (tuple(part.pin_memory() for part in parts) for parts in (self.inputs, self.targets))
        return Batch(inputs, targets)

    def split(self, parts: int) -> list[Batch]:
        """Splits into `parts` consecutive batches of equal size: the micro-batches of a step."""
        inputs = zip(*(part.chunk(parts) for part in self.inputs))
        targets = zip(*(part.chunk(parts) for part in self.targets))
        return [Batch(micro_inputs, micro_targets) for micro_inputs, micro_targets in zip(inputs, targets)]


class Ends(NamedTuple):
    """Modules of a model outside its blocks that FSDP shards as units: `first`, before the blocks (the embedding), and
    `last`, after them (the last norm and the head)."""

    first: Sequence[nn.Module] = ()
    last: Sequence[nn.Module] = ()


class Samples(Protocol):
    """A stream of samples that depends only on (seed, step, index in the global batch)."""

    source: str
    """The origin of the samples, without paths of this machine."""
    sha256: str

    def batch(self, step: int, indices: range) -> Batch:
        """Samples `indices` of the global batch of `step`, on the host."""
        ...


class Task(Protocol):
    """A workload's model and loss. Modules are built on the meta device; weights are initialized later, by name."""

    seed: int
    """Seed of the initial weights."""

    def module(self) -> nn.Module:
        """The complete model, from the inputs of a batch to outputs."""
        ...

    def blocks(self, module: nn.Module) -> Mapping[str, nn.Module]:
        """The repeated blocks by name, in order. Each is sharded, checkpointed and compiled separately."""
        ...

    def distribution(self, name: str, shape: torch.Size) -> Distribution:
        """The distribution of the initial values of a parameter or persistent buffer. `shape`: of the unsharded
        tensor."""
        ...

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        """The mean loss over the samples, a float32 scalar."""
        ...


@runtime_checkable
class HasEnds(Protocol):
    """A task whose model has ends that FSDP shards as units of their own; otherwise they are part of the root unit."""

    def ends(self, module: nn.Module) -> Ends:
        """The ends of the model or of a stage of it."""
        ...


@runtime_checkable
class SplitTask(Protocol):
    """A task whose model can be parallelized within a sample (tp, ep, cp)."""

    def split(self, module: nn.Module, meshes: Meshes) -> None:
        """Applies tp, ep and cp to the model or a stage of it, before any other transformation."""
        ...


@runtime_checkable
class SplitsBatch(Protocol):
    """A task whose samples can be split over ranks (cp)."""

    def select_part(self, batch: Batch, meshes: Meshes) -> Batch:
        """This rank's part of every sample; the losses of all parts have equal weight."""
        ...


@runtime_checkable
class PipelineTask(Protocol):
    """A task whose model can be split into pipeline stages, each a module with the unsplit model's names."""

    def stage(self, number: int, stages: int) -> nn.Module:
        """Stage `number`, counted from 0, of a pipeline with `stages` stages."""
        ...

    def stage_activations(self, samples: int) -> tuple[Tensor, ...]:
        """Activations that a stage sends to the next, as meta tensors with this rank's shapes and dtypes."""
        ...


@runtime_checkable
class SelfSharded(Protocol):
    """A module that shards its parameters over the data-parallel ranks itself and averages their gradients."""

    def unshared(self) -> Sequence[nn.Parameter]:
        """The parameters that exist on this rank only. Either every rank has some or none has."""
        ...


class RowTable(NamedTuple):
    """An embedding table with gradients of rows. `looked_up`: a leaf for each lookup since the last step, the rows of
    `weight` on this rank; its gradient is sparse: ids and a gradient of each, which may repeat ids."""

    weight: nn.Parameter
    looked_up: list[Tensor]


@runtime_checkable
class HasRowTables(Protocol):
    """A module of embedding tables, all sharded or all replicated. `replicas`: the ranks with equal tables, which sum
    their gradients; None if no other rank has the same rows."""

    replicas: ProcessGroup | None

    def row_tables(self) -> Sequence[RowTable]:
        """The tables with gradients of rows; empty if gradients are dense."""
        ...


@runtime_checkable
class UpdatesAfterStep(Protocol):
    """A module that updates its state between steps from counts over the global batch, such as a router's balance."""

    def after_step(self) -> None:
        """Called on every rank after the optimizer step."""
        ...


@runtime_checkable
class DiscardsStep(Protocol):
    """A module that accumulates counts over a step and can forget them, such as an `UpdatesAfterStep`."""

    def discard_step(self) -> None:
        """Forgets the counts of a step whose update is not applied, in place of `after_step`."""
        ...


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """A module with auxiliary losses. They contribute gradients but are not part of the reported loss."""

    def set_loss_weight(self, share: float) -> None:
        """Sets the factor `share` that is applied to the loss of each micro-batch. Called before each step."""
        ...


@runtime_checkable
class ReportsCounts(Protocol):
    """A module that reports its counts."""

    @property
    def expert_count(self) -> int:
        """Number of experts of all layers."""
        ...

    def tokens_per_expert(self) -> Mapping[str, Tensor]:
        """Tokens per expert over the global batch of the last step: layer name to (E,) int64. Empty before the first
        step."""
        ...
