"""Changes of a request after which a layout fits: the next step of a search that found none. Each is tried before it is
suggested."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from trainyard import limits
from trainyard.errors import BadJob
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.inputs import cluster_size, layout_space
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search import offload_variants, sequence_lengths
from trainyard.units import counted

CLUSTER_FACTORS = (2, 4, 8, 16, 32, 64, 128, 256)
"""Multiples of a cluster that are tried, if nothing fits on it, until one is large enough."""
_LEAST_SEQ_LEN = 512
"""The shortest sequences that are tried, if nothing fits."""
_SEQ_LEN_STEPS = 16
"""Steps from a length of sequences that fits to twice that length, which does not."""
_PARTS_OF_DOUBLING = 4
"""Parts into which the last doubling of a cluster is divided, in search of a smaller cluster that is enough."""
_LEAST_LAYOUTS = 16
"""Fewest layouts that fit on a suggested cluster of unusual size, or with padded sequences: the framework may refuse
some of them."""
_MOST_AXES = 3
"""Fixed axes that are suggested, of which leaving out one is enough."""


def unit_of_ranks(machines: Iterable[Machine]) -> Literal["devices", "ranks"]:
    """The unit of `PlannerInput.devices` in messages: `devices` if each has one rank, else `ranks`."""
    return "devices" if all(machine.device.ranks == 1 for machine in machines) else "ranks"


class _Request(NamedTuple):
    """A search that found no layout."""

    wanted: PlannerInput
    framework: Framework
    machine: Machine

    def fits(self, *, least: int = 1, **changes: int) -> bool:
        """Whether at least `least` layouts fit with these fields of `wanted` changed."""
        return count_fitting(self.wanted._replace(**changes), self.framework, self.machine) >= least

    def padded_length(self, ranks: int) -> int:
        """The length of sequences, padded so that the degrees of parallelism of `ranks` divide it; unchanged if they
        do, if images are trained, or if the padded length is above the limits."""
        wanted = self.wanted
        if not isinstance(wanted.model, Model):
            return wanted.seq_len
        padded = sequence_lengths.pad(wanted.seq_len, ranks)
        allowed = padded <= limits.TOKENS.most and padded * wanted.samples <= limits.STEP.most
        return padded if allowed else wanted.seq_len


def suggest(wanted: PlannerInput, framework: Framework, machine: Machine, *, too_large: bool) -> str:
    """The change of `wanted` after which a layout of `framework` fits on `machine`: fewer fixed axes or another
    framework, else other sizes. `too_large`: layouts divide evenly, but none fits in memory."""
    request = _Request(wanted, framework, machine)
    steps = (
        _pad(request) if too_large else "",
        leave_out(wanted, lambda changed: count_fitting(changed, framework, machine)),
        _use_framework(request),
    )
    if any(steps):
        return " ".join(filter(None, steps))
    sizes = (_use_more_devices, _use_shorter, _use_batch) if too_large else (_use_batch, _pad, _use_more_devices)
    return next(filter(None, (suggest_size(request) for suggest_size in sizes)), _ask_for_change(framework, too_large))


def _ask_for_change(framework: Framework, too_large: bool) -> str:
    """The next step if no change that was tried is enough."""
    if too_large:
        return "Use devices with more memory."
    if framework.unsupported:
        return "Leave out that setting, or change --batch or --devices."
    return "Change --batch or --devices, so that the devices divide the batch."


def count_fitting(wanted: PlannerInput, framework: Framework, machine: Machine) -> int:
    """The number of layouts that fit; 0 if there is none, or more than can be searched."""
    if wanted.dtype not in framework.dtypes or framework.refuses(wanted.model):
        return 0
    try:
        layouts = framework.layouts(wanted)
        if not len(layouts) or layout_space.lacks_sharding(wanted, layouts):
            return 0
        sizes = offload_variants.add_offloaded(wanted, layouts, framework, machine)
    except BadJob:
        return 0
    return int(np.count_nonzero(sizes.fits(offload_variants.usable_memory(machine))))


def leave_out(wanted: PlannerInput, count: Callable[[PlannerInput], int]) -> str:
    """Which fixed axes to leave out: the fewest without which a layout fits, those that let most layouts through first;
    empty if nothing fits without any of them. `count`: the number of layouts that fit."""
    if not wanted.fixed:
        return ""
    counts = {tuple(wanted.fixed): count(wanted._replace(fixed={}))}  # axes that are left out -> layouts
    if not any(counts.values()):
        return ""
    for size in range(1, len(wanted.fixed) + 1):
        subsets = list(combinations(wanted.fixed, size))
        counts |= {axes: count(_without(wanted, axes)) for axes in subsets if axes not in counts}
        choices = sorted(filter(counts.__getitem__, subsets), key=lambda axes: -counts[axes])
        if choices:
            shown = choices[: _MOST_AXES if size == 1 else 1]
            listed = (f"{_flags(axes)} ({counted(counts[axes], 'layout')})" for axes in shown)
            return f"Leave out {' or '.join(listed)}."
    return ""


def _without(wanted: PlannerInput, axes: tuple[str, ...]) -> PlannerInput:
    """The request without some fixed axes."""
    return wanted._replace(fixed={axis: value for axis, value in wanted.fixed.items() if axis not in axes})


def _flags(axes: tuple[str, ...]) -> str:
    """The options of fixed axes, as `--fix tp and --fix pp`."""
    return " and ".join(f"--fix {axis}" for axis in axes)


def _use_framework(request: _Request) -> str:
    """Another framework with which a layout fits; empty if there is none, or if settings that others may lack restrict
    the framework."""
    if request.framework not in FRAMEWORKS.values():
        return ""
    for name, other in FRAMEWORKS.items():
        if other != request.framework and request._replace(framework=other).fits():
            return f"A layout of {other.display_name} fits: trainyard plan --for {name}."
    return ""


def next_batch(wanted: PlannerInput) -> int:
    """The next batch that all ranks divide."""
    return -(-wanted.samples // wanted.devices) * wanted.devices


def _use_batch(request: _Request) -> str:
    """The next batch that all ranks divide, if a layout fits with it."""
    wanted, unit = request.wanted, unit_of_ranks([request.machine])
    larger_batch = next_batch(wanted)
    if larger_batch > limits.SAMPLES.most or not request.fits(samples=larger_batch):
        return ""
    return f"Use --batch {larger_batch}, a multiple of the {wanted.devices:,} {unit}."


def _pad(request: _Request) -> str:
    """The next length of sequences that all degrees of parallelism divide, if a layout fits with it."""
    ranks = request.wanted.devices
    length = request.padded_length(ranks)
    if length == request.wanted.seq_len or not request.fits(seq_len=length):
        return ""
    return f"Pad the sequences to {_describe_padded(length, ranks)}."


def _describe_padded(length: int, ranks: int) -> str:
    """A padded length with the number that it is a multiple of."""
    return f"{length:,} tokens, a multiple of {sequence_lengths.unit(length, ranks):,}, so that tp and 2 x cp divide it"


def _use_more_devices(request: _Request) -> str:
    """The smallest of the larger clusters on which a layout fits, or a number of whole nodes between this and half of
    it; with padded sequences if none fits without."""
    for ranks in _larger_clusters(request):
        if ranks > cluster_size.max_ranks(request.machine):
            continue
        if request.fits(devices=ranks):
            return f"{_smallest_between(request, ranks) // request.machine.device.ranks:,} devices would be enough."
        padded = request.padded_length(ranks)
        if padded != request.wanted.seq_len and request.fits(least=_LEAST_LAYOUTS, devices=ranks, seq_len=padded):
            devices = ranks // request.machine.device.ranks
            return f"{devices:,} devices would be enough, with sequences of {_describe_padded(padded, ranks)}."
    return ""


def _larger_clusters(request: _Request) -> Iterator[int]:
    """Ranks of larger clusters: multiples of the devices by `CLUSTER_FACTORS`, of a torus after the slices that can be
    rented and have at least as many."""
    multiples = [request.wanted.devices * factor for factor in CLUSTER_FACTORS]
    torus, ranks_per_device = request.machine.intra_node.torus, request.machine.device.ranks
    if torus:
        rented = [size * ranks_per_device for size in torus.rented_sizes]
        slices = (next((ranks for ranks in rented if ranks >= least), 0) for least in multiples)
        yield from filter(None, dict.fromkeys(slices))
    yield from multiples


def _smallest_between(request: _Request, ranks: int) -> int:
    """The fewest ranks between half of `ranks`, too few, and `ranks`, enough, on which several layouts fit, of those
    that divide the interval into `_PARTS_OF_DOUBLING` and are whole nodes; `ranks` if only slices can be rented."""
    half, per_node, torus = ranks // 2, request.machine.ranks_per_node, request.machine.intra_node.torus
    if torus and torus.rented_sizes:
        return ranks
    between = (half + half * part // _PARTS_OF_DOUBLING for part in range(1, _PARTS_OF_DOUBLING))
    nodes = (fewer for fewer in between if fewer % per_node == 0)
    return next((fewer for fewer in nodes if request.fits(least=_LEAST_LAYOUTS, devices=fewer)), ranks)


def _use_shorter(request: _Request) -> str:
    """The length of sequences that fit, and the next length that was tried. All lengths are divided by the degrees of
    parallelism, so that the same layouts are tried with each and the longest can be found by bisection."""
    if not isinstance(request.wanted.model, Model):
        return ""
    ranks = request.wanted.devices
    too_long = request.padded_length(ranks)
    shorter = sequence_lengths.cut(too_long // 2, ranks)
    while shorter >= _LEAST_SEQ_LEN and not request.fits(seq_len=shorter):
        too_long, shorter = shorter, sequence_lengths.cut(shorter // 2, ranks)
    if shorter < _LEAST_SEQ_LEN:
        return ""
    unit = sequence_lengths.unit(shorter, ranks)
    step = max(unit, shorter // _SEQ_LEN_STEPS // unit * unit)
    lengths = range(shorter, too_long, step)  # the first fits, `too_long` does not
    count = bisect_left(lengths, True, lo=1, key=lambda seq_len: not request.fits(seq_len=seq_len))
    too_long = lengths[count] if count < len(lengths) else too_long
    more_devices = "more devices, or " * (2 * ranks <= cluster_size.max_ranks(request.machine))
    multiples = f" (multiples of {unit:,}, so that tp and 2 x cp divide them)" * (unit > 1)
    return (
        f"Sequences of {lengths[count - 1]:,} tokens fit, and of {too_long:,} do not{multiples}; longer ones need "
        f"{more_devices}devices with more memory."
    )
