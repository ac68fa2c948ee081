"""SQL, CSV, workbooks and markdown: their content, and protection against hostile names and queries."""

import csv
import io
import re
import sys
import zipfile
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.page_views import HOSTILE
from tests.refused import refused
from tests.trace_maker import trace, write
from trainyard.errors import BadInput, MissingLibrary, PlaceUnwritable
from trainyard.finding import Finding, Remedy
from trainyard.ledger import Account, from_json
from trainyard.printable import printable
from trainyard.report.render import by_suffix, csv_tables, markdown, xlsx
from trainyard.report.render.by_suffix import Reported
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.report.view.build_view import view_of
from trainyard.trace.export import sql
from trainyard.trace.export.columns import Columns, mask_unknown, text_column
from trainyard.trace.export.schema import TABLES
from trainyard.trace.export.trace_tables import ledger_table
from trainyard.trace.measure import measure, read

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", '=HYPERLINK("http://evil")')
OUTSIDE = (
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM parquet_scan('{file}')",
    "SELECT * FROM measured",
    "COPY work TO '{file}'",
    "EXPORT DATABASE '{file}'",
    "ATTACH '{file}' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET memory_limit = '1TB'",
    "RESET lock_configuration",
    "DELETE FROM work",
    "CREATE TABLE more AS SELECT 1",
    "DROP TABLE work",
)


@pytest.fixture
def measured(tmp_path):
    """Two ranks of one host with one step each and hostile names."""
    names = [*FORMULAS, *HOSTILE]
    device = [(name, 7, 100 * i, 100 * i + 50, None) for i, name in enumerate(names)]
    (tmp_path / "ranks").mkdir()
    paths = [
        write(tmp_path / "ranks", trace(device=device, rank=rank, world=2, host_name="one"), f"{rank}.json")
        for rank in (0, 1)
    ]
    return measure(read(paths), "all")


@pytest.fixture
def reported(measured):
    view = msgspec.structs.replace(
        view_of(analyse_measured(measured)),
        findings=tuple(
            Finding(rule="r", severity="high", account=Account("compute", "matmul"), cost_ns=12, summary=name,
                    evidence=name, remedy=Remedy(description=name), confidence=0.5)
            for name in FORMULAS
        ),
    )  # fmt: skip
    return Reported(view, measured.ledgers, measured)


def test_csv_round_trips():
    table = Columns({"name": text_column(["a,b", 'say "x"', None]), "ns": mask_unknown(np.array([-7, -1, 2**62 + 1]))})
    assert list(csv.reader(io.StringIO(csv_tables.text(table), newline=""))) == [
        ["name", "ns"],
        ["a,b", "-7"],
        ['say "x"', ""],
        ["", str(2**62 + 1)],
    ]


@given(st.lists(st.one_of(st.sampled_from(FORMULAS), st.text()), min_size=1))
def test_no_text_in_a_csv_is_a_formula(names):
    (_, *rows) = csv.reader(io.StringIO(csv_tables.text_of(["name"], [[name] for name in names]), newline=""))
    cells = [row[0] if row else "" for row in rows]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))]
    assert [cell.removeprefix("'") for cell in cells] == [
        printable(name, keep="\t\r\n").removeprefix("'") for name in names
    ]


def test_the_ledger_as_csv_adds_up(reported, tmp_path):
    by_suffix.write(reported, tmp_path / "x.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text("utf-8"), newline="")))
    for rank, ledger in (("0", reported.ledgers[0]), ("1", reported.ledgers[1]), ("", reported.ledgers[-1])):
        mine = [row for row in rows if row["rank"] == rank]
        assert sum(int(row["ns"]) for row in mine) == ledger.wall_ns
        assert {row["wall_ns"] for row in mine} == {str(ledger.wall_ns)}


def cells(path):
    """Sheet -> rows of (type, text) from the workbook's XML, with the types of the format."""
    space = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}
    with zipfile.ZipFile(path) as book:
        names = re.findall(r'<sheet name="([^"]+)"', book.read("xl/workbook.xml").decode())
        sheets = {}
        for number, name in enumerate(names, 1):
            text = book.read(f"xl/worksheets/sheet{number}.xml").decode()
            assert "<f>" not in text
            assert "hyperlink" not in text.lower().replace("=hyperlink(", "")
            sheets[name] = [
                [
                    (cell.get("t", "n"), "".join(cell.itertext()).replace("_x000D_", "\r"))
                    for cell in row.iterfind("m:c", space)
                ]
                for row in ElementTree.fromstring(text).iterfind(".//m:row", space)  # noqa: S314
            ]
    return sheets


def test_a_workbook_has_typed_numbers_and_texts(reported, tmp_path):
    pytest.importorskip("xlsxwriter")
    by_suffix.write(reported, tmp_path / "x.xlsx")
    workbook = cells(tmp_path / "x.xlsx")
    assert list(workbook) == [
        "Ledger",
        "Ranks",
        "Steps",
        "Findings",
        "Kernels",
        "Ops",
        "Collectives",
        "Traffic",
        "Notes",
    ]
    heads, *rows, total = workbook["Ledger"]
    ns = [text for _, text in heads].index("ns")
    assert sum(int(row[ns][1]) for row in rows) == reported.ledgers[-1].wall_ns
    assert {row[ns][0] for row in rows} == {"n"}
    assert total[0] == ("inlineStr", "step")
    assert {row[2] for row in workbook["Findings"][1:]} == {("inlineStr", name) for name in FORMULAS}
    assert {kind for kind, _ in (row[0] for row in workbook["Kernels"][1:])} == {"inlineStr"}
    assert [row[:2] for row in workbook["Ranks"][1:]] == [
        [("n", str(rank)), ("n", str(reported.ledgers[rank].wall_ns))] for rank in (0, 1)
    ]


def test_a_workbook_reports_truncated_rows(reported, tmp_path, monkeypatch):
    pytest.importorskip("xlsxwriter")
    monkeypatch.setattr(xlsx, "_MOST_ROWS", 5)
    monkeypatch.setattr(xlsx, "_LARGEST_EXACT", 100)
    by_suffix.write(reported, tmp_path / "x.xlsx")
    workbook = cells(tmp_path / "x.xlsx")
    assert len(workbook["Kernels"]) == 5
    assert len(workbook["Notes"]) == 5


def test_another_reader_reads_the_same_workbook(reported, tmp_path):
    pytest.importorskip("xlsxwriter")
    openpyxl = pytest.importorskip("openpyxl")
    by_suffix.write(reported, tmp_path / "x.xlsx")
    book = openpyxl.load_workbook(tmp_path / "x.xlsx")
    names = {cell.value: cell.data_type for row in book["Kernels"].iter_rows(min_row=2, max_col=1) for cell in row}
    assert set(names.values()) == {"s"}
    assert set(FORMULAS[:4]) <= set(names)


def test_markdown_shows_every_line_of_the_ledger(reported):
    shown = markdown.text(reported.view)
    for _, _, _, ns, _, _ in reported.view.table:
        assert f"| {ns:,} |" in shown
    assert f"**{reported.view.wall_ns:,}**" in shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<img src=x>", r"\<img src=x\>"),
        ("a | b", r"a \| b"),
        ("[x](http://evil)", r"\[x\](http\://evil)"),
        ("@everyone www.evil.com", "@&#8203;everyone www\\.evil.com"),
        ("comm/all_gather@dp", r"comm/all\_gather@dp"),
        ("two\nlines\x1b[31m", "two lines⟨U+001B⟩\\[31m"),
        ("&lt;", r"\&lt;"),
    ],
)
def test_markdown_escapes_names(name, shown):
    assert markdown.escaped(name) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a`b|c<d>", "`a'b¦c<d>`"),
        (r"a\|<img src=x>", r"`a\¦<img src=x>`"),
        (r"``\`|<img src=x>", r"`''\'¦<img src=x>`"),
        ("ends\\", "`ends\\`"),
    ],
)
def test_a_kernel_in_markdown_stays_in_its_cell(name, shown):
    assert markdown.code(name) == shown


@given(st.text())
def test_names_cannot_break_out_of_a_markdown_line(name):
    for shown in (markdown.escaped(name), markdown.code(name)):
        assert len(shown.splitlines()) <= 1
        assert not re.search(r"(?<!\\)(\\\\)*\|", shown)
    assert not set("`|") & set(markdown.code(name)[1:-1])


@pytest.mark.parametrize("name", ["x.html", "x.md", "x.csv", "x.json", "x.pftrace", "X.JSON"])
def test_the_file_ending_selects_the_format(reported, tmp_path, name):
    by_suffix.write(reported, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    start = {"html": b"<!", "md": b"## ", "csv": b"rank,", "json": b"{", "pftrace": b"\x1f\x8b"}
    assert data.startswith(start[by_suffix.ending(tmp_path / name)[1:]])
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_json_is_the_ledgers(reported, tmp_path):
    by_suffix.write(reported, tmp_path / "x.json")
    assert from_json((tmp_path / "x.json").read_bytes()) == reported.ledgers


@pytest.mark.parametrize("name", ["x.pdf", "x", ".html"])
def test_an_unknown_ending_is_refused_before_any_work(name, tmp_path):
    with refused(BadInput, tmp_path / name, ".pftrace"):
        by_suffix.ending(tmp_path / name)


def test_without_traces_a_workbook_is_possible_but_no_archive(reported, tmp_path):
    bare = reported._replace(measured=None)
    with refused(BadInput, tmp_path / "x.pftrace"):
        by_suffix.write(bare, tmp_path / "x.pftrace")
    pytest.importorskip("xlsxwriter")
    by_suffix.write(bare, tmp_path / "x.xlsx")
    assert "Ops" not in cells(tmp_path / "x.xlsx")


@pytest.mark.parametrize("name", ["x.md", "x.csv", "x.json", "x.pftrace", "x.xlsx", "x.html"])
def test_an_unwritable_output_is_named(reported, tmp_path, name):
    if name == "x.xlsx":
        pytest.importorskip("xlsxwriter")
    with refused(PlaceUnwritable, tmp_path / "none" / name):
        by_suffix.write(reported, tmp_path / "none" / name)


def test_without_the_libraries_an_extra_is_named(reported, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with refused(MissingLibrary, "trainyard[xlsx]"):
        by_suffix.write(reported, tmp_path / "x.xlsx")
    with refused(MissingLibrary, "trainyard[sql]"):
        sql.query(reported.measured, "SELECT 1")


def test_sql_reads_the_ledger(measured):
    pytest.importorskip("duckdb")
    answer = sql.query(
        measured, "SELECT rank, sum(ns)::BIGINT AS ns, any_value(wall_ns) FROM ledger GROUP BY 1 ORDER BY 1"
    )
    assert answer.columns == ("rank", "ns", "any_value(wall_ns)")
    assert answer.rows == tuple((rank, ledger.wall_ns, ledger.wall_ns) for rank, ledger in enumerate(measured.by_rank))
    assert not answer.more


@pytest.mark.parametrize("name", TABLES)
def test_sql_has_every_row_and_null_for_unknown(name, measured):
    pytest.importorskip("duckdb")
    tables = {key: Columns.joined([rank_tables[key] for rank_tables in sql.tables_by_rank(measured)]) for key in TABLES}
    assert sorted(sql.query(measured, f"SELECT * FROM {name}").rows, key=str) == sorted(tables[name].rows(), key=str)  # noqa: S608


def test_sql_lists_the_tables(measured):
    pytest.importorskip("duckdb")
    assert {row[0] for row in sql.query(measured, "SHOW TABLES").rows} == set(TABLES)
    assert sql.query(measured, "SELECT count(*) FROM query_table('wo' || 'rk')").rows == ((2 * 15,),)


def test_sql_limits_rows_and_reports_more(measured):
    pytest.importorskip("duckdb")
    assert len(sql.query(measured, "SELECT * FROM work", max_rows=3).rows) == 3
    assert sql.query(measured, "SELECT * FROM work", max_rows=3).more
    assert not sql.query(measured, "SELECT * FROM work LIMIT 3", max_rows=3).more


@pytest.mark.parametrize("query", OUTSIDE)
def test_sql_cannot_access_files_or_change_settings(query, measured, tmp_path):
    pytest.importorskip("duckdb")
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(BadInput):
        sql.query(measured, query.format(file=file))
    assert file.read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize("query", ["", "SELECT 1; SELECT 2", "SELECT", "SELECT nope FROM work", "SELECT * FROM nope"])
def test_an_invalid_query_lists_the_tables(query, measured):
    pytest.importorskip("duckdb")
    with refused(BadInput, "verdicts(rank, step, start_ns"):
        sql.query(measured, query)


def test_a_slow_query_is_interrupted(measured):
    pytest.importorskip("duckdb")
    with refused(BadInput, "200.0 ms"):
        sql.query(measured, "SELECT count(*) FROM range(10000000000) a, range(100000) b", seconds=0.2)


def test_the_mean_has_no_rank_of_its_own(measured):
    table = ledger_table([measured.mean])
    assert [row[:2] for row in table.rows()] == [(None, None)] * len(measured.mean.entries)
