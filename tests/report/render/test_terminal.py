"""The terminal output: figures, ids and prose are never cut, whatever the width."""

import re
import shlex
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tests.page_views import view as whole_view
from trainyard.report.render.fitted_table import Part, fitted, shortened
from trainyard.report.render.terminal import next_steps, print_table, print_view
from trainyard.report.view.next_step import NextStep
from trainyard.report.view.view import Bar, Column, KeyFigure, Table

WIDTHS = st.integers(80, 200)
SAYS = "rank 1 died: killed by SIGKILL (pid 18330), and this sentence repeats its last output at some length"


def view(**parts):
    return replace(whole_view(1, 0), **parts)


def printed(show, width, content):
    out = StringIO()
    show(content, Console(width=width, color_system=None, file=out))
    return out.getvalue()


@given(WIDTHS, st.lists(st.integers(0, 10**9), min_size=1, max_size=12))
def test_figures_are_not_broken_across_lines(width, values):
    figures = tuple(KeyFigure(label="of matmul rate", value=f"{value:,}", unit="tok/s") for value in values)
    text = printed(print_view, width, view(figures=figures))
    lines = text.splitlines()
    for value in values:
        assert any(f"{value:,} tok/s of matmul rate" in line for line in lines)
    assert all(len(line) <= width for line in lines)


@given(WIDTHS)
def test_prose_and_numbers_of_tables_are_complete(width):
    table = Table(
        title="Incidents",
        notes=(),
        columns=(
            Column(title="What"),
            Column(title="Says", prose=True),
            *(Column(title=head, digits=2) for head in "abcde"),
        ),
        rows=(("worker death", SAYS, 0.25, 1.0, None, 12345.678, 3.0),),
    )
    text = printed(print_table, width, table)
    assert set(re.findall(r"\S+", SAYS)) <= set(text.split())
    assert {"0.25", "12,345.68"} <= set(text.split())
    assert "…" not in text


@pytest.mark.parametrize(("rows", "shown", "note"), [(8, 8, ""), (9, 9, ""), (10, 8, "2 more rows: --full")])
def test_single_extra_row_is_printed(rows, shown, note):
    table = Table(
        title="Ranks", notes=(), columns=(Column(title="Rank"),), rows=tuple((f"row{at}",) for at in range(rows))
    )
    text = printed(print_view, 100, view(tables=(table,)))
    assert len(re.findall(r"row\d", text)) == shown
    assert ("more rows" in text) == bool(note)
    assert note in text


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_ids_are_complete_at_any_width(width):
    ids = ("f6d32633", "20261123-0101")
    name = "pretraining-of-a-model-with-a-name-of-sixty-five-characters-run17"
    columns = (Column(title="id", id=True), Column(title="job"), Column(title="step", digits=2, optional=True))
    table = Table(title="id", notes=(), columns=columns, rows=tuple((id, name, 1234.5) for id in ids))
    lines = printed(print_table, width, table).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == list(ids)
    if width >= 40:
        assert all("pre" in line and "17" in line for line in lines[1:3])
    assert all(len(line.rstrip()) <= width for line in lines)


@given(st.text(st.characters(categories=("L", "N"))), st.integers(1, 60))
def test_shortened_names_fit_and_keep_both_ends(text, width):
    short = shortened(text, width)
    assert cell_len(short) <= width
    if cell_len(text) <= width:
        assert short == text
    elif width >= 8 and text.isascii():
        assert short.startswith(text[: width // 2])
        assert short.endswith(text[-(width - width // 2 - 1) :])


NARROW = st.integers(40, 120)


@given(NARROW, st.lists(st.integers(1, 10**12), min_size=1, max_size=6))
def test_ledger_drops_bars_before_cutting_figures(width, times):
    bars = tuple(
        Bar(label=f"account number {at} with a long name", ns=ns, start_ns=0, colour="red", evidence="seen " * 9)
        for at, ns in enumerate(times)
    )
    whole = Bar(label="step", ns=sum(times), start_ns=0, colour="", role="total")
    text = printed(print_view, width, view(bars=(*bars, whole), wall_ns=sum(times)))
    lines = text.splitlines()
    for ns in (*times, sum(times)):
        assert any(f" {ns / 1e6:,.3f} " in f"{line} " for line in lines)
    head = next(line for line in lines if line.startswith("account"))
    if "█" in text:
        assert "evidence" in head, "bars are left out first"
    if "evidence" in head:
        assert f"{sum(times):,} ns exactly" in text
    assert all(cell_len(line.rstrip()) <= width for line in lines if "account number" in line)


@given(NARROW, st.integers(1, 60))
def test_long_names_are_cut_before_columns_are_dropped(width, length):
    def heads(name):
        columns = (Column(title="id", id=True), Column(title="job"), Column(title="ms", digits=1, optional=True))
        table = Table(title="id", notes=(), columns=columns, rows=(("f6d32633", name, 1234.5),))
        text = printed(print_table, width, table)
        assert {"f6d32633", "1,234.5"} <= set(text.split())
        return text.splitlines()[0].split()

    assert heads("n" * length) == heads("n")


@given(NARROW, st.lists(st.floats(0, 10**7), min_size=1, max_size=9))
def test_columns_are_dropped_before_figures_are_cut(width, values):
    columns = (Column(title="Layout", prose=True), *(Column(title=f"h{at}", digits=2) for at in range(len(values))))
    table = Table(title="Layout", notes=(), columns=columns, rows=(("tp=8 pp=2", *values),))
    lines = printed(print_table, width, table).splitlines()
    shown = len(lines[0].split()) - 1
    assert shown >= 1
    assert {f"{value:,.2f}" for value in values[:shown]} <= set(" ".join(lines).split())


@given(NARROW, st.lists(st.integers(1, 10**11), min_size=1, max_size=4))
def test_comparisons_keep_their_figures(width, times):
    parts = [
        Part("account", [Text("communication of a long name") for _ in times], name=True),
        Part("ms", [Text(f"{ns / 1e6:+,.3f}") for ns in times], right=True),
        Part("range", [Text(f"{ns / 1e6:+,.3f} … {ns / 1e6:+,.3f}") for ns in times], drop_order=2, right=True),
        Part("verdict", [Text("better") for _ in times], drop_order=1),
    ]
    out = StringIO()
    Console(width=width, color_system=None, file=out).print(fitted(parts, width))
    lines = out.getvalue().splitlines()
    for ns, line in zip(times, lines[1:]):
        assert f"{ns / 1e6:+,.3f}" in line.split()
    assert "range" not in lines[0] or "verdict" in lines[0]
    assert ("left out" in out.getvalue()) == ("range" not in lines[0])


@given(st.integers(40, 120), st.lists(st.text("ab/'\"$ -", min_size=1, max_size=30), min_size=1, max_size=6))
def test_long_commands_are_complete_and_can_be_copied(width, paths):
    command = f"trainyard trace what-if {shlex.join(paths)} --change without:launch_bound"
    out = StringIO()
    steps = next_steps([NextStep(command, "purpose " * 20)], width)
    Console(width=width, color_system=None, file=out).print(*steps, sep="\n")
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    shown = "\n".join(lines[[line.endswith(":") for line in lines].index(True) + 1 :])
    if max(len(shlex.quote(path)) for path in paths) + 10 < width:
        assert all(cell_len(line.rstrip()) <= width for line in lines)
        assert [word for word in shlex.split(shown) if word.strip()] == [w for w in shlex.split(command) if w.strip()]
    assert "".join(shown.split()).replace("\\", "") == "".join(command.split())
