"""Simulates the hosts and devices of an NCCL job with a planted fault, and writes torch's flight-recorder dumps.

The simulation knows nothing about verdicts. A host issues the collectives of a step without waiting, and waits for its
device at the end of the step. A device executes the collectives of a rank in order; a collective starts on a rank as
soon as the earlier ones have ended, and ends once all members have started it with the same operation, number of
elements and number format. The dumps have the fields of FlightRecorderDetail.hpp.
"""

from __future__ import annotations

import json
import pickle
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

HOST_FAULTS = ("host_stuck", "data_loader", "dead_process", "stopped_process")
PROGRAM_FAULTS = ("missing_collective", "wrong_order", "wrong_size", "wrong_dtype")
DEVICE_FAULTS = ("device_stuck", "network")
OPERATIONS = ("all_reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base")
STACKS = {
    "host_stuck": '  File "/job/io.py", line 7 in read\n  File "/job/train.py", line 3 in main\n',
    "data_loader": '  File "/py/queue.py", line 9 in get\n  File "/x/torch/utils/data/dataloader.py", line 5 in get\n',
}


class Slot(NamedTuple):
    """A collective of each step. `elements`: of its input."""

    operation: str
    group: int
    elements: int
    dtype: str = "BFloat16"


@dataclass
class Job:
    """A job with a fault `kind` at `rank`, in `step` at `slot`. `groups`: members of each process group."""

    world: int
    groups: list[tuple[int, ...]]
    slots: list[Slot]
    kind: str
    rank: int
    step: int
    slot: int
    stuck_group: int = 0


@dataclass
class Issued:
    """A collective that a host issued. `line`: of code; `state`: scheduled, started or completed."""

    slot: Slot
    sequence: int
    line: int
    created_ns: int
    state: str = "scheduled"


@dataclass
class Rank:
    """`waits`: whether the host waits for its device; `halted`: it never continues."""

    issued: list[Issued] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    program: list[Any] = field(default_factory=list)
    waits: bool = False
    halted: bool = False


def draw(kind: str, chance: random.Random) -> Job:
    """A random job of two to eight ranks with data-parallel and tensor-parallel groups, in which the fault has an
    effect."""
    while True:
        tensor = chance.choice((1, 2))
        world = tensor * chance.randint(2, 4)
        groups = [tuple(range(world))]
        if tensor > 1:
            groups += [tuple(range(first, first + tensor)) for first in range(0, world, tensor)]
            groups += [tuple(range(first, world, tensor)) for first in range(tensor)]
        slots = []
        for _ in range(chance.randint(3, 8)):
            # A collective of a kind of groups: every rank takes part in its own group of that kind.
            slots.append(
                Slot(
                    chance.choice(OPERATIONS),
                    chance.choice((0, 0, *([1, 2] if tensor > 1 else []))),
                    chance.choice((64, 256, 4096)),
                )
            )
        job = Job(
            world, groups, slots, kind, chance.randrange(world), chance.randint(2, 4), chance.randrange(len(slots))
        )
        if _has_effect(job, tensor):
            return job


def _has_effect(job: Job, tensor: int) -> bool:
    if job.kind == "wrong_order":
        if job.slot + 1 == len(job.slots):
            return False
        first, second = job.slots[job.slot : job.slot + 2]
        return first.group == second.group and first != second
    if job.kind == "missing_collective" and job.slot + 1 < len(job.slots):
        # Skipping one of several equal collectives only shows at the last of them.
        return job.slots[job.slot + 1] != job.slots[job.slot]
    return True


def _group_of(job: Job, slot: Slot, rank: int) -> int:
    """The group of `rank` of the slot's kind: the job, its tensor-parallel group or its data-parallel one."""
    if slot.group == 0:
        return 0
    candidates = [index for index, members in enumerate(job.groups) if index and rank in members]
    return candidates[slot.group - 1]


def run(job: Job, steps: int = 7) -> list[Rank]:
    """Run the job until nothing changes any more."""
    ranks = [Rank() for _ in range(job.world)]
    for number, rank in enumerate(ranks):
        for step in range(steps):
            rank.program += _program(job, number, step)
    now_ns = 1_700_000_000_000_000_000
    changed = True
    while changed:
        changed = False
        for number, rank in enumerate(ranks):
            now_ns += 1000
            changed |= _advance_host(job, number, rank, now_ns)
        changed |= _advance_devices(job, ranks)
    return ranks


def _program(job: Job, rank: int, step: int) -> list[Any]:
    """The actions of a rank in a step: (slot, line), "sync" or "halt"."""
    actions: list[Any] = [(slot, 10 + index) for index, slot in enumerate(job.slots)]
    if (rank, step) == (job.rank, job.step):
        slot = job.slots[job.slot]
        if job.kind == "missing_collective":
            del actions[job.slot]
        elif job.kind == "wrong_order":
            actions[job.slot : job.slot + 2] = [(job.slots[job.slot + 1], 90), (slot, 91)]
        elif job.kind == "wrong_size":
            actions[job.slot] = (slot._replace(elements=slot.elements + 8), 10 + job.slot)
        elif job.kind == "wrong_dtype":
            actions[job.slot] = (slot._replace(dtype="Float"), 10 + job.slot)
        elif job.kind in HOST_FAULTS:
            actions.insert(job.slot, "halt")
    return [*actions, "sync"]


def _advance_host(job: Job, number: int, rank: Rank, now_ns: int) -> bool:
    """One action of a host; whether it did anything."""
    if rank.halted or not rank.program:
        return False
    action = rank.program[0]
    if action == "halt":
        rank.halted = True
        return True
    if action == "sync":
        if any(issued.state != "completed" for issued in rank.issued):
            return False
        rank.program.pop(0)
        return True
    slot, line = rank.program.pop(0)
    group = _group_of(job, slot, number)
    rank.sequences[group] += 1
    rank.issued.append(Issued(slot._replace(group=group), rank.sequences[group], line, now_ns))
    return True


def _advance_devices(job: Job, ranks: list[Rank]) -> bool:
    """Start the next collective of each device, and end those that all members have started."""
    changed = False
    for number, rank in enumerate(ranks):
        current = next((issued for issued in rank.issued if issued.state != "completed"), None)
        faulty = (number, job.step) == (job.rank, _step(job, rank, current))
        if (
            current is None
            or current.state == "started"
            or (job.kind == "device_stuck" and faulty and _at_slot(job, rank, current))
        ):
            continue
        if job.kind != "stopped_process" or not rank.halted:
            current.state = "started"
            changed = True
    for group, members in enumerate(job.groups):
        started: dict[int, list[Issued]] = defaultdict(list)
        for member in members:
            for issued in ranks[member].issued:
                if issued.slot.group == group and issued.state == "started":
                    started[issued.sequence].append(issued)
        for entered in started.values():
            broken = job.kind == "network" and any(_is_planned(job, ranks[job.rank], issued) for issued in entered)
            if len(entered) == len(members) and len({issued.slot for issued in entered}) == 1 and not broken:
                for issued in entered:
                    issued.state = "completed"
                changed = True
    return changed


def _step(job: Job, rank: Rank, issued: Issued | None) -> int:
    return rank.issued.index(issued) // len(job.slots) if issued is not None else -1


def _at_slot(job: Job, rank: Rank, issued: Issued) -> bool:
    return rank.issued.index(issued) % len(job.slots) == job.slot


def _is_planned(job: Job, rank: Rank, issued: Issued) -> bool:
    position = next((index for index, own in enumerate(rank.issued) if own is issued), -1)
    return position == job.step * len(job.slots) + job.slot


def dump(
    job: Job, number: int, rank: Rank, version: str = "2.10", buffer: int = 2000, frames: bool = True
) -> dict[str, Any]:
    """The dump of a rank as torch writes it. `buffer`: entries of the ring buffer; `frames`: with the stacks."""
    minor = int(version.partition(".")[2])
    entries = []
    last = defaultdict(lambda: [0, 0, 0])
    for record, issued in enumerate(rank.issued):
        slot, group = issued.slot, str(issued.slot.group)
        wide = slot.elements * len(job.groups[slot.group])
        inputs = wide if slot.operation == "_reduce_scatter_base" else slot.elements
        outputs = wide if slot.operation == "_all_gather_base" else slot.elements
        for index in range(1 + ("scheduled", "started", "completed").index(issued.state)):
            last[slot.group][index] = issued.sequence
        entry = {
            "record_id": record,
            "pg_id": slot.group,
            "process_group": (group, "default_pg" if slot.group == 0 else "undefined"),
            "collective_seq_id": issued.sequence,
            "p2p_seq_id": 0,
            "op_id": issued.sequence,
            "profiling_name": f"nccl:{slot.operation}",
            "time_created_ns": issued.created_ns,
            "input_sizes": [[inputs]],
            "input_dtypes": [slot.dtype],
            "output_sizes": [[outputs]],
            "output_dtypes": [slot.dtype],
            "state": issued.state,
            "time_discovered_started_ns": None if issued.state == "scheduled" else issued.created_ns + 10,
            "time_discovered_completed_ns": issued.created_ns + 20 if issued.state == "completed" else None,
            "retired": issued.state == "completed",
            "is_p2p": False,
        }
        if minor >= 3:
            entry["timeout_ms"] = 600000
        if minor >= 9:
            entry |= {"thread_id": "1", "thread_name": "python"}
        if frames:
            entry["frames"] = [
                {"name": slot.operation, "filename": "/x/torch/distributed/distributed_c10d.py", "line": 2500},
                {"name": "step", "filename": "/job/train.py", "line": issued.line},
                {"name": "<module>", "filename": "/job/train.py", "line": 99},
            ]
        entries.append(entry)
    document: dict[str, Any] = {
        "version": version,
        "pg_config": {
            str(index): {
                "name": str(index),
                "desc": "default_pg" if index == 0 else "undefined",
                "ranks": str(list(members)),
            }
            for index, members in enumerate(job.groups)
            if number in members
        },
        "entries": entries[-buffer:],
    }
    if minor >= 4:
        words = ("enqueued", "started", "completed")
        document["pg_status"] = {
            str(group): {f"last_{word}_collective": value for word, value in zip(words, values, strict=True)}
            for group, values in last.items()
        }
    return document


def encode(document: dict[str, Any], form: str) -> bytes:
    """The bytes of a dump: `pickle`, as NCCL's watchdog writes it, or `json`."""
    return pickle.dumps(document, 2) if form == "pickle" else json.dumps(document).encode()


def dumps_of(job: Job, **options: Any) -> dict[int, dict[str, Any]]:
    """The dumps by rank; a dead or stopped process leaves none."""
    ranks = run(job)
    absent = {job.rank} if job.kind in ("dead_process", "stopped_process") else set()
    return {number: dump(job, number, rank, **options) for number, rank in enumerate(ranks) if number not in absent}
