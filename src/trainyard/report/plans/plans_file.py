"""The document of plans that `trainyard plan --json` prints and `report` and `diff` read."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import msgspec

from trainyard.errors import BadFile, BadInput
from trainyard.formats.decoding import UNREADABLE
from trainyard.job import Job
from trainyard.ledger import decode_hook
from trainyard.machine import Claim, Machine
from trainyard.plan import Collective, Plan
from trainyard.predict.economics import step_cost
from trainyard.predict.economics.model_size import ModelSize, measure_model
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget
from trainyard.predict.hetero.pipeline_step import HeteroStage
from trainyard.predict.inputs import adapter_support
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.fine_tuning import FineTuning
from trainyard.predict.pipeline.bubble import PipelineBubble
from trainyard.predict.search import points
from trainyard.predict.search.device_scaling import DeviceScaling
from trainyard.predict.search.layout_ratio import StepRatio
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.search.search import SearchResult

SCHEMA = "trainyard/plans/2"
_HEAD = 200
"""Bytes at the start of a file that are searched for its schema."""


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A layout. `on_pareto_front`: on the Pareto front of step time and memory. `host_bytes`: bytes of a rank
    that are offloaded to host memory. `versus_fastest`: its step over that of the fastest layout that was searched;
    absent for a mixed cluster. `baseline`: it is plain FSDP or DDP. `folded`: the number of its variants that also fit,
    which differ in the micro-batch size, the pipeline schedule or the stages per rank only and are slower; `variants`:
    the fastest of these."""

    plan: Plan
    bill: Bill
    reserved_bytes: int
    on_pareto_front: bool = False
    host_bytes: int = 0
    versus_fastest: StepRatio | None = None
    baseline: bool = False
    folded: int = 0
    variants: tuple[LayoutPoint, ...] = ()

    @property
    def is_fastest(self) -> bool:
        """Whether it is the fastest layout that was searched."""
        return self.versus_fastest is not None and self.versus_fastest.ratio == self.versus_fastest.high == 1

    @property
    def is_tied(self) -> bool:
        """Whether the prediction cannot show which is faster, it or the fastest layout."""
        return self.versus_fastest is not None and self.versus_fastest.tied


class PartAlone(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a cluster alone: its fastest layout, or why it has none. `dollars`: price of an hour of its devices,
    if known."""

    part: str
    nodes: int
    point: LayoutPoint | None = None
    reason: str = ""
    dollars: float | None = None


class HeterogeneousCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster of heterogeneous parts: the stages of each choice, in its order of the parts, and each part alone."""

    stages: tuple[tuple[HeteroStage, ...], ...]
    parts_alone: tuple[PartAlone, ...]


class Plans(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The predicted layouts of a job on a machine.

    `choices`: the recommended layout, which is the simplest of those tied with the fastest; the others that are tied,
    the simplest first; the rest by step time, with plain FSDP or DDP (`baseline`) if it fits. With `as_configured` the
    job as configured comes before these. For a mixed cluster: the fastest first. `no_baseline`: why `choices` has no
    plain FSDP or DDP. `memory_bytes`: memory of one rank, of which a device has `ranks_per_device`. `tokens`: the
    budget of the days, dollars, energy and `scaling`; `claims`: the constants behind those. `heterogeneous`: set if
    `machine` names several parts; `memory_bytes` is then that of the fullest stage of the first choice. `model`: the
    size of the model. `exact_bytes`: rank -> bytes that a fake run counted for the first choice;
    `collectives`: those of data parallelism in its step, empty if they are not predicted.
    `ignored_settings`, `unknown_settings`, `differing_settings`: settings of an imported configuration that cost
    nothing, those that are not known and left out of the prediction, and those that are predicted differently.
    """

    schema: str
    machine: str
    devices: int
    searched: int
    fit_in_memory: int
    refused: tuple[str, ...]
    constants: ConstantSet
    choices: tuple[PlanRecord, ...]
    device: str = ""
    ranks_per_device: int = 1
    model: ModelSize | None = None
    memory_bytes: float = 0.0
    tokens: float = 0.0
    as_configured: bool = False
    claims: dict[str, Claim] = {}
    pareto_front: tuple[LayoutPoint, ...] = ()
    scaling: DeviceScaling | None = None
    heterogeneous: HeterogeneousCluster | None = None
    exact_bytes: dict[int, int] = {}
    collectives: tuple[Collective, ...] = ()
    ignored_settings: tuple[str, ...] = ()
    unknown_settings: tuple[str, ...] = ()
    differing_settings: tuple[str, ...] = ()
    framework: str = ""
    """The framework that the plans are for: a name as of `plan --for`."""
    framework_runs: bool = True
    """Whether the framework runs on these devices; if not, the plans are for a port of it."""
    step: str = ""
    """The model, the devices, and what a step trains on."""
    fixed: dict[str, int | str] = {}
    """Axis -> value of each `--fix`: all layouts that the search found have these values."""
    no_baseline: str = ""
    notes: tuple[str, ...] = ()
    """What limits these plans, as a configuration that does not fit."""
    fine_tuning: FineTuning | None = None
    """The fine-tuning that is planned for; None for pre-training."""
    outside_settings: tuple[str, ...] = ()
    """A sentence for each planned setting that no launch configuration of the framework carries."""
    bubble: PipelineBubble | None = None
    """The causes of the bubble of the first choice; None without a pipeline, and for a mixed cluster."""

    def __post_init__(self) -> None:
        """Raises `BadInput` for a document with no plans, with stages that do not match them, or impossible sizes."""
        if not self.choices:
            raise BadInput("$.choices has 0 plans.")
        depths = [record.plan.job.layout.pp for record in self.choices]
        if self.heterogeneous and depths != [len(stages) for stages in self.heterogeneous.stages]:
            raise BadInput("The stages do not match the pipeline sizes of the layouts.")
        if self.devices < 1 or not (isfinite(self.memory_bytes) and self.memory_bytes >= 0 <= self.tokens):
            raise BadInput(f"{self.devices} devices of {self.memory_bytes:g} bytes, {self.tokens:g} tokens.")

    @property
    def best(self) -> PlanRecord:
        """The job as configured, or the recommended layout."""
        return self.choices[0]

    @property
    def searched_choices(self) -> tuple[PlanRecord, ...]:
        """The layouts that the search found, without the job as configured."""
        return self.choices[self.as_configured :]

    @property
    def fastest(self) -> PlanRecord:
        """The fastest layout that the search found; the job as configured if it found none."""
        return min(self.searched_choices or self.choices, key=lambda record: record.plan.ledger.wall_ns)

    def like(self, jobs: Sequence[Job]) -> PlanRecord:
        """The first plan that predicts one of `jobs`; else the first with the layout of one; else the first."""
        exact = [record for record in self.choices if any(_same_plan(record.plan.job, job) for job in jobs)]
        layouts = [record for record in self.choices if record.plan.job.layout in [job.layout for job in jobs]]
        return [*exact, *layouts, self.best][0]

    def _repr_html_(self) -> str:
        """HTML for Jupyter: the page of the plans in an iframe."""
        from trainyard.report.plans.plans_view import view_of_plans
        from trainyard.report.render.html import notebook_frame

        return notebook_frame(view_of_plans(self))


_PLANNED_KEYS = (
    "tokens_per_step", "micro_batch_size", "dtype", "activation_checkpoint", "activation_checkpoint_every", "schedule",
    "offload", "compile",
)  # fmt: skip
"""Keys of the recipe that plans differ in."""


def _same_plan(planned: Job, job: Job) -> bool:
    """Whether a plan's job has the layout of `job` and the settings of the recipe that plans differ in."""
    keys_agree = all(getattr(planned.recipe, key) == getattr(job.recipe, key) for key in _PLANNED_KEYS)
    return planned.layout == job.layout and keys_agree


def from_search(
    result: SearchResult, machine: Machine, devices: int, budget: TrainingBudget = NO_BUDGET,
    scaling: DeviceScaling | None = None,
    as_configured: bool = False, exact_bytes: dict[int, int] | None = None, ignored_settings: tuple[str, ...] = (),
    unknown_settings: tuple[str, ...] = (),
    differing_settings: tuple[str, ...] = (), framework: str = "", step: str = "", notes: tuple[str, ...] = (),
    collectives: tuple[Collective, ...] = (), fine_tuning: FineTuning | None = None,
    outside_settings: tuple[str, ...] = (), bubble: PipelineBubble | None = None,
    fixed: dict[str, int | str] | None = None, framework_runs: bool = True,
) -> Plans:  # fmt: skip
    """The document of a search's result. `devices`: as counted in the machine file;
    `exact_bytes`: rank -> peak of allocated bytes in a simulated run; `step`: description of model, devices and batch.
    The others: as in `Plans`."""
    return Plans(
        schema=SCHEMA,
        machine=machine.name,
        device=machine.device.name,
        devices=devices,
        memory_bytes=machine.rank_memory,
        ranks_per_device=machine.device.ranks,
        model=measure_model(
            result.choices[0].plan.job, adapter_support.fine_tuned(framework, fine_tuning).keeps.columns
        ),
        tokens=budget.tokens,
        searched=result.searched,
        fit_in_memory=result.fitting,
        refused=result.refused,
        constants=result.tuned,
        as_configured=as_configured,
        claims=claims(machine, budget) if budget.tokens else {},
        choices=tuple(
            PlanRecord(
                plan=candidate.plan,
                bill=candidate.bill,
                reserved_bytes=candidate.reserved,
                on_pareto_front=candidate.front,
                host_bytes=candidate.host_bytes,
                versus_fastest=candidate.ratio,
                baseline=candidate.baseline,
                folded=candidate.folded,
                variants=tuple(points.count_devices(point, machine.device.ranks) for point in candidate.variants),
            )
            for candidate in result.choices
        ),
        pareto_front=tuple(points.count_devices(point, machine.device.ranks) for point in result.front),
        no_baseline=result.no_baseline,
        scaling=scaling,
        exact_bytes=exact_bytes or {},
        collectives=collectives,
        ignored_settings=ignored_settings,
        unknown_settings=unknown_settings,
        differing_settings=differing_settings,
        framework=framework,
        framework_runs=framework_runs,
        step=step,
        fixed=fixed or {},
        notes=notes,
        fine_tuning=fine_tuning,
        outside_settings=outside_settings,
        bubble=bubble,
    )


def claims(machine: Machine, budget: TrainingBudget) -> dict[str, Claim]:
    """Name -> input of the costs, with its source: price, power, its overhead and its cap, mean time between failures
    of a device, times of restarts and checkpoints. Unknown ones are left out."""
    power = machine.device.power
    known = {
        "price": machine.price, "power": power,
        "overhead": (machine.power_overhead or step_cost.OVERHEAD) if power else None,
        "power_cap": budget.power_cap, "mtbf": budget.mtbf, "restart": budget.restart,
        "checkpoint": None if budget.storage else budget.save, "storage": budget.storage,
    }  # fmt: skip
    return {name: claim for name, claim in known.items() if claim}


def read(path: Path) -> Plans | None:
    """The document of a file that `trainyard plan --json` wrote; None for any other file. Raises `BadFile` for a
    damaged one."""
    try:
        with path.open("rb") as file:
            if SCHEMA.encode() not in file.read(_HEAD):
                return None
        return msgspec.json.decode(path.read_bytes(), type=Plans, dec_hook=decode_hook)
    except OSError:
        return None
    except UNREADABLE as error:
        raise BadFile(f"{path}: not a file of plans: {error}.") from error
