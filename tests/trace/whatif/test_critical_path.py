"""The critical path tiles the steps, and only ops on it determine their end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.trace.whatif.test_what_if import HOST_BOUND, cpu_rank, graphs, late_rank, read_all
from tests.trace_maker import trace
from trainyard.report.view.critical_path import critical_path_of, tables
from trainyard.trace.align.steps import StepPart
from trainyard.trace.measure import measure, read
from trainyard.trace.whatif.critical_path import DELAY, RUNNING, Segments, clip_to_parts, find_critical_path, trace_back
from trainyard.trace.whatif.dependency_graph import Needs, fit_graph, replay_graph
from trainyard.trace.whatif.replay import Replay


def fitted(drawn):
    """The fitted graph of a drawn one, the number of its last op and when that ends. No weight is negative and no
    need stops after the op starts, as in most profiles."""
    start, length, needs, _ = drawn
    is_met = start[needs.need] + length[needs.need] <= start[needs.op]
    needs = Needs(*(column[is_met] for column in needs._replace(weight=np.maximum(needs.weight, 0))))
    graph = fit_graph(start, start + length, needs, np.zeros(len(start), np.int64))
    stop = start + length
    last = int(np.argmax(stop))
    return graph, last, int(stop[last])


@given(graphs())
def test_segments_tile_the_time_from_base_to_end(drawn):
    graph, last, end = fitted(drawn)
    path = trace_back(graph, last, end)
    assert (path.start < path.stop).all()
    assert (path.start[1:] == path.stop[:-1]).all()
    assert int((path.stop - path.start).sum()) == end - graph.base


@given(graphs(), st.integers(1, 50))
def test_a_longer_op_on_the_path_delays_the_end_exactly(drawn, added_ns):
    graph, last, end = fitted(drawn)
    path = trace_back(graph, last, end)
    for op in np.unique(path.op[path.state == RUNNING]).tolist():
        length = graph.length.copy()
        length[op] += added_ns
        assert replay_graph(graph, length)[1][last] == end + added_ns


@given(graphs(), st.data())
def test_shorter_ops_off_the_path_do_not_move_the_end(drawn, data):
    graph, last, end = fitted(drawn)
    on_path = set(trace_back(graph, last, end).op.tolist()) | {last}
    length = graph.length.copy()
    for op in range(len(length)):
        if op not in on_path and length[op] > 0:
            length[op] = data.draw(st.integers(0, int(length[op])))
    assert replay_graph(graph, length)[1][last] == end


def check_sums(measured):
    replay = Replay(measured)
    path = find_critical_path(replay)
    result = critical_path_of(replay)
    ns = path.segments.stop - path.segments.start
    assert int(ns.sum()) == path.total_ns == result.total_ns == sum(share.ns for share in result.shares)
    assert (path.segments.start[1:] >= path.segments.stop[:-1]).all()
    assert sum(item.ns for item in result.ranks) <= result.total_ns
    return result


@given(
    st.one_of(st.tuples(rank_traces()), st.tuples(cpu_traces()), st.tuples(rank_traces(0, 2), rank_traces(1, 2))),
    st.sampled_from(["steps", "all"]),
)
def test_shares_add_up_to_the_steps(tmp_path_factory, documents, window):
    check_sums(measure(read_all(tmp_path_factory.mktemp("t"), *documents), window))


@pytest.mark.parametrize(
    "name",
    ["a100_ddp_resnet.json.gz", "diff_test.json.gz", "mi300_resnet_ac.json.gz", "v100_dlrm_8ranks", "cpu_gloo_3ranks"],
)
def test_shares_of_public_traces_add_up(public_trace, name):
    result = check_sums(measure(read([public_trace(name)])))
    assert result.ops


def test_the_path_runs_on_the_late_rank(tmp_path):
    result = check_sums(measure(read_all(tmp_path, late_rank(0), late_rank(30)), "all"))
    assert (result.ranks[0].rank, result.one_clock) == (1, True)
    # The late rank's product of 50 ns, then the transfer of 10 ns; its kernels start at 10.
    assert [(share.resource, share.ns) for share in result.shares] == [("device", 50), ("communication", 10)]


def test_calls_are_launches_rather_than_pieces_of_host_time(tmp_path):
    result = check_sums(measure(read_all(tmp_path, HOST_BOUND), "all"))
    # The host runs from 7 to 55 in several activities, until the launch of the elementwise kernel.
    counts = {(op.name, op.resource): op.count for op in result.ops}
    assert counts == {("elementwise_kernel", "host"): 1, ("elementwise_kernel", "device"): 1, ("gemm", "device"): 1}


def test_launches_without_duration_are_no_host_time(tmp_path):
    document = trace(device=[("gemm", 7, 0, 10, 0), ("gemm", 7, 60, 70, 10)], launch_ns=0)
    result = check_sums(measure(read_all(tmp_path, document), "all"))
    assert [(share.resource, share.ns) for share in result.shares] == [("unexplained", 50), ("device", 20)]


def test_titles_serve_as_heads_of_the_first_columns(tmp_path):
    result = critical_path_of(Replay(measure(read_all(tmp_path, late_rank(0), late_rank(30)), "all")))
    by_kind = tables(result)
    assert [table.title.split()[0] for table in by_kind] == [table.columns[0].title for table in by_kind]
    assert len(by_kind) >= 2


def test_the_path_of_cpu_ranks_runs_on_the_late_rank(tmp_path):
    result = check_sums(measure(read_all(tmp_path, cpu_rank(0, 40), cpu_rank(1, 140))))
    assert result.ranks[0].rank == 1
    assert (result.steps, result.total_ns) == (1, 220)


def test_without_one_clock_the_path_stays_on_the_slowest_rank(tmp_path):
    documents = [trace(device=[("gemm", 7, 0, 10 * (rank + 1), 5)], rank=rank, world=2) for rank in (0, 1)]
    result = check_sums(measure(read_all(tmp_path, *documents), "all"))
    assert [item.rank for item in result.ranks] == [1]
    assert (result.one_clock, result.total_ns) == (False, 20)


def test_parts_before_the_first_op_become_an_unexplained_delay():
    columns = (np.array([value], np.int64) for value in (3, 10, 20, RUNNING))
    clipped = clip_to_parts(Segments(*columns), [StepPart("1", 5, 15, False), StepPart("2", 15, 18, False)])
    assert list(zip(*(column.tolist() for column in clipped))) == [
        (-1, 5, 10, DELAY), (3, 10, 15, RUNNING), (3, 15, 18, RUNNING),
    ]  # fmt: skip
