"""Checks of the numbers of a machine file against the limits of hardware, and against each other.

Each range is wide enough for the smallest and the largest device that was built or announced. A number outside of it
has a wrong unit or a typing error. Measured numbers are not compared with each other: a measured peak is the best of
some products, and not a bound on others.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from trainyard import limits, units, words
from trainyard.errors import BadInput

if TYPE_CHECKING:
    from trainyard.machine import Claim, Device, Link, Machine, RateCurve


class Range(NamedTuple):
    """Least and largest value of a quantity in `unit`, and the largest that is known."""

    quantity: str
    least: float
    most: float
    unit: str
    known: str


_MEMORY = Range("memory", 1e6, 1e13, "bytes", "288e9 bytes of HBM of a B300, 1.5e12 bytes of DDR of an SN40L")
_HOST_MEMORY = _MEMORY._replace(most=2e14, known="17e12 bytes of the hosts of a GB200 rack, 64e12 of one host")
_DRAM_BANDWIDTH = Range(
    "memory bandwidth", 1e6, 1e14, "bytes/s", "8e12 bytes/s of the HBM of a B200, 22e12 announced with HBM4"
)
_SRAM_BANDWIDTH = Range("memory bandwidth", 1e6, 1e17, "bytes/s", "21e15 bytes/s of the SRAM of a wafer (WSE-3)")
_PEAK = Range("peak", 1e6, 1e19, "FLOP/s", "1.25e17 FLOP/s of a wafer (WSE-3)")
_SUSTAINED = _PEAK._replace(quantity="sustained rate")
_POWER = Range("power", 10, 3e4, "W", "1,400 W of a GB300, 23,000 W of a wafer (WSE-3)")
_LINK_BANDWIDTH = Range("bandwidth", 1e3, 1e15, "bytes/s", "1.28e12 bytes/s of NeuronLink in a Trainium3")
_LATENCY = Range("latency", 0.0, 1.0, "s", "about 1e-5 s between nodes")
_OVERSUBSCRIPTION = Range(
    "switch oversubscription", 1.0, 1e3, "ratio",
    "1 (non-blocking) to 7 (between the pods of Llama 3's cluster, arXiv:2407.21783, section 3.3.1)",
)  # fmt: skip
_PRICE = Range("price", 0.0, 1e3, "USD/h", "6 USD per hour of a GB200")
_PER_NODE = limits.Limit("devices per node", 1 << 16, "9,216 chips of a pod of TPU7x")
_NODES = limits.Limit("nodes", 1 << 20, "announced clusters have about 1,000,000 accelerators")

_MOST_SRAM_BYTES = 64e9
"""More memory than this is not on the chip: a wafer (WSE-3) has 44e9 bytes of SRAM."""
_BYTES_OF_ACHIEVED = 2
"""Bytes of an element of the formats whose rates are `Device.achieved`."""
_NARROWER: Mapping[str, tuple[str, ...]] = {
    "float32": ("tf32",),
    "tf32": ("float16", "bfloat16"),
    "float16": ("float8",),
    "bfloat16": ("float8",),
    "float8": ("float4",),
}
"""Formats of matrix products -> those with fewer bits, which no device with units for them computes more slowly. A
device without such units has no peak in the format; CPUs may compute 16-bit formats more slowly."""
_DATE = re.compile(r"\d{4}(-\d\d){0,2}", re.ASCII)
_ROUNDED = 0.01
"""Relative difference between a bandwidth and the sum of its parts that rounding explains."""


def check_source(claim: Claim) -> None:
    """Raises `BadInput` for a claim without a source."""
    if not claim.source.strip():
        raise BadInput(
            f"a claim of {claim.value:g} {claim.unit} has no source.",
            "Set source to where the number is from: a document with its page, a command, or 'assumption: REASON'.",
        )


def check_date(date: str) -> None:
    """Raises `BadInput` for a date of a claim that is not a year, a month or a day; empty if unknown."""
    try:
        if date and not _DATE.fullmatch(date):
            raise ValueError
        datetime.date.fromisoformat(f"{date or '2000'}-01-01"[:10])
    except ValueError as error:
        raise BadInput(
            f"a claim has the date {date!r:.60}, which is not an ISO date.",
            "Write a year, a month or a day: 2026, 2026-02 or 2026-02-28; or leave it out.",
        ) from error


def check_machine(machine: Machine) -> None:
    """Raises `BadInput` for a number that no hardware has, or that contradicts another one of the machine."""
    limits.check_value("per_node =", machine.per_node, _PER_NODE)
    limits.check_value("nodes =", machine.nodes, _NODES)
    _check_device(machine.device)
    host = machine.host
    links = {"intra_node": machine.intra_node, "inter_node": machine.inter_node, "host.link": host and host.link}
    for key, link in links.items():
        if link:
            _check_link(key, link)
            _check_link_of_device(link, machine.device.name, machine.device.bandwidth)
    for level in machine.fabric:
        owner = f"fabric level {level.name!r}"
        _check_range("fabric.oversubscription", owner, level.oversubscription, _OVERSUBSCRIPTION)
        if level.latency:
            _check_range("fabric.latency", owner, level.latency, _LATENCY)
    if host:
        _check_range("host.memory", "the host", host.memory, _HOST_MEMORY)
        _check_range("host.bandwidth", "the host", host.bandwidth, _DRAM_BANDWIDTH)
    if machine.price:
        _check_range("price", machine.name, machine.price, _PRICE)


def check_fabric(machine: Machine) -> None:
    """Raises `BadInput` for levels of switches without a link between nodes, or whose pods are not made of whole pods
    of the level below."""
    if machine.fabric and machine.inter_node is None:
        raise BadInput(
            f"{machine.name} has a fabric of {units.counted(len(machine.fabric), 'level')}, but no link between nodes.",
            "Add [inter_node] with its bandwidth per device and its latency, or leave out fabric.",
        )
    for inner, outer in pairwise(machine.fabric):
        if outer.nodes <= inner.nodes or outer.nodes % inner.nodes:
            raise BadInput(
                f"{machine.name} has fabric level {outer.name!r} with pods of {outer.nodes} nodes above level "
                f"{inner.name!r} with pods of {inner.nodes}: {outer.nodes} is not a larger multiple of {inner.nodes}.",
                "List the levels from the leaves up, each with a multiple of the nodes of the one before.",
            )
        if outer.kind == "rail":
            raise BadInput(
                f"{machine.name} has rails at fabric level {outer.name!r}, above level {inner.name!r}, but devices of "
                "different indices meet at most once on the way up.",
                'Set kind = "rail" for the first level only.',
            )


def check_torus(machine: Machine) -> None:
    """Raises `BadInput` for a torus between nodes, or whose devices or bandwidths are not those of its node or link."""
    between, link = machine.inter_node, machine.intra_node
    if between and between.torus:
        raise BadInput(
            f"{machine.name} has a torus between nodes ({between.name}), but a torus connects the devices of a node.",
            "Move it to [intra_node], with per_node = the devices of the whole torus.",
        )
    if not link.torus:
        return
    torus = link.torus
    if torus.devices != machine.per_node:
        raise BadInput(
            f"{link.name} is a torus of {torus.shape} = {torus.devices} devices, but {machine.name} has per_node = "
            f"{machine.per_node}.",
            "Make the sizes of the axes multiply to per_node.",
        )
    total = sum(axis.links * axis.bandwidth.value for axis in torus.axes)
    if abs(total / link.bandwidth.value - 1) > _ROUNDED:
        raise BadInput(
            f"{link.name} has a bandwidth of {link.bandwidth.value:g} bytes/s per device, but the links of its torus "
            f"have {total:g} together.",
            "Give the bandwidth of one link of each axis in one direction; a device has two of each axis.",
        )


def check_algorithms(machine: Machine) -> None:
    """Raises `BadInput` for an algorithm that the link cannot have: reductions in switches need a switch in the node,
    and trees of messages between nodes are for links between nodes."""
    inside, between = machine.intra_node, machine.inter_node
    if "nvls" in inside.algorithms and (inside.torus or inside.peer_bandwidth):
        raise BadInput(
            f'{inside.name} has the algorithm "nvls", which its switches compute, but it has links between devices.',
            "Remove it from algorithms, or torus and peer_bandwidth.",
        )
    if between and "nvls" in between.algorithms:
        raise BadInput(
            f'{between.name} has the algorithm "nvls", which is for switches in a node.', "Move it to [intra_node]."
        )
    if "pat" in inside.algorithms:
        raise BadInput(
            f'{inside.name} has the algorithm "pat", which is for groups with one rank per node.',
            "Move it to [inter_node].",
        )


def _check_device(device: Device) -> None:
    """Raises `BadInput` for an impossible number of a device."""
    memory_range = _HOST_MEMORY if device.vendor == "cpu" else _MEMORY
    _check_range("device.memory", device.name, device.memory, memory_range)
    _check_range("device.bandwidth", device.name, device.bandwidth, _bandwidth_range(device.memory))
    if device.power:
        _check_range("device.power", device.name, device.power, _POWER)
    for dtype, peak in device.peak.items():
        _check_range(f"device.peak.{dtype}", device.name, peak, _PEAK)
    if device.vendor != "cpu":
        _check_peaks(device.name, device.peak)
    _check_achieved(device.name, device.achieved, device.peak)
    _check_sustained(device.name, device.sustained, device.peak)


def _check_link(key: str, link: Link) -> None:
    """Raises `BadInput` for an impossible bandwidth or latency of a link. `key`: of its table in the machine file."""
    bandwidths = {"bandwidth": link.bandwidth, "peer_bandwidth": link.peer_bandwidth}
    for name, bandwidth in bandwidths.items():
        if bandwidth:
            _check_range(f"{key}.{name}", link.name, bandwidth, _LINK_BANDWIDTH)
    for axis in link.torus.axes if link.torus else ():
        _check_range(f"{key}.torus.axes.bandwidth", f"the torus of {link.name}", axis.bandwidth, _LINK_BANDWIDTH)
    _check_range(f"{key}.latency", link.name, link.latency, _LATENCY)


def _check_range(key: str, owner: str, claim: Claim, allowed: Range) -> None:
    """Raises `BadInput` unless the claim is in the unit and the range. `key`: in the machine file; `owner`: the name of
    the device, link or machine."""
    if claim.unit and claim.unit != allowed.unit:
        raise BadInput(
            f"{owner} has a {allowed.quantity} ({key}) of {claim.value:g} in {claim.unit!r}, but it is read in "
            f"{allowed.unit}.",
            f'Convert the value, and set unit = "{allowed.unit}".',
        )
    if not allowed.least <= claim.value <= allowed.most:
        raise BadInput(
            f"{owner} has a {allowed.quantity} ({key}) of {claim.value:g} {claim.unit}, which is not between "
            f"{allowed.least:g} and {allowed.most:g} {allowed.unit}.",
            f"Check its unit, {allowed.unit}. Known: {allowed.known}.",
        )


def _bandwidth_range(memory: Claim) -> Range:
    """The range of the bandwidth of a device's memory, which depends on its technology: SRAM is small."""
    return _SRAM_BANDWIDTH if memory.value <= _MOST_SRAM_BYTES else _DRAM_BANDWIDTH


def _check_peaks(owner: str, peaks: Mapping[str, Claim]) -> None:
    """Raises `BadInput` if a format has a higher peak than a narrower one that is never slower. `peaks`: by dtype."""
    for wide, narrower in _NARROWER.items():
        for narrow in narrower:
            if wide in peaks and narrow in peaks and peaks[wide].value > peaks[narrow].value:
                raise BadInput(
                    f"{owner} has a peak of {peaks[wide].value:g} FLOP/s in {wide} (device.peak.{wide}), more than "
                    f"{peaks[narrow].value:g} in {narrow}.",
                    f"Take both from one data sheet, without sparsity; leave out {narrow} if it has no units for it.",
                )


def _check_achieved(owner: str, achieved: Mapping[str, RateCurve], peaks: Mapping[str, Claim]) -> None:
    """Raises `BadInput` if a rate, which is that of 16-bit formats, is above the highest peak of formats that are not
    narrower; above all peaks if there is no such format. `achieved`: operation -> its rates in FLOP/s."""
    not_narrower = {dtype: peak for dtype, peak in peaks.items() if words.DTYPES[dtype] >= _BYTES_OF_ACHIEVED}
    compared = not_narrower or peaks
    dtype = max(compared, key=lambda dtype: compared[dtype].value, default=None)
    if dtype is None or compared[dtype].measured:
        return
    for operation, curve in achieved.items():
        size, rate = max(curve.points, key=lambda point: point[1])
        if rate > compared[dtype].value:
            raise BadInput(
                f"{owner} achieved {rate:g} FLOP/s in {operation} of {size:g} FLOPs (device.achieved.{operation}), "
                f"more than its peak of {compared[dtype].value:g} FLOP/s in {dtype}.",
                "Give rates of 16-bit formats as [[FLOPs, FLOP/s], ...], and the peak of the same device.",
            )


def _check_sustained(owner: str, sustained: Mapping[str, Claim], peaks: Mapping[str, Claim]) -> None:
    """Raises `BadInput` for a sustained rate without a peak of the same dtype, or above it. Both: by dtype, in
    FLOP/s."""
    for dtype, claim in sustained.items():
        _check_range(f"device.sustained.{dtype}", owner, claim, _SUSTAINED)
        if dtype not in peaks:
            raise BadInput(
                f"{owner} has a sustained rate of {claim.value:g} FLOP/s in {dtype}, but no peak in {dtype}.",
                f"Add [device.peak] {dtype}; it has {', '.join(sorted(peaks)) or 'none'}.",
            )
        if claim.value > peaks[dtype].value:
            raise BadInput(
                f"{owner} has a sustained rate of {claim.value:g} FLOP/s in {dtype}, more than its peak of "
                f"{peaks[dtype].value:g} FLOP/s.",
                "Count 2 FLOPs for each multiplication and addition of a matrix product, and divide by its seconds.",
            )


def _check_link_of_device(link: Link, owner: str, memory_bandwidth: Claim) -> None:
    """Raises `BadInput` if a link moves more than the memory of its device can read. `owner`: of the device."""
    if link.bandwidth.measured and memory_bandwidth.measured:
        return
    if link.bandwidth.value > memory_bandwidth.value:
        raise BadInput(
            f"{link.name} has a bandwidth of {link.bandwidth.value:g} bytes/s per device, more than the memory of "
            f"{owner}: {memory_bandwidth.value:g} bytes/s.",
            "Give the bandwidth of one device in one direction, in bytes and not in bits.",
        )
