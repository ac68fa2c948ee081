"""A machine file from probes of its own devices (`run/probe/probe_rank.py`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trainyard.machine import Claim, Device, Link, Machine, RateCurve
from trainyard.predict.calibrate.least_squares import Residuals, solve
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
"""Standard deviation of the logarithm of a probe's seconds."""
_HEADS = 4
_ON_CORES = {"host_forward_s": 3e-3, "host_backward_s": 6e-3, "host_collective_s": 3e-3, "passes": 20.0}
"""Constants of CPU devices, whose operations wait for Python: host seconds of a layer, and eager memory passes."""
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send")


class ProbedTime(NamedTuple):
    """One probe. `size`: (m, n, k) of a matrix product; (tokens, channels, 0 forward or 1 backward) of attention with
    four heads; else (bytes,). `seconds`: median of one call; `low`, `high`: quartiles."""

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
    """FLOPs of causal attention, forward."""
    return 2.0 * _HEADS * size[0] ** 2 * size[1]


def machine(name: str, seen: DeviceSeen, ranks: int, dtype: str, timed: Sequence[ProbedTime]) -> Machine:
    """A machine of one node with `ranks` devices, as probed while all of them work. `seen`: one of the devices; the
    ranks divide a host's cores and memory."""
    by_kind: Mapping[str, list[ProbedTime]] = defaultdict(list)
    for probe in timed:
        by_kind[probe.what].append(probe)
    best = max(by_kind["matmul"], key=lambda probe: probe.rate)
    copy = max(by_kind["copy"], key=lambda probe: probe.size)  # a small one stays in a cache
    shared = ranks if seen.vendor == "cpu" else 1
    memory = _claim(seen.memory_bytes / shared, "bytes", "its vendor", measured=False)
    device = Device(
        name=seen.name if shared == 1 else f"{seen.name}, 1 of {ranks} ranks",
        vendor=seen.vendor,
        memory=memory,
        bandwidth=_claim(copy.rate, "bytes/s", f"a copy of {copy.size[0]:,} bytes, read and written"),
        peak={dtype: _claim(best.rate, "FLOP/s", "the best product: " + " x ".join(map(str, best.size)))},
        reached={kind: _curve(by_kind[kind], kind) for kind in ("matmul", "attention")},
        aliases=(seen.name,) if shared == 1 else (),
    )
    latency = next((probe for probe in by_kind["send"]), None)
    gather = max(by_kind["all_gather"], key=lambda probe: probe.rate, default=None)
    rate = gather.rate * (ranks - 1) / ranks if gather else copy.rate
    link = Link(
        name="between its devices",
        kind="scale_up",
        bandwidth=_claim(
            rate, "bytes/s", f"an all-gather of {gather.size[0]:,} bytes" if gather else "one device: a copy"
        ),
        latency=_claim(latency.seconds if latency else 0.0, "s", "a small message"),
        reached={kind: _curve(by_kind[kind], kind) for kind in COLLECTIVES if by_kind[kind]},
    )
    probed = Machine(name=name, device=device, per_node=ranks, inside=link)
    tuned = {
        key: _claim(value, _unit(key), "fitted to its own probes")
        for key, value in _constants(probed, dtype, by_kind).items()
    }
    if seen.vendor == "cpu":
        source = "assumed for CPU devices, which launch their own work"
        tuned |= {key: _claim(value, _unit(key), source, measured=False) for key, value in _ON_CORES.items()}
    return replace(probed, tuned=tuned)


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


def _curve(probes: Sequence[ProbedTime], kind: str) -> RateCurve:
    """Rate by FLOPs or bytes; the best of all probes of one size."""
    best: dict[float, float] = {}
    for probe in probes:
        size = probe.rate * probe.seconds
        best[size] = max(best.get(size, 0.0), float(f"{probe.rate:.5g}"))
    unit = "FLOP/s" if kind in ("matmul", "attention") else "bytes/s"
    return RateCurve(points=tuple(sorted(best.items())), claim=_claim(max(best.values()), unit, kind))


def _constants(probed: Machine, dtype: str, by_kind: Mapping[str, list[ProbedTime]]) -> dict[str, float]:
    device, ranks = probed.device, probed.per_node
    launch = by_kind["launch"][0].seconds
    assumed = Constants()._replace(
        matmul=0.95,
        rows=20.0,
        columns=20.0,
        depth=20.0,
        bandwidth=1.0,
        inside=0.9,
        dispatch=0.9,
        kernel_s=launch,
        inside_s=probed.inside.latency.value or 1e-6,
    )
    rank_hardware = hardware.of_machine(probed, dtype)
    sizes = np.array([probe.size for probe in by_kind["matmul"]], np.float64)
    measured = np.array([probe.seconds for probe in by_kind["matmul"]])
    shapes = Product(sizes[:, 0], sizes[:, 1], sizes[:, 2])

    def products(tuned: Constants) -> npt.NDArray[np.float64]:
        return np.log(product(rank_hardware, tuned, shapes) / measured) / _NOISE

    fitted = solve(assumed, ("matmul", "rows", "columns", "depth"), products, prior=1.5)
    forward = [probe for probe in by_kind["attention"] if not probe.size[2]]
    back = [probe for probe in by_kind["attention"] if probe.size[2]]
    share = np.median([probe.rate for probe in forward]) / device.peak[dtype].value
    times = np.median([b.seconds / f.seconds for f, b in zip(forward, back, strict=True)])
    fitted = fitted._replace(attention=min(float(share), 1.0), attention_backward=float(times), bandwidth=1.0)
    fitted_names = ["matmul", "rows", "columns", "depth", "attention", "attention_backward", "bandwidth", "kernel_s"]
    if ranks > 1:
        fitted = solve(fitted, ("inside", "inside_s", "dispatch"), _collected(by_kind, rank_hardware, ranks), prior=1.5)
        fitted_names += ["inside", "inside_s", "dispatch"]
    return {name: getattr(fitted, name) for name in fitted_names}


def _collected(by_kind: Mapping[str, list[ProbedTime]], rank_hardware: RankHardware, ranks: int) -> Residuals:
    ranks_of_node = RankGroup(column(ranks), column(ranks))

    def residuals(tuned: Constants) -> npt.NDArray[np.float64]:
        parts: list[npt.NDArray[np.float64]] = []
        for collective in COLLECTIVES:
            size = np.array([float(probe.size[0]) for probe in by_kind[collective]])
            measured = np.array([probe.seconds for probe in by_kind[collective]])
            if collective == "all_reduce":
                predicted = collective_time.reduce(rank_hardware, tuned, ranks_of_node, size)
            elif collective == "all_to_all":
                predicted = collective_time.exchange(rank_hardware, tuned, ranks_of_node, size)
            elif collective == "send":
                predicted = collective_time.send(rank_hardware, tuned, size, column(1))
            else:
                predicted = collective_time.gather(rank_hardware, tuned, ranks_of_node, size)
            parts.append(np.log(predicted / measured) / (3 * _NOISE))
        return np.concatenate(parts)

    return residuals
