"""A simulated rank that writes a Kineto profile: a host that launches, and streams that execute in order.

Times are ns as floats. Work on a stream starts when it has arrived (its launch returned, and what its stream waits for
ended) and the stream is free. A collective starts on each member like other work and ends on all of them a fixed time
after its last member has started; a rank that needs its end yields it until all members have issued it (`simulate`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

COMPUTE, COMM, SEND, RECEIVE = 7, 20, 21, 22
"""Streams."""
MAIN_THREAD, BACKWARD_THREAD = 100, 101
_LAUNCH_LATENCY_NS = 3_000
_COMM_ARGS = {"dtype": "BFloat16", "Process Group Description": "default_pg"}

Event = dict[str, Any]


class Transfer:
    """A collective of `members`, or one end of a transfer between two of them. `ns`: its length once all have started;
    `end`: ns, unknown (None) until then."""

    def __init__(self, key: str, members: Sequence[int], ns: float) -> None:
        self.key, self.members, self.ns = key, tuple(members), ns
        self.end: float | None = None


Program = Generator[Transfer, None, None]
"""A rank's program: yields a transfer that it cannot continue without."""


class _Issued(NamedTuple):
    """A rank's part of a transfer: when it could start, and its event."""

    transfer: Transfer
    arrived: float
    event: Event


class Rank:
    """One rank's clock, streams and events. `rng` draws the noise: `spread` is the relative spread of lengths."""

    def __init__(self, number: int, world: int, rng: np.random.Generator, spread: float) -> None:
        self.number, self.world, self.rng, self.spread = number, world, rng, spread
        self.clock = 1e6 + float(rng.integers(0, 200_000))
        self.began = self.clock
        self.thread = MAIN_THREAD
        self.events: list[Event] = []
        self.free: defaultdict[int, float] = defaultdict(float)
        self.queues: defaultdict[int, deque[_Issued]] = defaultdict(deque)
        self._correlation = 0

    def vary(self, ns: float, spread: float | None = None) -> float:
        """A length that varies around `ns`."""
        return ns * float(self.rng.lognormal(0.0, self.spread if spread is None else spread))

    def wait(self, ns: float) -> None:
        """The host spends `ns` outside recorded calls."""
        self.clock += ns

    @contextmanager
    def span(self, name: str, category: str = "cpu_op", **args: Any) -> Iterator[None]:
        """Records a host span around the host's time in the block."""
        event = self._add(category, name, self.thread, self.clock, 0.0, args)
        start = self.clock
        yield
        event["dur"] = _microseconds(self.clock - start)

    def call(self, name: str, ns: float, category: str = "cuda_runtime", **args: Any) -> None:
        """Records a host span of `ns`."""
        self._add(category, name, self.thread, self.clock, ns, args)
        self.clock += ns

    def launch(
        self, name: str, ns: float, stream: int = COMPUTE, call: str = "cudaLaunchKernel", call_ns: float = 0.0,
        category: str = "kernel", **args: Any,
    ) -> float:  # fmt: skip
        """Launches work of `ns` on a stream; returns its end."""
        self._correlation += 1
        self.call(call, call_ns or self.vary(5_000), correlation=self._correlation)
        start = max(self.clock + _LAUNCH_LATENCY_NS, self.free[stream])
        self._add_work(name, stream, start, ns, category, args)
        self.free[stream] = start + ns
        return start + ns

    def issue(self, name: str, transfer: Transfer, stream: int, **args: Any) -> Transfer:
        """Launches this rank's part of a transfer, which waits for all compute launched so far."""
        self._correlation += 1
        self.call("cudaLaunchKernel", self.vary(6_000), correlation=self._correlation)
        arrived = max(self.clock + _LAUNCH_LATENCY_NS, self.free[COMPUTE])
        members = list(range(self.world)) if stream == COMM and len(transfer.members) == self.world else None
        group = "0" if members else "-".join(map(str, transfer.members))
        facts = {
            "Process Group Name": group, "Process Group Ranks": str(list(transfer.members)),
            "Group size": len(transfer.members), **_COMM_ARGS, **args,
        }  # fmt: skip
        event = self._add_work(name, stream, arrived, 0.0, "kernel", facts)
        self.queues[stream].append(_Issued(transfer, arrived, event))
        return transfer

    def synchronise(self, ns: float = 3_000) -> None:
        """The host waits for the compute stream in a recorded call."""
        self.call("cudaStreamSynchronize", max(0.0, self.free[COMPUTE] - self.clock) + self.vary(ns))

    def _add_work(self, name: str, stream: int, start: float, ns: float, category: str, args: Event) -> Event:
        known = {"device": self.number, "stream": stream, "correlation": self._correlation, **args}
        event = self._add(category, name, stream, start, ns, known)
        event["pid"] = self.number
        return event

    def _add(self, category: str, name: str, thread: int, start: float, ns: float, args: Event) -> Event:
        event = {
            "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": _microseconds(start),
            "dur": _microseconds(ns), "args": args,
        }  # fmt: skip
        self.events.append(event)
        return event

    def document(self, device: str) -> dict[str, Any]:
        """The rank's profile as a Kineto document."""
        return {
            "schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": self.events,
            "deviceProperties": [{"id": index, "name": device} for index in range(self.world)],
            "distributedInfo": {"backend": "nccl", "rank": self.number, "world_size": self.world},
            "host_name": "node",
        }  # fmt: skip


def simulate(ranks: Sequence[Rank], programs: Sequence[Program]) -> None:
    """Runs the programs of all ranks. Raises `RuntimeError` if they wait for each other forever."""
    awaited: dict[int, Transfer | None] = dict.fromkeys(range(len(ranks)))
    while awaited:
        progressed = _resolve(ranks)
        for number in list(awaited):
            transfer = awaited[number]
            if transfer is not None and transfer.end is None:
                continue
            progressed = True
            try:
                awaited[number] = next(programs[number])
            except StopIteration:
                del awaited[number]
        if not progressed:
            raise RuntimeError("The ranks wait for each other.")
    while _resolve(ranks):
        pass


def _resolve(ranks: Sequence[Rank]) -> bool:
    """Starts and ends every transfer that is next on a stream of all its members; returns whether there was one."""
    heads: defaultdict[str, list[tuple[Rank, int]]] = defaultdict(list)
    for rank in ranks:
        for stream, queue in rank.queues.items():
            if queue:
                heads[queue[0].transfer.key].append((rank, stream))
    ready = [ends for ends in heads.values() if len(ends) == len(ends[0][0].queues[ends[0][1]][0].transfer.members)]
    for ends in ready:
        issued = [(rank, stream, rank.queues[stream].popleft()) for rank, stream in ends]
        starts = [max(part.arrived, rank.free[stream]) for rank, stream, part in issued]
        end = max(starts) + max(part.transfer.ns for _, _, part in issued)
        for (rank, stream, part), start in zip(issued, starts):
            part.event["ts"], part.event["dur"] = _microseconds(start), _microseconds(end - start)
            part.transfer.end = rank.free[stream] = end
    return bool(ready)


def _microseconds(ns: float) -> float:
    return round(ns) / 1000
