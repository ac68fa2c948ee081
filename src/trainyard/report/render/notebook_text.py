"""Terminal output as HTML, for results that a notebook shows as text."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

_WIDTH = 120
"""Width of the text in characters."""
_FORMAT = '<pre style="white-space: pre; overflow-x: auto; line-height: 1.25"><code>{code}</code></pre>'


def render_html(draw: Callable[[Console], None]) -> str:
    """The text that `draw` prints to a console, as an HTML element with inline styles; text is escaped."""
    console = Console(record=True, file=io.StringIO(), width=_WIDTH, highlight=False, force_terminal=True)
    draw(console)
    return console.export_html(code_format=_FORMAT, inline_styles=True)
