"""An analysis as plain text: what `print(analysis)` shows."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from trainyard.report.render.summary import print_analysis
from trainyard.report.view.analysis import Analysis

_WIDTH = 80


def analysis_text(analysis: Analysis) -> str:
    """The screen of `trainyard trace` in 80 columns, without colours and without suggested commands."""
    screen = StringIO()
    print_analysis(analysis, Console(file=screen, width=_WIDTH, color_system=None), full_command="")
    return "\n".join(line.rstrip() for line in screen.getvalue().splitlines())
