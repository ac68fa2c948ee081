"""Table of the fitted sets of constants: what moved them, and which are at a limit; printed by `make validate`."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.constants import AT_LEAST_ONE, SHARES
from trainyard.report.view.view import Column, Table

_TOLERANCE = 0.005
"""Relative distance from a limit below which a constant is at it."""
_LISTED = 3


def at_limit(name: str, value: float) -> bool:
    """Whether the fit of a constant stopped at its limit, 1: an effect that the model lacks may be the reason."""
    return (name in SHARES or name in AT_LEAST_ONE) and abs(value - 1) <= _TOLERANCE


def constants_table(sets: Sequence[ConstantSet]) -> Table:
    """A row for each set. Constants that no row moves have the value of the parent, or the assumed one."""
    columns = ("constants", "prior", "rows", "moved", "not moved", "at a limit", "moved by the most rows")
    return Table(
        title="Fitted constants",
        notes=(),
        columns=tuple(Column(title=title, digits=0) for title in columns),
        rows=tuple(
            (
                known.name,
                known.parent or "assumed",
                known.rows,
                len(known.moved_by),
                len(known.constants) - len(known.moved_by),
                ", ".join(name for name, value in known.constants.items() if at_limit(name, value)) or "none",
                ", ".join(sorted(known.moved_by, key=lambda name: -known.moved_by[name])[:_LISTED]),
            )
            for known in sets
        ),
    )
