"""Columns that do not fit are named, and nothing that is printed is cut beyond recognition."""

import re
from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from trainyard.report.render.fitted_table import Part, fitted
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table

WIDTHS = st.integers(40, 200)
NAME = "vectorized_elementwise_kernel<4, float>(int)"


@st.composite
def tables(draw):
    """Tables of a name, then columns of names, numbers and prose with heads h1, h2, ..., one of them with a note."""
    kinds = draw(
        st.lists(st.sampled_from(["name", "number", "prose", "id", "spare", "empty"]), min_size=1, max_size=14)
    )
    columns, row = [Column(title="")], [NAME]
    for at, kind in enumerate(kinds, 1):
        columns.append(
            Column(
                title=f"h{at}", digits=2 if kind in ("number", "spare", "empty") else None, prose=kind == "prose",
                id=kind == "id", optional=kind == "spare", note=f"note-h{at}",
            )
        )  # fmt: skip
        values = {"name": NAME, "prose": "several words that wrap", "id": f"id-{at}", "empty": None}
        row.append(values.get(kind, 1000.0 + at))
    return Table(title="Kernel", notes=(), columns=tuple(columns), rows=(tuple(row),))


def printed(table, width):
    out = StringIO()
    print_table(table, Console(width=width, color_system=None, file=out))
    return out.getvalue()


@given(tables(), WIDTHS)
def test_each_column_is_printed_or_named(table, width):
    text = printed(table, width)
    lines = text.splitlines()
    named = re.search(r"left out at this width: (.*?) \(all", " ".join(text.split()))
    left_out = named[1].split("; ") if named else []
    heads = [column.title for column in table.columns[1:]]
    # A narrow first column wraps its head, above which the other heads are blank.
    first_row = next(number for number, line in enumerate(lines) if "…" in line or NAME[:4] in line)
    printed_heads = " ".join(lines[:first_row]).split()
    assert [head for head in heads if head not in printed_heads] == left_out
    for column, cell in zip(table.columns[1:], table.rows[0][1:]):
        assert (column.note in text.split()) == (column.title not in left_out)
        if column.digits is not None and cell is not None and column.title not in left_out:
            assert f"{cell:,.2f}" in text.split()


@given(tables(), WIDTHS)
def test_width_in_the_line_shows_all_columns(table, width):
    text = " ".join(printed(table, width).split())
    if needed := re.search(r"fit (\d+) characters", text):
        assert "left out" not in printed(table, int(needed[1]))
        assert "left out" in printed(table, int(needed[1]) - 1)


@given(WIDTHS, st.integers(0, 6))
def test_names_keep_their_minimum_width(width, numbers):
    parts = [
        Part("kernel", [Text(NAME)], name=True),
        Part("account", [Text(NAME)], name=True, drop_order=9),
        *(Part(f"h{at}", [Text("12,345.678")], right=True, drop_order=at) for at in range(1, numbers + 1)),
    ]
    out = StringIO()
    Console(width=width, color_system=None, file=out).print(fitted(parts, width))
    names = [cell for cell in re.split(r"\s{2,}", out.getvalue().splitlines()[1].strip()) if "12,345" not in cell]
    assert all(cell_len(name) >= least for name, least in zip(names, (24, 16)))
    assert (len(names) == 2) == ("account" not in out.getvalue().partition("left out")[2])


def test_columns_without_a_name_are_left_out_silently():
    parts = [Part("account", [Text("Matmul")]), Part("", [Text("█" * 60)], drop_order=1)]
    out = StringIO()
    Console(width=40, color_system=None, file=out).print(fitted(parts, 40))
    assert "█" not in out.getvalue()
    assert "left out" not in out.getvalue()
