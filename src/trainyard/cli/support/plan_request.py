"""The input of `trainyard plan`: MODEL, and the configuration of --check."""

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
    """The model to plan for and, if MODEL or --check is a configuration, its `job` with its own layout, its `framework`
    and its file, `where`. The other fields as in `Read`."""

    model: Model | VisionModel
    job: Job | None = None
    framework: str = "trainyard"
    keeps: tuple[int, int, int] | None = None
    where: str = ""
    passed: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()


def read_request(model: str | None, checked: str | None, ranks: int | None, seq_len: int | None) -> PlanRequest:
    """Read MODEL and the configuration. If both are given, the configuration trains MODEL.

    `checked`: the file of --check, empty if MODEL itself is to be checked. `ranks`, `seq_len`: the options of the
    command. Raises `BadInput` if one cannot be used."""
    with with_next_step("a model's name, its config.json or TOML file, or a configuration"):
        request = _read_request(model, checked, ranks, seq_len)
    _check_length(request.model, seq_len)
    return request


@contextmanager
def with_next_step(accepted: str) -> Iterator[None]:
    """Add a next step to errors inside the block that have none: correct the file, or pass one of those `accepted`."""
    from trainyard.errors import BadInput

    try:
        yield
    except BadInput as error:
        if error.next_step:
            raise
        raise type(error)(error.says, f"Correct the file, or pass another: {accepted}.") from error


def _check_length(model: Model | VisionModel, seq_len: int | None) -> None:
    from trainyard.errors import BadInput
    from trainyard.job import Model

    if seq_len and not isinstance(model, Model):
        raise BadInput(
            f"--seq-len {seq_len}, but {model.name} has {model.positions:,} positions per sample, as its sizes imply.",
            "Omit --seq-len.",
        )


def _read_request(model: str | None, checked: str | None, ranks: int | None, seq_len: int | None) -> PlanRequest:
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
        raise BadInput(f"--check {file} with {name}: a configuration without a model can only train a decoder.")
    length = seq_len or (first.job.recipe.seq_len if first.job else None)
    count = ranks or (first.job.layout.ranks if first.job else None)
    return _read(file, CommandArguments(count, length, first.model), only=True)


def _read(name: str, arguments: CommandArguments, only: bool = False) -> PlanRequest:
    """Read a model or a configuration. `only`: it must be a configuration."""
    from msgspec.structs import replace

    from trainyard import job_file
    from trainyard.predict.configs import detect_format
    from trainyard.predict.inputs import cases

    data = _bytes(Path(name), must=only)
    whose: Kind | None = detect_format.kind(data) if data is not None else None
    if whose == "trainyard":
        job = job_file.load(name)
        job = replace(job, model=arguments.model) if arguments.model else job
        return PlanRequest(cases.subject(job), job, where=name)
    if data is None or (whose is None and not only):
        return PlanRequest(_model(name))
    read = detect_format.read(data, name, arguments)
    return PlanRequest(read.job.decoder, read.job, read.framework, read.keeps, name, read.passed, read.otherwise)


def _bytes(path: Path, must: bool) -> bytes | None:
    """Read a file; None if there is none. Of a larger file, one byte more than a configuration may have is read."""
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
    """Load a model. Raises `UnknownName`, or `BadFile` or `BadJob` if it cannot be planned for."""
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
        reason, next_step = described(error)
        raise BadFile(f"{taken.where}: {reason}.", next_step) from error
