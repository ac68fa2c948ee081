"""Decodes JSON whose objects name each key once."""

from __future__ import annotations

import json
from typing import Any


def loads(data: bytes | str) -> Any:
    """Decodes a document, with NaN and Infinity as Python writes them. Raises `ValueError`, also for a duplicate key,
    objects that are nested too deeply, and an integer with too many digits."""
    try:
        return json.loads(data, object_pairs_hook=_table, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("its objects and lists are nested too deeply") from error


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a table. Raises `ValueError` for a duplicate key."""
    table = dict(pairs)
    if len(table) != len(pairs):
        earlier_keys: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in earlier_keys or earlier_keys.add(key))
        raise ValueError(f"duplicate key {duplicate!r:.60}")
    return table


def _integer(digits: str) -> int:
    """Converts an integer. Raises `ValueError` if it has more digits than Python converts."""
    try:
        return int(digits)
    except ValueError as error:
        raise ValueError(f"an integer of {len(digits):,} digits, {digits[:20]}...") from error
