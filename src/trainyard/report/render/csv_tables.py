"""Tables as CSV (RFC 4180).

Names come from files, and spreadsheets evaluate a cell that looks like a formula. Text that begins with `=`, `+`, `-`,
`@`, a tab or a line break is therefore prefixed with an apostrophe, as OWASP recommends. Numbers are never changed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from trainyard.printable import printable
from trainyard.trace.export.columns import Columns

_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a cell that a spreadsheet may run as a formula."""


def text(columns: Columns) -> str:
    """A header and the table's rows; unknown values are empty."""
    return text_of(columns.names, columns.rows())


def text_of(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and rows of plain values; None is unknown."""
    out = io.StringIO(newline="")
    write(names, rows, out)
    return out.getvalue()


def write(names: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Writes the rows of `text_of` one by one. Open `out` with `newline=""`."""
    writer = csv.writer(out)
    writer.writerow([_cell(name) for name in names])
    writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:
    """A number unchanged, empty for None, else the text, protected from evaluation as a formula."""
    if value is None or isinstance(value, int | float):
        return value
    text = printable(str(value), keep="\t\r\n")
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text
