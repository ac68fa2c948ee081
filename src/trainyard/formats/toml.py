"""TOML: read with one exception for all that cannot be read, and written, which the standard library does not do."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from trainyard.printable import paired

_BARE = re.compile(r"[A-Za-z0-9_-]+")
DecodeError = tomllib.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """Parses a document. Raises `DecodeError`, also for values nested beyond Python's stack and for integers of more
    digits than Python converts, which tomllib reports by other exceptions."""
    try:
        return tomllib.loads(text)
    except DecodeError:
        raise
    except RecursionError as error:
        raise DecodeError("nested too deeply") from error
    except ValueError as error:
        raise DecodeError("an integer has thousands of digits") from error


def line(name: str, said: object) -> str:
    return f"{key(name)} = {value(said)}"


def key(name: str) -> str:
    return name if _BARE.fullmatch(name) else value(name)


def value(said: object) -> str:
    """JSON's notation is TOML's too, except for tables, NaN and infinities, DEL, which TOML wants escaped, and half of
    a surrogate pair, which TOML cannot hold: it is shown by its number."""
    if isinstance(said, dict):
        return "{ " + ", ".join(line(str(name), part) for name, part in said.items()) + " }"
    if isinstance(said, list | tuple):
        return "[" + ", ".join(value(part) for part in said) + "]"
    if isinstance(said, float):
        return repr(said)
    return paired(json.dumps(said, ensure_ascii=False)).replace("\x7f", "\\u007f")
