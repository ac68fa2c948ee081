"""`plan`: from its arguments to the layouts that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from trainyard import limits, plugins, renamed_keys, words
from trainyard import machine as machines
from trainyard.api.plan_hetero import plan_hetero
from trainyard.api.plan_request import PlanRequest, read_request, with_next_step
from trainyard.errors import BadInput, BadJob, MissingLibrary, UnknownName, nearest
from trainyard.job import Job, Model
from trainyard.machine import Machine
from trainyard.predict.inputs import constant_sets
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import AXES, PlannerInput
from trainyard.predict.memory.framework_memory import USABLE
from trainyard.predict.pipeline import schedules
from trainyard.predict.search import offload_variants
from trainyard.predict.search.device_scaling import scaling
from trainyard.predict.search.layout_cost import LayoutCost, cost_job
from trainyard.predict.search.search import SearchResult, search
from trainyard.report.plans import plan_tables, plans_file
from trainyard.report.plans.plans_file import Plans
from trainyard.train.fake_run import held_memory
from trainyard.units import show_size

_BOUNDS = {"zero": (1, 3), "activation_checkpoint": (0, 2), "offload": (0, 1)}
"""Least and largest value of the axes that do not count ranks or samples."""


def plan_layouts(
    model: str | None,
    machine: str,
    devices: int | None,
    batch: int | None,
    seq_len: int | None,
    tokens: float,
    fix: Iterable[str],
    framework: str,
    check: str | None,
    front: bool,
    progress: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Plans:
    """As `trainyard.api.plan`. `check`: the file of a configuration; empty if `model` is one; None to check nothing."""
    _check_numbers(devices, batch, seq_len, tokens, framework)
    hetero = "," in machine
    target = _machine(machine) if machine and not hetero else None
    ranks = devices * (target.device.ranks if target else 1) if devices else None
    request = read_request(model, check, ranks, seq_len)
    job = request.job
    if check is not None and framework not in ("", request.framework):
        subject = (
            f"{request.file} is a {request.framework} configuration" if job else "--check runs trainyard's own training"
        )
        raise BadInput(f"{subject}, but --for is {framework}.", "Leave out --for.")
    fixed = dict(_fixed(text) for text in fix)
    dtype = str(fixed.pop("dtype", job.recipe.dtype if job else "bfloat16"))
    words.check(dtype, words.DTYPES, "dtype")
    if not hetero and target is None:
        target = _machine(job.machine if job else "")
    samples, length = _step_size(request, batch, seq_len)
    axes = {axis: int(value) for axis, value in fixed.items()}
    wanted = PlannerInput(request.model, devices or 0, 1, samples, length, dtype, axes)
    if target is None:
        if check is not None:
            raise BadInput(
                f"--check with --machine {machine}: a configuration does not say which devices its stages are on."
            )
        usual = "megatron" if request.framework == "trainyard" else request.framework
        return plan_hetero(wanted, machine, framework or usual, tokens)
    count = job.layout.ranks if job and not devices else (devices or target.devices) * target.device.ranks
    limits.check_value("ranks", count, limits.DEVICES)
    if check is not None and job:
        _check_same(job, request.file, count, samples, length)
    wanted = wanted._replace(devices=count, per_node=target.ranks_per_node)
    return _search(wanted, target, request, framework or request.framework, tokens, check is not None, front, progress)


def _search(
    wanted: PlannerInput, machine: Machine, request: PlanRequest, framework: str, tokens: float, check: bool,
    front: bool, progress: Callable[[str], AbstractContextManager[object]],
) -> Plans:  # fmt: skip
    """Plans on one kind of device, after the job of a configuration if that is checked."""
    runner, notes = FRAMEWORKS[framework], []
    own = _cost_configuration(request, machine, runner, tokens) if check and request.job else None
    refuses = _refuse_unsupported if framework == "trainyard" else lambda _: None
    try:
        with progress("Searching the layouts"):
            result = search(wanted, machine, runner, budget=tokens, refuses=refuses, front=front)
    except BadJob as error:
        if own is None:
            raise
        notes.append(f"No other layout: {error}")
        tuned = constant_sets.choose(machine, runner.software)
        result = SearchResult(choices=(), searched=0, fitting=0, refused=(), tuned=tuned)
    others = None
    if tokens and result.choices:
        with progress("Planning for fewer and for more devices"):
            others = scaling(wanted, machine, runner, tokens, result.choices[0].point, refuses)
    if own is not None:
        result = replace(result, choices=(own, *result.choices))
    best = result.choices[0]
    notes += _shortages(best, machine)
    counted: dict[int, int] = {}
    if check and framework == "trainyard" and not best.waiting:
        try:
            job = best.plan.job
            counted = {rank: held_memory.measure_rank(job, rank).peak for rank in held_memory.representative_ranks(job)}
        except MissingLibrary as missing:
            notes.append(str(missing))
    return plans_file.from_search(
        result, machine, wanted.devices // machine.device.ranks, tokens, others, own is not None, counted,
        request.passed, request.otherwise, framework, _step(wanted, machine, best.plan.job), tuple(notes),
    )  # fmt: skip


def _check_numbers(devices: int | None, batch: int | None, seq_len: int | None, tokens: float, framework: str) -> None:
    if not tokens >= 0:
        raise BadInput(f"--tokens {tokens} must be 0 or more.")
    for flag, number, limit in (
        ("--devices", devices, limits.DEVICES), ("--batch", batch, limits.SAMPLES),
        ("--seq-len", seq_len, limits.TOKENS), ("--tokens", tokens, limits.BUDGET),
    ):  # fmt: skip
        limits.check_value(flag, number or 0, limit)
    if framework and framework not in FRAMEWORKS:
        raise UnknownName(f"there is no framework {framework!r}.", nearest(framework, FRAMEWORKS))


def _step_size(request: PlanRequest, batch: int | None, seq_len: int | None) -> tuple[int, int]:
    """Samples of a step, and tokens of a sample."""
    job, text = request.job, isinstance(request.model, Model)
    samples = batch or (job.batch if job else 0)
    length = (seq_len or (job.recipe.seq_len if job else 0)) if text else 1
    if not samples or not length:
        flags = "--batch (sequences per step) and --seq-len" if text else "--batch (samples per step)"
        raise BadInput("No global batch given.", f"Pass {flags}.")
    limits.check_value("samples a step:", samples, limits.SAMPLES)
    limits.check_value(f"{samples:,} samples of {length:,} tokens:", samples * length, limits.STEP)
    return samples, length


def _cost_configuration(request: PlanRequest, machine: Machine, runner: Framework, tokens: float) -> LayoutCost | None:
    """The cost of the configuration's own job, with the number formats that it keeps its state in."""
    if request.job is None:
        return None
    formats = dict(zip(("weight", "gradient", "state"), request.keeps or (), strict=False))
    return cost_job(request.job, machine, runner._replace(keeps=runner.keeps._replace(**formats)), tokens)


def _shortages(best: LayoutCost, machine: Machine) -> list[str]:
    """Why the first layout does not fit, if it does not."""
    notes = []
    if best.reserved > USABLE * machine.rank_memory:
        notes.append(
            f"It does not fit: it needs {show_size(best.reserved)} of {show_size(machine.rank_memory)} per rank."
        )
    if best.waiting > offload_variants.usable_memory(machine).host:
        offloaded = best.waiting * machine.ranks_per_node
        host = machine.host.memory.value if machine.host else 0.0
        notes.append(
            f"It does not fit in host memory: it offloads {show_size(offloaded)} per host of {show_size(host)}."
        )
    return notes


def _step(wanted: PlannerInput, machine: Machine, job: Job) -> str:
    """The model, the devices, and what a step trains on."""
    shared = f" ({machine.device.ranks} ranks each)" if machine.device.ranks > 1 else ""
    samples = (
        f"sequences of {wanted.seq_len:,} tokens"
        if isinstance(wanted.model, Model)
        else f"{plan_tables.unit_of(job)} of {wanted.model.positions:,} positions"
    )
    devices = wanted.devices // machine.device.ranks
    return f"{wanted.model.name} on {devices:,} x {machine.device.name}{shared}: {wanted.samples:,} {samples} per step"


def _check_same(job: Job, file: str, devices: int, samples: int, length: int) -> None:
    """Raises `BadInput` if the arguments contradict the configuration that is to be checked as it is."""
    for flag, given, own in (
        ("--devices", devices, job.layout.ranks), ("--batch", samples, job.batch),
        ("--seq-len", length, job.recipe.seq_len),
    ):  # fmt: skip
        if given != own:
            raise BadInput(
                f"{flag} {given:,}, but {file} has {own:,}.", f"Omit {flag}: --check evaluates a file as it is."
            )


def _machine(name: str) -> Machine:
    if not name:
        raise BadInput("No machine given.", f"Pass --machine: {', '.join(machines.known())}, or a TOML file.")
    with with_next_step("a machine's name or its TOML file"):
        return machines.load(name)


def _fixed(text: str) -> tuple[str, int | str]:
    """Axis and value of `tp=8`, `activation_checkpoint=full`, `schedule=zbv` or `dtype=float8`."""
    axis, _, value = text.partition("=")
    if axis == "dtype":
        return axis, value
    if axis not in AXES:
        new = renamed_keys.new_key("recipe", axis)
        raise UnknownName(
            f"--fix {text}: there is no axis {axis!r}.", f"Use {new}." if new in AXES else nearest(axis, AXES)
        )
    if axis == "activation_checkpoint" and value in ACTIVATION_CHECKPOINTS:
        return axis, ACTIVATION_CHECKPOINTS.index(value)
    if axis == "schedule":
        if value not in schedules.SCHEDULES:
            raise UnknownName(f"--fix {text}: there is no schedule {value!r}.", nearest(value, schedules.SCHEDULES))
        return axis, schedules.SCHEDULES.index(value)
    least, most = _BOUNDS.get(axis, (1, limits.DEVICES.most))
    if value.isdecimal() and len(value) < 10 and least <= int(value) <= most:
        return axis, int(value)
    names = f"Use one of {', '.join(ACTIVATION_CHECKPOINTS)}." if axis == "activation_checkpoint" else ""
    raise BadInput(f"--fix {text:.60}: {value!r:.60} is not a whole number from {least} to {most:,}.", names)


def _refuse_unsupported(job: Job) -> None:
    """Raises `BadJob` for a job that trainyard itself does not train."""
    plugins.load("workloads", job.workload).weights(job)
