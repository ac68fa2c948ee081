"""The inputs of days, dollars and energy, with the origin of each value."""

from __future__ import annotations

from trainyard.machine import Claim
from trainyard.predict.economics import failures, power_cap, step_cost
from trainyard.report.plans.plans_file import Plans
from trainyard.report.view.view import Column, Table

_NAMES = {
    "price": "price per device",
    "power": "full power",
    "overhead": "hosts and cooling",
    "power_cap": "power cap",
    "mtbf": "device MTBF",
    "restart": "restart",
    "checkpoint": "checkpoint",
    "storage": "storage",
}
"""Name of a claim of the plans -> its name in words."""
_DEFAULTS = (failures.DEVICE_MTBF, failures.RESTART, failures.SAVE, step_cost.OVERHEAD)


def cost_inputs(plans: Plans) -> tuple[Table, ...]:
    """The table of the inputs; none without a token budget."""
    if not plans.claims:
        return ()
    cap = plans.claims.get("power_cap")
    notes = (f"Power cap: {power_cap.BOUND}.",) if cap else ()
    return (
        Table(
            title="Cost input",
            notes=(
                *notes,
                "MTBF: mean time between failures. Hosts and cooling: total power over that of the devices. Restart: "
                "from a failure until all ranks train again. Checkpoint: the wait for one.",
            ),
            columns=(
                Column(title=""), Column(title="value", id=True), Column(title="origin", id=True),
                Column(title="source", prose=True),
            ),
            rows=tuple(
                (_NAMES.get(name, name), _value(claim), origin(claim), _source(claim))
                for name, claim in plans.claims.items()
            ),
        ),
    )  # fmt: skip


def _value(claim: Claim) -> str:
    """The value with its unit, in GB/s for a bandwidth."""
    if claim.unit == "bytes/s":
        return f"{claim.value / 1e9:,.6g} GB/s"
    return f"{claim.value:,.6g} {'x power' if 'power' in claim.unit else claim.unit}"


def origin(claim: Claim) -> str:
    """The flag that sets the value, "default" (published or assumed), or "machine file"."""
    if claim.source.startswith("--"):
        return claim.source
    return "default" if claim in _DEFAULTS else "machine file"


def _source(claim: Claim) -> str:
    """The publication of a value with its date; empty for a flag."""
    if claim.source.startswith("--"):
        return ""
    return f"{claim.source}, {claim.date}" if claim.date else claim.source
