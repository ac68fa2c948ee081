"""Simulated devices, as many as TRAINYARD_PRETEND states: for trying trainyard without an accelerator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from trainyard.errors import BadInput
from trainyard.machine import Claim
from trainyard.record import DeviceSeen
from trainyard.vendors.driver import Catalogue

_PEAK_FLOPS = {"float32": 1e12, "bfloat16": 4e12}


class Pretend(Catalogue):
    """A `Vendor` of TRAINYARD_PRETEND=<count> identical devices with constant telemetry."""

    def devices(self) -> Sequence[DeviceSeen]:
        """TRAINYARD_PRETEND devices named `Pretend 1` of 16 GiB each. Raises `BadInput` if the variable is not a
        number."""
        text = os.environ.get("TRAINYARD_PRETEND", "") or "0"
        if not text.isdecimal():
            raise BadInput(f"TRAINYARD_PRETEND = {text!r} is not a number of devices.")
        return tuple(
            DeviceSeen(index=i, name="Pretend 1", vendor="pretend", memory_bytes=2**34, facts={"driver": "1.0"})
            for i in range(int(text))
        )

    def peaks(self, device: DeviceSeen) -> Mapping[str, Claim]:
        return {dtype: Claim(value=rate, unit="FLOP/s", source="pretended") for dtype, rate in _PEAK_FLOPS.items()}

    def telemetry(self) -> Mapping[str, str]:
        return {f"{device.index}.clocks.sm": "1000 MHz" for device in self.devices()}
