"""The launch specification, which the local launcher passes to the supervisor and its agents."""

from __future__ import annotations

import msgspec

from trainyard.job import Recovery
from trainyard.launch.epoch import EpochClock

FILE = "launch.json"
NODE_MODULE = "trainyard.cli.launch.node_main"
"""Module that a launcher runs on each node of a job on several hosts, with `python -m`."""
TOKEN = "TRAINYARD_JOB_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the job's token, a random text that all nodes of a job share and no file contains."""

BAD_INPUT = 2
"""Exit code of a node whose options or job file are wrong, which another attempt does not change."""
FAILED = 4
"""Exit code of a job that failed."""
LOST = 69
"""Exit code of an agent that lost its supervisor, or never reached it (EX_UNAVAILABLE of sysexits.h)."""
LEFT = 75
"""Exit code of a rank that saved its state and left as requested (EX_TEMPFAIL of sysexits.h: try again)."""

STOPPED = 76
"""Exit code of a rank that ended the training as its recipe demands, which another attempt would not change."""
ROLLED_BACK = 77
"""Exit code of a rank that is to be launched again from the last checkpoint, without a fault of a process."""
PLANNED_ENDS = (0, LEFT, STOPPED, ROLLED_BACK)
"""Exit codes with which all ranks end together, after a barrier."""

EXIT_CODE = "exit-code"
"""File in the head's folder with the exit code of the head's process, for launchers that know only that of all."""


RUN_FOLDER = "{run_folder}"
"""An argument of a rank's module that stands for the run's folder, which differs between hosts."""
MIN_REPORT_S = 0.05
"""Seconds between two reports of an agent to the supervisor in a small job."""
_RANKS_REPORTED_PER_S = 20_000
"""Reports on ranks that a supervisor processes in a second with a small part of a core (docs/measured.md)."""


class EndedByRecipe(SystemExit):
    """Ends a rank's process as the recipe demands. `code`: `STOPPED` or `ROLLED_BACK`; `message`: the reason."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code)
        self.message = message


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ranks` processes of `python -m MODULE ARGS`, split over `nodes` agents that meet at `host`:`port`.

    `ranks_per_node`: number of ranks of each node; empty for equal ones. `port`: 0 picks a free one. `sizes`: node
    counts with which the job can continue; only `nodes` if empty.
    `max_restarts`: maximum number of restarts after faults. `hang_timeout_s`: seconds without progress of any rank
    after which the job counts as hung. `started`: number of agents, the first ones, that the supervisor starts
    itself (-1: all); the others are started externally, and the first launch waits `gather_s` seconds for them.
    `preload`: modules that an agent imports before it forks ranks. `environment`: variables of the ranks on the
    supervisor's host, unless its environment sets them. `clock`: the supervisor's clock. `job_id`: id of a job on
    several hosts, which all its nodes know; empty for a job on one host. `files`: names of the run folder's files that
    agents on other hosts need.
    """

    ranks: int
    port: int
    module: str
    args: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    nodes: int = 1
    ranks_per_node: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    max_restarts: int = 0
    hang_timeout_s: float = Recovery().hang_timeout_s
    started: int = -1
    gather_s: float = 60.0
    preload: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    clock: EpochClock = EpochClock()
    job_id: str = ""
    files: tuple[str, ...] = ()

    def node_ranks(self, node: int) -> int:
        """Number of ranks of a node."""
        return self.ranks_per_node[node] if self.ranks_per_node else self.ranks // self.nodes

    @property
    def report_s(self) -> float:
        """Seconds between two reports of an agent: longer for many ranks, whose reports the supervisor has to read."""
        return max(MIN_REPORT_S, self.ranks / _RANKS_REPORTED_PER_S)

    def size(self, available_nodes: int) -> int:
        """The largest number of nodes, out of the available ones, that the job can run on; 0 if there are too few."""
        return max((size for size in self.sizes or (self.nodes,) if size <= available_nodes), default=0)
