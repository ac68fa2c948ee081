"""Reads the model that `plan` plans for, and the configuration that it checks. A configuration is the input file of a
training framework: a job file, torchtitan's TOML, Megatron's arguments or DeepSpeed's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from trainyard import job_file
from trainyard.api.input_kinds import explain_kind
from trainyard.errors import BadFile, BadInput, described
from trainyard.formats.regular_files import is_regular, open_regular
from trainyard.job import Job
from trainyard.model import Model
from trainyard.models import presets
from trainyard.models.foreign_files import foreign_kind
from trainyard.predict.configs import detect_format
from trainyard.predict.configs.config_keys import LARGEST, CommandArguments
from trainyard.predict.configs.detect_format import ConfigFormat
from trainyard.predict.inputs import cases, vision_models
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.printable import printable
from trainyard.recipe import Recipe

_MODELS = "a model's name, its config.json or TOML file"


class Context(NamedTuple):
    """The longest sequence of a model, and the source that states it."""

    tokens: int
    source: str


class PlanRequest(NamedTuple):
    """A model to plan for, with the configuration that it comes from.

    `job`: the job of the configuration, with its own layout; None if only a model was given. `framework`: the framework
    that the configuration is written for; `file`: its path. `keeps`: bytes of a weight, of its gradient and of its
    optimizer state, if they differ from the framework's defaults. `passed`: keys without an effect on the prediction;
    `unknown`: keys without a known meaning, which are left out; `otherwise`: settings that are predicted differently;
    `notes`: sentences on settings that are predicted as they are. `columns`: columns of `Cases` (name -> value) that
    settings of the configuration outside of its job add. `context`: of the model, if known.
    """

    model: Model | VisionModel
    job: Job | None = None
    framework: str = "trainyard"
    keeps: tuple[int, int, int] | None = None
    file: str = ""
    passed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()
    columns: Mapping[str, float] = {}
    notes: tuple[str, ...] = ()
    context: Context | None = None


def read_request(
    model: str | None, check: str | None, ranks: int | None, seq_len: int | None, *, names_machine: bool = False
) -> PlanRequest:
    """Reads a model, or the configuration of the file `check`, which trains `model` if both are given.

    `ranks`, `seq_len`: the arguments of the command; `names_machine`: whether it has one for the machine. Raises
    `BadInput` for a file that cannot be planned for."""
    arguments = CommandArguments(devices=ranks, seq_len=seq_len, names_machine=names_machine)
    with with_next_step(f"{_MODELS}, or a configuration" if check is None else "a training configuration"):
        request = _with_printable_names(_read_model_and_file(model, check, arguments))
    _check_length(request.model, seq_len)
    return request


def _with_printable_names(request: PlanRequest) -> PlanRequest:
    """The request with names that are one line of visible characters: headings and sentences contain them."""
    model, job = request.model, request.job
    name = printable(model.name)
    model = replace(model, name=name) if isinstance(model, Model) else model._replace(name=name)
    if job:
        job = replace(job, name=printable(job.name), model=model if isinstance(model, Model) else job.model)
    return request._replace(model=model, job=job)


@contextmanager
def with_next_step(other: str) -> Iterator[None]:
    """Adds a next step to an error of the block that has none: to correct the file, or to pass `other`."""
    try:
        yield
    except BadInput as error:
        if error.next_step:
            raise
        raise type(error)(error.message, f"Correct the file, or pass another: {other}.") from error


def _check_length(model: Model | VisionModel, seq_len: int | None) -> None:
    """Raises `BadInput` for a sequence length given with a model of images, whose positions are fixed."""
    if seq_len and not isinstance(model, Model):
        raise BadInput(
            f"--seq-len {seq_len}, but {model.name} has {model.positions:,} positions a sample, which follow from its "
            "sizes.",
            "Leave out --seq-len.",
        )


def _read_model_and_file(model: str | None, check: str | None, arguments: CommandArguments) -> PlanRequest:
    """The model, or the configuration `check`, which may take its model from `model`, as a request. `arguments`: values
    of the command line that a file leaves open. Raises `BadInput` without a model or a configuration."""
    if check is None:
        if not model:
            raise BadInput(
                "No model given.",
                "Pass a model name (trainyard plan list), a config.json or a job file.",
            )
        return _read(model, arguments)
    if not model:
        return _read(check, arguments, config_only=True)
    with with_next_step(_MODELS):
        model_request = _read(model, arguments)
    if not isinstance(model_request.model, Model):
        raise BadInput(
            f"{check} with --model {model}: only configurations of decoders take their model from --model.",
            "Leave out --model.",
        )
    known_seq_len = arguments.seq_len or (model_request.job.recipe.seq_len if model_request.job else None)
    known_ranks = arguments.devices or (model_request.job.layout.ranks if model_request.job else None)
    arguments = arguments._replace(devices=known_ranks, seq_len=known_seq_len, model=model_request.model)
    return _read(check, arguments, config_only=True)._replace(context=model_request.context)


def _read(name: str, arguments: CommandArguments, config_only: bool = False) -> PlanRequest:
    """The request of one name: a preset, a model file, or a configuration, which it must be if `config_only`.
    `arguments`: values of the command line that a file leaves open."""
    with explain_kind(name, "model", "configuration"):
        return _read_any(name, arguments, config_only)


def _read_any(name: str, arguments: CommandArguments, config_only: bool) -> PlanRequest:
    """As `_read`, with the errors of the readers."""
    data = _bytes(Path(name), required=config_only)
    file_format: ConfigFormat | None = detect_format.detect(data) if data is not None else None
    if file_format == "trainyard":
        job = job_file.load(name)
        notes = _replaced_model_notes(name, arguments.model) if job.model else ()
        if arguments.model:
            job = _with_model(job, arguments.model, name)
        return PlanRequest(model=cases.subject(job), job=job, file=name, notes=notes)
    if data is None and config_only:
        raise BadInput(
            f"{name} is a model, not a training configuration.",
            f"Search its layouts: trainyard plan {name}; or pass a configuration, with --model {name}.",
        )
    if file_format is None and data and (kind := foreign_kind(name, data)):
        expected = "" if config_only else "a model's config.json or TOML file, or "
        raise BadFile(
            f"{name} is {kind}, not a {'' if config_only else 'model or a '}training configuration.",
            f"Pass {expected}a job file, torchtitan's TOML, DeepSpeed's JSON or Megatron's arguments.",
        )
    if data is None or (file_format is None and not config_only):
        return _model_request(name)
    if not data.strip():
        raise BadFile(f"{name} is empty.", "Pass the file of a training configuration.")
    if file_format is None and b'"architectures"' in data:
        raise BadFile(
            f"{name} is the config.json of a model, not a training configuration.",
            f"Search its layouts: trainyard plan {name}; or pass a configuration, with --model {name}.",
        )
    read = detect_format.read(data, name, arguments)
    notes = () if read.framework == "deepspeed" else _replaced_model_notes(name, arguments.model)
    return PlanRequest(
        model=read.job.decoder, job=read.job, framework=read.framework, keeps=read.keeps, file=name,
        unknown=read.unknown, otherwise=read.approximated, columns=read.columns,
        notes=(*notes, *read.notes),
    )  # fmt: skip


def _replaced_model_notes(file: str, model: Model | None) -> tuple[str, ...]:
    """A sentence on the `model` of the command line that replaces the own one of `file`; none without such a model."""
    return (f"{file} is checked with {model.name} (--model) in place of its own model.",) if model else ()


def _with_model(job: Job, model: Model, file: str) -> Job:
    """The job of `file` with `model` in place of its own. Raises `BadInput` if it does not train a decoder."""
    if job.workload in vision_models.WORKLOADS or job.sizes:
        raise BadInput(
            f"{file} trains {job.workload!r}, but --model {model.name} is a decoder.",
            "Leave out --model, or pass a configuration that trains a decoder.",
        )
    return replace(job, model=model)


def _bytes(path: Path, required: bool) -> bytes | None:
    """The first bytes of a file, one more than a configuration may have; None if there is no such file. `required`:
    raise `BadFile` instead."""
    if str(path) in presets.known() or not (required or is_regular(path)):
        return None
    try:
        with open_regular(path) as file:
            return file.read(LARGEST + 1)
    except BadFile as error:
        error.next_step = "Pass the file of a training configuration." if required else ""
        raise


def _model_name(name_or_path: str) -> str:
    """The name of a model: that of the command line, or of its file without the suffix."""
    path = Path(name_or_path)
    return path.stem if path.suffix.lower() in (".toml", ".json") else path.name


def _model_request(name: str) -> PlanRequest:
    """The request of a preset or a model file, with the parts predicted differently. Raises `UnknownName`, or `BadFile`
    or `BadJob` for a model that is not planned for."""
    preset = None if presets.is_config(name) else presets.load(name)
    if preset is not None and preset.sizes is not None:
        recipe = Recipe(tokens_per_step=1)
        job = Job(name=_model_name(name), workload=preset.workload, sizes=preset.sizes, recipe=recipe)
        return PlanRequest(vision_models.of_job(job))
    preset_keys = presets.take(name, "model", planned=True)
    try:
        model = msgspec.convert({"name": _model_name(name), **preset_keys.keys}, Model)
    except msgspec.ValidationError as error:
        message, next_step = described(error)
        raise BadFile(f"{preset_keys.where}: {message}.", next_step) from error
    lacks = tuple(f"{model.name} is planned without {part}" for part in preset.lacks) if preset else ()
    context = Context(*preset_keys.context) if preset_keys.context else None
    return PlanRequest(
        model, passed=preset_keys.ignored, unknown=preset_keys.unknown, otherwise=preset_keys.approximated + lacks,
        context=context,
    )  # fmt: skip
