"""Reading and writing job files (TOML). A misspelt key is rejected with its path and the most similar valid key.

msgspec checks the types of a document; its errors name the path (`$.recipe.dtype`), and are rewritten here with the
accepted values.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from trainyard import renamed_keys
from trainyard.errors import BadFile, BadInput, BadJob, MissingFile, near, nearest
from trainyard.formats import toml
from trainyard.job import Job
from trainyard.model import Model
from trainyard.models import presets
from trainyard.redact import secret_paths
from trainyard.struct_types import fields_at, type_at

Kind = TypeVar("Kind", bound=msgspec.Struct)
_MESSAGE_AND_PATH = re.compile(r"(?P<message>.*?)(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_NO_CHOICE = re.compile(r"Invalid enum value (.*)\Z", re.DOTALL)
_UNKNOWN_KEY = re.compile(r"unknown field `(?P<key>[^`]*)`")


def _split_path(error: str) -> tuple[str, str]:
    """Split msgspec's "message - at `$.path`" into (message, path)."""
    match = _MESSAGE_AND_PATH.match(error)
    return (match["message"], match["path"] or "") if match else (error, "")


def choices(kind: Any) -> list[bool | int | str]:
    """The values that a field of this type accepts; empty if they cannot be enumerated."""
    if kind is bool:
        return [True, False]
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return list(arguments)
    choices_of_options = [choices(option) for option in arguments]  # of a union
    return [value for option in choices_of_options for value in option] if all(choices_of_options) else []


def refusal(message: str, kind: Any) -> tuple[str, str]:
    """(message, next step) for msgspec's message about a field of the type `kind`: with the accepted values added, if
    they can be enumerated."""
    known = choices(kind)
    if not known:
        return message, ""
    wrong = _NO_CHOICE.match(message)
    listed = ", ".join(repr(value) if isinstance(value, str) else json.dumps(value) for value in known)
    if wrong is None:
        return f"{message}: one of {listed}", ""
    return f"{wrong[1]} is not one of {listed}", near(wrong[1].strip("'"), (v for v in known if isinstance(v, str)))


def parse(text: str, where: str, folder: Path = Path()) -> Job:
    """Parse a job from TOML and resolve `from` in its `[model]` and `[sizes]`, with file names relative to `folder`.

    Raises `BadJob` with `where`, the path in the document and the next step, or `BadFile` for a file it refers to.
    """
    try:
        document = toml.loads(text)
    except toml.DecodeError as error:
        raise BadJob(f"{where}: not TOML: {error}.") from error
    taken = presets.fill(document, where, folder)  # changes `document`; the presets by section
    if "model" in taken:  # checked alone first, so that an error in a preset names the preset's file
        _converted(taken["model"].keys, Model, taken["model"].where, root=".model")
    return _converted(document, Job, where)


def _converted(document: Any, kind: type[Kind], where: str, root: str = "") -> Kind:
    """Converts a decoded document to the struct `kind`. `where`: the name of the file in messages; `root`: the path of
    the document in a job, such as `.model`. Raises `BadJob` with the path of the invalid value and the next step: a
    constructor's own error, an unknown or renamed key, a renamed value, or another invalid value."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        message, path = _split_path(str(error))
        hint = ""
        cause = error.__cause__
        if isinstance(cause, BadInput):  # raised by one of our constructors
            message, hint = cause.message, cause.next_step
        elif unknown := _UNKNOWN_KEY.search(message):
            message = f"unknown key {unknown[1]!r}"
            hint = nearest(unknown[1], fields_at(Job, root + path))
            if new := renamed_keys.new_key((root + path).lstrip("."), unknown[1]):
                message, hint = f"{unknown[1]!r} was renamed to {new!r}", f"Use {new}."
        elif new := _new_value(message, (root + path).lstrip(".")):
            message, hint = f"{message} was renamed to {new!r}", f"Use {new!r}."
        else:
            message, hint = refusal(message, type_at(Job, root + path))
        raise BadJob(f"{where} at ${root}{path}: {message.rstrip('.')}.", hint) from error


def _new_value(message: str, path: str) -> str:
    """The new name of the value that msgspec's message refuses; empty if it is not an old one."""
    wrong = _NO_CHOICE.match(message)
    return renamed_keys.new_value(path, wrong[1].strip("'")) if wrong else ""


def load(path: str | Path) -> Job:
    """Read a job file. Raises `BadFile` if it cannot be read and `BadJob` if it is not a valid job."""
    return parse(read(path), str(path), Path(path).parent)


def read(path: str | Path) -> str:
    """A job file's text. Raises `BadFile`."""
    try:
        return Path(path).read_text("utf-8")
    except FileNotFoundError as error:
        raise MissingFile(f"{path}: there is no such file.", "Name a job file; see examples/ for some.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read as text: {error}.") from error


def complete(text: str, job: Job) -> str:
    """A self-contained text of the job: `text`, which `job` was parsed from, or the whole job written out if `text`
    takes sizes from another file. A stored run must not depend on other files."""
    document = toml.loads(text)
    sections = (document.get("model"), document.get("sizes"))
    return write(job) if any(isinstance(section, dict) and "from" in section for section in sections) else text


def check_secrets(text: str, where: str) -> None:
    """Raises `BadJob` if a value in the job file `text` contains a secret: it would be stored with the run."""
    if paths := list(secret_paths(toml.loads(text))):
        raise BadJob(
            f"{where} at {', '.join(paths)}: the value contains a secret, and a job file is stored with its run.",
            "Pass secrets in environment variables.",
        )


def write(job: Job) -> str:
    """The job as TOML that `parse` reads back as the same job."""
    return toml.dumps(msgspec.to_builtins(job))
