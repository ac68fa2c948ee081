"""Print the comparison of designs of a machine as one screen, in full, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.support.output import console, print_json, say
from trainyard.errors import BadInput

if TYPE_CHECKING:
    from trainyard.report.plans.design_comparison import DesignComparison


def check_picture(out: Path | None) -> None:
    """Raises `BadInput` for a name whose suffix is that of another format than SVG."""
    if out is not None and out.suffix and out.suffix.lower() != ".svg":
        raise BadInput(
            f"--out {out}: the picture is an SVG file, not {out.suffix}.", f"Pass --out {out.with_suffix('.svg')}."
        )


def print_designs(result: DesignComparison, out: Path | None, *, full: bool, as_json: bool) -> None:
    """Writes the picture to `out`, if there is one, and prints the comparison."""
    from trainyard.formats.atomic import write_text
    from trainyard.report.plans import design_picture, design_tables
    from trainyard.report.render.terminal import next_steps, print_table
    from trainyard.report.view.next_step import NextStep

    if out is not None:
        write_text(design_picture.draw(result), out)
        say(f"wrote {out}")
    if as_json:
        print_json(result)
        return
    screen = console(full=full)
    screen.print(f"Designs of {result.machine} ({result.device}). {result.headline}", markup=False)
    tables = [design_tables.gains(result), design_tables.trainings(result)]
    for table in (*tables, design_tables.changed_layouts(result)) if full else tables:
        screen.print()
        print_table(table, screen)
    for sentence in design_tables.reasons(result):
        screen.print(f"\n{sentence}", markup=False)
    steps = () if full else (NextStep("--full", "the layouts that become the fastest"),)
    steps = (*steps, NextStep("--out FILE.svg", "the table as a picture"))
    screen.print(*next_steps(steps, screen.width), sep="\n")
