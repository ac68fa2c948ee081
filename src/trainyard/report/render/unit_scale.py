"""One unit for all values of a table or a row, chosen by the largest."""

from __future__ import annotations

from typing import NamedTuple

_SCALES = {
    "ns": ((1e10, 1e9, "s"), (1e6, 1e6, "ms"), (1e3, 1e3, "µs"), (0.0, 1.0, "ns")),
    "B": ((2.0**30, 2.0**30, "GiB"), (2.0**20, 2.0**20, "MiB"), (2.0**10, 2.0**10, "KiB"), (0.0, 1.0, "B")),
    "1/s": ((1e6, 1e6, "M/s"), (1e3, 1e3, "k/s"), (0.0, 1.0, "/s")),
    "share": ((0.0, 0.01, "%"),),
    "": ((0.0, 1.0, ""),),
}
"""Unit of a metric -> (smallest value, divisor, name) of each of its multiples, the largest first."""
_FEW_DIGITS, _SOME_DIGITS = 100, 10
"""Scaled values from which one and two decimals are shown; smaller ones have three."""


class Scale(NamedTuple):
    """`divisor`: value of one `unit` in the metric's own unit. `digits`: decimals; None for six significant digits."""

    divisor: float
    unit: str
    digits: int | None

    def show(self, value: float, signed: bool = False) -> str:
        """The number without its unit."""
        places = ".6g" if self.digits is None else f".{self.digits}f"
        return f"{value / self.divisor:{'+' if signed else ''}z,{places}}"


def scale_of(largest: float, unit: str) -> Scale:
    """The scale for values up to `largest`, which are in the base unit of a metric (`words.Metric.unit`)."""
    divisor, name = next((divisor, name) for least, divisor, name in _SCALES[unit] if largest >= least)
    scaled = largest / divisor
    if not unit:
        return Scale(divisor=divisor, unit=name, digits=None)
    if name in ("ns", "B"):
        return Scale(divisor=divisor, unit=name, digits=0)
    digits = 1 if scaled >= _FEW_DIGITS else 2 if scaled >= _SOME_DIGITS else 3
    return Scale(divisor=divisor, unit=name, digits=digits)
