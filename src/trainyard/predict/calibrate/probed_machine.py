"""A machine file from probes of its own devices (`run/probe/probe_rank.py`).

A probe is one timed operation: a matrix product, attention, a copy, a launch or a collective. `machine` makes a
`Machine` of them: the rates that the devices reach, and the constants of the cost model fitted to them. Each figure is
a `Claim`: a value with its unit, source and date.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trainyard.machine import Claim, Device, Link, Machine, ProductRatios, RateCurve
from trainyard.predict.calibrate.least_squares import Residuals, solve
from trainyard.predict.inputs import constant_sets, hardware, ratio_curve, ratio_surface
from trainyard.predict.inputs.cases import column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time
from trainyard.predict.time.collective_time import RankGroup
from trainyard.predict.time.layer import CAUSAL_SHARE, attention_share, product
from trainyard.predict.time.shapes import Product
from trainyard.record import DeviceSeen

_NOISE = 0.1
"""Standard deviation of the logarithm of a probe's time."""
_COLLECTIVE_NOISE = 3 * _NOISE
_PROBE_HEADS = 4
_CPU_CONSTANTS = {
    "host_forward_s": 3e-3, "host_backward_s": 6e-3, "host_experts_s": 3e-3, "host_collective_s": 3e-3, "passes": 20.0,
    "overlap": 0.55,
}  # fmt: skip
"""Constants of CPU devices, whose operations wait for Python: host seconds of a layer, and eager memory passes. Their
communication runs on the cores that compute, so that less of it is hidden."""
_LEAST_GAIN = 0.9
"""Corrections by size are used if the error of left-out probes is at most this fraction of the error of the constants
alone."""
_PROBED_PRIOR = 1.5
"""Standard deviation of a constant's logarithm around its assumed value: wide, because the probes measure it
directly."""
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send")


class ProbedTime(NamedTuple):
    """One probe. `size`: (m, n, k) of a matrix product; (tokens, channels per head, 0 forward or 1 backward) of
    attention with four heads; else (bytes,). `seconds`: median of one call; `low`, `high`: quartiles."""

    what: str
    size: tuple[int, ...]
    seconds: float
    low: float
    high: float

    @property
    def rate(self) -> float:
        """FLOP/s of products and attention, else bytes/s."""
        if self.what == "matmul":
            m, n, k = self.size
            return 2.0 * m * n * k / self.seconds
        if self.what == "attention":
            is_backward = self.size[2]
            return _attention_flops(self.size) * (2 if is_backward else 1) / self.seconds
        return self.size[0] / self.seconds


def _attention_flops(size: tuple[int, ...]) -> float:
    """FLOPs of causal attention, forward, of `_PROBE_HEADS` heads. `size`: (tokens, channels per head, ...)."""
    # Per head two products of 2 x tokens^2 x channels, halved by the causal mask.
    return 2.0 * _PROBE_HEADS * size[0] ** 2 * size[1]


def machine(name: str, device_seen: DeviceSeen, ranks: int, dtype: str, probes: Sequence[ProbedTime]) -> Machine:
    """Builds a machine of one node with `ranks` devices from probes that ran on all of them at the same time. `name`:
    of the machine; `dtype`: that of the matrix products; `device_seen`: one of the devices; if it is a CPU, the ranks
    divide its cores and memory. `probes` must include a matrix product, attention forward and backward, a copy and a
    launch."""
    probes_by_kind: Mapping[str, list[ProbedTime]] = defaultdict(list)
    for probe in probes:
        probes_by_kind[probe.what].append(probe)
    best_product = max(probes_by_kind["matmul"], key=lambda probe: probe.rate)
    largest_copy = max(probes_by_kind["copy"], key=lambda probe: probe.size)  # a small one stays in a cache
    sharing_ranks = ranks if device_seen.vendor == "cpu" else 1
    memory = _probe_claim(device_seen.memory_bytes / sharing_ranks, "bytes", "its vendor", measured=False)
    device = Device(
        name=device_seen.name if sharing_ranks == 1 else f"{device_seen.name}, 1 of {ranks} ranks",
        vendor=device_seen.vendor,
        memory=memory,
        bandwidth=_probe_claim(
            largest_copy.rate, "bytes/s", f"a copy of {largest_copy.size[0]:,} bytes, read and written"
        ),
        peak={
            dtype: _probe_claim(
                best_product.rate, "FLOP/s", "the best product: " + " x ".join(map(str, best_product.size))
            )
        },
        achieved={kind: _rate_curve(probes_by_kind[kind], kind) for kind in ("matmul", "attention")},
        aliases=(device_seen.name,) if sharing_ranks == 1 else (),
    )
    small_send = next((probe for probe in probes_by_kind["send"]), None)
    best_gather = max(probes_by_kind["all_gather"], key=lambda probe: probe.rate, default=None)
    # Bus bandwidth of an all-gather: of its output, each rank receives the (ranks - 1) / ranks that the others hold.
    link_bytes_per_s = best_gather.rate * (ranks - 1) / ranks if best_gather else largest_copy.rate
    link = Link(
        name="between its devices",
        kind="scale_up",
        bandwidth=_probe_claim(
            link_bytes_per_s,
            "bytes/s",
            f"an all-gather of {best_gather.size[0]:,} bytes" if best_gather else "one device: a copy",
        ),
        latency=_probe_claim(small_send.seconds if small_send else 0.0, "s", "a small message"),
        achieved={kind: _rate_curve(probes_by_kind[kind], kind) for kind in COLLECTIVES if probes_by_kind[kind]},
    )
    probed = Machine(name=name, device=device, per_node=ranks, intra_node=link)
    tuned = {
        key: _probe_claim(value, _unit_of_constant(key), "fitted to its own probes")
        for key, value in _fit_probe_constants(probed, dtype, probes_by_kind).items()
    }
    if device_seen.vendor == "cpu":
        source = "assumed for CPU devices, which launch their own work"
        tuned |= {
            key: _probe_claim(value, _unit_of_constant(key), source, measured=False)
            for key, value in _CPU_CONSTANTS.items()
        }
    fitted = replace(probed, calibration=tuned)
    ratios = _product_ratios(fitted, dtype, probes_by_kind["matmul"])
    curves = _collective_ratios(fitted, dtype, probes_by_kind) if ranks > 1 else {}
    return replace(
        fitted,
        device=replace(device, product_ratios=ratios if _helps(*ratio_surface.left_out_errors(ratios)) else None),
        intra_node=replace(
            link, ratios={name: curve for name, curve in curves.items() if _helps(*ratio_curve.left_out_errors(curve))}
        ),
    )


def _helps(corrected_error: float, constants_error: float) -> bool:
    """Whether corrections by size predict left-out probes better than the constants alone."""
    return corrected_error <= _LEAST_GAIN * constants_error


def _collective_ratios(
    fitted: Machine, dtype: str, probes_by_kind: Mapping[str, list[ProbedTime]]
) -> dict[str, RateCurve]:
    """Measured over predicted time of each collective by bytes, predicted with the constants of `fitted`."""
    constants = constant_sets.choose(fitted, "fsdp").values()
    rank_hardware = hardware.of_machine(fitted, dtype)
    curves: dict[str, RateCurve] = {}
    for collective in COLLECTIVES:
        probes = sorted(probes_by_kind[collective], key=lambda probe: probe.size)
        sizes_bytes = np.array([float(probe.size[0]) for probe in probes])
        predicted_s = _collective_seconds(collective, rank_hardware, constants, fitted.per_node, sizes_bytes)
        points = {
            size: float(f"{probe.seconds / seconds:.4g}")
            for probe, size, seconds in zip(probes, sizes_bytes.tolist(), predicted_s.tolist(), strict=True)
        }
        claim = _probe_claim(float(len(probes)), "sizes", f"measured over predicted time of {collective}")
        curves[collective] = RateCurve(points=tuple(points.items()), claim=claim)
    return curves


def _product_ratios(fitted: Machine, dtype: str, probes: Sequence[ProbedTime]) -> ProductRatios:
    """Measured over predicted time of each probed product, predicted with the constants of `fitted`."""
    constants = constant_sets.choose(fitted, "fsdp").values()
    mnk = np.array([probe.size for probe in probes], np.float64)
    predicted_s = product(hardware.of_machine(fitted, dtype), constants, Product(mnk[:, 0], mnk[:, 1], mnk[:, 2]))
    points = (
        (*map(float, probe.size), float(f"{probe.seconds / seconds:.4g}"))
        for probe, seconds in zip(probes, predicted_s.tolist(), strict=True)
    )
    return ProductRatios(
        dtype=dtype,
        points=tuple((m, n, k, min(max(ratio, 0.01), 100.0)) for m, n, k, ratio in points),
        claim=_probe_claim(float(len(probes)), "products", "measured over predicted time of each product"),
    )


def _probe_claim(value: float, unit: str, source: str, measured: bool = True) -> Claim:
    """A claim with 5 digits, dated today, with `source` after `trainyard probe:`. `measured`: whether the value was
    measured, not only stated."""
    return Claim(
        value=float(f"{value:.5g}"),
        unit=unit,
        source=f"trainyard probe: {source}",
        date=date.today().isoformat(),
        measured=measured,
    )


def _unit_of_constant(name: str) -> str:
    """The unit of a constant of the cost model by its name: seconds (`kernel_s`) or a share."""
    return "s" if name.endswith("_s") else "share"


def _rate_curve(probes: Sequence[ProbedTime], kind: str) -> RateCurve:
    """Rate (FLOP/s or bytes/s) by FLOPs or bytes of a call; the best of all probes of one size. `kind`: the operation
    of the probes, `ProbedTime.what`, which selects the unit."""
    best_rate_by_size: dict[float, float] = {}  # FLOPs or bytes -> FLOP/s or bytes/s
    for probe in probes:
        size = probe.rate * probe.seconds
        best_rate_by_size[size] = max(best_rate_by_size.get(size, 0.0), float(f"{probe.rate:.5g}"))
    unit = "FLOP/s" if kind in ("matmul", "attention") else "bytes/s"
    return RateCurve(
        points=tuple(sorted(best_rate_by_size.items())), claim=_probe_claim(max(best_rate_by_size.values()), unit, kind)
    )


def _fit_probe_constants(
    probed: Machine, dtype: str, probes_by_kind: Mapping[str, list[ProbedTime]]
) -> dict[str, float]:
    """Constants of the cost model (name -> value) fitted to the probes: rates of matrix products and attention, launch
    time and, for several ranks, those of collectives. `probed`: the machine without constants; `probes_by_kind`:
    `ProbedTime.what` -> its probes."""
    device, ranks = probed.device, probed.per_node
    launch_s = probes_by_kind["launch"][0].seconds
    assumed = Constants()._replace(  # the fit starts from them and stays near them
        matmul=0.95,
        rows=20.0,
        columns=20.0,
        depth=20.0,
        bandwidth=1.0,
        intra_node=0.9,
        dispatch=0.9,
        kernel_s=launch_s,
        intra_node_s=probed.intra_node.latency.value or 1e-6,
    )
    rank_hardware = hardware.of_machine(probed, dtype)
    mnk = np.array([probe.size for probe in probes_by_kind["matmul"]], np.float64)
    measured_s = np.array([probe.seconds for probe in probes_by_kind["matmul"]])
    probed_products = Product(mnk[:, 0], mnk[:, 1], mnk[:, 2])

    def product_residuals(tuned: Constants) -> npt.NDArray[np.float64]:
        """Log ratio of predicted to measured seconds of each matrix product, over its standard deviation."""
        return np.log(product(rank_hardware, tuned, probed_products) / measured_s) / _NOISE

    fitted = solve(assumed, ("matmul", "rows", "columns", "depth"), product_residuals, prior=_PROBED_PRIOR)
    forward = [probe for probe in probes_by_kind["attention"] if not probe.size[2]]
    backward = [probe for probe in probes_by_kind["attention"] if probe.size[2]]
    attention_names = ("attention", "attention_length", "attention_channels")
    fitted = solve(fitted, attention_names, _attention_residuals(forward, device.peak[dtype].value), _PROBED_PRIOR)
    backward_ratio = np.median([b.seconds / f.seconds for f, b in zip(forward, backward, strict=True)])
    fitted = fitted._replace(attention_backward=float(backward_ratio))
    fitted_names = [
        "matmul", "rows", "columns", "depth", *attention_names, "attention_backward", "bandwidth", "kernel_s",
    ]  # fmt: skip
    if ranks > 1:
        fitted = solve(
            fitted,
            ("intra_node", "intra_node_s", "dispatch"),
            _collective_residuals(probes_by_kind, rank_hardware, ranks),
            prior=_PROBED_PRIOR,
        )
        fitted_names += ["intra_node", "intra_node_s", "dispatch"]
    return {name: getattr(fitted, name) for name in fitted_names}


def _attention_residuals(forward: Sequence[ProbedTime], peak: float) -> Residuals:
    """Residuals of the forward probes of causal attention as a function of the constants, in standard deviations.
    `peak`: FLOP/s of the device."""
    tokens, channels = np.array([probe.size[:2] for probe in forward], np.float64).T
    flops = np.array([_attention_flops(probe.size) for probe in forward])
    measured_s = np.array([probe.seconds for probe in forward])

    def residuals(tuned: Constants) -> npt.NDArray[np.float64]:
        """Log ratio of predicted to measured seconds of each probe, over its standard deviation."""
        attained_share = attention_share(tuned, tokens, channels, CAUSAL_SHARE)
        return np.log((flops / (peak * attained_share) + tuned.kernel_s) / measured_s) / _NOISE

    return residuals


def _collective_residuals(
    probes_by_kind: Mapping[str, list[ProbedTime]], rank_hardware: RankHardware, ranks: int
) -> Residuals:
    """Residuals of the collective probes as a function of the constants, in standard deviations (`_COLLECTIVE_NOISE`).
    `probes_by_kind`: by `ProbedTime.what`; `size[0]` of a collective's is its bytes; `ranks`: number of ranks, all on
    one node."""

    def residuals(tuned: Constants) -> npt.NDArray[np.float64]:
        """Log ratio of predicted to measured seconds of each probe, over its standard deviation."""
        collective_residuals: list[npt.NDArray[np.float64]] = []
        for collective in COLLECTIVES:
            sizes_bytes = np.array([float(probe.size[0]) for probe in probes_by_kind[collective]])
            measured_s = np.array([probe.seconds for probe in probes_by_kind[collective]])
            predicted_s = _collective_seconds(collective, rank_hardware, tuned, ranks, sizes_bytes)
            collective_residuals.append(np.log(predicted_s / measured_s) / _COLLECTIVE_NOISE)
        return np.concatenate(collective_residuals)

    return residuals


def _collective_seconds(
    collective: str,
    rank_hardware: RankHardware,
    tuned: Constants,
    ranks: int,
    sizes_bytes: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Predicted seconds of a collective of `ranks` ranks, all on one node, by size."""
    members = RankGroup(ranks=column(ranks), near=column(ranks))
    if collective == "all_reduce":
        return collective_time.all_reduce(rank_hardware, tuned, members, sizes_bytes)
    if collective == "all_to_all":
        return collective_time.exchange(rank_hardware, tuned, members, sizes_bytes)
    if collective == "send":
        return collective_time.send(rank_hardware, tuned, sizes_bytes, stride=column(1))
    return collective_time.gather(rank_hardware, tuned, members, sizes_bytes, collective)
