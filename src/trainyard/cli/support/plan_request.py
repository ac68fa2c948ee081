"""What `trainyard plan` is asked about: MODEL, and the configuration that is taken as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainyard.job import Job, Model
    from trainyard.predict.configs.config_keys import CommandArguments
    from trainyard.predict.configs.detect_format import Kind
    from trainyard.predict.inputs.vision_models import VisionModel


class PlanRequest(NamedTuple):
    """`job`: the configuration's, with its own layout, where MODEL or --check is one. `framework`: whose it is.
    `where`: the file. The others as in `Read`."""

    model: Model | VisionModel
    job: Job | None = None
    framework: str = "trainyard"
    keeps: tuple[int, int, int] | None = None
    where: str = ""
    passed: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()


def asked(model: str | None, checked: str | None, ranks: int | None, seq_len: int | None) -> PlanRequest:
    """`checked`: the file of --check, empty where that is MODEL itself. What a configuration trains is MODEL, where
    both are named. `ranks`, `seq_len`: as the command says. Raises `BadInput` for what cannot be used."""
    with advised("a model's name, its config.json or TOML file, or a configuration"):
        found = _asked(model, checked, ranks, seq_len)
    _check_length(found.model, seq_len)
    return found


@contextmanager
def advised(what: str) -> Iterator[None]:
    """Gives an error inside the block a next step where it has none: to correct the file, or to pass `what`."""
    from trainyard.errors import BadInput

    try:
        yield
    except BadInput as error:
        if error.next_step:
            raise
        raise type(error)(error.says, f"Correct the file, or pass another: {what}.") from error


def _check_length(model: Model | VisionModel, seq_len: int | None) -> None:
    from trainyard.errors import BadInput
    from trainyard.job import Model

    if seq_len and not isinstance(model, Model):
        raise BadInput(
            f"--seq-len {seq_len}, but {model.name} has {model.positions:,} positions a sample, which follow from its "
            "sizes.",
            "Leave out --seq-len.",
        )


def _asked(model: str | None, checked: str | None, ranks: int | None, seq_len: int | None) -> PlanRequest:
    from trainyard.errors import BadInput
    from trainyard.job import Model
    from trainyard.predict.configs.config_keys import CommandArguments

    name, file = (model, checked) if model else (checked, None)
    if not name:
        raise BadInput(
            "No model given.", "Pass a model name, a config.json or a job file, or a configuration: --check FILE."
        )
    first = _read(name, CommandArguments(ranks, seq_len))
    if not file:
        return first
    if not isinstance(first.model, Model):
        raise BadInput(f"--check {file} with {name}, but a configuration that names no model is a decoder's.")
    length = seq_len or (first.job.recipe.seq_len if first.job else None)
    count = ranks or (first.job.layout.ranks if first.job else None)
    return _read(file, CommandArguments(count, length, first.model), only=True)


def _read(name: str, beside: CommandArguments, only: bool = False) -> PlanRequest:
    """`only`: it must be a configuration."""
    from msgspec.structs import replace

    from trainyard import job_file
    from trainyard.predict.configs import detect_format
    from trainyard.predict.inputs import cases

    data = _bytes(Path(name), must=only)
    whose: Kind | None = detect_format.kind(data) if data is not None else None
    if whose == "trainyard":
        job = job_file.load(name)
        job = replace(job, model=beside.model) if beside.model else job
        return PlanRequest(cases.subject(job), job, where=name)
    if data is None or (whose is None and not only):
        return PlanRequest(_model(name))
    read = detect_format.read(data, name, beside)
    return PlanRequest(read.job.decoder, read.job, read.framework, read.keeps, name, read.ignored, read.approximated)


def _bytes(path: Path, must: bool) -> bytes | None:
    """None where it is no file. A little more than a configuration may have is read of a larger one."""
    from trainyard.formats.regular_files import unreadable
    from trainyard.models import presets
    from trainyard.predict.configs.config_keys import LARGEST

    try:
        if str(path) in presets.known() or (not must and not path.is_file()):
            return None
        with path.open("rb") as file:
            return file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        if not must:
            return None
        raise unreadable(path, error, "--check takes a file.") from error


def _model(name: str) -> Model | VisionModel:
    """Raises `UnknownName`, or `BadFile` or `BadJob` for one that is not planned for."""
    import msgspec

    from trainyard.errors import BadFile, described
    from trainyard.job import Job, Model, Recipe
    from trainyard.models import presets
    from trainyard.predict.inputs import vision_models

    preset = None if presets.is_config(name) else presets.load(name)
    if preset is not None and preset.sizes is not None:
        recipe = Recipe(tokens_per_step=1)
        return vision_models.of_job(
            Job(name=Path(name).stem, workload=preset.workload, sizes=preset.sizes, recipe=recipe)
        )
    taken = presets.take(name, "model", planned=True)
    try:
        return msgspec.convert({"name": Path(name).stem, **taken.keys}, Model)
    except msgspec.ValidationError as error:
        says, next_step = described(error)
        raise BadFile(f"{taken.where}: {says}.", next_step) from error
