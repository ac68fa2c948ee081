"""Model presets: the sizes that a job takes by `from = "llama3-8b"` or from a file.

A file has a `[model]` (a decoder's dimensions, or `from` a config.json) or `[sizes]` (those of another workload), and
their source.
The job may override any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from trainyard import named_sizes, renamed_keys
from trainyard.errors import BadFile, BadJob, FileTooLarge, MissingFile, UnknownName, described
from trainyard.formats import toml
from trainyard.formats.regular_files import open_regular
from trainyard.machine import Claim
from trainyard.models import hugging_face_architectures
from trainyard.models.model_aliases import ALIASES, IGNORED_WORDS, OWNERS

MAX_FILE_BYTES = 1 << 20
"""The largest real model file has a few thousand bytes."""


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model file, of data/models or the user's.

    `parameters` and `active` (parameters used per token) are the published counts, `context` the published length of
    the longest sequence in tokens. `lacks`: features of the published model that this one does not have. `workload`:
    the workload that `sizes` are for, if there is only one.
    """

    source: str = ""
    parameters: Claim | None = None
    active: Claim | None = None
    context: Claim | None = None
    lacks: tuple[str, ...] = ()
    workload: str = ""
    model: dict[str, Any] | None = None
    sizes: dict[str, Any] | None = None


class Taken(NamedTuple):
    """What a section of a job takes from a preset."""

    keys: dict[str, Any]
    """Values by key of `[model]` or `[sizes]`."""
    where: str
    """The file they come from."""
    workload: str = ""
    """The workload that they are for, if there is only one."""
    ignored: tuple[str, ...] = ()
    """Keys of a config.json that a plan ignores, since they do not affect the time of a step."""
    unknown: tuple[str, ...] = ()
    """Keys of a config.json without a known meaning, which a plan leaves out."""
    approximated: tuple[str, ...] = ()
    """Parts of a config.json's model that a plan predicts differently, as sentences."""
    context: tuple[int, str] | None = None
    """The longest sequence in tokens, and the source that states it."""


def known() -> dict[str, Path]:
    """The model files in the package: name -> path."""
    folder = Path(str(resources.files("trainyard") / "data" / "models"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(name_or_path: str, folder: Path = Path()) -> Preset:
    """Loads a preset by name, or from a TOML file relative to `folder`. Raises `UnknownName` or `BadFile`."""
    path = _find(name_or_path, folder)
    return _preset(path, _read(path))


def is_config(name_or_path: str) -> bool:
    """Whether the name is that of a Hugging Face config.json. Raises `UnknownName` or `BadFile`."""
    path = _find(name_or_path, Path())
    return _is_config(path, _read(path))


def _is_config(path: Path, data: bytes) -> bool:
    """Decides by the file extension; without one, as for a pipe, by the contents: TOML cannot begin with a brace."""
    return path.suffix == ".json" or (not path.suffix and data.lstrip().startswith(b"{"))


def take(
    name_or_path: str,
    section: Literal["model", "sizes"],
    without: Sequence[str] = (),
    folder: Path = Path(),
    planned: bool = False,
) -> Taken:
    """The keys that a job's section takes from a name, a TOML file or a Hugging Face config.json.

    `without`: unmodelled keys of a config.json to leave out. `planned`: also leave out keys that do not affect the cost
    and unknown keys. Raises as `load` does.
    """
    path = _find(name_or_path, folder)
    data = _read(path)
    if section == "model" and _is_config(path, data):
        config = hugging_face_architectures.convert(data, str(path), without, planned)
        return Taken(config.fields, str(path), ignored=config.ignored, unknown=config.unknown,
                     approximated=config.approximated, context=config.context)  # fmt: skip
    if without:
        raise BadFile(f"{path}: without = {list(without)}, but only a config.json has keys to leave out.")
    preset = _preset(path, data)
    if section == "model" and preset.model and "from" in preset.model:
        return _take_from_config(preset.model, path, planned)
    keys = getattr(preset, section)
    if keys is None:
        other_section = "sizes" if section == "model" else "model"
        raise BadFile(
            f"{path}: it has no [{section}].",
            f"Use `from` in [{other_section}]." if getattr(preset, other_section) else "",
        )
    for key in keys if section == "model" else ():  # a model file written for an earlier version
        if new_key := renamed_keys.new_key(section, key):
            raise BadJob(f"{path} at $.model: {key!r} was renamed to {new_key!r}.", f"Use {new_key}.")
    context = (int(preset.context.value), preset.context.source) if preset.context else None
    return Taken(keys=keys, where=str(path), workload=preset.workload, context=context)


def _take_from_config(keys: dict[str, Any], path: Path, planned: bool) -> Taken:
    """The keys of a model file at `path` whose `from` is a config.json, in place of the file's own dimensions; those
    that the file states too override it. Raises `BadFile` for another `from`, so that files do not refer in a circle.
    """
    document = {"model": dict(keys)}
    source = keys["from"]
    if isinstance(source, str):
        config_path = _find(source, path.parent)
        if not _is_config(config_path, _read(config_path)):
            raise BadFile(
                f"{path} at $.model.from: {source!r:.100} is not a config.json.",
                "Name a config.json, or pass that model in place of this file.",
            )
    taken = fill(document, str(path), path.parent, planned)["model"]
    return taken._replace(keys=document["model"])


def fill(document: dict[str, Any], where: str, folder: Path = Path(), planned: bool = False) -> dict[str, Taken]:
    """Resolves `from` in `[model]` and `[sizes]` of a job's document, in place; the document's own keys override.

    `where`: the name of the document; `planned`: as for `take`. Returns the presets by section. Raises `BadJob`, or
    `BadFile` for an invalid preset file.
    """
    presets: dict[str, Taken] = {}
    for section in ("model", "sizes"):
        own_keys = document.get(section)
        if not isinstance(own_keys, dict) or "from" not in own_keys:
            continue
        name, without = own_keys.pop("from"), own_keys.pop("without", [])
        if not isinstance(name, str):
            raise BadJob(f"{where} at $.{section}.from: {name!r:.60} is not a name or a path.")
        if not isinstance(without, list) or not all(isinstance(key, str) for key in without):
            raise BadJob(f"{where} at $.{section}.without: {without!r:.60} is not a list of keys.")
        try:
            preset = take(name, section, without, folder, planned)
        except (UnknownName, MissingFile) as error:
            raise BadJob(f"{where} at $.{section}.from: {error.message}", error.next_step) from error
        if preset.workload and document.setdefault("workload", preset.workload) != preset.workload:
            workload = f"{document['workload']!r:.60}"
            raise BadJob(
                f"{where} at $.workload: {workload}, but {name!r} has sizes for {preset.workload!r}.",
                f"Use workload = {preset.workload!r}.",
            )
        document[section] = {**preset.keys, **own_keys}
        presets[section] = preset
    return presets


def _find(name_or_path: str, folder: Path) -> Path:
    """The file of a model: that of a shipped name in any spelling, or of a path relative to `folder`, or the
    config.json in a folder. Raises `UnknownName` if there is none."""
    known_paths = known()
    path = known_paths.get(name_or_path) or folder / name_or_path
    try:
        for file in (path, path / "config.json"):
            if file.is_file():
                return file
        is_folder, is_link = bool(name_or_path) and path.is_dir(), path.is_symlink()
        exists = path.exists()
    except (OSError, ValueError):  # a name that is too long, or contains a null byte
        is_folder = is_link = exists = False
    short_name = name_or_path[:100]
    if name := named_sizes.resolve(short_name, known_paths, ALIASES, IGNORED_WORDS, OWNERS):
        return known_paths[name]
    if is_link and not is_folder:
        raise MissingFile(
            f"{short_name!r} is a symbolic link whose target does not exist.", "Correct the link, or pass the file."
        )
    if is_folder:
        raise MissingFile(f"{short_name!r} is a folder without a config.json.", "Pass a model's name or its file.")
    if exists and name_or_path:  # a pipe or a device, which cannot be read
        return path
    if named_sizes.is_path(short_name):
        raise UnknownName(
            f"there is no file {short_name!r}.", "Correct the path, or pass a model's name: trainyard plan list models."
        )
    raise UnknownName(f"there is no model or file {short_name!r}.", named_sizes.suggest(short_name, known_paths))


def _read(path: Path) -> bytes:
    """The bytes of a model file. Raises if it cannot be read or has more than `MAX_FILE_BYTES` bytes."""
    with open_regular(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise FileTooLarge(f"{path}: more than {MAX_FILE_BYTES:,} bytes, too large for a model file.")
    return data


def _preset(path: Path, data: bytes) -> Preset:
    """Decodes a model file in TOML. Raises `BadFile` if it is invalid."""
    try:
        return msgspec.convert(toml.loads(data.decode("utf-8")), Preset)
    except (toml.DecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} is not a TOML file: {error}.") from error
    except msgspec.ValidationError as error:
        message, next_step = described(error)
        raise BadFile(f"{path}: {message}.", next_step) from error
