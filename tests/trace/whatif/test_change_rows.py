"""Changes of single intervals: scaled work, removed idle time, and the rules that select them."""

import numpy as np
import pytest

from tests.trace.whatif.test_what_if import HOST_BOUND, read_all, wall_and_accounts
from tests.trace_maker import trace
from trainyard.change import ChangedRows, RowChange
from trainyard.detect.row_changes import row_change
from trainyard.trace.measure import measure, read
from trainyard.trace.rank_results import all_booked
from trainyard.trace.whatif.replay import Replay
from trainyard.trace.whatif.what_if import what_if

NO_ROWS = np.empty(0, np.int64)


def changed(rows=NO_ROWS, remaining=(), start=NO_ROWS, stop=NO_ROWS, ended_by=NO_ROWS):
    columns = [np.array(column, np.int64) for column in (rows, start, stop, ended_by)]
    row, start, stop, ended_by = columns
    fraction = np.array(remaining, np.float64)
    return RowChange(text="without:test", ranks=(ChangedRows(0, row, fraction, start, stop, ended_by),))


@pytest.mark.parametrize(("fraction", "length"), [(0.0, 1), (0.5, 5), (1.0, 10)])
def test_work_keeps_the_given_fraction_and_at_least_a_nanosecond(tmp_path, fraction, length):
    measured = measure(read_all(tmp_path, HOST_BOUND), "all")
    _, accounts = wall_and_accounts(what_if(measured, [changed(rows=[1], remaining=[fraction])]))
    assert accounts["compute/elementwise"] == length
    assert accounts["compute/matmul"] == 30


def test_removed_idle_time_is_host_time_that_vanishes(tmp_path):
    measured = measure(read_all(tmp_path, HOST_BOUND), "all")
    # The device idles from 20 to 60, while the host works. Without the half of it, all that follows is 20 earlier.
    prediction = what_if(measured, [changed(start=[30], stop=[50], ended_by=[1])])
    assert measured.mean.wall_ns - prediction.mean.wall_ns == 20


def test_a_late_start_after_its_launch_vanishes_with_its_idle_time(tmp_path):
    queued = trace(device=[("gemm", 7, 10, 20, 5), ("gemm", 7, 50, 60, 6)])
    measured = measure(read_all(tmp_path, queued), "all")
    prediction = what_if(measured, [changed(start=[20], stop=[50], ended_by=[1])])
    assert prediction.mean.wall_ns == measured.mean.wall_ns - 30


def test_all_idle_rows_of_a_public_trace_leave_no_gap_of_the_host(public_trace):
    measured = measure(read([public_trace("a100_ddp_resnet.json.gz")]))
    ranks = all_booked(measured)
    whole = row_change("all", ranks, idle=[np.arange(len(rank.idle.start)) for rank in ranks])
    replay = Replay(measured)
    recovered = replay.recovery(replay.times([whole])).ns
    idle_ns = measured.mean.by_kind()["launch_gap"]
    # An order of streams may keep some of it; and nothing but idle time can be recovered.
    assert 0.95 * idle_ns <= recovered <= idle_ns + measured.mean.by_kind().get("unexplained", 0)


def test_rows_of_a_cpu_are_pieces_of_its_training_thread(tmp_path):
    host = [("aten::mm", 100, 10, 50, "cpu_op"), ("aten::mul", 100, 60, 80, "cpu_op")]
    measured = measure(read_all(tmp_path, trace(host=host, marks=[("1", 0, 100)])))
    (rank,) = all_booked(measured)
    is_product = rank.keys(lambda account, _: account.what == "matmul")[rank.key]
    change = row_change("test", [rank], rows=[np.flatnonzero(is_product)], remaining=0.25)
    assert what_if(measured, [change]).mean.wall_ns == 100 - 30


def test_idle_rows_may_vanish_in_part(tmp_path):
    host = [("aten::mm", 100, 10, 50, "cpu_op"), ("aten::mul", 100, 70, 80, "cpu_op")]
    measured = measure(read_all(tmp_path, trace(host=host, marks=[("1", 0, 100)])))
    (rank,) = all_booked(measured)
    gap = np.flatnonzero(rank.idle.start == 50)
    assert what_if(measured, [row_change("t", [rank], idle=[gap])]).mean.wall_ns == 100 - 20 + 1
    assert what_if(measured, [row_change("t", [rank], idle=[gap], idle_removed=[0.5])]).mean.wall_ns == 100 - 10
