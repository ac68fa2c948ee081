"""The cost of one layout: its plan, its bill and its memory.

A plan is the predicted ledger of a step with its prediction interval; a bill is tokens/s, MFU, days and dollars; a case
is one layout of a job as a row of the arrays of the cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.plan import Plan
from trainyard.predict.economics import model_size, step_cost
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget
from trainyard.predict.inputs import cases, cluster_size, machine_model
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.inputs.padded_vocabulary import UNEVEN
from trainyard.predict.inputs.prediction_interval import Interval, interval_of
from trainyard.predict.memory import framework_memory
from trainyard.predict.pipeline import bubble, partition, step_bounds
from trainyard.predict.pipeline.bubble import PipelineBubble
from trainyard.predict.search import offload_variants, points
from trainyard.predict.search.layout_ratio import StepRatio
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.time import offload, predicted_ledger, step
from trainyard.predict.time.step import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCost:
    """A layout with its cost. `front`: every layout that is as fast or faster needs more memory. `reserved`,
    `host_bytes`: bytes of a rank on its device and in its host's memory.

    Set for the rows of a shortlist: `ratio`, the step over that of the fastest; `baseline`: it is plain FSDP or DDP;
    `folded`: the number of its variants that also fit; `variants`: those of them that the search simulated."""

    plan: Plan
    bill: Bill
    reserved: int
    host_bytes: int
    front: bool
    ratio: StepRatio | None = None
    baseline: bool = False
    folded: int = 0
    variants: tuple[LayoutPoint, ...] = ()

    @property
    def point(self) -> LayoutPoint:
        """The layout as a point of a chart, without its ledger."""
        plan = self.plan
        return points.of_job(plan.job, plan.ledger.wall_ns, plan.low, plan.high, self.reserved, self.bill)


def cost_job(job: Job, machine: Machine, framework: Framework, budget: TrainingBudget = NO_BUDGET) -> LayoutCost:
    """The cost of one job as it is, whether it fits or not. `budget`: with tokens, for days and
    dollars. Raises `BadJob` if it offloads to hosts that the machine's file does not describe, or has more ranks
    than a node without a link to others."""
    cluster_size.check_ranks(machine, job.layout.ranks)
    if job.recipe.offload or "offloaded_layers" in framework.keeps.columns:
        offload_variants.check_host(machine)
    case = make_cases([job], framework)
    model = machine_model.build(machine, framework.software, job.recipe.dtype)
    reserved = float(framework_memory.memory(case).total[0]) * framework_memory.RESERVED
    host_bytes = float(framework_memory.on_host(case)[0])
    times = step.step(case, model.hardware, model.values)
    return cost_case(
        case,
        job,
        model,
        times,
        row=0,
        interval=interval_of(model, case),
        reserved=reserved,
        host_bytes=host_bytes,
        budget=budget,
        front=False,
    )


def explain_bubble(plan: Plan, machine: Machine, framework: Framework) -> PipelineBubble | None:
    """The causes of the bubble in a plan's ledger; None without a pipeline."""
    job = plan.job
    if job.layout.pp == 1:
        return None
    model, case = machine_model.build(machine, framework.software, job.recipe.dtype), make_cases([job], framework)
    (times,) = step_bounds.stage_times(case, step_bounds.parts(case, model.hardware, model.values))
    return bubble.explain(times, plan.ledger)


def make_cases(jobs: Sequence[Job], framework: Framework) -> Cases:
    """The jobs as cases, with the sizes of weights and state, and the partition of layers, of `framework`. All jobs
    have the dtype of the first."""
    keeps = framework.keeps.in_dtype(jobs[0].recipe.dtype)  # bytes of a weight, its gradient and its state; and more
    first_less, last_less = zip(*(_less_layers(job, framework) for job in jobs), strict=True)
    base = cases.of_jobs(jobs)
    columns = {
        "weight_bytes": keeps.weight,
        "gradient_bytes": keeps.gradient,
        "state_bytes": keeps.state_bytes,
        "reduce_bytes": keeps.gradient,
        "recomputed_share": keeps.recomputed_share,
        "native": keeps.native,
        "low_precision_inputs": keeps.low_precision_inputs,
        "first_less": first_less,
        "last_less": last_less,
        "offload": np.array([job.recipe.offload for job in jobs]) * offload.KINDS.index(keeps.offload),
        # An uneven vocabulary: the rank with the most rows decides. A job has the rows that its framework adds.
        "vocab": UNEVEN.padded(base.vocab.astype(np.int64), np.array([job.layout.tp for job in jobs])),
    } | dict(keeps.columns)
    return replace(base, **{name: cases.column(value) for name, value in columns.items()})


def _less_layers(job: Job, framework: Framework) -> tuple[float, float]:
    """How many layers fewer the first and the last stage have: those of the job, or else of the framework. Raises
    `BadJob` if the framework has no such setting, or the stages have fewer layers than that."""
    layout, layers = job.layout, cases.subject(job).layers
    less, stages = layout.end_less_layers, layout.pp * layout.interleave
    if less is None:
        end_layers = float(partition.counted(framework.keeps.ends, layers, stages))
        return end_layers, end_layers
    partition.layers_per_stage(layers, stages, *less)
    if not framework.places_layers(cases.subject(job), stages, *less):
        raise BadJob(
            f"first_stage_less_layers = {less[0]}, last_stage_less_layers = {less[1]} at $.layout: "
            f"{framework.display_name} cannot divide {layers} layers over {stages} stages like this.",
            "Leave them out.",
        )
    return less


def cost_case(
    case: Cases,
    job: Job,
    model: MachineModel,
    times: StepTime,
    row: int,
    interval: Interval,
    reserved: float,
    host_bytes: float,
    budget: TrainingBudget,
    front: bool,
) -> LayoutCost:
    """Computes a layout's cost from its simulated step. `case`: the job's single case, which is at `row` of `times`;
    `interval`: of its step. `reserved`, `host_bytes`: bytes of a rank on its device and in its host's memory. `budget`:
    with tokens, for days and dollars. `front`: as in `LayoutCost`."""
    ledger = predicted_ledger.ledger(times, row, job.layout.ranks, model.machine.name)
    low, high = interval.bounds(ledger.wall_ns)
    memory = framework_memory.memory(case).parts()
    plan = Plan(
        job=job,
        ledger=ledger,
        low=low,
        high=high,
        calibrated=interval.calibrated,
        uncalibrated_because=interval.uncalibrated_because,
        memory={part: int(np.ravel(size)[0]) for part, size in memory.items()},
        assumptions=model.tuned.claims,
    )
    tokens = float(job.recipe.tokens_per_step)
    peak = model.peak._replace(flops_per_s=model.peak.flops_per_s * job.layout.ranks)
    flops = float(step_cost.model_flops(case)[0])
    bill = step_cost.bill(
        [(model.machine, job.layout.ranks)],
        ledger.wall_ns / 1e9,
        tokens=tokens,
        flops=flops,
        peak=peak,
        budget=budget,
        checkpoint_bytes=model_size.checkpoint_bytes(case),
    )
    return LayoutCost(plan=plan, bill=bill, reserved=int(reserved), host_bytes=int(host_bytes), front=front)
