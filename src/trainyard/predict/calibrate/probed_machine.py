"""A machine's file from what its own devices were measured to do (`run/probe/probe_rank.py`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trainyard.machine import Claim, Device, Link, Machine, RateCurve
from trainyard.predict.calibrate.least_squares import Off, solve
from trainyard.predict.inputs import hardware
from trainyard.predict.inputs.cases import column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time
from trainyard.predict.time.collective_time import RankGroup
from trainyard.predict.time.layer import product
from trainyard.predict.time.shapes import Product
from trainyard.record import DeviceSeen

_NOISE = 0.1
"""Of the logarithm of a probe's seconds."""
_HEADS = 4
_ON_CORES = {"host_forward_s": 3e-3, "host_backward_s": 6e-3, "host_collective_s": 3e-3, "passes": 20.0}
"""Where operations wait for Python: what a layer takes beside them. Memory passes are eager."""
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send")


class ProbedTime(NamedTuple):
    """`size`: of a product (m, n, k), of attention (tokens, channels, 0 forward or 1 backward) of four heads, else
    (bytes,). `seconds`: the median try of one call; `low`, `high`: its quartiles."""

    what: str
    size: tuple[int, ...]
    seconds: float
    low: float
    high: float

    @property
    def rate(self) -> float:
        """FLOP/s of products and attention, else bytes/s."""
        if self.what == "matmul":
            return 2.0 * self.size[0] * self.size[1] * self.size[2] / self.seconds
        if self.what == "attention":
            return _pairs(self.size) * (2 if self.size[2] else 1) / self.seconds
        return self.size[0] / self.seconds


def _pairs(size: tuple[int, ...]) -> float:
    """FLOPs forward of attention of a causal mask's half."""
    return 2.0 * _HEADS * size[0] ** 2 * size[1]


def machine(name: str, seen: DeviceSeen, ranks: int, dtype: str, timed: Sequence[ProbedTime]) -> Machine:
    """`ranks` devices of one node, as each of them is while all work. `seen`: what one of them is; a host's cores and
    memory are divided among the ranks."""
    by: Mapping[str, list[ProbedTime]] = defaultdict(list)
    for one in timed:
        by[one.what].append(one)
    best = max(by["matmul"], key=lambda one: one.rate)
    copy = max(by["copy"], key=lambda one: one.size)  # a small one stays in a cache
    shared = ranks if seen.vendor == "cpu" else 1
    memory = _claim(seen.memory_bytes / shared, "bytes", "its vendor", measured=False)
    device = Device(
        name=seen.name if shared == 1 else f"{seen.name}, 1 of {ranks} ranks",
        vendor=seen.vendor,
        memory=memory,
        bandwidth=_claim(copy.rate, "bytes/s", f"a copy of {copy.size[0]:,} bytes, read and written"),
        peak={dtype: _claim(best.rate, "FLOP/s", "the best product: " + " x ".join(map(str, best.size)))},
        reached={what: _curve(by[what], what) for what in ("matmul", "attention")},
        aliases=(seen.name,) if shared == 1 else (),
    )
    latency = next((one for one in by["send"]), None)
    wire = max(by["all_gather"], key=lambda one: one.rate, default=None)
    rate = wire.rate * (ranks - 1) / ranks if wire else copy.rate
    link = Link(
        name="between its devices",
        kind="scale_up",
        bandwidth=_claim(rate, "bytes/s", f"an all-gather of {wire.size[0]:,} bytes" if wire else "one device: a copy"),
        latency=_claim(latency.seconds if latency else 0.0, "s", "a small message"),
        reached={what: _curve(by[what], what) for what in COLLECTIVES if by[what]},
    )
    made = Machine(name=name, device=device, per_node=ranks, inside=link)
    tuned = {
        key: _claim(value, _unit(key), "fitted to its own probes") for key, value in _constants(made, dtype, by).items()
    }
    if seen.vendor == "cpu":
        said = "assumed of cores that launch their own work"
        tuned |= {key: _claim(value, _unit(key), said, measured=False) for key, value in _ON_CORES.items()}
    return replace(made, tuned=tuned)


def _claim(value: float, unit: str, source: str, measured: bool = True) -> Claim:
    return Claim(
        value=float(f"{value:.5g}"),
        unit=unit,
        source=f"trainyard probe: {source}",
        date=date.today().isoformat(),
        measured=measured,
    )


def _unit(name: str) -> str:
    return "s" if name.endswith("_s") else "share"


def _curve(some: Sequence[ProbedTime], what: str) -> RateCurve:
    """Rate by FLOPs or bytes: the best of those of one size."""
    best: dict[float, float] = {}
    for one in some:
        size = one.rate * one.seconds
        best[size] = max(best.get(size, 0.0), float(f"{one.rate:.5g}"))
    unit = "FLOP/s" if what in ("matmul", "attention") else "bytes/s"
    return RateCurve(points=tuple(sorted(best.items())), claim=_claim(max(best.values()), unit, what))


def _constants(made: Machine, dtype: str, by: Mapping[str, list[ProbedTime]]) -> dict[str, float]:
    device, ranks = made.device, made.per_node
    launch = by["launch"][0].seconds
    assumed = Constants()._replace(
        matmul=0.95,
        rows=20.0,
        columns=20.0,
        depth=20.0,
        bandwidth=1.0,
        inside=0.9,
        dispatch=0.9,
        kernel_s=launch,
        inside_s=made.inside.latency.value or 1e-6,
    )
    where = hardware.of_machine(made, dtype)
    sizes = np.array([one.size for one in by["matmul"]], np.float64)
    measured = np.array([one.seconds for one in by["matmul"]])
    shapes = Product(sizes[:, 0], sizes[:, 1], sizes[:, 2])

    def products(tuned: Constants) -> npt.NDArray[np.float64]:
        return np.log(product(where, tuned, shapes) / measured) / _NOISE

    found = solve(assumed, ("matmul", "rows", "columns", "depth"), products, prior=1.5)
    forward = [one for one in by["attention"] if not one.size[2]]
    back = [one for one in by["attention"] if one.size[2]]
    share = np.median([one.rate for one in forward]) / device.peak[dtype].value
    times = np.median([b.seconds / f.seconds for f, b in zip(forward, back, strict=True)])
    found = found._replace(attention=min(float(share), 1.0), attention_backward=float(times), bandwidth=1.0)
    names = ["matmul", "rows", "columns", "depth", "attention", "attention_backward", "bandwidth", "kernel_s"]
    if ranks > 1:
        found = solve(found, ("inside", "inside_s", "dispatch"), _collected(by, where, ranks), prior=1.5)
        names += ["inside", "inside_s", "dispatch"]
    return {name: getattr(found, name) for name in names}


def _collected(by: Mapping[str, list[ProbedTime]], where: RankHardware, ranks: int) -> Off:
    who = RankGroup(column(ranks), column(ranks))

    def off(tuned: Constants) -> npt.NDArray[np.float64]:
        parts: list[npt.NDArray[np.float64]] = []
        for what in COLLECTIVES:
            size = np.array([float(one.size[0]) for one in by[what]])
            measured = np.array([one.seconds for one in by[what]])
            if what == "all_reduce":
                predicted = collective_time.reduce(where, tuned, who, size)
            elif what == "all_to_all":
                predicted = collective_time.exchange(where, tuned, who, size)
            elif what == "send":
                predicted = collective_time.send(where, tuned, size, column(1))
            else:
                predicted = collective_time.gather(where, tuned, who, size)
            parts.append(np.log(predicted / measured) / (3 * _NOISE))
        return np.concatenate(parts)

    return off
