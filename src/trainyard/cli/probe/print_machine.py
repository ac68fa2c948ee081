"""Print a probed or fitted machine as tables or JSON, and write its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.support.output import console, print_json, say

if TYPE_CHECKING:
    from trainyard.report.plans.probe_results import FittedMachine, ProbedMachine
    from trainyard.report.view.view import Table


def print_machine(
    result: ProbedMachine | FittedMachine,
    tables: Sequence[Table],
    out: Path | None,
    *,
    full: bool,
    as_json: bool,
    warnings: Sequence[str] = (),
) -> None:
    """Print the warnings, the headline and `tables` of `result`, and write its machine file to `out`."""
    from trainyard.formats.atomic import write_text
    from trainyard.report.render.terminal import print_table

    if out is not None:
        write_text(result.toml, out)
        say(f"wrote {out}")
    if as_json:
        print_json(result)
        return
    screen = console(full=full)
    for warning in warnings:
        screen.print(warning, style="bold yellow", markup=False)
    screen.print(result.headline, markup=False)
    for table in tables:
        screen.print()
        print_table(table, screen)
    if not full:
        screen.print("\nWhere to look next")
        screen.print(f"  --full: more rows, and {len(result.machine.calibration)} constants.")
        file = out or "FILE"
        steps = f"  trainyard plan MODEL --machine {file}" + ("" if out else "  (--out FILE writes it)")
        screen.print(steps, markup=False)
