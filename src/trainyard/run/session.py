"""Settings that all kinds of runs share: a job, a resumed run, a chaos experiment, a user's own command."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainyard.ledger import Ledger
from trainyard.record import DeviceSeen
from trainyard.run.parts.rank_record import RankRecord
from trainyard.store.store import Store, check_tag

WORKER = "trainyard.run.local.worker"

Book = Callable[[list[Path]], Sequence[Ledger]]
"""Profiler files -> ledgers: per rank and step, the mean over full steps last."""
Reduce = Callable[[Path, Path, RankRecord], None]
"""(profiler's file, reduced profile to write, record of its rank): reduces the file, so that it can be sent."""


class Progress(NamedTuple):
    """Rank 0 has ended step `step` of `steps`, counted from one."""

    step: int
    steps: int
    loss: float | None
    tokens_per_s: float


def _ignore(_: object) -> None:
    """Print nothing."""


def _book_nothing(_: list[Path]) -> Sequence[Ledger]:
    """Keep the profiler files without booking them."""
    return ()


def _copy_unreduced(trace: Path, profile: Path, _: RankRecord) -> None:
    """Keep the profiler's file as it is, under its own name."""
    shutil.copyfile(trace, profile.with_name(trace.name))


@dataclass(frozen=True)
class Session:
    """Where runs are stored, how they are reported to the user, and what they run on.

    `store`: keeps the runs; by default the user's. `book`: turns a run's profiler files into ledgers; the functions of
    `trainyard.api` bring their own. `progress`: is called after each step of rank 0. `say`: prints a line for the user.
    `port`: where the ranks meet on 127.0.0.1; a free port if None. `tag`: a name for the run, from its start.
    `devices`: the devices to run on; those that the vendor plugins report if None. `worker`: the Python module that
    each rank runs. A user's own command starts its ranks itself, and uses only `store`, `book`, `say`, `tag`, `reduce`
    and `collect`. `reduce`: reduces profiler files on the node that recorded them. `collect`: folder or URL at which
    the nodes of a command exchange their parts; empty to send them to rank 0's node directly.
    """

    store: Store = field(default_factory=Store)
    book: Book = _book_nothing
    _: KW_ONLY
    progress: Callable[[Progress], None] = _ignore
    say: Callable[[str], None] = _ignore
    port: int | None = None
    tag: str = ""
    devices: Sequence[DeviceSeen] | None = None
    worker: str = WORKER
    reduce: Reduce = _copy_unreduced
    collect: str = ""

    def __post_init__(self) -> None:
        if self.tag:
            check_tag(self.tag)
