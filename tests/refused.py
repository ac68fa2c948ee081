"""Assertions on errors: their class, their code and the names and numbers in their message, never its wording."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=Exception)


@contextmanager
def refused(kind: type[E], *values: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """The block raises `kind` itself, not a subclass, and the message holds each of `values`: paths, names, numbers."""
    with pytest.raises(kind) as caught:
        yield caught
    assert type(caught.value) is kind
    assert missing_values(str(caught.value), *values) == []


def missing_values(message: str, *values: object) -> list[str]:
    """Those of `values` that do not occur in `message` as a whole word or number: 12 does not occur in 128 or 1.12."""
    return [
        str(value) for value in values if not re.search(rf"(?<![\w.]){re.escape(str(value))}(?!\w|[.,]\d)", message)
    ]


def code_of(printed: str) -> str | None:
    """The code of the error that a command printed on stderr: `error [bad-file]: ...`; None if it printed no error."""
    match = re.search(r"^error \[([a-z-]+)\]: ", printed, re.MULTILINE)
    return match and match[1]
