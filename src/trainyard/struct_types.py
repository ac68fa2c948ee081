"""Types and fields of nested structs by a path in their document, as msgspec's errors have it: `$.recipe.dtype`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

_PART = re.compile(r"\.(?P<field>[^.\[]+)|\[[^\]]*\]")
"""A field, or an index of a list or a key of a table (`[0]`, `[...]`)."""


def type_at(root: Any, path: str) -> Any:
    """The type of the value at a path in a document of the type `root`, such as `.layout` or `.fabric[0].name`: the
    annotation of its field or the type of an element; None if there is no such field."""
    kind = root
    for part in _PART.finditer(path):
        if part["field"]:
            struct = _struct(kind)
            kind = get_type_hints(struct).get(part["field"]) if struct else None
        else:  # tuple[Element, ...], list[Element], dict[str, Element]
            kind = next((option for option in reversed(get_args(kind)) if option is not Ellipsis), None)
    return kind


def fields_at(root: Any, path: str) -> tuple[str, ...]:
    """The fields of the struct at a path in a document of the type `root`; empty if there is none."""
    struct = _struct(type_at(root, path))
    return struct.__struct_fields__ if struct else ()


def _struct(kind: Any) -> Any:
    """The struct of a type, which may be optional; None if there is none."""
    options: Iterable[Any] = (kind, *get_args(kind))
    return next((option for option in options if hasattr(option, "__struct_fields__")), None)
