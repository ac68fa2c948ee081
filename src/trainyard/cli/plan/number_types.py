"""Types of the numbers of `plan`, which name the number to write for one with a suffix, a unit, a comma or an
exponent."""

from __future__ import annotations

import re
from typing import Any

import click


class WholeNumber(click.ParamType):
    """A whole number. One with a suffix, a fraction or separators is refused with its spelling."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            if text.isascii():
                return int(text)
        except ValueError:
            pass
        self.fail(f"{text!r:.60} is not a whole number.{_whole_hint(text)}", param, ctx)


class Count(click.IntRange):
    """A whole number of at least 1, with the same hints."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            if text.isascii():
                return super().convert(value, param, ctx)
        except click.BadParameter:
            pass
        self.fail(f"{text!r:.60} is not a whole number of at least 1.{_whole_hint(text)}", param, ctx)


class Number(click.ParamType):
    """A number. A decimal comma, suffixes and names of its unit, such as `W`, are refused with the spelling.
    `suffixes`: those whose meaning is clear; `m` may mean minutes."""

    name = "float"

    def __init__(self, *unit: str, suffixes: str = "k%") -> None:
        self.unit = unit
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        try:
            if text.isascii():
                return float(text)
        except ValueError:
            pass
        number = _number_of(text, self.suffixes, self.unit)
        hint = f"Write {number:.10g}." if number else "Write decimal digits with a decimal point, as 0.5 or 15e12."
        self.fail(f"{text!r:.60} is not a number. {hint}", param, ctx)


_FACTORS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "%": 1e-2}
"""Suffix of a number -> its factor."""
COUNT_SUFFIXES = "kmbgt"
"""Suffixes of counts."""


def _whole_hint(text: str) -> str:
    """The next step for a text that is not a whole number in decimal digits; empty for one that is too small."""
    text = text.strip().lower()
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return ""
    number = float(int(text, 16)) if re.fullmatch(r"0x[0-9a-f]{1,12}", text) else _number_of(text, COUNT_SUFFIXES)
    if number and number == int(number) and number < 1e15:
        of_1024 = f", or {1.024 * number:.0f} for {number / 1e3:g} x 1024" * text.endswith("k")
        return f" Write {number:.0f}{of_1024}."
    return " Write decimal digits, as 4096."


def _number_of(text: str, suffixes: str, unit: tuple[str, ...] = ()) -> float | None:
    """The positive number that a text probably means: `8k`, `1,024`, `64.0`, `1e3`, `15T`, `0.5kW`; None if it is
    unclear. `unit`: names of its unit, which may follow it."""
    number, names = r"(\d{1,3}(?:[,_]\d{3})+|\d+(?:\.\d+)?(?:e\d{1,2})?)", "|".join(map(re.escape, unit))
    match = re.fullmatch(rf"{number}\s*([{suffixes}]?)\s*(?:{names})?", text.strip().lower(), re.ASCII)
    return float(match[1].replace(",", "").replace("_", "")) * _FACTORS.get(match[2], 1.0) or None if match else None
