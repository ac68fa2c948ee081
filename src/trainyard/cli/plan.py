"""`trainyard plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.support.pipes import InputFile

if TYPE_CHECKING:
    from trainyard.cli.support.plan_request import PlanRequest
    from trainyard.job import Job
    from trainyard.machine import Machine


@click.command()
@click.argument("model", required=False, type=InputFile())
@click.option("--machine", metavar="NAME|FILE", default="", type=InputFile(),
              help="A machine name or TOML file, or the parts of a mixed cluster: h100:64,a100:128.")  # fmt: skip
@click.option(
    "--devices", type=click.IntRange(min=1), help="Number of devices; default: the machine's or the job's."
)
@click.option("--batch", type=click.IntRange(min=1), help="Global batch: sequences (or images) per step.")
@click.option("--seq-len", type=click.IntRange(min=1), help="Tokens per sequence.")
@click.option("--tokens", type=float, default=0.0,
              help="Training budget in tokens (or images): adds days, dollars, energy and scaling.")  # fmt: skip
@click.option(
    "--fix",
    multiple=True,
    metavar="AXIS=N",
    help="Only layouts with this value, e.g. tp=8 or dtype=float8; repeatable.",
)
@click.option("--for", "framework", default="", metavar="NAME",
              help="Framework to plan for: trainyard (default), megatron, torchtitan, deepspeed.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the launch configuration of the best layout.")
@click.option("--check", "checked", is_flag=False, flag_value="", metavar="[FILE]", type=InputFile(),
              help="Also evaluate a configuration (FILE, or MODEL) as it is; listed first.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
def command(
    model: str | None, machine: str, devices: int | None, batch: int | None, seq_len: int | None, tokens: float,
    fix: tuple[str, ...], framework: str, out: Path | None, checked: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Find the fastest layouts of MODEL that fit on the devices, with time, memory, days and dollars.

    MODEL is a name (llama3-70b), a Hugging Face config.json, a model's TOML file, or a training configuration with its
    own model and batch: a job file, a torchtitan TOML file or Megatron arguments. A DeepSpeed JSON file has no model:
    trainyard plan llama3-8b --check ds_config.json. Every layout that divides devices, heads, layers and batch is
    searched. The memory of a checked job file is counted by a simulated run.
    """
    from dataclasses import replace

    from trainyard import limits, words
    from trainyard.cli.support import hetero_plan
    from trainyard.cli.support.output import busy, console, print_json, say
    from trainyard.cli.support.plan_request import read_request
    from trainyard.errors import BadInput, BadJob, UnknownName, nearest
    from trainyard.formats.atomic import write_text
    from trainyard.job import Model
    from trainyard.predict.inputs import constant_sets
    from trainyard.predict.inputs.framework_support import FRAMEWORKS
    from trainyard.predict.inputs.layout_space import PlannerInput
    from trainyard.predict.memory.framework_memory import USABLE
    from trainyard.predict.search import offload_variants
    from trainyard.predict.search.device_scaling import scaling
    from trainyard.predict.search.layout_cost import cost_job
    from trainyard.predict.search.search import SearchResult, search
    from trainyard.report.plans import plan_tables, plans_file
    from trainyard.report.render.terminal import print_table
    from trainyard.units import show_size

    if not tokens >= 0:
        raise BadInput(f"--tokens {tokens} must be 0 or more.")
    for flag, number, limit in (
        ("--devices", devices, limits.DEVICES), ("--batch", batch, limits.SAMPLES),
        ("--seq-len", seq_len, limits.TOKENS), ("--tokens", tokens, limits.BUDGET),
    ):  # fmt: skip
        limits.check_value(flag, number or 0, limit)
    check = checked is not None
    if framework and framework not in FRAMEWORKS:
        raise UnknownName(f"there is no framework {framework!r}.", nearest(framework, FRAMEWORKS))
    named, unlike = framework, "," in machine
    here = _machine(machine) if machine and not unlike else None
    ranks = devices * (here.device.ranks if here else 1) if devices else None
    about = read_request(model, checked, ranks, seq_len)
    job, dims = about.job, about.model
    if check and framework not in ("", about.framework):
        whose = f"{about.where} is {about.framework}'s" if job else "--check runs our own training code"
        raise BadInput(f"{whose}, not a configuration of {framework}.", "Omit --for.")
    framework = framework or about.framework
    runner = FRAMEWORKS[framework]
    fixed = dict(_fixed(option) for option in fix)
    dtype = str(fixed.pop("dtype", job.recipe.dtype if job else "bfloat16"))
    words.check(dtype, words.DTYPES, "dtype")
    where = here if here or unlike else _machine(job.machine if job else "")
    text = isinstance(dims, Model)
    samples = batch or (job.batch if job else 0)
    length = (seq_len or (job.recipe.seq_len if job else 0)) if text else 1
    if not samples or not length:
        more = "--batch (sequences per step) and --seq-len" if text else "--batch (samples per step)"
        raise BadInput("No global batch given.", f"Pass {more}.")
    limits.check_value("samples a step:", samples, limits.SAMPLES)
    limits.check_value(f"{samples:,} samples of {length:,} tokens:", samples * length, limits.STEP)
    axes = {axis: int(value) for axis, value in fixed.items()}
    if where is None:
        usual = "megatron" if about.framework == "trainyard" else about.framework
        wanted = PlannerInput(dims, devices or 0, 1, samples, length, dtype, axes)
        hetero_plan.show(wanted, machine, named or usual, tokens, out, check, as_json)
        return
    count = job.layout.ranks if job and not devices else (devices or where.devices) * where.device.ranks
    limits.check_value("ranks", count, limits.DEVICES)
    own = None
    if check and job:
        _same(job, about.where, count, samples, length)
        kept = dict(zip(("weight", "gradient", "state"), about.keeps or (), strict=False))
        own = cost_job(job, where, runner._replace(keeps=runner.keeps._replace(**kept)), tokens)
    for message in (_passed(about), *(f"Evaluated differently: {change}." for change in about.otherwise)):
        if message:
            say(message)
    wanted = PlannerInput(dims, count, where.ranks_per_node, samples, length, dtype, axes)
    refuses = _ours if framework == "trainyard" else lambda _: None
    try:
        result = search(wanted, where, runner, budget=tokens, refuses=refuses, front=as_json)
    except BadJob as error:
        if own is None or out is not None:
            raise
        say(f"No other layout: {error}")
        result = SearchResult(
            choices=(), searched=0, fitting=0, refused=(), tuned=constant_sets.choose(where, runner.software)
        )
    others = None
    if tokens and result.choices:
        with busy("Planning for fewer and for more devices"):
            others = scaling(wanted, where, runner, tokens, result.choices[0].point, refuses)
    if out is not None:
        fastest = result.choices[0].plan.job
        write_text(runner.tells(fastest), out)
        layout = plan_tables.short(fastest.layout, fastest.recipe.schedule, fastest.recipe.offload)
        say(f"wrote {out}: {runner.means}, {layout}.")
    if own is not None:
        result = replace(result, choices=(own, *result.choices))
    best = result.choices[0]
    if best.reserved > USABLE * where.rank_memory:
        say(f"It does not fit: it needs {show_size(best.reserved)} of {show_size(where.rank_memory)} per rank.")
    if best.waiting > offload_variants.room(where).host:
        each, node = best.waiting * where.ranks_per_node, where.host.memory.value if where.host else 0.0
        say(f"It does not fit in host memory: it offloads {show_size(each)} per host of {show_size(node)}.")
    counted = _counted(best.plan.job) if check and framework == "trainyard" and not best.waiting else {}
    record = plans_file.of_found(
        result, where, count // where.device.ranks, tokens, others, own is not None, counted,
        about.passed if check else (), about.otherwise if check else (),
    )  # fmt: skip
    if as_json:
        print_json(record)
        return
    screen = console()
    shared = f" ({where.device.ranks} ranks each)" if where.device.ranks > 1 else ""
    on = f"{count // where.device.ranks:,} x {where.device.name}{shared}"
    each = (
        f"sequences of {length:,} tokens"
        if text
        else f"{plan_tables.unit_of(best.plan.job)} of {dims.positions:,} positions"
    )
    screen.print(f"{dims.name} on {on}: {samples:,} {each} per step", markup=False)
    for table in (
        plan_tables.layouts(record),
        *plan_tables.scaling(record),
        plan_tables.ledger(best.plan),
        plan_tables.memory(record),
    ):
        screen.print()
        print_table(table, screen)


def _same(job: Job, where: str, devices: int, samples: int, length: int) -> None:
    """Raise `BadInput` if an option contradicts the configuration of --check."""
    from trainyard.errors import BadInput

    for flag, given, own in (
        ("--devices", devices, job.layout.ranks), ("--batch", samples, job.batch),
        ("--seq-len", length, job.recipe.seq_len),
    ):  # fmt: skip
        if given != own:
            raise BadInput(
                f"{flag} {given:,}, but {where} has {own:,}.", f"Omit {flag}: --check evaluates a file as it is."
            )


def _passed(about: PlanRequest) -> str:
    if not about.passed:
        return ""
    listed, most = ", ".join(about.passed), 500
    return f"Ignored, as if they cost nothing: {listed[:most]}{'...' if len(listed) > most else ''}."


def _machine(name: str) -> Machine:
    from trainyard import machine
    from trainyard.cli.support.plan_request import with_next_step
    from trainyard.errors import BadInput

    if not name:
        raise BadInput("No machine given.", f"Pass --machine: {', '.join(machine.known())}, or a TOML file.")
    with with_next_step("a machine's name or its TOML file"):
        return machine.load(name)


def _counted(job: Job) -> dict[int, int]:
    """Peak bytes by rank, for the ranks that can be fullest; empty without torch, with a message."""
    from trainyard.cli.support.output import say
    from trainyard.errors import MissingLibrary
    from trainyard.train.fake_run import held_memory

    try:
        return {rank: held_memory.held(job, rank).peak for rank in held_memory.ends(job)}
    except MissingLibrary as missing:
        say(str(missing))
        return {}


def _fixed(option: str) -> tuple[str, int | str]:
    """Parse the axis and value of `tp=8`, `remat=full`, `schedule=zbv` or `dtype=float8`."""
    from trainyard import limits
    from trainyard.errors import BadInput, UnknownName, nearest
    from trainyard.predict.inputs.cases import REMATS
    from trainyard.predict.inputs.layout_space import AXES
    from trainyard.predict.pipeline import schedules

    axis, _, value = option.partition("=")
    if axis == "dtype":
        return axis, value
    if axis not in AXES:
        raise UnknownName(f"--fix {option}: there is no axis {axis!r}.", nearest(axis, AXES))
    if axis == "remat" and value in REMATS:
        return axis, REMATS.index(value)
    if axis == "schedule":
        if value not in schedules.SCHEDULES:
            raise UnknownName(f"--fix {option}: there is no schedule {value!r}.", nearest(value, schedules.SCHEDULES))
        return axis, schedules.SCHEDULES.index(value)
    least, most = _FIXED.get(axis, (1, limits.DEVICES.most))
    if value.isdecimal() and len(value) < 10 and least <= int(value) <= most:
        return axis, int(value)
    known = f"Use {', '.join(REMATS)}." if axis == "remat" else ""
    raise BadInput(f"--fix {option:.60}: {value!r:.60} is not a whole number from {least} to {most:,}.", known)


_FIXED = {"zero": (1, 3), "remat": (0, 2), "offload": (0, 1)}
"""Smallest and largest value of the axes that do not count ranks or samples."""


def _ours(job: Job) -> None:
    """Raise `BadJob` for a job that trainyard itself cannot run."""
    from trainyard import plugins

    plugins.load("workloads", job.workload).weights(job)
