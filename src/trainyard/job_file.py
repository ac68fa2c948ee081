"""Jobs as TOML files: a misspelt key is refused with its path and the nearest right one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from trainyard.errors import BadFile, BadInput, BadJob, MissingFile, near, nearest
from trainyard.formats import toml
from trainyard.job import Job, Model
from trainyard.models import presets
from trainyard.redact import secret_paths

Kind = TypeVar("Kind", bound=msgspec.Struct)
_PLACED = re.compile(r"(?P<says>.*?)(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_NO_CHOICE = re.compile(r"Invalid enum value (.*)\Z", re.DOTALL)
_UNKNOWN_KEY = re.compile(r"unknown field `(?P<key>[^`]*)`")


def _placed(error: str) -> tuple[str, str]:
    """msgspec's "says - at `$.path`" as (says, path)."""
    match = _PLACED.match(error)
    return (match["says"], match["path"] or "") if match else (error, "")


def _type_at(path: str) -> Any:
    """What may stand in a job document at `.layout`, `.recipe.remat` or the like."""
    kind: Any = Job
    for part in filter(None, path.split(".")):
        structs = [one for one in (kind, *get_args(kind)) if hasattr(one, "__struct_fields__")]
        kind = get_type_hints(structs[0]).get(part) if structs else None
    return kind


def _fields_at(path: str) -> tuple[str, ...]:
    """The fields of the struct there."""
    kind = _type_at(path)
    return next((one.__struct_fields__ for one in (kind, *get_args(kind)) if hasattr(one, "__struct_fields__")), ())


def choices(kind: Any) -> list[bool | int | str]:
    """The values that a field of this type may have; none where they cannot be listed."""
    if kind is bool:
        return [True, False]
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return list(parts)
    each = [choices(part) for part in parts]
    return [value for part in each for value in part] if all(each) else []


def refusal(says: str, kind: Any) -> tuple[str, str]:
    """msgspec's word on a value of a field of this type, with the values there are; and the next step."""
    known = choices(kind)
    if not known:
        return says, ""
    wrong = _NO_CHOICE.match(says)
    listed = ", ".join(repr(value) if isinstance(value, str) else json.dumps(value) for value in known)
    if wrong is None:
        return f"{says}: one of {listed}", ""
    return f"{wrong[1]} is not one of {listed}", near(wrong[1].strip("'"), (v for v in known if isinstance(v, str)))


def parse(text: str, where: str, folder: Path = Path()) -> Job:
    """A job from TOML, complete: what its `[model]` or `[sizes]` take by `from` is in it. Files that it names lie under
    `folder`. Raises `BadJob` naming `where`, the path in the document and the next step, and `BadFile` for such a file.
    """
    try:
        document = toml.loads(text)
    except toml.DecodeError as error:
        raise BadJob(f"{where}: not TOML: {error}.") from error
    taken = presets.fill(document, where, folder)
    if "model" in taken:
        _converted(taken["model"].keys, Model, taken["model"].where, ".model")
    return _converted(document, Job, where)


def _converted(document: Any, kind: type[Kind], where: str, root: str = "") -> Kind:
    """`root`: where in a document of a job its fields stand."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        says, path = _placed(str(error))
        hint = ""
        cause = error.__cause__
        if isinstance(cause, BadInput):  # one of ours, in its own words
            says, hint = cause.says, cause.next_step
        elif unknown := _UNKNOWN_KEY.search(says):
            says = f"unknown key {unknown[1]!r}"
            hint = nearest(unknown[1], _fields_at(root + path))
        else:
            says, hint = refusal(says, _type_at(root + path))
        raise BadJob(f"{where} at ${root}{path}: {says.rstrip('.')}.", hint) from error


def load(path: str | Path) -> Job:
    """A job file. Raises `BadFile` when it cannot be read and `BadJob` when it makes no sense."""
    return parse(read(path), str(path), Path(path).parent)


def read(path: str | Path) -> str:
    """A job file's text. Raises `BadFile`."""
    try:
        return Path(path).read_text("utf-8")
    except FileNotFoundError as error:
        raise MissingFile(f"{path}: there is no such file.", "Name a job file; examples/ holds some.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read as text: {error}.") from error


def complete(text: str, job: Job) -> str:
    """`text`, of which `job` was made, or where it takes sizes from elsewhere a text of all of the job instead: what is
    kept of a run needs no other file."""
    document = toml.loads(text)
    sections = (document.get("model"), document.get("sizes"))
    return write(job) if any(isinstance(section, dict) and "from" in section for section in sections) else text


def check_secrets(text: str, where: str) -> None:
    """Raises `BadJob` if a value of the job file `text` holds a secret: it would be stored with the run."""
    if paths := list(secret_paths(toml.loads(text))):
        raise BadJob(
            f"{where} at {', '.join(paths)}: the value holds a secret, and a job file is stored with its run.",
            "Pass secrets by the environment.",
        )


def write(job: Job) -> str:
    """As TOML that `parse` makes the same job of."""
    return toml.dumps(msgspec.to_builtins(job))
