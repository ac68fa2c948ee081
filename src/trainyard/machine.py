"""Hardware specifications. Every number about hardware is a `Claim` with its source.

Units: bytes, bytes/s, FLOP/s, seconds. A machine has `nodes` nodes of `per_node` identical devices, connected by one
link inside a node and one between nodes. Bandwidths of links are per device and direction. The switches between nodes
form a tree (`Machine.fabric`); without one, every device can send to any other node at the full rate of its link.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import product
from math import log, prod
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from trainyard import limits, machine_checks, named_sizes, renamed_keys, words
from trainyard.errors import BadFile, BadInput, UnknownName, described, nearest
from trainyard.formats import toml
from trainyard.formats.regular_files import is_regular, read_bytes
from trainyard.machine_aliases import ALIASES, IGNORED_WORDS
from trainyard.printable import printable


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number about hardware with its unit, source, date, and whether it was measured."""

    value: float
    unit: str
    source: str
    date: str = ""
    measured: bool = False

    def __post_init__(self) -> None:
        """Raises `BadInput` unless the value is 0 or a plausible positive number, and has a source, and
        the date is one."""
        machine_checks.check_source(self)
        machine_checks.check_date(self.date)
        if not np.isfinite(self.value) or self.value < 0:
            raise BadInput(f"a claim of {self.value} {self.unit} is not a finite number of at least 0.")
        if self.value and not limits.LEAST_CLAIM <= self.value <= limits.MOST_CLAIM:
            raise BadInput(
                f"a claim of {self.value:g} {self.unit} is not between {limits.LEAST_CLAIM:g} and "
                f"{limits.MOST_CLAIM:g}, the range of numbers about hardware.",
                "Check its unit: bytes, bytes/s, FLOP/s, seconds, W.",
            )


class RateCurve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rate as a function of size: ((size, value), ...) in increasing size; interpolated over log(size)."""

    points: tuple[tuple[float, float], ...]
    claim: Claim

    def __post_init__(self) -> None:
        """Raises `BadInput` unless sizes increase and rates are plausible."""
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] <= 0:
            raise BadInput(f"a curve's sizes must be positive and increasing; got {sizes}.")
        rates = [value for _, value in self.points]
        if not all(limits.LEAST_CLAIM <= value <= limits.MOST_CLAIM for value in rates):
            raise BadInput(
                f"a curve's rates must be between {limits.LEAST_CLAIM:g} and {limits.MOST_CLAIM:g}; got {rates}."
            )

    def at(self, size: float) -> float:
        """The rate at `size`; constant beyond both ends."""
        log_sizes, rates = [log(known_size) for known_size, _ in self.points], [rate for _, rate in self.points]
        return float(np.interp(log(max(size, 1e-300)), log_sizes, rates))  # 0 has no logarithm


_MOST_AXES = 6
"""Axes of the torus with most of them that was built (Fujitsu's Tofu)."""
_MOST_RATIO = 100.0
"""Largest factor between a measured and a predicted product: a larger one is another machine."""


class ProductRatios(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time of matrix products of (rows x depth) by (depth x columns) in `dtype`, measured over predicted with the
    machine's own constants: ((rows, columns, depth, ratio), ...)."""

    dtype: str
    points: tuple[tuple[float, float, float, float], ...]
    claim: Claim

    def __post_init__(self) -> None:
        """Raises `BadInput` without a point, or for two of one size, sizes below 1 or implausible ratios."""
        words.check_dtype(self.dtype)
        sizes = [point[:3] for point in self.points]
        if not sizes or len(set(sizes)) < len(sizes) or not all(1 <= min(size) <= max(size) < 1e9 for size in sizes):
            raise BadInput(f"product_ratios need different sizes from 1 to 1e9; got {sizes[:3]} of {len(sizes)}.")
        for *size, ratio in self.points:
            if not 1 / _MOST_RATIO <= ratio <= _MOST_RATIO:
                raise BadInput(
                    f"the product {size} has a ratio of {ratio:g}, which is not between {1 / _MOST_RATIO:g} and "
                    f"{_MOST_RATIO:g}.",
                    "Repeat trainyard probe on an idle machine.",
                )


def _check_positive(name: str, *claims: Claim) -> None:
    """Raises `BadInput` for a claim of zero: costs are divided by these values."""
    for claim in claims:
        if claim.value <= 0:
            raise BadInput(f"{name} claims {claim.value:g} {claim.unit} ({claim.source}), but it must not be zero.")


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator, or the cores of one host. `peak`: dtype -> dense FLOP/s. `achieved`: op -> measured FLOP/s as a
    function of FLOPs. `sustained`: dtype -> FLOP/s of large matrix products over whole training steps, at the clocks
    that power and cooling allow, if that was measured on this very cluster.

    `product_ratios`: corrections of predicted matrix products by size, if its probe found that they help.
    `power`: W of the device alone under full load. `ranks`: processes that share the device, each with an equal part of
    it, if software addresses those parts (NeuronCores). `aliases`: full names that drivers and traces report; `*`
    matches any text.
    """

    name: str
    vendor: str
    memory: Claim
    bandwidth: Claim
    power: Claim | None = None
    peak: dict[str, Claim] = {}
    achieved: dict[str, RateCurve] = {}
    sustained: dict[str, Claim] = {}
    product_ratios: ProductRatios | None = None
    ranks: int = 1
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises for an unknown vendor or dtype, a peak or size of 0, or no ranks."""
        words.check(self.vendor, words.VENDORS, "vendor")
        for dtype in (*self.peak, *self.sustained):
            words.check_dtype(dtype)
        power = (self.power,) if self.power else ()
        _check_positive(self.name, self.memory, self.bandwidth, *power, *self.peak.values(), *self.sustained.values())
        if self.ranks < 1:
            raise BadInput(f"{self.name} has ranks = {limits.show(self.ranks)}, but needs at least 1.")


class TorusAxis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One axis of a torus of `size` devices. `bandwidth`: bytes/s of one link in one direction. A device has a link to
    each of its two neighbours on the axis, or one link if there are two devices."""

    size: int
    bandwidth: Claim

    def __post_init__(self) -> None:
        """Raises `BadInput` for fewer than two devices or a bandwidth of 0."""
        if self.size < 2:
            raise BadInput(
                f"a torus has an axis of size = {limits.show(self.size)}, but an axis has at least 2 devices.",
                "Leave the axis out.",
            )
        _check_positive("a torus", self.bandwidth)

    @property
    def links(self) -> int:
        """Links of a device on this axis."""
        return min(self.size - 1, 2)


class Torus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links between neighbours on several axes, the first of which varies fastest in the order of ranks.

    `slices`: a job gets a box with sides as equal as possible; if False, the first devices in the order of ranks. An
    axis of a box is a ring if it is the whole axis or, with `cube`, if all sides of the box are multiples of `cube`:
    optical switches then close the axes of boxes that are made of whole cubes (TPU v5p: 4). `slice_devices`: numbers of
    devices of the slices that can be rented, in addition to boxes of whole cubes; empty if any number can.
    """

    axes: tuple[TorusAxis, ...]
    slices: bool = False
    cube: int = 0
    slice_devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises `BadInput` without axes, with too many, or if cubes do not divide them."""
        if not 1 <= len(self.axes) <= _MOST_AXES:
            raise BadInput(f"a torus has {len(self.axes)} axes, but it must have 1 to {_MOST_AXES}.")
        if self.cube < 0 or (self.cube and any(axis.size % self.cube for axis in self.axes)):
            raise BadInput(
                f"a torus of {self.shape} has cube = {limits.show(self.cube)}, which does not divide each of its axes.",
                "Set it to the devices on a side of the smallest box whose axes are rings, or leave it out.",
            )
        sizes = self.slice_devices
        if sizes and not (self.slices and 1 <= min(sizes) <= max(sizes) <= self.devices):
            raise BadInput(
                f"a torus of {self.shape} has slice_devices = {list(sizes)[:8]}, but slices have 1 to "
                f"{self.devices} devices, and need slices = true.",
                "Correct the numbers, or leave them out.",
            )

    @property
    def devices(self) -> int:
        return prod(axis.size for axis in self.axes)

    @property
    def rented_sizes(self) -> tuple[int, ...]:
        """Numbers of devices of the slices that can be rented, in ascending order; empty if any number can."""
        if not self.slice_devices:
            return ()
        cubes = product(*(range(1, axis.size // self.cube + 1) for axis in self.axes)) if self.cube else ()
        of_cubes = (self.cube ** len(self.axes) * prod(counts) for counts in cubes)
        return tuple(sorted({*self.slice_devices, *of_cubes}))

    @property
    def shape(self) -> str:
        """The sizes of the axes, as 16x20x28."""
        return "x".join(str(axis.size) for axis in self.axes)


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An interconnect. `bandwidth`: bytes/s per device and direction.

    `ratios`: collective -> its measured over predicted time by bytes, if its probe found that they help.
    `peer_bandwidth`: that to a single other device, if each pair has its own links (a mesh, without a switch).
    `torus`: the links to neighbours, whose bandwidths add up to `bandwidth`, if there is no switch either.
    `algorithms`: those of collectives that software may choose from in addition to rings, and between nodes trees:
    `nvls` (reduction and multicast in the switches of a node), `pat` (trees for all-gathers and reduce-scatters of
    groups with one rank per node).
    """

    name: str
    kind: Literal["scale_up", "scale_out", "host"]
    bandwidth: Claim
    latency: Claim
    achieved: dict[str, RateCurve] = {}
    ratios: dict[str, RateCurve] = {}
    peer_bandwidth: Claim | None = None
    torus: Torus | None = None
    algorithms: tuple[Literal["nvls", "pat"], ...] = ()

    def __post_init__(self) -> None:
        _check_positive(self.name, self.bandwidth, *((self.peer_bandwidth,) if self.peer_bandwidth else ()))


class SwitchLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of the switches between nodes: groups of switches with `nodes` nodes below each, called pods.

    `oversubscription`: bandwidth of the links into a pod's switches from below, over that of their links to the next
    level; 1 for a non-blocking level. `latency`: seconds that crossing this level adds to a hop between nodes, if
    known.

    `kind`: in a `pod`, a switch or group of switches connects all devices of the nodes. With `rail`, the devices of
    equal index in their nodes share a switch, which has as many links to devices as a pod has nodes. `pxn`: messages to
    a device of another index change rails over the links in the sender's node (NCCL's PXN); otherwise over the uplinks.
    """

    name: str
    nodes: int
    oversubscription: Claim
    latency: Claim | None = None
    kind: Literal["pod", "rail"] = "pod"
    pxn: bool = True

    def __post_init__(self) -> None:
        """Raises `BadInput` for a pod of fewer than two nodes or too many, more uplinks than downlinks, or a pod
        without PXN."""
        if self.kind == "pod" and not self.pxn:
            raise BadInput(
                f'fabric level {self.name!r} has pxn = false, which only concerns rails, but kind = "{self.kind}".',
                'Set kind = "rail", or leave pxn out.',
            )
        if self.nodes < 2:
            raise BadInput(
                f"fabric level {self.name!r} has nodes = {limits.show(self.nodes)}, but a pod has at least 2.",
                "Set it to the number of nodes below one group of switches, or leave the level out.",
            )
        limits.check_value(f"fabric level {self.name!r}: nodes", self.nodes, limits.DEVICES)
        if self.oversubscription.value < 1:
            raise BadInput(
                f"fabric level {self.name!r} has an oversubscription of {self.oversubscription.value:g} "
                f"({self.oversubscription.source}), but it must be at least 1.",
                "Divide the bandwidth of the links to nodes by that of the uplinks: 4 for 4:1.",
            )


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processors of a node. `memory`: bytes; `bandwidth`: memory bandwidth over all channels, bytes/s; `link`:
    between them and each device."""

    memory: Claim
    bandwidth: Claim
    link: Link

    def __post_init__(self) -> None:
        _check_positive("a host", self.memory, self.bandwidth)
        if self.link.kind != "host":
            raise BadInput(f"{self.link.name} is of kind {self.link.kind!r}, but a host's link is of kind 'host'.")


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`nodes` x `per_node` devices. `price`: US dollars per hour and device, if published. `power_overhead`: total
    power of devices, hosts, networks and cooling, divided by that of the devices. `host`: of each node, if known.
    `per_host`: devices of one host, if a node (the devices of one fast link) has several hosts; 0 for all of a node.
    `fabric`: the levels of switches between nodes, from the leaves up; empty for a non-blocking network.

    `calibration`: fitted constants of the cost model, by their names in `predict.constants`; `prediction_interval`: the
    80 % prediction interval (low, high) of measured over predicted step time, if it was calibrated.
    """

    name: str
    device: Device
    per_node: int = 1
    per_host: int = 0
    nodes: int = 1
    intra_node: Link
    inter_node: Link | None = None
    fabric: tuple[SwitchLevel, ...] = ()
    host: Host | None = None
    price: Claim | None = None
    power_overhead: Claim | None = None
    calibration: dict[str, Claim] = {}
    prediction_interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Raises `BadInput` if a count, the interval or the overhead is out of range, the levels of the fabric do not
        nest, a torus does not have the devices of a node, a link cannot have an algorithm, or a CPU has a host."""
        if self.per_node < 1 or self.nodes < 1:
            counts = f"{limits.show(self.nodes)} nodes of {limits.show(self.per_node)} devices"
            raise BadInput(f"{self.name} has {counts}, but needs at least 1 of each.")
        if self.per_host < 0 or (self.per_host and self.per_node % self.per_host):
            raise BadInput(
                f"{self.name} has per_host = {limits.show(self.per_host)}, which does not divide its per_node = "
                f"{limits.show(self.per_node)}.",
                "Set it to the number of devices of one host, or leave it out.",
            )
        limits.check_value("nodes x per_node x ranks of a device =", self.devices * self.device.ranks, limits.DEVICES)
        machine_checks.check_fabric(self)
        machine_checks.check_torus(self)
        machine_checks.check_algorithms(self)
        if self.prediction_interval and not 0 < self.prediction_interval[0] <= self.prediction_interval[1] <= 100:
            raise BadInput(
                f"{self.name} has a prediction_interval of {self.prediction_interval}, which is not two increasing "
                "numbers from 0 to 100."
            )
        if self.power_overhead and self.power_overhead.value < 1:
            raise BadInput(
                f"{self.name} has a power_overhead of {self.power_overhead.value:g}, but it includes the devices and "
                "must be at least 1."
            )
        if self.host and self.device.vendor == "cpu":
            raise BadInput(
                f"{self.name} has a host and the device {self.device.name}, but a CPU device is its own host.",
                "Leave out host.",
            )

    @property
    def devices(self) -> int:
        return self.per_node * self.nodes

    @property
    def ranks_per_node(self) -> int:
        return self.per_node * self.device.ranks

    @property
    def ranks_per_host(self) -> int:
        """Ranks on one host, which is the largest unit that a scheduler allocates as one node."""
        return (self.per_host or self.per_node) * self.device.ranks

    @property
    def rank_memory(self) -> float:
        """Device memory per rank in bytes."""
        return self.device.memory.value / self.device.ranks


def known() -> dict[str, Path]:
    """The machine files in the package: name -> path."""
    folder = Path(__file__).parent / "data" / "machines"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_file(name_or_path: str) -> Path | None:
    """The file of a machine in the package by its name (`h100`), or the user's file, which may be a folder or a pipe;
    None if there is neither."""
    known_paths = known()
    path = known_paths.get(name_or_path) or Path(name_or_path)
    if is_regular(path):
        return path
    resolved = named_sizes.resolve(name_or_path[:100], known_paths, ALIASES, IGNORED_WORDS)
    return known_paths.get(resolved) or (path if os.path.exists(name_or_path) else None)


def load(name_or_path: str) -> Machine:
    """Loads a machine by the name of a file in the package (`h100`) or from the user's TOML file. Raises `UnknownName`
    if there is neither, or `BadFile` for an invalid file or numbers that no hardware has."""
    path = find_file(name_or_path)
    if path is None and named_sizes.is_path(name_or_path):
        raise UnknownName(
            f"there is no file {name_or_path[:100]!r}.",
            "Correct the path, or pass a machine's name: trainyard plan list machines.",
        )
    if path is None:
        raise UnknownName(f"there is no machine {name_or_path[:100]!r}.", nearest(name_or_path, known()))
    data = read_bytes(path)
    try:
        loaded = msgspec.convert(toml.loads(data.decode("utf-8")), Machine)
        machine_checks.check_machine(loaded)
    except BadInput as error:
        raise BadFile(f"{path}: {error.message}", error.next_step) from error
    except (toml.DecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        message, next_step = renamed_keys.describe_machine_key(str(error), Machine) or described(error)
        raise BadFile(f"{path}: {message}.", next_step) from error
    # Headings and sentences contain the names: each is one line of visible characters.
    device = msgspec.structs.replace(loaded.device, name=printable(loaded.device.name))
    return msgspec.structs.replace(loaded, name=printable(loaded.name), device=device)


def find_device(reported: str) -> Device | None:
    """The known device whose name or alias matches the name that a driver or trace reports, or None."""
    machine = find_machine(reported)
    return machine.device if machine else None


@lru_cache(maxsize=64)
def find_machine(reported: str) -> Machine | None:
    """The machine file in the package whose device has a name or alias that matches the reported one, or None.

    The whole name must match, and the longest matching alias wins: an H200 NVL is not taken for an H200, whose peak
    differs.
    """
    reported_name = reported.strip().lower()
    longest_match: tuple[int, str] | None = None  # (length of the alias, name of the machine file)
    for name, path in known().items():
        for alias in _device_names(path):
            if fnmatchcase(reported_name, alias.lower()) and (longest_match is None or len(alias) > longest_match[0]):
                longest_match = (len(alias), name)
    return load(longest_match[1]) if longest_match else None


@lru_cache(maxsize=256)
def _device_names(path: Path) -> tuple[str, ...]:
    """The name and the aliases of the device of a machine file in the package, from the two lines with them: reading
    all files takes twenty times as long."""
    lines = path.read_text("utf-8").partition("\n[device]\n")[2].splitlines()
    named = [line for line in lines[: _end_of_table(lines)] if line.startswith(("name =", "aliases ="))]
    table = toml.loads("\n".join(named))
    return (table["name"], *table.get("aliases", ()))


def _end_of_table(lines: list[str]) -> int:
    """Index of the line that begins the next table; their number if there is none."""
    return next((index for index, line in enumerate(lines) if line.startswith("[")), len(lines))
