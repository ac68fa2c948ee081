"""How findings name what a cost is part of."""

from __future__ import annotations

from trainyard import units
from trainyard.ledger import WINDOW, Ledger


def whole(ledger: Ledger) -> str:
    """`every 418.0 ms step`, or `the 58.1 ms window` where no mark says what a step is."""
    wall = units.show_time(ledger.wall_ns)
    return f"the {wall} window" if ledger.scope.steps == (WINDOW,) else f"every {wall} step"
