"""The timeline: slices of a lane do not overlap, and folding stays within its budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.test_trace_properties import rank_traces
from tests.trace.whatif.test_what_if import read_all
from tests.trace_maker import trace, write
from trainyard.report.view.step_bounds import own_steps, step_label
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


def check_steps(measured):
    """The steps of each rank are the parts of its window."""
    drawn = timeline(measured)
    shared = measured.alignment.aligned != "no"
    origin = min(rank.parts[0].start for rank in measured.ranks)
    for rank in measured.ranks:
        zero = origin if shared else rank.parts[0].start
        expected = tuple((step_label(part.label), part.start - zero, part.stop - zero) for part in rank.parts)
        assert drawn.steps_of_ranks.get(rank.events.rank, drawn.steps) == expected
    return drawn


@given(st.tuples(rank_traces(0, 3), rank_traces(1, 3), rank_traces(2, 3)))
def test_each_rank_has_the_bounds_of_its_own_steps(tmp_path_factory, documents):
    check_steps(measure(read_all(tmp_path_factory.mktemp("t"), *documents)))


@pytest.mark.parametrize("name", ["v100_dlrm_8ranks", "cpu_gloo_3ranks", "h100_qwen_0.5b.json.gz"])
def test_steps_of_the_ranks_of_public_traces(public_trace, name):
    check_steps(measure(read([public_trace(name)])))


def test_ranks_with_all_lanes_keep_their_steps_if_there_are_too_many():
    steps = {rank: tuple((f"step {at}", at * rank, (at + 1) * rank) for at in range(15_000)) for rank in (1, 2, 3)}
    assert list(own_steps(steps, 1, [1, 3])) == [3]
    assert list(own_steps({rank: own[:100] for rank, own in steps.items()}, 1, [1, 3])) == [2, 3]
