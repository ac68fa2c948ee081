"""Reads the arguments of `compare_designs`: the factor of each change, and how it changes the price of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.machine import Machine
from trainyard.predict.designs.machine_changes import CHANGES, check_change, is_applicable

_DEFAULT_FACTOR = 2.0
_MOST_PERCENT = 10_000.0
"""Largest change of a price that is accepted."""


def read_factors(machine: Machine, texts: Sequence[str]) -> dict[str, float]:
    """Change -> factor of the texts `NAME=FACTOR`, or of all changes that the machine has parts for. Raises `BadInput`
    as `check_change`, and for a text without a number, a factor of 1 or a change that is given twice."""
    if not texts:
        return {name: _DEFAULT_FACTOR for name in CHANGES if is_applicable(machine, name)}
    factors: dict[str, float] = {}
    for text in texts:
        name, factor = _split(text, "--change")
        if name in factors:
            raise BadInput(f"--change {name} is given twice.", "Run the command once for each factor.")
        check_change(machine, name, factor)
        if factor == 1:
            raise BadInput(
                f"--change {text}: a factor of 1 changes nothing.",
                f"Pass how many times better the machine is, as --change {name}={_DEFAULT_FACTOR:g}.",
            )
        factors[name] = factor
    return factors


def read_prices(designs: Mapping[str, object], texts: Sequence[str]) -> dict[str, float]:
    """Design -> change of the price as a share, of the texts `NAME=PERCENT`. Raises `BadInput` for a design that is not
    compared, and a price that is not positive."""
    prices: dict[str, float] = {}
    for text in texts:
        name, percent = _split(text, "--price-change")
        if name not in designs:
            raise UnknownName(f"--price-change {text}: {name!r} is not compared.", nearest(name, designs))
        if not -100 < percent <= _MOST_PERCENT:
            raise BadInput(
                f"--price-change {text}: it must be above -100 and at most {_MOST_PERCENT:,.0f} %.",
                f"Pass how many percent more a device costs, as --price-change {name}=20.",
            )
        prices[name] = percent / 100
    return prices


def _split(text: str, flag: str) -> tuple[str, float]:
    """Name and number of a text `NAME=NUMBER`. Raises `BadInput` without a number."""
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = inf
    if not abs(value) < inf:
        raise BadInput(f"{flag} {text:.60}: {number!r:.60} is not a number.", f"Write {flag} NAME=NUMBER.")
    return name, value
