"""Reads TOML with one exception for all errors, and writes it with tomli-w."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import tomli_w

from trainyard.printable import paired

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
