"""The effect of a power cap on the time of a training: a bound, since no machine file has clocks as a function of
power."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.errors import BadInput
from trainyard.machine import Claim, Machine

LEAST_SHARE = 0.1
"""Least share of a device's full power that is accepted as a cap. Drivers accept none as low: 200 W of the 700 W of an
H100."""
BOUND = (
    "assumed: throughput falls at most in proportion to the power. Inference on A100 took 6.7 % more time at 175 W "
    "than at 250 W (Samsi et al., 2023-10, arXiv:2310.03003), for which this bound is 43 %"
)


def longest_ratio(machines: Iterable[Machine], cap: Claim | None) -> float:
    """Upper bound of the time with the power cap over the time without; 1 without a cap or for one above the full
    power. Raises `BadInput` for a device whose full power is unknown, or a cap that is too small for it."""
    if cap is None:
        return 1.0
    return max(_ratio(machine, cap.value) for machine in machines)


def capped_watts(machine: Machine, cap: Claim | None) -> float | None:
    """Watts of one device under full load and the cap; None if its power is unknown."""
    power = machine.device.power
    if power is None:
        return None
    return min(power.value, cap.value) if cap else power.value


def _ratio(machine: Machine, cap_watts: float) -> float:
    """Full power of the machine's device over the cap, at least 1."""
    power = machine.device.power
    if power is None:
        raise BadInput(
            f"--power-cap {cap_watts:g}: the full power of {machine.device.name} is unknown, so the effect of a cap is "
            "too.",
            "Leave it out, or copy the machine file, add `power` to [device] and pass the copy.",
        )
    if cap_watts < LEAST_SHARE * power.value:
        raise BadInput(
            f"--power-cap {cap_watts:g} W is less than {100 * LEAST_SHARE:.0f} % of the {power.value:,.0f} W of "
            f"{machine.device.name}, the least cap that is planned.",
            f"Pass at least {LEAST_SHARE * power.value:,.0f} W.",
        )
    return max(1.0, power.value / cap_watts)
