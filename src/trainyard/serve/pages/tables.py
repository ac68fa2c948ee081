"""Tables of a report as HTML, and the cells that several pages have."""

from __future__ import annotations

from trainyard import units, words
from trainyard.report.view.view import Cell, Column, Table
from trainyard.serve.markup import Html, element, join
from trainyard.store.index.run_index import RunRow

_SHORT = 40
"""Characters of a name up to which it does not wrap."""


def table_html(table: Table) -> Html:
    """A table with its notes below it. Its title heads a column that has none."""
    heads = (
        element("th", column.title or table.title, scope="col", class_=_class_of(column)) for column in table.columns
    )
    rows = (
        element("tr", *(_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)))
        for row in table.rows
    )
    notes = (element("p", note, class_="small") for note in table.all_notes)
    if not table.rows:
        return join(*notes)
    return join(
        scrolled(table.title, element("table", element("thead", element("tr", *heads)), element("tbody", *rows))),
        *notes,
    )


def scrolled(label: str, table: Html) -> Html:
    """A table that scrolls sideways if it is wider than the page."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def run_link(id: str) -> Html:
    """The id of a run as a link to its page."""
    return element("a", element("code", id), href=f"/runs/{id}")


def state_mark(state: str) -> Html:
    """The state of a run with a mark in its colour and an explanation."""
    known = words.STATES.get(state)
    return element(
        "span", element("i", aria_hidden="true"), state, class_=f"state {state}", title=known.means if known else None
    )


def tag_chips(row: RunRow) -> Html:
    """The tags of a run."""
    return join(*(element("code", tag, class_="chip") for tag in row.tags))


def step_text(ns: float) -> str:
    """The time of a step in the unit that suits it; empty if it was not measured."""
    return units.show_time(ns) if ns else ""


def when(started: str) -> Html:
    """A start time to the minute, in UTC."""
    return element("time", started[:16].replace("T", " "), datetime=started, class_="when")


def _cell(cell: Cell, column: Column) -> Html:
    """A cell; None is unknown."""
    if column.digits is not None and isinstance(cell, str):
        return element("td", cell, class_=_class_of(column))
    if isinstance(cell, str) or cell is None:
        name = cell or ""
        class_ = "prose" if column.prose else "short" if len(name) <= _SHORT else "name"
        return element(
            "td",
            element("span", name, class_=class_, title=name if class_ == "name" else None),
            class_=_class_of(column),
        )
    return element("td", f"{cell:,.{column.digits or 0}f}", class_=_class_of(column))


def _class_of(column: Column) -> str | None:
    """The class of a column's cells: numbers, and those that a narrow page leaves out."""
    names = ("number" * (column.digits is not None), "optional" * column.optional)
    return " ".join(filter(None, names)) or None
