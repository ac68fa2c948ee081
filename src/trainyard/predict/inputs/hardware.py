"""A machine's claims as columns, one number each.

A claim is a figure of the machine file with its unit and source; a column is a float64 array of shape [case], or (1,)
if all cases (rows of a prediction) have the same hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np

from trainyard import words
from trainyard.errors import UnknownName
from trainyard.machine import Machine
from trainyard.predict.inputs.cases import Column, column
from trainyard.predict.inputs.ratio_curve import RatioCurve, ratio_curve
from trainyard.predict.inputs.ratio_surface import RatioSurface, surface


class PodLevel(NamedTuple):
    """A level of the switches between nodes, as columns of shape (1,). `ranks`: below one pod. `oversubscription`:
    bandwidth of all links of the pod's nodes to the network, over that of the pod's uplinks: the product of those of
    this level and the levels below. `latency_s`: seconds that crossing this level adds to a hop between nodes.
    `rails`: how messages to a device of another index in another node of the pod travel: directly, over the links in
    the sender's node to the device of that index first, or over the uplinks."""

    ranks: Column
    oversubscription: Column
    latency_s: Column
    rails: Literal["none", "forwarded", "crossed"] = "none"


class RankTorus(NamedTuple):
    """The torus of a node, as numbers. `sizes`: devices on each axis, the first of which varies fastest in the order of
    ranks; `bandwidths`: bytes/s of one link of each axis in one direction. `device_ranks`: ranks of a device, which
    share its links; `in_device`: bytes/s in one direction between them, of each rank. `hop_s`: seconds of a link.
    `slices`, `cube`: as of `machine.Torus`."""

    sizes: tuple[int, ...]
    bandwidths: tuple[float, ...]
    device_ranks: int
    in_device: float
    hop_s: float
    slices: bool
    cube: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHardware:
    """The hardware of one rank: its device, or its part of one, and its part of the node's host. Columns of shape (1,),
    or (number of cases,)."""

    peak: Column
    """FLOP/s in the compute dtype."""
    sustained: Column
    """FLOP/s that large matrix products in the compute dtype attain over whole steps; 0 if not measured."""
    low_peak: Column
    """FLOP/s of the matrix products of layers, if they run below the compute dtype."""
    low_sustained: Column
    """FLOP/s that large matrix products of layers attain over whole steps below the compute dtype; 0 if not
    measured."""
    memory: Column
    """Bytes of the device's memory."""
    bandwidth: Column
    """Bytes/s of the device's memory."""
    intra_node: Column
    """Bytes/s in one direction to all other ranks of the node."""
    peer: Column
    """Bytes/s in one direction to one other rank of the node."""
    inter_node: Column
    """Bytes/s in one direction to other nodes."""
    per_node: Column
    """Ranks of a node."""
    host: Column
    """1 if the device is the host's own cores, which do nothing else while they launch, else 0."""
    host_bandwidth: Column
    """Bytes/s of the host's memory; infinite if unknown."""
    host_link: Column
    """Bytes/s in one direction between the host and the device; infinite if unknown."""
    host_link_s: Column
    """Seconds until the first byte of a copy between the host and the device arrives."""
    fabric: tuple[PodLevel, ...] = ()
    """Levels of switches between nodes, from the leaves up; empty for a non-blocking network. They are the same in all
    cases."""
    torus: RankTorus | None = None
    """The links inside a node, if they are a torus; the same in all cases."""
    algorithms: tuple[str, ...] = ()
    """Algorithms of collectives in addition to rings and trees, of both links; the same in all cases."""

    @property
    def has_probed_products(self) -> bool:
        """Whether the time of matrix products was probed on the machine."""
        return False

    def product_ratio(self, rows: Column, columns: Column, depth: Column) -> Column:
        """Factor of the predicted time of matrix products of (rows x depth) by (depth x columns): 1."""
        del rows, columns, depth
        return np.ones(1)

    def collective_ratio(self, collective: str, size_bytes: Column) -> Column:
        """Factor of the predicted time of a collective within a node: 1."""
        del collective, size_bytes
        return np.ones(1)


COMMON = ("fabric", "torus", "algorithms")
"""Fields of `RankHardware` that are not columns, but the same in all cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedRankHardware(RankHardware):
    """The hardware of a rank whose matrix products or collectives were probed by size. `collective_ratios`: by name, as
    in `run/probe/probe_rank.py`."""

    product_ratios: RatioSurface | None
    collective_ratios: dict[str, RatioCurve]

    @property
    def has_probed_products(self) -> bool:
        return self.product_ratios is not None

    def product_ratio(self, rows: Column, columns: Column, depth: Column) -> Column:
        """Factor of the predicted time of matrix products: the probed ratio near probed sizes, far from them 1."""
        return self.product_ratios.at(rows, columns, depth) if self.product_ratios else np.ones(1)

    def collective_ratio(self, collective: str, size_bytes: Column) -> Column:
        """Factor of the predicted time of a collective within a node: the probed ratio, or 1 if it was not probed."""
        curve = self.collective_ratios.get(collective)
        return curve.at(size_bytes) if curve else np.ones(1)


def _peak_flops(machine: Machine, dtype: str) -> float:
    """Dense peak of a device in FLOP/s. Raises `UnknownName` if it has none for the dtype."""
    peaks = machine.device.peak
    if dtype not in peaks:
        known = ", ".join(sorted(peaks.keys() & words.DTYPES.keys() - {"tf32"}))
        raise UnknownName(f"{machine.device.name} has no peak for {dtype}.", f"Pass --fix dtype= with one of {known}.")
    return peaks[dtype].value


def _sustained_flops(machine: Machine, dtype: str) -> float:
    """Rate of large products over whole steps in FLOP/s; 0 if it was not measured."""
    claim = machine.device.sustained.get(dtype)
    return claim.value if claim else 0.0


def of_machine(machine: Machine, dtype: str, low_dtype: str = "") -> RankHardware:
    """Columns of shape (1,) of `machine`, per rank. `dtype`: the compute dtype; `low_dtype`: dtype of the matrix
    products of layers, if another. Raises `UnknownName` without a peak for one of them."""
    # `device.ranks` ranks share one device and its links.
    between, device_share = machine.inter_node or machine.intra_node, 1 / machine.device.ranks
    host, ranks = machine.host, machine.ranks_per_node
    columns = RankHardware(
        peak=column(_peak_flops(machine, dtype) * device_share),
        sustained=column(_sustained_flops(machine, dtype) * device_share),
        low_peak=column(_peak_flops(machine, low_dtype or dtype) * device_share),
        low_sustained=column(_sustained_flops(machine, low_dtype) * device_share),
        memory=column(machine.rank_memory),
        bandwidth=column(machine.device.bandwidth.value * device_share),
        intra_node=column(machine.intra_node.bandwidth.value * device_share),
        peer=column((machine.intra_node.peer_bandwidth or machine.intra_node.bandwidth).value * device_share),
        inter_node=column(between.bandwidth.value * device_share),
        per_node=column(machine.ranks_per_node),
        host=column(machine.device.vendor == "cpu"),
        host_bandwidth=column(host.bandwidth.value / ranks if host else np.inf),
        host_link=column(host.link.bandwidth.value * device_share if host else np.inf),
        host_link_s=column(host.link.latency.value if host else 0.0),
        fabric=_pod_levels(machine),
        torus=rank_torus(machine),
        algorithms=(*machine.intra_node.algorithms, *(machine.inter_node.algorithms if machine.inter_node else ())),
    )
    ratios, curves = machine.device.product_ratios, machine.intra_node.ratios
    product_ratios = surface(ratios) if ratios and ratios.dtype == dtype else None
    if not product_ratios and not curves:
        return columns
    values = {field.name: getattr(columns, field.name) for field in fields(RankHardware)}
    return ProbedRankHardware(
        **values,
        product_ratios=product_ratios,
        collective_ratios={name: ratio_curve(curve) for name, curve in curves.items()},
    )


def _pod_levels(machine: Machine) -> tuple[PodLevel, ...]:
    """The levels of the machine's fabric, from the leaves up, with their ratios multiplied up from the nodes."""
    ratios = np.cumprod([level.oversubscription.value for level in machine.fabric])
    return tuple(
        PodLevel(
            ranks=column(level.nodes * machine.ranks_per_node),
            oversubscription=column(ratio),
            latency_s=column(level.latency.value if level.latency else 0.0),
            rails="none" if level.kind == "pod" else "forwarded" if level.pxn else "crossed",
        )
        for level, ratio in zip(machine.fabric, ratios, strict=True)
    )


def rank_torus(machine: Machine) -> RankTorus | None:
    """The machine's torus. Ranks of one device exchange data through its memory, which is written and read."""
    torus, ranks = machine.intra_node.torus, machine.device.ranks
    if torus is None:
        return None
    return RankTorus(
        sizes=tuple(axis.size for axis in torus.axes),
        bandwidths=tuple(axis.bandwidth.value for axis in torus.axes),
        device_ranks=ranks,
        in_device=machine.device.bandwidth.value / ranks / 2,
        hop_s=machine.intra_node.latency.value,
        slices=torus.slices,
        cube=torus.cube,
    )
