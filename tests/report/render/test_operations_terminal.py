"""Operations of a comparison: in the terminal, in a notebook, in JSON, and the reason if there are none."""

import json
import re
from io import StringIO

import pytest
from rich.console import Console

from tests.trace_maker import MAIN, trace, write
from trainyard import api
from trainyard.cli.main import answer
from trainyard.report.render.diff_terminal import print_comparison
from trainyard.report.view.operation_changes import operations_table

OPS = ("aten::mm", "aten::add", "aten::mul", "aten::sum", "aten::cat")
LONG = "nn.Module: " + "VeryLongModuleName" * 8 + "_0"


def write_trace(folder, name, lengths, ops=OPS):
    """A CPU trace of three steps of 10 µs per op; `lengths`: ns of each op."""
    host, marks = [], []
    for step in range(3):
        begin = step * 100_000
        marks.append((str(step), begin, begin + 100_000))
        host.append((LONG, MAIN, begin + 1, begin + 99_999, "python_function"))
        host.extend(
            (op, MAIN, begin + 10_000 * (1 + at), begin + 10_000 * (1 + at) + length, "cpu_op")
            for at, (op, length) in enumerate(zip(ops, lengths))
        )
    return write(folder, trace(host=host, marks=marks), name)


@pytest.fixture
def comparison(tmp_path):
    before = write_trace(tmp_path, "before.json", (1000, 2000, 3000, 4000, 5000))
    return api.diff(before, write_trace(tmp_path, "after.json", (9000, 2500, 3200, 4000, 500)))


def lines_of(comparison, width, full=False):
    out = StringIO()
    print_comparison(comparison, Console(file=out, width=width), full)
    return out.getvalue().splitlines()


def rows_of(lines):
    """The lines of changes in the part on operations."""
    start = next(index for index, line in enumerate(lines) if line.startswith("by operation"))
    return [line for line in lines[start + 1 :] if re.match(r" *[+-]\d", line)]


def test_the_three_largest_operations_are_printed(comparison):
    rows = rows_of(lines_of(comparison, 100))
    largest = comparison.operations.largest
    assert len(largest) > 3
    assert [row.split()[0] for row in rows[:3]] == [f"{change.ns / 1e6:+.3f}" for change in largest[:3]]
    assert rows[0].endswith("aten::mm")
    assert rows[-1].endswith("other operations")
    assert sum(float(row.split()[0]) for row in rows) == pytest.approx(comparison.wall_change_ns / 1e6, abs=2e-3)
    assert len(rows_of(lines_of(comparison, 100, full=True))) == len(comparison.operations.largest) + 1


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(comparison, width):
    assert max(map(len, lines_of(comparison, width, full=True))) <= width


def test_changes_of_operations_add_up_in_json(comparison, tmp_path, capsys):
    assert answer(["diff", str(tmp_path / "before.json"), str(tmp_path / "after.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    operations = document["operations"]
    assert document["schema"] == "trainyard/diff/2"
    assert sum(row["ns"] for row in operations["largest"]) + operations["rest_ns"] == document["wall_change_ns"]
    largest = operations["largest"][0]
    assert (largest["path"][-1], largest["match"], largest["ns"]) == ("aten::mm", "same", 8000)


def test_the_notebook_table_has_all_operations(comparison):
    table = operations_table(comparison.operations, "")
    assert len(table.rows) == len(comparison.operations.largest) + 1
    assert sum(row[3] for row in table.rows) == pytest.approx(comparison.wall_change_ns / 1e6)
    assert "aten::mm" in comparison._repr_html_()


def test_a_trace_without_host_ops_has_a_reason(tmp_path):
    device = [("gemm", 7, 100, 200, None), ("gemm", 7, 300, 400, None)]
    paths = [write(tmp_path, trace(device=device), name) for name in ("before.json", "after.json")]
    comparison = api.diff(*paths)
    assert comparison.operations is None
    assert "before has no host ops" in comparison.no_operations
    assert "after has no host ops" in comparison.no_operations
    assert any("no host ops" in line for line in lines_of(comparison, 200, full=True))
