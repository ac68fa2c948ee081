"""The kind of a name or file of the command line: a machine, a model or a configuration, passed as another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from trainyard import machine as machines
from trainyard import machine_aliases, named_sizes
from trainyard.errors import BadInput
from trainyard.formats import toml
from trainyard.models import model_aliases, presets
from trainyard.predict.configs import detect_format
from trainyard.predict.configs.config_keys import LARGEST

Kind = Literal["machine", "model", "configuration"]
_REMEDIES: dict[Kind, str] = {
    "machine": "Pass it as --machine {}.",
    "model": "Pass it as the model: trainyard plan {}.",
    "configuration": "Pass it as the model, trainyard plan {0}, or check it: trainyard plan check {0}.",
}
"""Kind -> the next step, with the place of the name."""


@contextmanager
def explain_kind(name: str, *accepted: Kind) -> Iterator[None]:
    """Replaces an error of the block, which reads the name or file `name`, if it is of a known kind other than the
    `accepted` ones."""
    try:
        yield
    except BadInput as error:
        kind = find_kind(name)
        if kind is None or kind in accepted:
            raise
        raise BadInput(f"{name} is a {kind}, not a {' or a '.join(accepted)}.", _REMEDIES[kind].format(name)) from error


def find_kind(name: str) -> Kind | None:
    """The kind of a known name in any spelling, or of a file by its contents; None for any other."""
    path = Path(name)
    try:
        if path.is_file():
            with path.open("rb") as file:
                return _kind_of_data(file.read(LARGEST))
    except (OSError, ValueError):  # not a readable file, or not a path
        return None
    models = (presets.known(), model_aliases.ALIASES, model_aliases.IGNORED_WORDS, model_aliases.OWNERS)
    if named_sizes.resolve(name, machines.known(), machine_aliases.ALIASES, machine_aliases.IGNORED_WORDS):
        return "machine"
    return "model" if named_sizes.resolve(name, *models) else None


def _kind_of_data(data: bytes) -> Kind | None:
    """The kind of a file with these contents, which need not be valid otherwise."""
    if detect_format.detect(data):
        return "configuration"
    if data.lstrip().startswith(b"{"):
        return "model" if b'"architectures"' in data else None
    try:
        tables = toml.loads(data.decode("utf-8"))
    except (toml.DecodeError, UnicodeDecodeError):
        return None
    if "device" in tables:
        return "machine"
    return "model" if "model" in tables or "sizes" in tables else None
