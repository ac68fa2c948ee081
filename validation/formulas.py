"""How much of the compute time of the shared traces FLOP and byte formulas cover, and whether their rates are possible.

    python -m validation.formulas [TRACE ...]

Prints for each trace: the device, the compute time per step, the share of it whose FLOPs and bytes are known, the
largest rate of FLOPs over the device's peak for the format of the arithmetic, and the largest rate of bytes, beyond
those that the device's last cache may hold, over its bandwidth. A share above 1 is physically impossible: a formula or
the peak in the machine file is wrong. `tests/trace/flops/test_physical_limits.py` checks the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from trainyard import machine
from trainyard.machine import Device
from trainyard.trace.flops.roofline import OpRow, Roofline, op_roofline
from trainyard.trace.measure import measure_files

TRACES = Path(os.environ.get("TRAINYARD_PUBLIC_DATA", Path(__file__).parents[2] / "shared" / "data")) / "traces"
CACHE_BYTES = {
    "NVIDIA Tesla V100": 6 << 20,  # NVIDIA, Tesla V100 architecture whitepaper (2017), table 1
    "NVIDIA A100": 40 << 20,  # NVIDIA, A100 architecture whitepaper (2020), table 4
    "NVIDIA H100": 50 << 20,  # NVIDIA, H100 architecture whitepaper (2022), table 4
    "AMD Instinct MI300X": 256 << 20,  # AMD, CDNA 3 whitepaper (2023): Infinity Cache
}
"""Beginning of a device's name -> bytes of its last cache. An op may find its inputs there, and leave its results."""


class Extreme(NamedTuple):
    """The row with the largest share of a limit, and that share; None without rows."""

    share: float
    row: OpRow | None


def largest_share_of_peak(roofline: Roofline, device: Device) -> Extreme:
    """The largest rate of FLOPs over the device's peak for the format of the arithmetic, of ops whose FLOPs are those
    that they execute."""
    shares = [
        Extreme(row.flops_rate / device.peak[row.dtype].value, row)
        for row in roofline.rows
        if row.flops_rate and row.dtype in device.peak and not row.at_most and row.bound != "unknown"
    ]
    return max(shares, key=lambda extreme: extreme.share, default=Extreme(0.0, None))


def largest_share_of_bandwidth(roofline: Roofline, device: Device) -> Extreme:
    """The largest rate of the bytes beyond twice the last cache (inputs that were in it, and results that are left in
    it) over the device's bandwidth."""
    cache = next((size for name, size in CACHE_BYTES.items() if roofline.device.startswith(name)), 0)
    shares = [
        Extreme((row.bytes - 2 * cache * row.count) / (row.busy_ns * 1e-9 * device.bandwidth.value), row)
        for row in roofline.rows
        if row.bytes and row.busy_ns and row.bytes > 2 * cache * row.count
    ]
    return max(shares, key=lambda extreme: extreme.share, default=Extreme(0.0, None))


def main(names: list[str]) -> int:
    """Prints the table; returns 1 if a rate is impossible."""
    paths = [Path(name) for name in names] or sorted(path for path in TRACES.iterdir() if path.name[0] != ".")
    impossible = 0
    print(f"{'trace':26} {'device':24} {'compute ms':>10} {'covered':>8} {'of peak':>8} {'of bandwidth':>12}")
    for path in paths:
        roofline = op_roofline(measure_files([path], engine="serial").comparable)
        covered = roofline.known_ns / max(1, roofline.compute_ns)
        device = machine.find_device(roofline.device)
        extremes = (
            (largest_share_of_peak(roofline, device), largest_share_of_bandwidth(roofline, device)) if device else ()
        )
        shares = " ".join(f"{extreme.share:{width}.3f}" for extreme, width in zip(extremes, (8, 12)))
        print(
            f"{path.name[:26]:26} {roofline.device[:24]:24} {roofline.compute_ns / 1e6:10.2f} {covered:8.2%} {shares}"
        )
        for limit, extreme in zip(("peak", "bandwidth"), extremes):
            if extreme.row and extreme.share > 1:
                impossible += 1
                row = extreme.row
                print(f"  above the {limit}: {row.op} {row.shape} {row.account}: {row.busy_ns:,} ns per step")
    return 1 if impossible else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
