"""Models as data: the sizes that a job takes by `from = "llama3-8b"` or from a file.

A file holds a `[model]` (a decoder's dimensions) or `[sizes]` (another workload's), and says where they come from.
The job that takes them may override any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from trainyard.errors import BadFile, BadJob, FileTooLarge, UnknownName, described, nearest
from trainyard.formats import toml
from trainyard.formats.regular_files import unreadable
from trainyard.machine import Claim
from trainyard.models import hugging_face_architectures

LARGEST = 1 << 20
"""Bytes a file may have: the largest real one has a few thousand."""


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of data/models, or of one's own.

    `parameters` and `active` (those that each token uses) are what is published. `lacks`: what the published model has
    and this one does not. `workload`: the one that `sizes` are for, where there is but one.
    """

    source: str = ""
    parameters: Claim | None = None
    active: Claim | None = None
    lacks: tuple[str, ...] = ()
    workload: str = ""
    model: dict[str, Any] | None = None
    sizes: dict[str, Any] | None = None


class Taken(NamedTuple):
    """Keys that a section takes, and the file they stand in."""

    keys: dict[str, Any]
    where: str
    workload: str = ""


def known() -> dict[str, Path]:
    """The model files in the package: name -> path."""
    folder = Path(str(resources.files("trainyard") / "data" / "models"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(name_or_path: str, folder: Path = Path()) -> Preset:
    """By name, or from a TOML file, which `folder` is where to look for. Raises `UnknownName` or `BadFile`."""
    path = _find(name_or_path, folder)
    return _preset(path, _read(path))


def is_config(name_or_path: str) -> bool:
    """Whether the name is that of a Hugging Face config.json. Raises `UnknownName` or `BadFile`."""
    path = _find(name_or_path, Path())
    return _is_config(path, _read(path))


def _is_config(path: Path, data: bytes) -> bool:
    """By the ending of its name; where that has none, as a pipe's, by the contents: no TOML begins with a brace."""
    return path.suffix == ".json" or (not path.suffix and data.lstrip().startswith(b"{"))


def take(
    name_or_path: str,
    section: Literal["model", "sizes"],
    without: Sequence[str] = (),
    folder: Path = Path(),
    planned: bool = False,
) -> Taken:
    """What a job's section takes from a name, a TOML file or a Hugging Face config.json.

    `without`: keys of a config.json to leave out where nothing here does what they say. `planned`: so are those that
    cost nothing, or are not known. Raises as `load` does.
    """
    path = _find(name_or_path, folder)
    data = _read(path)
    if section == "model" and _is_config(path, data):
        return Taken(hugging_face_architectures.model(data, str(path), without, planned), str(path))
    if without:
        raise BadFile(f"{path}: without = {list(without)}, but only a config.json has keys to leave out.")
    preset = _preset(path, data)
    keys = getattr(preset, section)
    if keys is None:
        other = "sizes" if section == "model" else "model"
        raise BadFile(f"{path}: it has no [{section}].", f"Take it in [{other}]." if getattr(preset, other) else "")
    return Taken(keys, str(path), preset.workload)


def fill(document: dict[str, Any], where: str, folder: Path = Path()) -> dict[str, Taken]:
    """Puts what `[model]` and `[sizes]` of a job's document take by `from` into them, under the keys of their own; says
    which took what. `where` names the document. Raises `BadJob`, or `BadFile` for what is wrong in the file taken."""
    found: dict[str, Taken] = {}
    for section in ("model", "sizes"):
        own = document.get(section)
        if not isinstance(own, dict) or "from" not in own:
            continue
        name, without = own.pop("from"), own.pop("without", [])
        if not isinstance(name, str):
            raise BadJob(f"{where} at $.{section}.from: {name!r:.60} is no name and no path.")
        if not isinstance(without, list) or not all(isinstance(key, str) for key in without):
            raise BadJob(f"{where} at $.{section}.without: {without!r:.60} is no list of keys.")
        try:
            taken = take(name, section, without, folder)
        except UnknownName as error:
            raise BadJob(f"{where} at $.{section}.from: {error.says}", error.next_step) from error
        if taken.workload and document.setdefault("workload", taken.workload) != taken.workload:
            said = f"{document['workload']!r:.60}, but {name!r} holds sizes for {taken.workload!r}"
            raise BadJob(
                f"{where} at $.workload: {said}.",
                f"Use workload = {taken.workload!r}.",
            )
        document[section] = {**taken.keys, **own}
        found[section] = taken
    return found


def _find(name_or_path: str, folder: Path) -> Path:
    path = known().get(name_or_path) or folder / name_or_path
    try:
        if path.is_file():
            return path
    except (OSError, ValueError):  # a name too long, or with a zero in it
        pass
    raise UnknownName(f"there is no model {name_or_path[:100]!r}, nor such a file.", nearest(name_or_path, known()))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > LARGEST:
        raise FileTooLarge(f"{path}: more than {LARGEST:,} bytes are no model's sizes.")
    return data


def _preset(path: Path, data: bytes) -> Preset:
    try:
        return msgspec.convert(toml.loads(data.decode("utf-8")), Preset)
    except (toml.DecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        says, next_step = described(error)
        raise BadFile(f"{path}: {says}.", next_step) from error
