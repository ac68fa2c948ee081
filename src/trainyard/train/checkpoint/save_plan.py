"""Assigns the state to the ranks' files: torch.distributed.checkpoint's planner divides it, this module lays it out.

One rank writes each replicated tensor, chosen so that all ranks write about the same number of bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from trainyard.errors import EnvironmentFailed
from trainyard.train.checkpoint.manifest import WIDTHS, Piece, Stored
from trainyard.train.checkpoint.rank_group import CheckpointGroup

_ALIGNMENT = 64
"""Each piece begins at a multiple of this many bytes."""


class Slot(NamedTuple):
    """A piece that this rank writes: its local part of the tensor `name`, at byte `at` of its file."""

    name: str
    at: int
    bytes: int


class WritePlan(NamedTuple):
    """The contents of this rank's file, of `bytes` bytes. `table`: all tensors; empty except on rank 0."""

    file: str
    slots: Sequence[Slot]
    bytes: int
    table: Mapping[str, Stored]


def agree_on_plan(state: Mapping[str, Tensor], group: CheckpointGroup) -> WritePlan:
    """Plans a save. Collective. Raises `EnvironmentFailed` on every rank if the pieces do not form complete tensors."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(state), is_coordinator=group.first)
    plans = group.gather(planner.create_local_plan())
    assigned: Sequence[WritePlan | str] = []
    if group.first:
        try:
            assigned = _assign(planner.create_global_plan(plans)[0])
        except Exception as error:  # any error must reach the other ranks, which wait in the scatter
            assigned = [str(error)] * group.world
    own = group.scatter(assigned)
    if isinstance(own, str):
        raise EnvironmentFailed(f"the state cannot be saved: {own}")
    return own


def _assign(plans: Sequence[SavePlan]) -> list[WritePlan]:
    """The plan of each rank; rank 0 gets the table."""
    pieces: dict[str, list[Piece]] = defaultdict(list)
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    plans_by_rank: list[WritePlan] = []
    for rank, plan in enumerate(plans):
        file, end, slots = f"rank{rank}.bin", 0, []
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            if data is None or (dtype := str(data.properties.dtype).removeprefix("torch.")) not in WIDTHS:
                raise ValueError(f"{name} is not a tensor of a supported dtype: {', '.join(WIDTHS)}")
            kinds[name] = dtype, tuple(data.size)
            at, size = -(-end // _ALIGNMENT) * _ALIGNMENT, prod(data.chunk.sizes) * WIDTHS[dtype]
            pieces[name].append(
                Piece(offsets=tuple(data.chunk.offsets), sizes=tuple(data.chunk.sizes), file=file, at=at)
            )
            slots.append(Slot(name=name, at=at, bytes=size))
            end = at + size
        plans_by_rank.append(WritePlan(file=file, slots=slots, bytes=end, table={}))
    table = {name: Stored(dtype=kinds[name][0], shape=kinds[name][1], pieces=tuple(pieces[name])) for name in kinds}
    return [plans_by_rank[0]._replace(table=table), *plans_by_rank[1:]]


class Staging:
    """A host buffer with the contents of this rank's file; page-locked if the device is an accelerator.

    Reused between saves: allocating memory costs more than the copy into it.
    """

    def __init__(self) -> None:
        self._image = torch.empty(0, dtype=torch.uint8)

    def fill(self, plan: WritePlan, state: Mapping[str, Tensor], device: torch.device) -> memoryview:
        """Copies the state into the buffer and returns it. The state may change as soon as this returns."""
        if len(self._image) < plan.bytes:
            pinned = device.type == "cuda"
            self._image = torch.zeros(plan.bytes, dtype=torch.uint8, pin_memory=pinned)
        for slot in plan.slots:
            part = self._image[slot.at : slot.at + slot.bytes]
            part.copy_(_bytes(state[slot.name]), non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self._image.numpy().data[: plan.bytes]


def straight(plan: WritePlan, state: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """Yields the contents of the file piece by piece, without a staging copy. The state must not change meanwhile."""
    end = 0
    for slot in plan.slots:
        yield memoryview(bytes(slot.at - end))
        yield _bytes(state[slot.name]).cpu().numpy().data
        end = slot.at + slot.bytes


def _bytes(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor as contiguous bytes."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().contiguous().reshape(-1).view(torch.uint8)
