"""Tables as static HTML for notebooks, without styles or scripts. Names are escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from trainyard.printable import printable
from trainyard.report.view.view import Cell, Column, Table


def tables_html(title: str, tables: Iterable[Table]) -> str:
    """A title with tables and their notes."""
    return "\n".join((*([f"<h4>{escaped(title)}</h4>"] if title else []), *(_table(table) for table in tables)))


def _table(table: Table) -> str:
    """A table as an HTML element; its title heads the first column, its notes follow as paragraphs."""
    heads = [table.title, *(column.title for column in table.columns[1:])]
    head = "".join(f"<th>{escaped(text)}</th>" for text in heads)
    rows = "".join(
        f"<tr>{''.join(_cell(cell, column) for cell, column in zip(row, table.columns, strict=True))}</tr>"
        for row in table.rows
    )
    notes = "".join(f"<p>{escaped(note)}</p>" for note in table.all_notes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"


def _cell(cell: Cell, column: Column) -> str:
    if cell is None or isinstance(cell, str):
        return f"<td>{escaped(cell or '')}</td>"
    return f"<td>{cell:,.{column.digits or 0}f}</td>"


def escaped(text: str) -> str:
    """A text, whatever it holds, as HTML."""
    return escape(printable(text))
