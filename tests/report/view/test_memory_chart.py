"""The chart and the table of memory: of the rank with the highest peak, and absent without allocations."""

import pytest

from tests.memory_traces import KERNEL, MIB, STEP, memory_event
from tests.trace_maker import trace, write
from trainyard.report.render.static_html import view_html
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.report.view.build_view import view_of
from trainyard.trace.measure import measure, read


def analysis_of(folder, *memory_of_ranks):
    paths = []
    for rank, memory in enumerate(memory_of_ranks):
        document = trace(
            device=KERNEL, host=STEP, marks=[("1", 500, 10_000)], rank=rank, world=len(memory_of_ranks),
            host_name="node0", device_index=rank,
        )  # fmt: skip
        document["traceEvents"] += memory
        paths.append(write(folder, document, f"rank{rank}.json"))
    return analyse_measured(measure(read(paths)))


def events(mib, device):
    sizes = [(1200, mib, 1), (1300, 2, 2), (1400, -2, 2), (5300, 4, 3), (5400, -mib, 1)]
    total, rows = 100 * MIB, []
    for time, size, address in sizes:
        total += size * MIB
        rows.append(memory_event(time, size * MIB, address, total, device=device))
    return rows


def test_the_rank_with_the_highest_peak_is_shown(tmp_path):
    analysis = analysis_of(tmp_path, events(8, 0), events(16, 1), [])
    chart = analysis.charts.memory
    assert (chart.rank, chart.device) == (1, "device 1")
    totals = [sum(column) // MIB for column in zip(*chart.curve.kinds)]
    assert totals == [100, 116, 118, 116, 120, 104]
    assert chart.curve.peak == 4
    assert {label: size // MIB for label, size in chart.held.items()} == {
        "Unknown": 100, "Activations": 16, "Gradients": 4,
    }  # fmt: skip
    assert chart.kinds[0].label == "Unknown"
    assert "lowest is 112.0 MiB" in chart.note
    assert chart.length_ns >= chart.curve.ns[-1]
    assert all(0 <= start <= chart.length_ns for _, start in chart.steps)
    table = next(table for table in analysis.tables if table.title == chart.table)
    column = {name.title: at for at, name in enumerate(table.columns)}
    held = {row[0]: (row[column["Category"]], row[column["MiB"]]) for row in table.rows}
    assert held == {
        "(before the recording)": ("Unknown", 100.0),
        "aten::linear": ("Activations", 16.0),
        "AddmmBackward0": ("Gradients", 4.0),
    }
    assert sum(row[column["Share, %"]] for row in table.rows) == pytest.approx(100)


def test_the_table_is_there_without_javascript(tmp_path):
    document = view_html(view_of(analysis_of(tmp_path, events(8, 0))))
    assert "AddmmBackward0" in document
    assert "Gradients" in document


def test_without_allocations_there_is_neither_chart_nor_table(tmp_path):
    analysis = analysis_of(tmp_path, [])
    assert analysis.charts.memory is None
    assert not [table for table in analysis.tables if "memory" in table.title]


def test_without_addresses_there_is_a_chart_alone(tmp_path):
    analysis = analysis_of(tmp_path, [memory_event(1200, 8), memory_event(1300, -8)])
    assert analysis.charts.memory.table == ""
    assert "no addresses" in analysis.charts.memory.note
    assert not [table for table in analysis.tables if "memory" in table.title]
