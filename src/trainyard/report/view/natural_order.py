"""Order of names with numbers in them."""

from __future__ import annotations

import re


def natural_key(name: str) -> list[tuple[int, str]]:
    """A sort key that orders names by the numbers in them: `stream 7` before `stream 20`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,18})", name)]
