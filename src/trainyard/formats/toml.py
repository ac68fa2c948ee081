"""Reads TOML with one exception for all errors, and writes it with tomli-w."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import tomli_w

from trainyard.printable import paired

DecodeError = tomllib.TOMLDecodeError
_REPEATED_KEY = "Cannot overwrite a value"
_REPEATED_TABLE = re.compile(r"Cannot declare \((.*)\) twice")
_QUOTED = re.compile(r"'([^']*)'")
_LINE = re.compile(r"\(at line (\d+),")
_NAME = r"""(?:"[^"]*"|'[^']*'|[\w.\s-])+"""
_KEY = re.compile(rf"\s*\[+(?=\s*[a-zA-Z_])(?P<table>{_NAME})\]|(?P<key>{_NAME})=", re.ASCII)
"""The key of a line, or the name of its table."""


def loads(text: str) -> dict[str, Any]:
    """Parses a document. Raises `DecodeError`, which names a key or a table that occurs twice; also for values nested
    beyond Python's stack and for integers of more digits than Python converts, which tomllib reports by other
    exceptions."""
    try:
        return tomllib.loads(text)
    except DecodeError as error:
        if repeated := _name_repeated(str(error), text):
            raise DecodeError(repeated) from error
        raise
    except RecursionError as error:
        raise DecodeError("nested too deeply") from error
    except ValueError as error:
        raise DecodeError("an integer has thousands of digits") from error


def _name_repeated(error: str, text: str) -> str:
    """A message that names the key or the table that occurs twice, with its line; empty for other errors of tomllib.
    It gives the line at which the second value ends, whose key is on it or above."""
    at_line = _LINE.search(error)
    lines = text.split("\n")[: int(at_line[1]) if at_line else None]
    if error.startswith(_REPEATED_KEY):
        for number in range(len(lines), 0, -1):
            if key := _KEY.match(lines[number - 1]):
                name = (key["table"] or key["key"]).strip()
                return f"the key {name!r} occurs twice, the second time on line {number}"
    if table := _REPEATED_TABLE.match(error):
        name = ".".join(_QUOTED.findall(table[1]))
        return f"the table [{name}] occurs twice, the second time on line {len(lines)}"
    return ""


def dumps(document: Mapping[str, Any], comment: str = "") -> str:
    """Formats a document that `loads` parses to the same values, after the lines of `comment` as comments.

    Keys with the value None, which TOML lacks, or an empty table are left out: readers use their defaults. An unpaired
    surrogate, which TOML cannot hold, is replaced by its code point in brackets (`⟨U+D800⟩`)."""
    comment_lines = "".join(f"# {line}\n" for line in comment.splitlines())
    body = tomli_w.dumps(_drop_none(document))
    return paired(comment_lines + "\n" * bool(comment_lines and body) + body)


def head_comment(text: str) -> str:
    """The comment at the beginning of a document, as passed to `dumps`."""
    lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)


def _drop_none(value: Any) -> Any:
    """A copy of nested tables and lists without keys whose value is None or an empty table; keys as text."""
    if isinstance(value, Mapping):
        table = {str(key): _drop_none(part) for key, part in value.items()}
        return {key: part for key, part in table.items() if part is not None and part != {}}
    if isinstance(value, list | tuple):
        return [_drop_none(part) for part in value]
    return value
