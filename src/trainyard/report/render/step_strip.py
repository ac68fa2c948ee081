"""The strip of the measured steps of a terminal: the time of each as a column. Imports Rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from trainyard import units
from trainyard.ledger import Ledger
from trainyard.report.render.blocks import sparkline
from trainyard.report.render.fitted_table import plain


def step_strip(ledgers: Sequence[Ledger], width: int) -> Text | None:
    """A line of at most `width` characters with the time of each full step, that of its slowest rank; None for fewer
    than two steps. `ledgers`: one for each rank and step; others are ignored."""
    wall_ns: dict[str, int] = {}
    for ledger in ledgers:
        if ledger.scope.reduce == "one" and not ledger.scope.partial and ledger.scope.ranks:
            label = ledger.scope.steps[0]
            wall_ns[label] = max(wall_ns.get(label, 0), ledger.wall_ns)
    if len(wall_ns) < 2:
        return None
    labels, times = list(wall_ns), list(wall_ns.values())
    head = plain(f"steps {labels[0][:12]} to {labels[-1][:12]}")
    tail = f"{units.show_time(min(times))} to {units.show_time(max(times))}"
    return Text(f"{head}  {sparkline(times, width - len(head) - len(tail) - 4)}  {tail}", style="dim")
