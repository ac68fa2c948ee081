"""Replays: compiled and Python code agree, and the steps of a replay are those of its booked events."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.trace.whatif.test_what_if import graphs, read_all
from tests.trace_maker import trace
from trainyard.change import Change
from trainyard.errors import BadInput
from trainyard.trace.align.steps import StepPart
from trainyard.trace.measure import measure, read
from trainyard.trace.readers.kineto.native import library
from trainyard.trace.whatif.dependency_graph import fit_graph, replay_graph
from trainyard.trace.whatif.device_ops import _find_pauses
from trainyard.trace.whatif.replay import Replay, compare_steps
from trainyard.trace.whatif.what_if import what_if

CHANGES = (
    "no-stragglers", "no-launch-gaps", "no-syncs", "perfect-overlap", "rank:1=typical", "network=3x", "compute=2x",
    "launch_gap=0", "comm=overlap", "comm/all_reduce=overlap", "data_wait=0", "op:aten::mm=0",
    "memory=2x",
)  # fmt: skip


@given(graphs())
def test_compiled_and_python_replays_agree(drawn):
    start, length, needs, shorter = drawn
    graph = fit_graph(start, start + length, needs, np.zeros(len(start), np.int64))
    if library() is None:
        pytest.skip("the compiled code is not built")
    compiled = replay_graph(graph, shorter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_PURE", "1")
        plain = replay_graph(graph, shorter)
    assert all((fast == slow).all() for fast, slow in zip(compiled, plain))


def assert_recovery_is_the_ledgers_change(measured, texts):
    """The recovered time from replayed steps alone is the change of the mean ledger; returns the number of changes that
    match the trace."""
    matched = 0
    replay = Replay(measured)
    for text in texts:
        try:
            prediction = what_if(measured, [text], replay=replay)
        except BadInput:
            continue
        matched += 1
        assert prediction.recovery.ns == measured.mean.wall_ns - prediction.mean.wall_ns, text
        assert prediction.recovery == replay.recovery(replay.times([Change(text=text)])), text
    return matched


@given(
    st.one_of(st.tuples(rank_traces()), st.tuples(cpu_traces()), st.tuples(rank_traces(0, 2), rank_traces(1, 2))),
    st.sampled_from(["steps", "all"]),
    st.sampled_from(CHANGES),
)
def test_recovered_time_is_the_change_of_the_mean_ledger(tmp_path_factory, documents, window, text):
    measured = measure(read_all(tmp_path_factory.mktemp("t"), *documents), window)
    assert_recovery_is_the_ledgers_change(measured, [text])


@pytest.mark.parametrize(
    "name",
    ["a100_ddp_resnet.json.gz", "diff_test.json.gz", "mi300_resnet_ac.json.gz", "v100_dlrm_8ranks", "cpu_gloo_3ranks"],
)
def test_recovered_time_of_public_traces_is_the_ledgers_change(public_trace, name):
    measured = measure(read([public_trace(name)]))
    assert assert_recovery_is_the_ledgers_change(measured, CHANGES) >= 5


def parts(*lengths, partial=()):
    start, row = 0, []
    for number, length in enumerate(lengths):
        is_cut = number in partial
        row.append(StepPart(str(number), start, start + length, is_cut, kind="cut" if is_cut else "step"))
        start += length
    return row


def test_the_interval_is_students_t_over_steps():
    before, after = [parts(100, 100, 100, 100)], [parts(88, 92, 90, 90)]
    recovery = compare_steps(before, after)
    # Savings 12, 8, 10, 10: mean 10, standard error sqrt(8 / 3) / 2; t with 3 degrees of freedom at 90 % is 1.638.
    half_width = 1.6377 * (8 / 3) ** 0.5 / 2
    assert (recovery.ns, recovery.steps) == (10, 4)
    assert recovery.interval_ns == (round(10 - half_width), round(10 + half_width))


def test_one_step_has_no_interval_and_partial_steps_do_not_count():
    recovery = compare_steps([parts(50, 100, partial=(0,))], [parts(10, 70, partial=(0,))])
    assert (recovery.ns, recovery.steps, recovery.interval_ns) == (30, 1, None)


def test_steps_are_compared_as_means_over_ranks():
    recovery = compare_steps([parts(100, 100), parts(60, 60)], [parts(80, 80), parts(60, 60)])
    assert (recovery.ns, recovery.interval_ns) == (10, (10, 10))


SYNCED = trace(
    device=[("gemm", 7, 10, 50, 5), ("gemm", 7, 75, 85, 70)],
    host=[("cudaStreamSynchronize", 100, 8, 60, "cuda_runtime")],
)


def test_without_syncs_the_host_runs_ahead(tmp_path):
    measured = measure(read_all(tmp_path, SYNCED), "all")
    assert measured.mean.wall_ns == 75
    prediction = what_if(measured, ["no-syncs"])
    # The call, 8 to 60, takes 1 ns instead of the time until its return: the second product is ready at 24 and queues.
    assert prediction.mean.wall_ns == 50
    assert prediction.mean.by_kind() == {"compute": 50}


def test_a_sync_that_returns_before_any_work_ended_did_not_wait(tmp_path):
    document = trace(
        device=[("gemm", 7, 20, 100, 5), ("gemm", 7, 130, 140, 120)],
        host=[("cudaStreamSynchronize", 100, 8, 18, "cuda_runtime")],
    )
    (events,) = read_all(tmp_path, document)
    pauses = _find_pauses(events, np.arange(len(events.work)))
    assert (len(pauses.begin), len(pauses.awaited)) == (0, 0)


def test_one_collective_overlaps_while_another_is_waited_for(tmp_path):
    reduce, gather = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllGather_RING_LL"
    device = [
        ("gemm", 7, 10, 20, 5), (reduce, 8, 20, 50, 6), ("gemm", 7, 50, 60, 7), (gather, 8, 60, 80, 8),
        ("gemm", 7, 80, 90, 9), ("gemm", 7, 90, 92, 9),
    ]  # fmt: skip
    measured = measure(read_all(tmp_path, trace(device=device)), "all")
    assert what_if(measured, ["comm/all_reduce=overlap"]).mean.wall_ns < measured.mean.wall_ns
    both = what_if(measured, ["comm/all_reduce=overlap", "comm/all_gather=overlap"])
    assert both.mean.wall_ns == what_if(measured, ["perfect-overlap"]).mean.wall_ns


def sleeping_rank(rank):
    """Rank 1 sleeps from 20 to 121 and all-reduces from 131 to 140; rank 0, which waits for it, from 20 to 21."""
    begin = 131 if rank else 31
    ops = [("aten::mm", 100, 10, 20, "cpu_op"), ("aten::mul", 100, begin - 10, begin - 5, "cpu_op")]
    return trace(
        host=[
            *ops,
            ("c10d::allreduce_", 100, begin - 4, begin, "cpu_op"),
            ("gloo:all_reduce", 101, begin, 140, "user_annotation", {"Process Group Ranks": "[0, 1]"}),
            ("aten::add", 100, 142, 150, "cpu_op"),
        ],
        marks=[("1", 0, 160)], rank=rank, world=2, host_name="one", backend="gloo",
    )  # fmt: skip


def test_a_sleep_is_not_a_wait_for_a_later_collective(tmp_path):
    measured = measure(read_all(tmp_path, sleeping_rank(0), sleeping_rank(1)))
    assert measured.mean.late == {1: 100}
    assert what_if(measured, ["rank:1=typical"]).recovery.ns == 100
    assert what_if(measured, ["rank:0=typical"]).recovery.ns == 0


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rank:5=typical", ["rank:5=typical", "0, 1"]),
        ("no-syncs", ["no-syncs"]),
        ("comm/all_gather=overlap", ["comm/all_gather=overlap", "comm/all_reduce"]),
    ],
)
def test_changes_that_match_nothing_are_refused(tmp_path, text, values):
    measured = measure(read_all(tmp_path, sleeping_rank(0), sleeping_rank(1)))
    with pytest.raises(BadInput) as caught:
        what_if(measured, [text])
    assert all(value in str(caught.value) for value in values)


@pytest.mark.parametrize("text", ["comm/all_gather=overlap", "comm/reduce_scatter=overlap", "no-stragglers"])
def test_parents_precede_their_children_in_replayed_events(root, text):
    replay = Replay(measure(read([root / "src" / "trainyard" / "data" / "demo"])))
    for events in replay.events(replay.times([Change(text=text)])):
        host = events.host
        child = np.flatnonzero(host.parent >= 0)
        assert (host.parent[child] < child).all()
        assert (host.start[host.parent[child]] <= host.start[child]).all()
