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

from trainyard.errors import EnvironmentFailed
from trainyard.train.checkpoint.manifest import WIDTHS, Piece, Stored
from trainyard.train.checkpoint.rank_group import CheckpointGroup
from trainyard.train.parallel.local_part import local_part

_ALIGNMENT = 64
"""Each piece begins at a multiple of this many bytes."""


class Slot(NamedTuple):
    """A piece that this rank writes: its local part of the tensor `name`, at byte `at` of its file."""

    name: str
    at: int
    bytes: int


class WritePlan(NamedTuple):
    """The contents of a rank's file. `slots`: its pieces in order; `bytes`: size of the file; `table`: dtype, shape and
    pieces of all tensors of all ranks, by name; empty except on rank 0."""

    file: str
    slots: Sequence[Slot]
    bytes: int
    table: Mapping[str, Stored]


def agree_on_plan(state: Mapping[str, Tensor], group: CheckpointGroup) -> WritePlan:
    """Plans a save of `state`: this rank's tensors by name. Collective. Raises `EnvironmentFailed` on every rank if the
    pieces do not form complete tensors."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(state), is_coordinator=group.is_rank_0)
    plans = group.gather(planner.create_local_plan())
    plan_by_rank: Sequence[WritePlan | str] = []
    if group.is_rank_0:
        try:
            plan_by_rank = _assign(planner.create_global_plan(plans)[0])
        except Exception as error:  # any error must reach the other ranks, which wait in the scatter
            plan_by_rank = [str(error)] * group.world
    own_plan = group.scatter(plan_by_rank)
    if isinstance(own_plan, str):
        raise EnvironmentFailed(f"the state cannot be saved: {own_plan}")
    return own_plan


def _assign(plans: Sequence[SavePlan]) -> list[WritePlan]:
    """The plan of each rank, from torch's plans by rank: each lays out its pieces one after another in its own file.
    Only rank 0's has the table of all tensors. Raises `ValueError` for a tensor of an unsupported dtype."""
    pieces_by_name: dict[str, list[Piece]] = defaultdict(list)
    dtype_and_shape: dict[str, tuple[str, tuple[int, ...]]] = {}  # by tensor name; the shape is unsharded
    plans_by_rank: list[WritePlan] = []
    for rank, plan in enumerate(plans):
        file, end_bytes, slots = f"rank{rank}.bin", 0, []
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            if data is None or (dtype := str(data.properties.dtype).removeprefix("torch.")) not in WIDTHS:
                raise ValueError(f"{name} is not a tensor of a supported dtype: {', '.join(WIDTHS)}")
            dtype_and_shape[name] = dtype, tuple(data.size)
            offset_bytes = -(-end_bytes // _ALIGNMENT) * _ALIGNMENT  # rounded up
            size_bytes = prod(data.chunk.sizes) * WIDTHS[dtype]
            pieces_by_name[name].append(
                Piece(offsets=tuple(data.chunk.offsets), sizes=tuple(data.chunk.sizes), file=file, at=offset_bytes)
            )
            slots.append(Slot(name=name, at=offset_bytes, bytes=size_bytes))
            end_bytes = offset_bytes + size_bytes
        plans_by_rank.append(WritePlan(file=file, slots=slots, bytes=end_bytes, table={}))
    tensors_by_name = {
        name: Stored(dtype=dtype, shape=shape, pieces=tuple(pieces_by_name[name]))
        for name, (dtype, shape) in dtype_and_shape.items()
    }
    return [plans_by_rank[0]._replace(table=tensors_by_name), *plans_by_rank[1:]]


def stream_contents(plan: WritePlan, state: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """Yields the contents of the file piece by piece, without a staging copy: padding, then the bytes of the tensor.
    The state must not change meanwhile."""
    end_bytes = 0
    for slot in plan.slots:
        yield memoryview(bytes(slot.at - end_bytes))
        yield local_bytes(state[slot.name]).cpu().numpy().data
        end_bytes = slot.at + slot.bytes


def local_bytes(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor as contiguous bytes."""
    return local_part(tensor).detach().contiguous().reshape(-1).view(torch.uint8)
