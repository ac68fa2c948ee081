"""Types of the numbers of `plan`, which name the number to write for one with a suffix, a comma or an exponent."""

from __future__ import annotations

import re
from typing import Any

import click


class Count(click.IntRange):
    """A whole number of at least 1. A number with a suffix, a fraction or separators is refused with its spelling."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            text = str(value).strip().lower()
            number, hint = _number_of(text), ""
            if number and number == int(number) and number < 1e15:
                of_1024 = f", or {1.024 * number:.0f} for {number / 1e3:g} x 1024" * text.endswith("k")
                hint = f" Write {number:.0f}{of_1024}."
            self.fail(f"{value!r:.60} is not a whole number of at least 1.{hint}", param, ctx)


class Budget(click.ParamType):
    """A number of tokens. A decimal comma and suffixes are refused with the spelling."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(str(value))
        except ValueError:
            number = _number_of(str(value))
            hint = f"Write {number:g}." if number else "Write digits with a decimal point, as 15e12."
            self.fail(f"{value!r:.60} is not a number. {hint}", param, ctx)


_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
"""Suffix of a number -> its factor."""


def _number_of(text: str) -> float | None:
    """The positive number that a text probably means: `8k`, `1,024`, `64.0`, `1e3`, `15T`; None if it is unclear."""
    match = re.fullmatch(r"(\d{1,3}(?:[,_]\d{3})+|\d+(?:\.\d+)?(?:e\d{1,2})?)([kmbgt]?)", text.strip().lower())
    if not match:
        return None
    return float(match[1].replace(",", "").replace("_", "")) * _SUFFIXES.get(match[2], 1.0) or None
