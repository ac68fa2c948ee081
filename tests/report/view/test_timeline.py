"""The timeline: slices of a lane do not overlap, and folding stays within its budget."""

import pytest

from tests.trace_maker import trace, write
from trainyard.report.view.timeline import timeline
from trainyard.trace.measure import measure, read


@pytest.fixture
def busy(tmp_path):
    names = ["gemm", "elementwise_kernel", "reduce_kernel"]
    device = [(names[i % 3], i % 2, 10 * i, 10 * i + 4 + i % 5, None) for i in range(400)]
    return measure(read([write(tmp_path, trace(device=device))]), "all")


def of_kind(drawn, kind):
    return [lane for lane in drawn.lanes if lane.kind == kind]


def test_every_interval_is_drawn_within_the_budget(busy):
    drawn = timeline(busy)
    assert drawn.events == sum(len(lane.starts) for lane in of_kind(drawn, "device")) == 400
    assert drawn.merged == 0


@pytest.mark.parametrize("most", [1, 2, 10, 100, 399])
def test_folding_meets_the_budget_and_keeps_slices_disjoint(busy, most):
    drawn = timeline(busy, most)
    device, ledger = of_kind(drawn, "device"), of_kind(drawn, "ledger")
    slices = sum(len(lane.starts) for lane in device)
    assert slices <= max(most, 3 * len(device))
    assert sum(len(lane.starts) for lane in ledger) <= max(most, 3 * len(ledger))
    assert drawn.merged == 400 - slices
    for lane in drawn.lanes:
        stops = [start + length for start, length in zip(lane.starts, lane.lengths)]
        assert all(stop <= start for stop, start in zip(stops, lane.starts[1:]))
        assert stops[-1] <= drawn.length_ns
        assert all(len(column) == len(stops) for column in lane.details.values())
