"""One rank of a training loop with a planted hang, for `validation/hangs.py`: real processes, groups and collectives.

A step loads a batch and issues the collectives of the plan, on groups drawn at random. In one step, one rank deviates:
it skips a collective, swaps two of them, passes another size or number format, does not come because its code is stuck,
its loader returns nothing, its process ends or is stopped.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.utils.data import DataLoader, Dataset

from trainyard.launch.agents.flight_recorder import FlightRecorder

KINDS = (
    "missing_collective",
    "wrong_order",
    "wrong_size",
    "wrong_dtype",
    "host_stuck",
    "dead_process",
    "data_loader",
    "stopped_process",
)
FOREVER_S = 3600.0
SLOTS = 8


class PlannedCollective(NamedTuple):
    """A collective of each step. `group`: index in `HangPlan.groups`; `elements`: of the input of each rank; `root`:
    index of the root within the group, for operations with a root."""

    operation: str
    group: int
    elements: int
    root: int = 0


class HangPlan(NamedTuple):
    """A planted hang. `groups`: members of each process group, the first one all ranks; `collectives`: of a step, at
    most `SLOTS`; `rank` deviates in `step` at the collective `slot` as `kind` names. `loops`: whether the collectives
    are issued by one line of code in a loop, or each by its own line. `variant`: way in which a host is stuck."""

    kind: str
    world: int
    groups: tuple[tuple[int, ...], ...]
    collectives: tuple[PlannedCollective, ...]
    steps: int
    rank: int
    step: int
    slot: int
    loops: bool
    variant: int = 0


class Batches(Dataset[torch.Tensor]):
    """One sample for each step. The worker that loads the sample `stuck` blocks; -1 for none."""

    def __init__(self, steps: int, stuck: int) -> None:
        self.steps, self.stuck = steps, stuck

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.stuck:
            time.sleep(FOREVER_S)
        return torch.zeros(2)


class PlannedRank:
    """A rank that executes a plan. `count`: called after each collective, for the parent's hang detection."""

    def __init__(self, plan: HangPlan, rank: int, groups: list[dist.ProcessGroup], count: Callable[[], None]) -> None:
        """`groups`: the process groups of the plan."""
        self.plan, self.rank, self.groups, self.count = plan, rank, groups, count
        self.step = -1
        self.batches = self._batches()

    def _batches(self) -> Iterator[torch.Tensor]:
        starves = self.plan.kind == "data_loader" and self.rank == self.plan.rank
        stuck = self.plan.step if starves else -1
        workers, ahead = (1, 1) if starves else (0, None)
        return iter(DataLoader(Batches(self.plan.steps, stuck), num_workers=workers, prefetch_factor=ahead))

    def train(self) -> None:
        for step in range(self.plan.steps):
            self.step = step
            next(self.batches)
            if self.plan.loops:
                for slot in range(SLOTS):
                    self.issue(slot)
            else:
                self.issue_by_line()

    def issue_by_line(self) -> None:
        """Issue the collectives of a step, each from its own line, as a model's forward and backward pass does."""
        self.issue(0)
        self.issue(1)
        self.issue(2)
        self.issue(3)
        self.issue(4)
        self.issue(5)
        self.issue(6)
        self.issue(7)

    def issue(self, slot: int) -> None:
        """Issue the collective of a slot, with the planted deviation."""
        plan = self.plan
        if slot >= len(plan.collectives):
            return
        deviates = self.rank == plan.rank and self.step == plan.step
        if deviates and plan.kind == "wrong_order" and slot in (plan.slot, plan.slot + 1):
            if plan.loops:
                self.call(2 * plan.slot + 1 - slot)
            elif slot == plan.slot:
                self.call(slot + 1)
                self.call(slot)
        elif not deviates or slot != plan.slot:
            self.call(slot)
        elif plan.kind != "missing_collective":
            self.deviate(slot)

    def deviate(self, slot: int) -> None:
        """Deviate at a collective in a way that needs no other order."""
        kind = self.plan.kind
        if kind == "wrong_size":
            self.call(slot, elements=self.plan.collectives[slot].elements + 2 * self.plan.world)
        elif kind == "wrong_dtype":
            self.call(slot, dtype=torch.float64)
        elif kind == "host_stuck":
            self.get_stuck()
        elif kind in ("dead_process", "stopped_process"):
            os.kill(os.getpid(), signal.SIGKILL if kind == "dead_process" else signal.SIGSTOP)
        else:
            self.call(slot)

    def get_stuck(self) -> None:
        """Block in a sleep, a lock or a loop."""
        if self.plan.variant == 0:
            time.sleep(FOREVER_S)
        elif self.plan.variant == 1:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        else:
            until = time.monotonic() + FOREVER_S
            while time.monotonic() < until:
                pass

    def call(self, slot: int, elements: int = 0, dtype: torch.dtype = torch.float32) -> None:
        """Issue a collective of the plan if this rank is a member of its group. `elements`: in place of those of the
        plan, 0 for those."""
        planned = self.plan.collectives[slot]
        members = self.plan.groups[planned.group]
        if self.rank not in members:
            return
        group, root = self.groups[planned.group], members[planned.root]
        elements = elements or planned.elements
        tensor = torch.ones(elements, dtype=dtype)
        if planned.operation == "all_reduce":
            dist.all_reduce(tensor, group=group)
        elif planned.operation == "broadcast":
            dist.broadcast(tensor, root, group=group)
        elif planned.operation == "all_gather":
            dist.all_gather([torch.empty_like(tensor) for _ in members], tensor, group=group)
        elif planned.operation == "reduce":
            dist.reduce(tensor, root, group=group)
        elif planned.operation == "all_to_all":
            wide = torch.ones(elements * len(members), dtype=dtype)
            dist.all_to_all_single(torch.empty_like(wide), wide, group=group)
        else:
            dist.barrier(group=group)
        self.count()


def main(plan: HangPlan, rank: int, folder: Path, count: Callable[[], None]) -> None:
    """Run one rank in a forked process, which ends here: exit code 0, or 1 after an error. The flight record is
    `rank<N>.flight` in `folder`; `count` is called after each collective."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(plan.world), GLOO_SOCKET_IFNAME="lo", TORCH_FR_BUFFER_SIZE="2000")
    output = os.open(folder / f"rank{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    recorder = FlightRecorder(folder / f"rank{rank}.flight", folder.name)
    recorder.start()
    try:
        store = FileStore(str(folder / "store"), plan.world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=plan.world, timeout=timedelta(seconds=60))
        groups = [dist.group.WORLD, *(dist.new_group(list(members)) for members in plan.groups[1:])]
        PlannedRank(plan, rank, groups, count).train()
        recorder.write(exit_code=0)
        code = 0
    except BaseException as error:  # whatever ends a rank is part of the evidence
        recorder.write(f"{type(error).__name__}: {error}", exit_code=1)
        code = 1
    os._exit(code)
