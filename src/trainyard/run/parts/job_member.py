"""In a watched rank: agrees with the other ranks on the job's id, learns their hosts, and compares clocks.

All of it goes through the store of the script's process group, under the prefix `trainyard/`: every launcher that
starts a process group works. Without one, the launcher's environment variables have to identify the job.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trainyard.run.parts import launcher_variables
from trainyard.run.parts.part import ClockStamp
from trainyard.run.parts.rank_record import FOLDER as RECORDS
from trainyard.run.parts.rank_record import ClockBound, RankRecord, write_record
from trainyard.store.run_folder import rank_files

_JOB, _HOSTS, _COLLECTOR = "trainyard/job", "trainyard/hosts", "trainyard/collector"
_ROUNDS = 12
_FIRST_WAIT, _NEXT_WAIT = timedelta(seconds=5), timedelta(seconds=1)
"""How long a message of the clock comparison is waited for: the first one of a host, and the next ones."""


class JobMember:
    """One rank as a member of its job. `record`: what is known of the job, which is also in the run's folder."""

    def __init__(
        self, folder: Path, rank: int, store: Any = None, world_size: int = 1, read_ns: Callable[[], int] = time.time_ns
    ) -> None:
        """`folder`: the node's run folder; `store`: the process group's `torch.distributed.Store`, None without one;
        `world_size`: of the process group; `read_ns`: the host's clock, ns since the epoch. Writes the rank's
        record."""
        self._folder, self._store, self._read_ns = folder, store, read_ns
        environment = os.environ
        given = launcher_variables.launcher_id(environment)
        node = launcher_variables.node_name()
        agreed, agreed_by = given.id, given.variables
        if store is None:
            world_size = launcher_variables.world_size(environment)
        else:
            proposed = f"{given.id or 'job'}.{secrets.token_hex(8)}"
            # The first proposal is kept, and returned to everyone.
            agreed, agreed_by = store.compare_set(_JOB, "", proposed).decode(), "process group"
            store.append(_HOSTS, f"{rank} {node}\n")
        clock = ClockStamp(wall_ns=read_ns(), monotonic_ns=time.monotonic_ns())
        self.record = RankRecord(
            job_id=agreed or "unnamed", agreed_by=agreed_by, rank=rank, world_size=world_size, node=node, clock=clock
        )
        write_record(folder, self.record)

    def publish_collector(self, collector: str) -> None:
        """State where parts are sent at the end, if this is rank 0. `collector`: port and token of this node's
        receiver; the addresses by which other nodes reach this one are added."""
        if self._store is not None and self.record.rank == 0 and collector:
            addresses = dict.fromkeys(filter(None, [os.environ.get("MASTER_ADDR", ""), socket.getfqdn()]))
            self._store.set(_COLLECTOR, f"{','.join(addresses)} {collector}")

    def look(self) -> None:
        """Read the hosts of all ranks and the collector, if this rank is the lowest with a record in its run folder.

        LOCAL_RANK does not show this: a launcher may start the command for each rank, so that each has a folder.
        """
        if self._store is None:
            return
        lowest = rank_files(self._folder / RECORDS, ".json")[0].name
        if lowest != f"rank{self.record.rank}.json":
            return
        hosts = _parse_hosts(self._store.get(_HOSTS).decode())
        collector = self._store.get(_COLLECTOR).decode() if self._store.check([_COLLECTOR]) else ""
        self._update(hosts=hosts, collector=collector)

    def compare_clocks(self) -> None:
        """Bound the offset between the clocks of this rank's host and of rank 0's host, by messages both ways.

        The lowest ranks of all hosts take part at the same step; the other ranks return at once, as do all if the job
        has one host. A host that does not answer within seconds has no bound.
        """
        if self._store is None:
            return
        hosts = _parse_hosts(self._store.get(_HOSTS).decode())
        leaders = sorted({host: rank for rank, host in sorted(hosts.items(), reverse=True)}.values())
        if len(hosts) < self.record.world_size or len(leaders) < 2 or self.record.rank not in leaders:
            return
        if self.record.rank == leaders[0]:
            for leader in leaders[1:]:
                _answer(self._store, leader, self._read_ns)
            return
        wait = _FIRST_WAIT * leaders.index(self.record.rank)
        bound = _measure(self._store, leaders[0], self.record.rank, wait, self._read_ns)
        self._update(hosts=hosts, bound=bound)

    def _update(self, **changes: Any) -> None:
        record = replace(self.record, **changes)
        if record != self.record:
            self.record = record
            write_record(self._folder, record)


def join_job(folder: Path, rank: int) -> JobMember | None:
    """Join the job of this process. `folder`: the node's run folder; `rank`: in its process group. None if the process
    is the only rank."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        single = launcher_variables.world_size(os.environ) == 1
        return None if single else JobMember(folder, rank)
    if dist.get_world_size() == 1:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        return JobMember(folder, rank, _get_default_store(), dist.get_world_size())
    except RuntimeError:  # torch's EtcdStore has no compare_set: the launcher's variables identify the job
        return JobMember(folder, rank)


def _parse_hosts(text: str) -> dict[int, str]:
    """Rank -> host name, from lines `<rank> <host>`."""
    pairs = (line.split(" ", 1) for line in text.splitlines() if " " in line)
    return {int(rank): host for rank, host in pairs}


def _key(leader: int, number: int, kind: str) -> str:
    return f"trainyard/clock/{leader}/{number}/{kind}"


def _answer(store: Any, leader: int, read_ns: Callable[[], int]) -> None:
    """Answer the messages of the rank `leader` with two readings of this host's clock: at arrival and at departure."""
    with suppress(RuntimeError):  # it does not take part, or no longer
        for number in range(_ROUNDS):
            store.wait([_key(leader, number, "ping")], _NEXT_WAIT if number else _FIRST_WAIT)
            arrived = read_ns()
            store.set(_key(leader, number, "pong"), f"{arrived} {read_ns()}")


def _measure(
    store: Any, reference: int, leader: int, first_wait: timedelta, read_ns: Callable[[], int]
) -> ClockBound | None:
    """Bound the reference's clock minus this host's: a message never arrives before it was sent.

    `reference`: rank whose host answers; `leader`: this rank; `first_wait`: for the first answer. None if no answer
    arrived, or if the bounds contradict each other, as when a clock was set meanwhile.
    """
    low, high, rounds, returned = -(2**61), 2**61, 0, 0
    with suppress(RuntimeError):
        for number in range(_ROUNDS):
            sent = read_ns()
            store.set(_key(leader, number, "ping"), "1")
            store.wait([_key(leader, number, "pong")], _NEXT_WAIT if number else first_wait)
            returned = read_ns()
            arrived, left = map(int, store.get(_key(leader, number, "pong")).split())
            low, high, rounds = max(low, left - returned), min(high, arrived - sent), rounds + 1
    if not rounds or low > high:
        return None
    return ClockBound(reference=reference, low_ns=low, high_ns=high, at_ns=returned, rounds=rounds)
