"""The fastest layout on a changed machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.economics.training_budget import NO_BUDGET
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search.layout_cost import LayoutCost, cost_job
from trainyard.predict.search.offload_variants import usable_memory
from trainyard.predict.search.search import fastest


def fastest_step(
    wanted: PlannerInput, machine: Machine, framework: Framework, refuses: Callable[[Job], None], known: Iterable[Job]
) -> LayoutCost:
    """The cost of the fastest layout of `wanted` on `machine`, whose nodes replace those of `wanted`. `refuses`: raises
    `BadJob` for a job that cannot be run. `known`: jobs with the fastest layouts on similar machines, of which one is
    returned if it fits and is faster than all that the search offers, which depend on the size of a node. Raises
    `BadJob` as `fastest`."""
    searched = fastest(wanted._replace(per_node=machine.ranks_per_node), machine, framework, NO_BUDGET, refuses)
    candidates = [searched, *(cost for job in known if (cost := _cost_fitting(job, machine, framework)))]
    return min(candidates, key=lambda cost: cost.plan.ledger.wall_ns)


def _cost_fitting(job: Job, machine: Machine, framework: Framework) -> LayoutCost | None:
    """The cost of a job; None if it does not fit."""
    usable = usable_memory(machine)
    try:
        cost = cost_job(job, machine, framework)
    except BadJob:
        return None
    return cost if cost.reserved <= usable.device and cost.host_bytes <= usable.host else None
