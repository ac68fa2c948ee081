"""The document of `numerics devices`: the comparisons of one training on several devices with that on the first."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.report.numerics.numerics_report import NumericsReport

_SEVERITY = (0, 3, 1)
"""Exit codes of comparisons, the worst last."""


class DeviceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The training on a device (B) compared with that on the reference (A)."""

    device: str
    comparison: NumericsReport


class DevicesReport(msgspec.Struct, frozen=True, kw_only=True):
    """One training on several devices. `folder`: has a folder with the record of each. `reference`: the first device,
    whose record has the float64 reference and the replicas. `missing`: devices without a record. `devices`: the
    comparisons of the others, in order; empty if the record of the reference is missing."""

    schema: Literal["trainyard/numerics-devices/1"] = "trainyard/numerics-devices/1"
    folder: str
    reference: str
    missing: tuple[str, ...]
    devices: tuple[DeviceComparison, ...]

    @property
    def exit_code(self) -> int:
        """That of the worst comparison: 1 different, 3 undecided, 0 the same within rounding."""
        return max((device.comparison.exit_code for device in self.devices), key=_SEVERITY.index, default=0)
