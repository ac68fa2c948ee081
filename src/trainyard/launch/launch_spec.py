"""What the local launcher tells the supervisor and its agents to start."""

from __future__ import annotations

import msgspec

from trainyard.job import Recovery
from trainyard.launch.epoch import EpochClock

FILE = "launch.json"

LEFT = 75
"""Exit code of a rank that was asked to leave, saved its state and left (EX_TEMPFAIL of sysexits.h: try again)."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ranks` processes of `python -m MODULE ARGS`, divided over `nodes` agents that meet at `host`:`port`.

    `port` 0 is any free one. `sizes`: with how many nodes the job can go on; none but `nodes` where empty. `restarts`:
    how often it starts again after a fault. `hang_s`: seconds in which some rank must move. `started`: how many of
    the agents the supervisor starts itself, the first ones (-1: all); others are started elsewhere, and the first start
    waits `gather_s` for them. `preload`: modules an agent imports before it forks ranks. `clock`: the supervisor's.
    """

    ranks: int
    port: int
    module: str
    args: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    nodes: int = 1
    sizes: tuple[int, ...] = ()
    restarts: int = 0
    hang_s: float = Recovery().hang_s
    started: int = -1
    gather_s: float = 60.0
    preload: tuple[str, ...] = ()
    clock: EpochClock = EpochClock()

    @property
    def ranks_each(self) -> int:
        """Ranks of one node."""
        return self.ranks // self.nodes

    def size(self, here: int) -> int:
        """The most nodes of `here` that the job can run on; 0 when they are too few."""
        return max((size for size in self.sizes or (self.nodes,) if size <= here), default=0)
