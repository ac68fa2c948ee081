"""`plan`: searches the layouts of a model, from the command's arguments to the document of plans. A layout is the sizes
of the parallel axes (dp, tp, cp, pp, ep) with their options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from trainyard import limits, plugins, words
from trainyard import machine as machines
from trainyard.api.fabric_options import Fabric, refuse_for_parts, with_fabric
from trainyard.api.fine_tune import FineTune, read_fine_tuning
from trainyard.api.fixed_axes import read_fixed
from trainyard.api.input_kinds import explain_kind
from trainyard.api.network_notes import describe_network
from trainyard.api.plan_hetero import plan_hetero
from trainyard.api.plan_notes import budget_notes, input_notes, setting_notes
from trainyard.api.plan_request import PlanRequest, read_request, with_next_step
from trainyard.api.run_costs import RunCosts, read_budget
from trainyard.api.training_options import TrainingOptions, given_options, read_training
from trainyard.errors import BadInput, BadJob, MissingLibrary, UnknownName, nearest
from trainyard.formats.regular_files import is_regular
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.communication.data_parallel_collectives import predict_collectives
from trainyard.predict.economics.training_budget import TrainingBudget
from trainyard.predict.hetero import fleet
from trainyard.predict.inputs import (
    adapter_support,
    constant_sets,
    framework_devices,
    layout_space,
    setting_layouts,
    training_settings,
)
from trainyard.predict.inputs.fine_tuning import FineTuning
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import FLOAT32_MOMENTS, MUON_MOMENTUM, PlannerInput
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.memory.framework_memory import USABLE
from trainyard.predict.search import device_counts, offload_variants
from trainyard.predict.search.device_scaling import scaling
from trainyard.predict.search.layout_cost import LayoutCost, cost_job, explain_bubble
from trainyard.predict.search.layout_ratio import step_ratio
from trainyard.predict.search.search import SearchResult
from trainyard.predict.search.shortlist import shortlist
from trainyard.report.plans import plan_tables, plans_file
from trainyard.report.plans.plans_file import Plans
from trainyard.units import counted, is_whole_number, show_size


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `trainyard.api.plan` and `check_plan`, as documented there. `scaling`: with a budget, search other
    numbers of devices too; `bubble`: find the causes of the first layout's pipeline bubble; `progress`: maps a message
    to a context for whose duration it is shown."""

    machine: str = ""
    devices: int | None = None
    batch: int | None = None
    seq_len: int | None = None
    tokens: float | None = None
    costs: RunCosts = field(default_factory=RunCosts)
    fix: Sequence[str] = ()
    fine_tune: FineTune = field(default_factory=FineTune)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    fabric: Fabric = field(default_factory=Fabric)
    front: bool = False
    scaling: bool = True
    bubble: bool = True
    progress: Callable[[str], AbstractContextManager[object]] = nullcontext


def plan_layouts(model: str | None, framework: str, options: PlanOptions) -> Plans:
    """Searches the layouts of a model, the recommended one first; several machines in `options.machine`, separated by
    commas, are a mixed cluster. `framework`: empty for that of the model's configuration. Raises `BadInput`."""
    check_numbers(options)
    if framework and framework not in FRAMEWORKS:
        raise UnknownName(f"there is no framework {framework!r}.", nearest(framework, FRAMEWORKS))
    if "," not in options.machine:
        return plan_on(load_machine(options.machine) if options.machine else None, model, framework, options)
    refuse_for_parts(options.fabric, options.machine)
    if flags := given_options(options.training):
        raise BadInput(
            f"{', '.join(flags.values())}: predicted for machines of one kind, but --machine {options.machine} has "
            "several.",
            "Pass one machine, or leave out these options.",
        )
    request = read_request(model, None, options.devices, options.seq_len, names_machine=True)
    fine_tuning = read_fine_tuning(options.fine_tune, request.model)
    if fine_tuning and fine_tuning.trains_adapters:
        raise BadInput(
            f"--fine-tune {fine_tuning.method} on {options.machine}: adapters are predicted for machines of one kind.",
            "Pass one machine, or --fine-tune sft.",
        )
    default_framework = "megatron" if request.framework == "trainyard" else request.framework
    planner_input = planner_input_of(request, machine=None, options=options)
    framework = framework or default_framework
    plans = plan_hetero(planner_input, options.machine, framework, read_budget(options.tokens, options.costs))
    machines_of_parts = [part.machine for part in fleet.parse_parts(options.machine)]
    notes = [
        *input_notes(request, planner_input, framework, machines_of_parts),
        *_vocabulary_notes(request.model, plans.best.plan.job, FRAMEWORKS[framework]),
    ]
    return msgspec.structs.replace(
        plans,
        ignored_settings=request.passed,
        unknown_settings=request.unknown,
        differing_settings=request.otherwise,
        notes=(*plans.notes, *notes, *_fine_tuning_notes(fine_tuning)),
        fine_tuning=fine_tuning,
        fixed=_fixed_in_words(planner_input, options),
    )


def plan_on(machine: Machine | None, model: str | None, framework: str, options: PlanOptions) -> Plans:
    """Searches as `plan_layouts` on one kind of device. `machine`: in place of `options.machine`; None for that of the
    model's job file."""
    request = read_request(model, None, _ranks(options, machine), options.seq_len, names_machine=machine is not None)
    target = with_fabric(machine or load_machine(request.job.machine if request.job else ""), options.fabric)
    return _search(
        planner_input_of(request, target, options), target, request, framework=framework, options=options, check=False
    )


def check_configuration(file: str, model: str | None, options: PlanOptions) -> Plans:
    """Predicts the configuration in `file` as it is, then other layouts of its model. `model`: replaces the file's own,
    unless it is None. Raises `BadInput` if an option contradicts the file."""
    check_numbers(options)
    if "," in options.machine:
        raise BadInput(
            f"--machine {options.machine}: a configuration does not say which devices its stages are on.",
            "Pass one machine, or search layouts of the mixed cluster: trainyard plan.",
        )
    target = load_machine(options.machine) if options.machine else None
    request = read_request(model, file, _ranks(options, target), options.seq_len, names_machine=target is not None)
    target = with_fabric(target or load_machine(request.job.machine if request.job else ""), options.fabric)
    planner_input = planner_input_of(request, target, options)
    if request.job:
        ranks = target.device.ranks
        _check_same(request.job, request.file, planner_input, ranks)
    return _search(planner_input, target, request, framework="", options=options, check=True)


def _ranks(options: PlanOptions, machine: Machine | None) -> int | None:
    """Ranks of the requested number of devices, since a device may be several ranks; None if no number was given."""
    return options.devices * (machine.device.ranks if machine else 1) if options.devices else None


def planner_input_of(request: PlanRequest, machine: Machine | None, options: PlanOptions) -> PlannerInput:
    """The model, devices and batch to search layouts for. `machine`: None for a mixed cluster, for which 0 devices are
    all of them."""
    job, devices = request.job, options.devices
    fixed_values = read_fixed(options.fix)
    dtype = str(fixed_values.pop("dtype", job.recipe.dtype if job else "bfloat16"))
    words.check_dtype(dtype)
    samples, seq_len = _step_size(request, options.batch, options.seq_len)
    _check_budget(options.tokens, samples, seq_len)
    axes = {axis: int(value) for axis, value in fixed_values.items()}
    if machine is None:
        return PlannerInput(
            model=request.model, devices=devices or 0, per_node=1, samples=samples, seq_len=seq_len,
            dtype=dtype, fixed=axes,
        )  # fmt: skip
    ranks = job.layout.ranks if job and not devices else (devices or machine.devices) * machine.device.ranks
    limits.check_value("ranks", ranks, limits.DEVICES)
    return PlannerInput(
        model=request.model, devices=ranks, per_node=machine.ranks_per_node, samples=samples, seq_len=seq_len,
        dtype=dtype, fixed=axes,
    )  # fmt: skip


def _fixed_in_words(wanted: PlannerInput, options: PlanOptions) -> dict[str, int | str]:
    """Axis -> value of each `--fix`, `dtype` among them."""
    dtype: dict[str, int | str] = {"dtype": wanted.dtype} if "dtype" in read_fixed(options.fix) else {}
    return layout_space.fixed_in_words(wanted.fixed) | dtype


def _search(
    wanted: PlannerInput, machine: Machine, request: PlanRequest, *, framework: str, options: PlanOptions, check: bool
) -> Plans:  # fmt: skip
    """Plans on one kind of device, as ordered in `Plans`. `wanted`: the model, the batch and the axes that are fixed;
    `request`: what the user named, a model or a configuration; `framework`: empty for that of `request`; `check`: the
    configuration's own job comes first, and with our own framework its peak memory is measured in a simulated run."""
    fine_tuning = read_fine_tuning(options.fine_tune, request.model)
    replaces_runner = bool(fine_tuning and fine_tuning.trains_adapters) and not check
    own_framework = adapter_support.DEFAULT if replaces_runner and request.framework == "trainyard" else ""
    is_replaced = bool(own_framework and not framework)
    notes = _fine_tuning_notes(fine_tuning, is_replaced, framework_devices.find("megatron", machine) is None)
    framework = framework or own_framework or request.framework
    training = read_training(options.training)
    fine_tuned = adapter_support.fine_tuned(
        framework, fine_tuning, lambda other: framework_devices.find(other, machine) is None
    )
    runner = training_settings.with_settings(fine_tuned, framework, training, request.model)
    training_settings.check_fixed(training, layout_space.fixed_in_words(wanted.fixed))
    if training.offloaded_layers:
        offload_variants.check_host(machine)
    budget = read_budget(options.tokens, options.costs)
    configured_cost = None
    if check and request.job:
        setting_layouts.check_job(runner, training.conditions(framework), request.job, request.file)
        if framework == "trainyard":
            _check_trainable(request.job, request.file)
        configured_cost = _cost_configuration(request, request.job, machine, runner, budget)
    refuses = refuse_unsupported if framework == "trainyard" else lambda _: None
    try:
        with options.progress("Searching the layouts"):
            result = shortlist(wanted, machine, runner, budget=budget, refuses=refuses, front=options.front)
    except BadJob as error:
        if configured_cost is None:
            raise
        notes.append(f"No other layout: {error}")
        tuned = constant_sets.choose(machine, runner.software)
        result = SearchResult(choices=(), searched=0, fitting=0, refused=(), tuned=tuned)
    other_device_counts = None
    if budget.tokens and options.scaling and result.choices:
        with options.progress("Planning for fewer and for more devices"):
            other_device_counts = scaling(wanted, machine, runner, budget, result.fastest.point, refuses)
    if not check and result.choices:
        notes += device_counts.describe_faster(
            wanted, machine, runner, refuses, result.fastest.plan.ledger.wall_ns / 1e9
        )
    if configured_cost is not None:
        if result.choices:
            ratio = step_ratio(configured_cost.plan.ledger, result.fastest.plan.ledger)
            configured_cost = replace(configured_cost, ratio=ratio)
        result = replace(result, choices=(configured_cost, *result.choices))
    best = result.choices[0]
    if isinstance(request.model, Model) and request.model.experts and training.expert_imbalance == 1:
        notes.append("Experts are assumed to get as many tokens each; if not: --expert-imbalance RATIO.")
    is_padded_in_file = configured_cost is not None and framework == "megatron"  # the reader has a note
    notes += [
        *setting_notes(options.training),
        *input_notes(request, wanted, framework, [machine], fine_tuning),
        *(budget_notes(framework, machine, options.tokens) if not check else ()),
        *(_vocabulary_notes(request.model, best.plan.job, runner) if not is_padded_in_file else ()),
        *_shortages(best, machine),
        *describe_network(machine, wanted.devices),
    ]
    collectives = predict_collectives(best.plan.job) if check and framework == "trainyard" else ()
    allocated_bytes: dict[int, int] = {}  # rank -> peak in a simulated run
    if check and framework == "trainyard":
        from trainyard.train.fake_run import held_memory  # starts processes

        job = best.plan.job
        if setting := held_memory.uncounted_setting(job):
            notes.append(f"The memory is predicted, and not counted: {setting}")
        elif not best.host_bytes:
            try:
                for rank in held_memory.representative_ranks(job):
                    with options.progress(f"Counting the memory of rank {rank} in a simulated run"):
                        allocated_bytes[rank] = held_memory.measure_rank(job, rank).peak
            except MissingLibrary as missing:
                notes.append(str(missing))
    return plans_file.from_search(
        result, machine, devices=wanted.devices // machine.device.ranks, budget=budget, scaling=other_device_counts,
        as_configured=configured_cost is not None, exact_bytes=allocated_bytes,
        ignored_settings=request.passed, unknown_settings=request.unknown,
        differing_settings=request.otherwise, framework=framework, step=_describe_step(wanted, machine, best.plan.job),
        notes=tuple(notes), collectives=collectives, fine_tuning=fine_tuning,
        outside_settings=tuple(training_settings.settings_outside(training, framework)),
        bubble=explain_bubble(best.plan, machine, runner) if options.bubble else None,
        fixed=_fixed_in_words(wanted, options), framework_runs=framework_devices.runs(framework, machine),
    )  # fmt: skip


def check_numbers(options: PlanOptions) -> None:
    """Raises `BadInput` for devices, batch, sequence length or tokens out of range, naming the flag."""
    if options.tokens is not None and not options.tokens > 0:
        raise BadInput(
            f"--tokens {options.tokens:g} is not a positive number.",
            "Pass the tokens of the whole training, as 15e12, or leave it out to plan a step only.",
        )
    for flag, number, limit in (
        ("--devices", options.devices, limits.DEVICES), ("--batch", options.batch, limits.SAMPLES),
        ("--seq-len", options.seq_len, limits.TOKENS), ("--tokens", options.tokens, limits.BUDGET),
    ):  # fmt: skip
        limits.check_value(flag, number or 0, limit)


def _check_budget(tokens: float | None, samples: int, seq_len: int) -> None:
    """Raises `BadInput` for a budget of less than one step."""
    if tokens is not None and tokens < samples * seq_len:
        of_length = f" x {seq_len:,} tokens" if seq_len > 1 else ""
        raise BadInput(
            f"--tokens {tokens:,.10g} is less than one step of {counted(samples, 'sample')}{of_length} = "
            f"{samples * seq_len:,}.",
            "Pass the tokens (or images) of the whole training, or a smaller --batch.",
        )


def _step_size(request: PlanRequest, batch: int | None, seq_len: int | None) -> tuple[int, int]:
    """Samples of a step, and tokens of a sample (1 for images). Raises `BadInput` if neither the options nor the
    configuration has them."""
    job, is_text = request.job, isinstance(request.model, Model)
    samples = batch or (job.batch if job else 0)
    seq_len = (seq_len or (job.recipe.seq_len if job else 0)) if is_text else 1
    if not samples or not seq_len:
        missing = {
            f"--batch ({'sequences' if is_text else 'samples'} per step)": not samples, "--seq-len": not seq_len
        }  # fmt: skip
        flags = " and ".join(flag for flag, is_missing in missing.items() if is_missing)
        raise BadInput(f"No {'sequence length' if samples else 'global batch'} given.", f"Pass {flags}.")
    limits.check_value("samples a step:", samples, limits.SAMPLES)
    limits.check_value(f"{samples:,} samples of {seq_len:,} tokens:", samples * seq_len, limits.STEP)
    return samples, seq_len


def _cost_configuration(
    request: PlanRequest, job: Job, machine: Machine, runner: Framework, budget: TrainingBudget
) -> LayoutCost:
    """The cost of the configuration's own job, with the number formats that it keeps its state in and its other
    settings."""
    keeps = runner.keeps._replace(columns={**runner.keeps.columns, **request.columns})
    if request.keeps:  # the bytes of the state include its moments
        weight, gradient, state = request.keeps
        keeps = keeps._replace(weight=weight, gradient=gradient, state=state, moments=FLOAT32_MOMENTS)
    if "muon_iterations" in request.columns:
        keeps = keeps._replace(moments=MUON_MOMENTUM)
    return cost_job(job, machine, runner._replace(keeps=keeps), budget)


def _vocabulary_notes(model: Model | VisionModel, job: Job, runner: Framework) -> list[str]:
    """A sentence on the vocabulary of a planned job, if the framework pads it or divides it unevenly."""
    if not isinstance(model, Model):
        return []
    note = runner.keeps.vocabulary.describe(model.vocab, job.layout.tp, runner.display_name)
    return [note] if note else []


def _fine_tuning_notes(
    settings: FineTuning | None, is_replaced: bool = False, runs_megatron: bool = False
) -> list[str]:
    """Sentences on what a prediction of a fine-tuning leaves out, and on the framework that it is for if our own runner
    is replaced (`is_replaced`). `runs_megatron`: whether Megatron Core runs on the devices as it is."""
    if settings is None:
        return []
    notes = []
    if settings.padding is None:
        notes.append("All tokens of a sequence are counted. If some are padding, pass their share: --padding 0.2.")
    if is_replaced:
        notes.append(
            "trainyard's own runner does not train adapters: the layouts are for DeepSpeed with Hugging Face PEFT."
            + " For Megatron-Bridge, pass --for megatron." * (settings.method == "lora" and runs_megatron)
        )
    return notes


def _shortages(best: LayoutCost, machine: Machine) -> list[str]:
    """Sentences on the memory that the first layout lacks on the device and on the host; empty if it fits."""
    notes = []
    if best.reserved > USABLE * machine.rank_memory:
        needed, memory = best.reserved / 1e9, machine.rank_memory / 1e9
        notes.append(f"It does not fit: it needs {needed:,.1f} of {memory:,.1f} GB per rank.")
    if best.host_bytes > offload_variants.usable_memory(machine).host:
        offloaded = best.host_bytes * machine.ranks_per_node
        host = machine.host.memory.value if machine.host else 0.0
        notes.append(
            f"It does not fit in host memory: it offloads {show_size(offloaded)} per host of {show_size(host)}."
        )
    return notes


def _describe_step(wanted: PlannerInput, machine: Machine, job: Job) -> str:
    """A description of the model, the devices, and the samples of a step."""
    ranks_note = f" ({machine.device.ranks} ranks each)" if machine.device.ranks > 1 else ""
    samples = (
        plan_tables.describe_samples(wanted.samples, wanted.seq_len)
        if isinstance(wanted.model, Model)
        else f"{counted(wanted.samples, plan_tables.unit_of(job).removesuffix('s'))} of "
        f"{counted(wanted.model.positions, 'position')}"
    )
    devices = wanted.devices // machine.device.ranks
    return f"{wanted.model.name} on {devices:,} x {machine.device.name}{ranks_note}: {samples} per step"


def _check_same(job: Job, file: str, wanted: PlannerInput, ranks_per_device: int) -> None:
    """Raises `BadInput` if an argument contradicts the job of the configuration `file`, which is to be checked as it
    is. `wanted`: the arguments, completed by the job."""
    of_ranks = f" of {ranks_per_device} ranks each" if ranks_per_device > 1 else ""
    devices = (wanted.devices / ranks_per_device, job.layout.ranks / ranks_per_device)
    for flag, requested, configured, unit in (
        ("--devices", *devices, f" devices{of_ranks}"), ("--batch", wanted.samples, job.batch, ""),
        ("--seq-len", wanted.seq_len, job.recipe.seq_len, ""),
    ):  # fmt: skip
        if requested != configured:
            raise BadInput(
                f"{flag} {requested:,.10g}, but {file} has {configured:,.10g}{unit}.",
                f"Leave out {flag}: plan check evaluates a file as it is.",
            )


def load_machine(name: str) -> Machine:
    """The machine of a preset's name or a TOML file. Raises `BadInput` if `name` is empty, or for a file in error."""
    kind, colon, count = name.rpartition(":")
    if colon and machines.find_file(kind) and not is_regular(Path(name)):
        raise BadInput(
            f"--machine {name}: a count is only given for the parts of a mixed cluster.",
            f"Pass --machine {kind} --devices {count if is_whole_number(count) else 'N'}.",
        )
    if not name:
        raise BadInput("No machine given.", "Pass --machine with a name (trainyard plan list machines) or a TOML file.")
    with with_next_step("a machine's name or its TOML file"), explain_kind(name, "machine"):
        return machines.load(name)


def _check_trainable(job: Job, file: str) -> None:
    """Raises `BadJob` if trainyard does not train the job of `file`."""
    try:
        refuse_unsupported(job)
    except BadJob as error:
        raise BadJob(f"{file}: {error.message}", error.next_step) from error


def refuse_unsupported(job: Job) -> None:
    """Raises `BadJob` for a job that trainyard itself does not train."""
    plugins.load("workloads", job.workload).weights(job)
