"""Who writes what: torch.distributed.checkpoint's planner divides the state, this places the pieces in files.

What several ranks have alike (replicas) is written by one of them, so that all write about as much.
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

_APART = 64
"""Bytes: each piece begins at a multiple."""


class Slot(NamedTuple):
    """A piece that this rank writes: all that it has of the tensor `name`, from byte `at` of its file."""

    name: str
    at: int
    bytes: int


class WritePlan(NamedTuple):
    """This rank's part, `bytes` long, and on the first rank the table of all."""

    file: str
    slots: Sequence[Slot]
    bytes: int
    table: Mapping[str, Stored]


def agree_on_plan(state: Mapping[str, Tensor], group: CheckpointGroup) -> WritePlan:
    """Collective. Raises `EnvironmentFailed` on every rank when the pieces do not make whole tensors."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(state), is_coordinator=group.first)
    plans = group.gather(planner.create_local_plan())
    given: Sequence[WritePlan | str] = []
    if group.first:
        try:
            given = _placed(planner.create_global_plan(plans)[0])
        except Exception as error:  # else the others would wait for it
            given = [str(error)] * group.world
    mine = group.scatter(given)
    if isinstance(mine, str):
        raise EnvironmentFailed(f"the state cannot be saved: {mine}")
    return mine


def _placed(plans: Sequence[SavePlan]) -> list[WritePlan]:
    """Each rank's plan; the table goes to the first."""
    pieces: dict[str, list[Piece]] = defaultdict(list)
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    placed: list[WritePlan] = []
    for rank, plan in enumerate(plans):
        file, end, slots = f"rank{rank}.bin", 0, []
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            if data is None or (dtype := str(data.properties.dtype).removeprefix("torch.")) not in WIDTHS:
                raise ValueError(f"{name} is no tensor of a type of values that is kept")
            kinds[name] = dtype, tuple(data.size)
            at, long = -(-end // _APART) * _APART, prod(data.chunk.sizes) * WIDTHS[dtype]
            pieces[name].append(Piece(tuple(data.chunk.offsets), tuple(data.chunk.sizes), file, at))
            slots.append(Slot(name, at, long))
            end = at + long
        placed.append(WritePlan(file, slots, end, {}))
    table = {name: Stored(dtype=kinds[name][0], shape=kinds[name][1], pieces=tuple(pieces[name])) for name in kinds}
    return [placed[0]._replace(table=table), *placed[1:]]


class Staging:
    """This rank's part of the state as its file will be, in the host's memory (page-locked for an accelerator's sake).

    Kept from one save to the next: fresh memory costs more than the copy into it.
    """

    def __init__(self) -> None:
        self._image = torch.empty(0, dtype=torch.uint8)

    def fill(self, plan: WritePlan, state: Mapping[str, Tensor], device: torch.device) -> memoryview:
        """The image of the file. The state may change as soon as this returns."""
        if len(self._image) < plan.bytes:
            pinned = device.type == "cuda"
            self._image = torch.zeros(plan.bytes, dtype=torch.uint8, pin_memory=pinned)
        for slot in plan.slots:
            here = self._image[slot.at : slot.at + slot.bytes]
            here.copy_(_bytes(state[slot.name]), non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self._image.numpy().data[: plan.bytes]


def straight(plan: WritePlan, state: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """The same file, piece after piece, without a copy of it all: the state must not change meanwhile."""
    end = 0
    for slot in plan.slots:
        yield memoryview(bytes(slot.at - end))
        yield _bytes(state[slot.name]).cpu().numpy().data
        end = slot.at + slot.bytes


def _bytes(tensor: Tensor) -> Tensor:
    """What this rank has of it, as bytes in order."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().contiguous().reshape(-1).view(torch.uint8)
