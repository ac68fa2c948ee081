"""Values as TOML, which the standard library reads but does not write."""

from __future__ import annotations

import json
import re

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def line(name: str, said: object) -> str:
    return f"{key(name)} = {value(said)}"


def key(name: str) -> str:
    return name if _BARE.fullmatch(name) else value(name)


def value(said: object) -> str:
    """JSON's notation is TOML's too, but for tables, numbers that are none, and DEL, which TOML wants escaped."""
    if isinstance(said, dict):
        return "{ " + ", ".join(line(str(name), part) for name, part in said.items()) + " }"
    if isinstance(said, list | tuple):
        return "[" + ", ".join(value(part) for part in said) + "]"
    return repr(said) if isinstance(said, float) else json.dumps(said, ensure_ascii=False).replace("\x7f", "\\u007f")
