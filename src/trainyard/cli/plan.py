"""`trainyard plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from trainyard.job import Job, Model
    from trainyard.machine import Machine


@click.command()
@click.argument("model")
@click.option("--machine", metavar="NAME|FILE", default="", help="A machine by name, or its TOML file.")
@click.option("--devices", type=click.IntRange(min=1), help="How many; default: those of the machine or of the job.")
@click.option("--batch", type=click.IntRange(min=1), help="Sequences a step, over all devices.")
@click.option("--seq-len", type=click.IntRange(min=1), help="Tokens a sequence.")
@click.option("--tokens", type=float, default=0.0, help="To train on in all: gives days and dollars.")
@click.option(
    "--fix", multiple=True, metavar="AXIS=N", help="Only layouts with this, as tp=8 or dtype=float8; may be repeated."
)
@click.option("--for", "framework", default="trainyard", show_default=True, metavar="NAME",
              help="Who runs it: trainyard, megatron, torchtitan, deepspeed.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write what launches the best one.")
@click.option("--check", is_flag=True,
              help="A job file as it is, first; its memory, or the best one's, counted by a run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
def command(
    model: str, machine: str, devices: int | None, batch: int | None, seq_len: int | None, tokens: float,
    fix: tuple[str, ...], framework: str, out: Path | None, check: bool, as_json: bool,
) -> None:  # fmt: skip
    """How to split MODEL over many devices: the fastest layouts that fit, with time, memory, days and dollars.

    MODEL is a name (llama3-70b), a Hugging Face config.json, a model's TOML file, or a job file, whose own batch is
    planned for; or RUN.args, the arguments of somebody's pretrain_gpt.py. Every layout that divides devices, heads,
    layers and batch is tried.
    """
    from dataclasses import replace

    from trainyard import words
    from trainyard.cli.output import console, print_json, say
    from trainyard.errors import BadInput, UnknownName, nearest
    from trainyard.predict.frameworks import FRAMEWORKS
    from trainyard.predict.search import USABLE, search
    from trainyard.predict.search import check as choice_of
    from trainyard.predict.space import Wanted
    from trainyard.report import plans
    from trainyard.report.atomic import replacing
    from trainyard.report.terminal import print_table
    from trainyard.units import show_size

    if framework not in FRAMEWORKS:
        raise UnknownName(f"there is no framework {framework!r}.", nearest(framework, FRAMEWORKS))
    theirs = Path(model).suffix == ".args"
    job = _theirs(Path(model), devices) if theirs else _job(model)
    framework = "megatron" if theirs and framework == "trainyard" else framework
    fixed = dict(_fixed(one) for one in fix)
    dtype = str(fixed.pop("dtype", job.recipe.dtype if job else "bfloat16"))
    words.check(dtype, words.DTYPES, "dtype")
    dims = job.decoder if job else _model(model)
    where = _machine(machine or (job.machine if job else ""))
    count = devices or (job.layout.ranks if job else where.devices)
    samples, length = batch or (job.batch if job else 0), seq_len or (job.recipe.seq_len if job else 0)
    if not samples or not length:
        raise BadInput("how much a step trains on is not known.", "Give --batch (sequences a step) and --seq-len.")
    if not 0 <= tokens < float("inf"):
        raise BadInput(f"--tokens {tokens} is no number of tokens.")
    if check and not theirs and framework != "trainyard":
        raise BadInput(f"--check runs our own training code, and {framework} has its own.", "Leave out --for.")
    own = choice_of(job, where, FRAMEWORKS[framework], tokens) if check and job else None
    wanted = Wanted(
        dims, count, where.per_node, samples, length, dtype, {axis: int(value) for axis, value in fixed.items()}
    )
    refuses = _ours if framework == "trainyard" else lambda _: None
    found = search(wanted, where, FRAMEWORKS[framework], budget=tokens, refuses=refuses)
    fastest = found.choices[0].plan.job
    if own is not None:
        found = replace(found, choices=(own, *found.choices))
    best = found.choices[0]
    if best.reserved > USABLE * where.device.memory.value:
        say(f"It does not fit: {show_size(best.reserved)} of {show_size(where.device.memory.value)}.")
    if out is not None:
        with replacing(out) as part:
            part.write_text(FRAMEWORKS[framework].tells(fastest), "utf-8")
        say(f"Written to {out}: {FRAMEWORKS[framework].means}, {fastest.layout}.")
    counted = _counted(best.plan.job) if check and not theirs else {}
    if as_json:
        print_json(plans.as_plain(found, where, count) | ({"exact_bytes": counted} if check else {}))
        return
    screen = console()
    screen.print(f"{dims.name} on {count:,} x {where.device.name}: {samples:,} sequences of {length:,} tokens a step",
                 markup=False)  # fmt: skip
    for table in (
        plans.layouts(found, tokens, as_it_is=own is not None), plans.ledger(best.plan),
        plans.memory(best.plan, best.reserved, where.device.memory.value, counted),
    ):  # fmt: skip
        screen.print()
        print_table(table, screen)


def _job(name: str) -> Job | None:
    """The job file of this name, where it is one."""
    from trainyard import job as jobs

    path = Path(name)
    if path.suffix != ".toml" or not path.is_file() or "[recipe]" not in jobs.read(path):
        return None
    return jobs.load(path)


def _model(name: str) -> Model:
    """Raises `UnknownName`, or `BadFile` for one that is no decoder's."""
    import msgspec

    from trainyard import models
    from trainyard.errors import BadFile
    from trainyard.job import Model

    taken = models.take(name, "model", planned=True)
    try:
        return msgspec.convert({"name": Path(name).stem, **taken.keys}, Model)
    except msgspec.ValidationError as error:
        raise BadFile(f"{taken.where}: {error}.") from error


def _machine(name: str) -> Machine:
    from trainyard import machine
    from trainyard.errors import BadInput

    if not name:
        raise BadInput("which machine is not known.", f"Give --machine: {', '.join(machine.known())}, or a TOML file.")
    return machine.load(name)


def _theirs(path: Path, devices: int | None) -> Job:
    from trainyard.cli.output import say
    from trainyard.errors import BadFile, BadInput
    from trainyard.predict import megatron_args

    if not devices:
        raise BadInput("how many devices there are does not stand in arguments.", "Give --devices.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or error}.") from error
    read = megatron_args.read(data, str(path), devices)
    if read.passed:
        say(f"Passed over, as if they cost nothing: {', '.join(f'--{name}' for name in read.passed)[:500]}.")
    return read.job


def _counted(job: Job) -> dict[int, int]:
    """Rank -> bytes at the fullest, of the ranks worth asking; none without torch, and it says so."""
    from trainyard.cli.output import say
    from trainyard.errors import MissingLibrary
    from trainyard.train import exact

    try:
        return {rank: exact.held(job, rank).peak for rank in exact.ends(job)}
    except MissingLibrary as missing:
        say(str(missing))
        return {}


def _fixed(one: str) -> tuple[str, int | str]:
    """Axis and value of `tp=8`, `remat=full` or `dtype=float8`."""
    from trainyard.errors import BadInput, UnknownName, nearest
    from trainyard.predict.cases import REMATS
    from trainyard.predict.space import AXES

    axis, _, value = one.partition("=")
    if axis == "dtype":
        return axis, value
    if axis not in AXES:
        raise UnknownName(f"--fix {one}: there is no axis {axis!r}.", nearest(axis, AXES))
    if axis == "remat" and value in REMATS:
        return axis, REMATS.index(value)
    if value.isdecimal() and len(value) < 10:
        return axis, int(value)
    raise BadInput(f"--fix {one}: {value!r} is no number.")


def _ours(job: Job) -> None:
    """Raises `BadJob` for what our own runner refuses."""
    from trainyard.workloads import transformer_ops

    transformer_ops.check(job)
