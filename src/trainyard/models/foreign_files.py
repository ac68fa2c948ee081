"""Files that describe neither a model nor a training: their kind, by their name and contents, for messages."""

from __future__ import annotations

import json
from pathlib import PurePath

_BY_SUFFIX = {
    ".safetensors": "a file of weights",
    ".bin": "a file of weights",
    ".pt": "a file of weights",
    ".gguf": "a file of weights",
    ".py": "a Python program",
    ".ipynb": "a notebook",
    ".yaml": "a YAML file",
    ".yml": "a YAML file",
}
_BY_KEYS = (
    ({"traceEvents"}, "a profiler trace"),
    ({"added_tokens", "model"}, "a tokenizer"),
    ({"tokenizer_class"}, "the configuration of a tokenizer"),
    ({"dependencies"}, "the package.json of a JavaScript package"),
    ({"scripts", "version"}, "the package.json of a JavaScript package"),
    ({"weight_map"}, "the index of files of weights"),
)
"""Keys that a JSON file has at its top level -> its kind."""


def foreign_kind(name: str, data: bytes) -> str:
    """The kind of the file `name` with the contents `data`; empty if it is not one of those known here."""
    kind = _BY_SUFFIX.get(PurePath(name).suffix.lower(), "")
    if kind or not data.lstrip().startswith(b"{"):
        return kind
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return "a profiler trace" if b'"traceEvents"' in data else ""
    if "architectures" in document:
        return ""
    return next((kind for keys, kind in _BY_KEYS if keys <= document.keys()), "")
