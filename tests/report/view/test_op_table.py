"""The table of ops against the roofline: units of its cells, and the column for the bound."""

from typing import Any

import pytest

from trainyard.report.view import fact_tables
from trainyard.trace.flops.roofline import OpRow, Roofline

ROW = OpRow(
    op="aten::mm", shape="bf16 [8, 8] [8, 8]", account="compute/matmul", phase="forward", dtype="bfloat16", count=2.5,
    ns=3_000_000, busy_ns=4_000_000, flops=1_000, bytes=2_000, at_most=False, flops_rate=5e12, bytes_rate=6e9,
    intensity=0.5, bound="compute", reachable_ns=1_000_000, loss_ns=2_000_000,
)  # fmt: skip
UNKNOWN = ROW._replace(bound="unknown", reachable_ns=None, loss_ns=None, intensity=None)


@pytest.fixture
def cells():
    """The cells of the table's row for an op."""

    def op_cells(row: OpRow) -> tuple[Any, ...]:
        roofline = Roofline(rows=(row,), device="", known_ns=row.ns, compute_ns=row.ns, notes=())
        return fact_tables.ops(roofline).rows[0]

    return op_cells


def test_cells_are_in_milliseconds_and_tera(cells):
    assert cells(ROW) == ("aten::mm", ROW.shape, "compute", 2.5, 3.0, 1.0, 2.0, 5.0, 6.0)


def test_unknown_bound_is_an_empty_cell(cells):
    assert cells(UNKNOWN)[2:7] == ("", 2.5, 3.0, None, None)


def test_upper_bound_of_flops_is_marked(cells):
    marked = cells(UNKNOWN._replace(at_most=True))[2]
    assert marked == marked.strip(", ") != ""
