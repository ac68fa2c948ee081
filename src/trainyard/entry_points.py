"""Entry points of installed packages, read from their metadata folders.

The result is that of `importlib.metadata.entry_points`, whose import alone takes a tenth of the time in which a small
trace is analysed. Packages that are not installed in folders (zip files, finders of their own) are left to it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

_ENDINGS = (".dist-info", ".egg-info")
_SEPARATORS = re.compile(r"[-_.]+")


class EntryPoint(NamedTuple):
    """An entry point. `value`: `package.module:attribute`."""

    name: str
    value: str

    @property
    def module(self) -> str:
        """The module that the attribute is imported from: `package.module`."""
        return self.value.partition("[")[0].partition(":")[0].strip()

    def load(self) -> Any:
        """Imports the module and returns the attribute. Raises `ImportError` or `AttributeError`."""
        attributes = self.value.partition("[")[0].partition(":")[2]
        loaded: Any = import_module(self.module)
        for attribute in filter(None, attributes.strip().split(".")):
            loaded = getattr(loaded, attribute)
        return loaded


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group in all packages on `sys.path`, in its order; of packages of the same name, the first
    counts."""
    if not _all_in_folders():
        from importlib.metadata import entry_points as all_entry_points

        return [EntryPoint(point.name, point.value) for point in all_entry_points(group=group)]
    packages: set[str] = set()
    points: list[EntryPoint] = []
    for folder in dict.fromkeys(sys.path):
        for package, metadata in _packages(folder or "."):
            if package not in packages:
                packages.add(package)
                points.extend(_read_group(metadata / "entry_points.txt", group))
    return points


def _all_in_folders() -> bool:
    """Whether all packages on `sys.path` are in folders and found by Python's own finder."""
    own_finders = sum(hasattr(finder, "find_distributions") for finder in sys.meta_path)
    return own_finders <= 1 and not any(os.path.isfile(path) for path in sys.path)


def _packages(folder: str) -> Iterator[tuple[str, Path]]:
    """Yields (normalised name, metadata folder) of each package in a folder: `torch_geo-1.0.dist-info` gives
    `torch-geo`. Nothing for a folder that cannot be listed."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        stem, ending = os.path.splitext(name)
        if ending.lower() in _ENDINGS:
            yield _SEPARATORS.sub("-", stem.partition("-")[0]).lower(), Path(folder, name)


def _read_group(file: Path, group: str) -> Iterator[EntryPoint]:
    """Yields the entry points of a group in a file of the form `[group]`, `name = value`; nothing if it cannot be
    read."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and line and not line.startswith("#"):
            name, is_set, value = line.partition("=")
            if is_set:
                yield EntryPoint(name.strip(), value.strip())
