"""The name of a model that a config.json describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath

_CACHED = "models--"
"""Prefix of a model's folder in the cache of huggingface_hub: models--ORGANISATION--MODEL/snapshots/REVISION."""


def name_of(document: Mapping[str, object], where: str) -> str:
    """The name in the config, else that of its file or of the folder that it lies in. `where`: the path of the
    config."""
    stated = document.get("_name_or_path")
    if isinstance(stated, str) and (name := PurePath(stated).name):
        return name[:100]
    path = PurePath(where)
    if path.suffix == ".json" and path.name != "config.json":
        return path.stem[:100]
    folders = list(path.parent.parts or Path(where).absolute().parent.parts)
    if len(folders) > 2 and folders[-2] == "snapshots" and folders[-3].startswith(_CACHED):
        return folders[-3].rpartition("--")[2][:100]
    return folders[-1].strip("/")[:100] or "unnamed"
