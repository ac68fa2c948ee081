"""`plan` for a cluster of several kinds of devices, such as h100:64,a100:128: one pipeline over all of them."""

from __future__ import annotations

from msgspec.structs import replace

from trainyard.errors import BadInput
from trainyard.predict.configs.uneven_stages import WRITERS
from trainyard.predict.economics.training_budget import TrainingBudget
from trainyard.predict.hetero import best_pipelines, fleet
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.report.plans import hetero_tables
from trainyard.report.plans.plan_tables import describe_samples
from trainyard.report.plans.plans_file import Plans


def plan_hetero(wanted: PlannerInput, machines: str, framework: str, budget: TrainingBudget) -> Plans:
    """The fastest pipelines over a mixed cluster, whose stages may differ in their layers. `wanted.devices`: the
    requested number of devices; 0 takes all of `machines`, such as `h100:64,a100:128`. `framework`: the one that would
    train. Raises `BadInput`."""
    parts = fleet.parse_parts(machines)
    devices = sum(part.devices for part in parts)
    if wanted.devices not in (0, devices):
        added = " + ".join(f"{part.devices:,}" for part in parts)
        raise BadInput(
            f"--devices {wanted.devices:,}, but {machines} are {added} = {devices:,}.", "Leave out --devices."
        )
    if framework not in WRITERS:
        raise BadInput(
            f"--for {framework}: its configuration cannot set the number of layers of each pipeline stage, and "
            "different devices take different numbers of layers.",
            f"Use one of {', '.join(WRITERS)}.",
        )
    result = best_pipelines.find(
        wanted._replace(devices=sum(part.ranks for part in parts)), parts, FRAMEWORKS[framework], budget=budget
    )
    cluster = " and ".join(str(part) for part in parts)
    step = f"{wanted.model.name} on {cluster}: {describe_samples(wanted.samples, wanted.seq_len)} per step"
    return replace(hetero_tables.from_mixed(result, machines, budget), framework=framework, step=step)
