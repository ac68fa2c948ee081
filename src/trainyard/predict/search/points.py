"""A layout with its cost but without its ledger: a point of a chart."""

from __future__ import annotations

import msgspec

from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.predict.economics.step_cost import Bill


class LayoutPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A layout with its cost. `devices`: ranks, until `count_devices` has converted them. `samples`: per
    step over all devices; `wall_ns`: of a step, with the interval `low` to
    `high` as in a `Plan`; `reserved`: bytes of the fullest rank."""

    devices: int
    samples: int
    layout: Layout
    micro_batch_size: int
    activation_checkpoint: str
    schedule: str = "none"
    offload: bool = False
    wall_ns: int
    low: int
    high: int
    reserved: int
    bill: Bill

    def __post_init__(self) -> None:
        """Raises `BadInput` unless all counts and bytes are positive and the bounds include the step time."""
        if min(self.devices, self.samples, self.low, self.reserved) < 1 or not self.low <= self.wall_ns <= self.high:
            raise BadInput(
                f"{self.devices} devices, {self.samples} samples, {self.reserved} bytes, a step of {self.wall_ns} "
                f"ns with the bounds {self.low} to {self.high} ns: not a possible layout."
            )


def of_job(job: Job, wall_ns: int, low: int, high: int, reserved: int, bill: Bill) -> LayoutPoint:
    """A job as a point. Times in ns, with the interval `low` to `high`; `reserved`: bytes of the fullest rank."""
    return LayoutPoint(
        devices=job.layout.ranks,
        samples=job.batch,
        layout=job.layout,
        micro_batch_size=job.recipe.micro_batch_size,
        activation_checkpoint=job.recipe.activation_checkpoint,
        schedule=job.recipe.schedule,
        wall_ns=wall_ns,
        low=low,
        high=high,
        reserved=reserved,
        offload=job.recipe.offload,
        bill=bill,
    )


def count_devices(point: LayoutPoint, ranks_per_device: int) -> LayoutPoint:
    """The point with its ranks counted as devices."""
    return msgspec.structs.replace(point, devices=point.devices // ranks_per_device)
