"""Flight records: the collectives that a rank issued, as torch's flight recorder keeps them, and the state of the rank.

The recorder is a ring buffer of each process: it holds the last collectives of all process groups, in the order in
which the rank issued them. Index space: a member of a process group is a global rank everywhere in this package.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from trainyard.code_location import SYSTEM, CodeLocation, owner_of

_TORCH = re.compile(r"[/\\]torch[/\\](distributed|nn|autograd|_\w+)[/\\]")
"""Folders of torch, also in a source checkout."""
SCHEDULED, STARTED, COMPLETED = range(3)
"""States of an operation: issued by the host, begun on the device, and ended on the device."""


class Operation(NamedTuple):
    """One entry of the recorder.

    `record`: number of the entry, counted from 0 over all groups; `group`: name of the process group; `sequence`: the
    number of the collective in its group, counted from 1, of the point-to-point operation if `is_p2p`; `name`: such as
    `all_reduce`; `backend`: such as `nccl`; `source`, `target`: ranks within the group of a send or receive, -1 if
    unknown. `sizes`, `dtypes`: the shapes and number formats of the inputs and then of the outputs. `state`: SCHEDULED,
    STARTED or COMPLETED. `created_ns`: when it was issued, in ns since the epoch, 0 if unknown. `stack`: the Python
    calls that issued it, innermost first, empty if not recorded.
    """

    record: int
    group: str
    sequence: int
    name: str
    backend: str = ""
    is_p2p: bool = False
    source: int = -1
    target: int = -1
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: int = SCHEDULED
    created_ns: int = 0
    stack: tuple[CodeLocation, ...] = ()

    @property
    def location(self) -> CodeLocation | None:
        """The innermost call outside torch and the standard library that issued the operation; None if unknown."""
        return user_location(self.stack)

    @property
    def input_elements(self) -> int:
        """Number of elements of all inputs."""
        return sum(math.prod(size) for size in self.input_sizes)

    @property
    def output_elements(self) -> int:
        """Number of elements of all outputs."""
        return sum(math.prod(size) for size in self.output_sizes)

    @property
    def elements(self) -> int:
        """Number of elements of all inputs, of the outputs if there are no inputs."""
        return self.input_elements or self.output_elements

    @property
    def dtype(self) -> str:
        """The number formats of the inputs and outputs, each once, joined by `/`."""
        return "/".join(dict.fromkeys((*self.input_dtypes, *self.output_dtypes)))


def user_location(stack: tuple[CodeLocation, ...]) -> CodeLocation | None:
    """The innermost call of a stack (innermost first) that is outside torch and the standard library, else the
    innermost one; None for an empty stack."""
    users = (call for call in stack if owner_of(call.file) != SYSTEM and not _TORCH.search(call.file))
    return next(users, stack[0] if stack else None)


class Group(NamedTuple):
    """A process group: its name and description in torch, and its members as global ranks in ascending order, empty if
    the record does not list them."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()


class GroupStatus(NamedTuple):
    """The sequence numbers of the last collective of a group that a rank enqueued, started and completed; -1 if
    unknown."""

    enqueued: int = -1
    started: int = -1
    completed: int = -1


class RankState(NamedTuple):
    """The state of a rank's process when it hung, from outside the recorder.

    `exit_code`: None while it runs, negative for a signal; `error`: the exception or output that it ended with;
    `is_stopped`: whether its process is stopped, as by SIGSTOP; `stack`: the calls of its main thread, innermost first;
    `steps_begun`, `steps_done`: number of training steps that have begun and ended, -1 if unknown.
    """

    exit_code: int | None = None
    error: str = ""
    is_stopped: bool = False
    stack: tuple[CodeLocation, ...] = ()
    steps_begun: int = -1
    steps_done: int = -1


class FlightRecord(NamedTuple):
    """The flight record of one rank.

    `world`: number of ranks in the job, 0 if unknown; `job`: id of the job, empty if unknown; `version`: that of the
    recorder's format; `operations`: in the order in which they were issued, oldest first; `groups`, `status`: by name
    of the process group; `state`: of the rank's process; `source`: name of the file; `skipped`: number of entries that
    could not be read; `has_starts`: whether the recorder noted the start of operations on the device, so that SCHEDULED
    means that the device has not started the operation.
    """

    rank: int
    operations: tuple[Operation, ...] = ()
    groups: dict[str, Group] = {}
    status: dict[str, GroupStatus] = {}
    world: int = 0
    job: str = ""
    version: str = ""
    state: RankState = RankState()
    source: str = ""
    skipped: int = 0
    has_starts: bool = False
