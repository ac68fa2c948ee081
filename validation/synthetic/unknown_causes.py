"""Planted causes that no rule was written for. `right`: findings that are true all the same, such as the ranks' waiting
for each other; every other finding names a wrong cause."""

from __future__ import annotations

from validation.synthetic.timeline import COMPUTE, Rank
from validation.synthetic.training import MS, US, Plant

_IN_TURN = ("imbalance",)
"""Disturbances that hit each rank at other times make the ranks wait in turn."""


class Nothing(Plant):
    """No cause."""

    right = ()


class Throttling(Plant):
    """All devices' clocks fall in the middle of the window."""

    right = ()

    def draw(self) -> None:
        self.factor, self.first = self.size(1.3, 2.0), int(self.rng.integers(2, 4))

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        return name, ns * self.factor if step >= self.first else ns


class ContendedCopyEngine(Plant):
    """The batch's copy from page-locked memory is slow: another process uses the copy engine. That the copy is exposed
    is true."""

    right = ("host_device_thrash",)

    def draw(self) -> None:
        self.ns = self.size(2, 8) * MS

    def transfer(self, rank: Rank, step: int, ns: float) -> tuple[str, float]:
        return "Memcpy HtoD (Pinned -> Device)", rank.vary(self.ns, 0.4)


class LockContention(Plant):
    """The training thread waits for a lock that another thread holds, between ops, at random."""

    right = _IN_TURN

    def draw(self) -> None:
        self.ns, self.chance = self.size(2, 8) * MS, self.size(0.15, 0.4)

    def python(self, rank: Rank, step: int, ns: float) -> float:
        return ns + (float(rank.rng.exponential(self.ns)) if rank.rng.random() < self.chance else 0.0)


class Paging(Plant):
    """Ops of the host stop at page faults, at random."""

    right = _IN_TURN

    def draw(self) -> None:
        self.ns, self.chance = self.size(2, 8) * MS, self.size(0.15, 0.4)

    def host(self, rank: Rank, step: int, ns: float) -> float:
        return ns + (float(rank.rng.exponential(self.ns)) if rank.rng.random() < self.chance else 0.0)


class SilentStop(Plant):
    """The host stops once a step for a long time outside recorded calls: a collector that is not recorded, a log line
    to a slow disk."""

    right = ("imbalance", "straggler")

    def draw(self) -> None:
        self.ns = self.size(8, 40) * MS

    def before_op(self, rank: Rank, step: int, position: int) -> None:
        if position == 2:
            rank.wait(rank.vary(self.ns, 0.3))


class SlowCustomKernel(Plant):
    """A new driver makes one kernel slow."""

    right = ()

    def draw(self) -> None:
        self.factor = self.size(5, 15)

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        return name, ns * self.factor if "layer_norm" in name else ns


class RemoteLoader(Plant):
    """The loader's memory is on the other NUMA node: batches come late and are copied slowly."""

    right = ("data_wait", "host_device_thrash")

    def draw(self) -> None:
        self.ns, self.copy_ns = self.size(3, 15) * MS, self.size(1, 3) * MS

    def loader(self, rank: Rank, step: int, ns: float) -> float:
        return ns + rank.vary(self.ns, 0.3)

    def transfer(self, rank: Rank, step: int, ns: float) -> tuple[str, float]:
        return "Memcpy HtoD (Pinned -> Device)", rank.vary(self.copy_ns, 0.3)


class Evaluation(Plant):
    """One step of the window evaluates the model on some batches, outside any annotation."""

    right = ()

    def draw(self) -> None:
        self.batches, self.step, self.ns = int(self.rng.integers(4, 12)), int(self.rng.integers(1, 4)), 1.5 * MS

    def after_step(self, rank: Rank, step: int) -> None:
        if step != self.step:
            return
        for _ in range(self.batches):
            rank.wait(rank.vary(self.ns, 0.3))
            for kernel in range(12):
                with rank.span("aten::linear"):
                    rank.wait(rank.vary(25 * US))
                    rank.launch(f"void eval_kernel_{kernel % 3}<float>(int)", rank.vary(60 * US))


class Preemption(Plant):
    """The host's processes are stopped for the rest of each period after they have used their share of CPU time."""

    right = _IN_TURN

    def draw(self) -> None:
        self.period, self.stop = self.size(40, 100) * MS, self.size(8, 30) * MS
        self.next: dict[int, float] = {}

    def host(self, rank: Rank, step: int, ns: float) -> float:
        due = self.next.setdefault(rank.number, rank.clock + float(rank.rng.uniform(0, self.period)))
        if rank.clock < due:
            return ns
        self.next[rank.number] = rank.clock + self.period
        return ns + rank.vary(self.stop, 0.3)


class NetworkContention(Plant):
    """Another job uses the network at times."""

    right = ("exposed_all_reduce",)

    def draw(self) -> None:
        self.factor, self.chance = self.size(8, 25), self.size(0.3, 0.7)

    def communication(self, rank: Rank, step: int, ns: float) -> float:
        return ns * (self.factor if self.rng.random() < self.chance else 1.0)


class ThrottledRank(Plant):
    """One device's clock falls in the middle of the window."""

    right = ("straggler",)

    def draw(self) -> None:
        self.late, self.factor = int(self.rng.integers(self.jobs_world)), self.size(1.4, 2.2)
        self.first = int(self.rng.integers(1, 3))

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        return name, ns * self.factor if rank.number == self.late and step >= self.first else ns


class SlowDriverCalls(Plant):
    """Another process holds the driver's lock: calls take long, at random."""

    right = _IN_TURN

    def draw(self) -> None:
        self.ns, self.chance = self.size(1, 5) * MS, self.size(0.1, 0.4)

    def before_op(self, rank: Rank, step: int, position: int) -> None:
        if rank.rng.random() < self.chance:
            rank.call("cudaEventRecord", float(rank.rng.exponential(self.ns)))


class SharedDevice(Plant):
    """Another process uses the device in turn: work that was launched in time starts late, at random."""

    right = _IN_TURN

    def draw(self) -> None:
        self.ns, self.chance = self.size(0.5, 3) * MS, self.size(0.1, 0.3)

    def after_op(self, rank: Rank, step: int, position: int) -> None:
        if rank.rng.random() < self.chance:
            rank.free[COMPUTE] += float(rank.rng.exponential(self.ns))


class BufferFlush(Plant):
    """The profiler writes its buffers once, inside a launch in the middle of the window."""

    right = ()

    def draw(self) -> None:
        self.ns, self.step = self.size(40, 200) * MS, int(self.rng.integers(2, 4))
        self.position = int(self.rng.integers(9))

    def before_op(self, rank: Rank, step: int, position: int) -> None:
        if (step, position) == (self.step, self.position):
            rank.call("cudaLaunchKernel", rank.vary(self.ns, 0.1))


class PowerCapping(Plant):
    """The devices' clocks change from step to step, on each rank at other times."""

    right = _IN_TURN

    def draw(self) -> None:
        self.most = self.size(1.4, 2.0)
        self.factors: dict[tuple[int, int], float] = {}

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        return name, ns * self.factors.setdefault((rank.number, step), float(rank.rng.uniform(1, self.most)))


class StuckKernel(Plant):
    """One kernel takes very long once: a page of device memory is retired."""

    right = ()

    def draw(self) -> None:
        self.ns, self.step, self.left = self.size(30, 150) * MS, int(self.rng.integers(2, 4)), self.jobs_world

    def kernel(self, rank: Rank, step: int, name: str, ns: float) -> tuple[str, float]:
        if step == self.step and self.left and rank.number == 0:
            self.left = 0
            return name, ns + self.ns
        return name, ns


class SlowSteps(Plant):
    """A neighbour on the host makes all of the host's code slow in some steps, on all ranks."""

    right = ()

    def draw(self) -> None:
        self.factor, self.slow = self.size(8, 20), set(self.rng.permutation(8)[:3].tolist())

    def host(self, rank: Rank, step: int, ns: float) -> float:
        return ns * self.factor if step in self.slow else ns

    def python(self, rank: Rank, step: int, ns: float) -> float:
        return ns * self.factor if step in self.slow else ns


class SlowOpOnce(Plant):
    """An op stops once in the middle of the window, on all ranks: a log is rotated, a file system hangs."""

    right = ()

    def draw(self) -> None:
        self.ns, self.step = self.size(50, 300) * MS, int(self.rng.integers(2, 4))

    def host(self, rank: Rank, step: int, ns: float) -> float:
        done = self.__dict__.setdefault("done", set())
        if step == self.step and rank.number not in done:
            done.add(rank.number)
            return ns + rank.vary(self.ns, 0.1)
        return ns


TUNED = {
    kind.__name__: kind
    for kind in (
        Nothing, Throttling, ContendedCopyEngine, LockContention, SilentStop, Evaluation, SharedDevice, BufferFlush,
        PowerCapping,
    )
}  # fmt: skip
"""Kinds that confidences were adjusted on. `SharedDevice` and `BufferFlush` were held out at first, and were named
wrongly."""
HELD_OUT = {
    kind.__name__: kind
    for kind in (
        Paging, SlowCustomKernel, RemoteLoader, Preemption, NetworkContention, ThrottledRank, SlowDriverCalls,
        StuckKernel, SlowSteps, SlowOpOnce,
    )
}  # fmt: skip
"""Kinds that were tried only after the confidences were fixed."""
