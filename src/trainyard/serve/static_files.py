"""The styles and scripts of the server's pages. Their addresses carry a digest, so that browsers keep them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

_TYPES = {"css": "text/css", "js": "text/javascript"}
_FILES = {
    "page.css": ("trainyard.report", "page"),
    "dom.js": ("trainyard.report", "page"),
    "numbers.js": ("trainyard.report", "page"),
    "serve.css": ("trainyard.serve", "static"),
    "serve.js": ("trainyard.serve", "static"),
    "live_run.js": ("trainyard.serve", "static"),
}
"""Name -> (package, folder in it). Only these files are served."""


class StaticFile(NamedTuple):
    """The contents of a file, its media type, its address, and the digest that the address ends with."""

    content: bytes
    media_type: str
    url: str
    digest: str


def static_file(name: str) -> StaticFile | None:
    """The file of a name; None for any other name."""
    return _read(name) if name in _FILES else None


@cache
def _read(name: str) -> StaticFile:
    """Reads a file of the package."""
    package, folder = _FILES[name]
    content = resources.files(package).joinpath(folder, name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:12]
    return StaticFile(content, _TYPES[name.rpartition(".")[2]], f"/static/{name}?{digest}", digest)


def static_url(name: str) -> str:
    """The address of a file. Raises `KeyError` for a name that is not in `_FILES`."""
    return _read(name).url
