"""What-if analysis: a replay without suppositions reproduces the measurement; suppositions give exact results."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import PUBLIC_DATA
from tests.properties.test_trace_properties import cpu_traces, rank_traces
from tests.refused import refused
from tests.trace_maker import trace, write
from trainyard import ledger as ledgers
from trainyard.errors import BadInput, UnknownName
from trainyard.trace.measure import measure, read
from trainyard.trace.whatif.changes import parse
from trainyard.trace.whatif.dependency_graph import Needs, fit_graph, plan_graph, replay_graph
from trainyard.trace.whatif.profile_ops import HOST, TRANSFER, WORK, Ops
from trainyard.trace.whatif.typical_lengths import _number_rows, typical_lengths
from trainyard.trace.whatif.what_if import what_if

MEETS = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@st.composite
def graphs(draw):
    """n ops with times and needs, some of which the times contradict."""
    n = draw(st.integers(1, 12))
    numbers = st.integers(0, n - 1)
    start = np.array(draw(st.lists(st.integers(-50, 50), min_size=n, max_size=n)), np.int64)
    length = np.array(draw(st.lists(st.integers(0, 30), min_size=n, max_size=n)), np.int64)
    edges = draw(st.lists(st.tuples(numbers, numbers, st.integers(-5, 20)), max_size=30))
    need, op, weight = np.array(edges, np.int64).reshape(-1, 3).T
    shorter = np.array([draw(st.integers(0, int(own))) for own in length], np.int64)
    return start, length, Needs(need, op, weight), shorter


@given(graphs())
def test_an_unchanged_replay_reproduces_the_measurement(drawn):
    start, length, needs, _ = drawn
    graph = fit_graph(start, start + length, needs, np.zeros(len(start), np.int64))
    again, stop = replay_graph(graph)
    assert (again == start).all()
    assert (stop == start + length).all()


@given(graphs())
def test_shorter_ops_do_not_delay_any_op(drawn):
    start, length, needs, shorter = drawn
    graph = fit_graph(start, start + length, needs, np.zeros(len(start), np.int64))
    assert (replay_graph(graph, shorter)[1] <= start + length).all()


@given(graphs())
def test_without_slack_each_op_starts_with_its_last_need(drawn):
    _, length, needs, _ = drawn
    forward = needs.need < needs.op
    needs = Needs(*(column[forward] for column in needs))
    start, stop = replay_graph(plan_graph(length, needs))
    for op in range(len(length)):
        own = needs.op == op
        assert start[op] == max((stop[needs.need[own]] + needs.weight[own]).tolist(), default=0)


def test_cyclic_dependencies_are_refused():
    with refused(BadInput, "2 of 3 ops"):
        plan_graph(np.ones(3, np.int64), Needs(np.array([1, 2]), np.array([2, 1]), np.zeros(2, np.int64)))


def comparable(measured):
    """All ledgers without the fields that mark a prediction."""
    plain = [
        msgspec.structs.replace(
            ledger,
            basis="measured",
            entries=tuple(msgspec.structs.replace(entry, how="seen") for entry in ledger.entries),
        )
        for ledger in measured.ledgers
    ]
    return ledgers.to_json(plain)


def read_all(folder, *documents):
    return read([write(folder, document, f"{number}.json") for number, document in enumerate(documents)])


@given(st.one_of(st.tuples(rank_traces()), st.tuples(cpu_traces()), st.tuples(rank_traces(0, 2), rank_traces(1, 2))))
def test_without_suppositions_the_ledgers_are_the_measured_ones(tmp_path_factory, documents):
    measured = measure(read_all(tmp_path_factory.mktemp("t"), *documents))
    prediction = what_if(measured, [])
    assert comparable(prediction.would) == comparable(measured)
    assert prediction.mean.basis == "predicted"
    assert {entry.how for entry in prediction.mean.entries} <= {"modelled"}
    assert sum(change.ns for change in prediction.changes) == 0


def in_order(work):
    """Whether each stream runs its intervals one after the other, as devices do and generated traces may not."""
    order = np.lexsort((work.start, work.stream))
    start, stop, stream = work.start[order], work.stop[order], work.stream[order]
    return not ((stream[1:] == stream[:-1]) & (start[1:] < stop[:-1])).any()


def communicates_inside_ops(rank):
    """Whether a CPU's training thread has collectives in the middle of its ops: a replay runs one after the other."""
    if len(rank.events.work):
        return False
    rows = np.array(sorted(rank.classified.collectives), np.int64)
    return bool((rank.events.host.thread[rank.classified.launcher[rows]] == rank.events.main).any())


@given(
    st.one_of(st.tuples(rank_traces()), st.tuples(cpu_traces()), st.tuples(rank_traces(0, 2), rank_traces(1, 2))),
    st.sampled_from(["no-stragglers", "no-launch-gaps", "perfect-overlap", "network=3x", "compute=2x", "launch_gap=0"]),
)
def test_predictions_balance_and_never_lengthen_the_window(tmp_path_factory, documents, text):
    measured = measure(read_all(tmp_path_factory.mktemp("t"), *documents), "all")
    try:
        prediction = what_if(measured, [text])
    except BadInput:
        return
    changes = sum(change.ns for change in prediction.changes)
    assert changes == prediction.mean.wall_ns - measured.mean.wall_ns
    rank = measured.ranks[0]
    overlaps = in_order(rank.events.work) and not communicates_inside_ops(rank)
    shrinks = text != "no-stragglers" and (text != "perfect-overlap" or overlaps)
    if shrinks and len(documents) == 1:
        # A window begins with its first work, which may begin sooner too: what ends it cannot end later.
        assert prediction.would.ranks[0].events.window[1] <= measured.ranks[0].events.window[1]


def wall_and_accounts(prediction, rank_index=0):
    (ledger,) = prediction.would.ranks[rank_index].ledgers
    return ledger.wall_ns, {str(account): ns for account, ns in ledger.by_account().items() if ns}


def late_rank(start_late):
    gemm = 20 + start_late
    return trace(
        device=[("gemm", 7, 10, 10 + gemm, 5), (REDUCE, 8, 10 + gemm, 70, 6, MEETS)],
        rank=1 if start_late else 0, world=2, host_name="one",
    )  # fmt: skip


def test_without_stragglers_all_ranks_compute_like_the_fast_one(tmp_path):
    measured = measure(read_all(tmp_path, late_rank(0), late_rank(30)), "all")
    assert measured.mean.late == {1: 30}
    prediction = what_if(measured, ["no-stragglers"])
    for rank_index in (0, 1):
        assert wall_and_accounts(prediction, rank_index) == (30, {"compute/matmul": 20, "comm/all_reduce@world": 10})
    assert prediction.mean.late == {}


def test_a_faster_network_shortens_transfers_but_not_waits(tmp_path):
    measured = measure(read_all(tmp_path, late_rank(0), late_rank(30)), "all")
    wall, accounts = wall_and_accounts(what_if(measured, ["network=2x"]))
    assert (wall, accounts) == (
        55,
        {"compute/matmul": 20, "straggler/all_reduce@world": 30, "comm/all_reduce@world": 5},
    )


HOST_BOUND = trace(
    device=[("gemm", 7, 10, 20, 5), ("elementwise_kernel", 7, 60, 70, 55), ("gemm", 7, 70, 90, 56)],
    host=[("aten::mm", 100, 4, 7, "cpu_op"), ("aten::mul", 100, 54, 56, "cpu_op")],
)


def test_an_infinitely_fast_host_leaves_no_device_gaps(tmp_path):
    measured = measure(read_all(tmp_path, HOST_BOUND), "all")
    assert measured.mean.wall_ns == 80
    wall, accounts = wall_and_accounts(what_if(measured, ["no-launch-gaps"]))
    # Every stretch of the host keeps a nanosecond, and the device is busy meanwhile.
    assert (wall, accounts) == (40, {"compute/matmul": 30, "compute/elementwise": 10})


def test_a_faster_op_does_not_help_a_host_bound_step(tmp_path):
    measured = measure(read_all(tmp_path, HOST_BOUND), "all")
    wall, accounts = wall_and_accounts(what_if(measured, ["op:aten::mm=2x"]))
    assert wall == 80
    assert accounts["compute/matmul"] == 25


def test_faster_memory_shortens_memory_bound_work_only(tmp_path):
    device = [("gemm", 7, 10, 20, 5), ("elementwise_kernel", 7, 20, 40, 6), ("Memcpy DtoD", 7, 40, 50, 7)]
    measured = measure(read_all(tmp_path, trace(device=device)), "all")
    wall, accounts = wall_and_accounts(what_if(measured, ["memory=2x"]))
    assert (wall, accounts) == (25, {"compute/matmul": 10, "compute/elementwise": 10, "copy/d2d": 5})


def test_the_host_returns_from_a_sync_with_the_device(tmp_path):
    document = trace(
        device=[("gemm", 7, 10, 50, 5), ("gemm", 7, 65, 75, 60)],
        host=[("cudaStreamSynchronize", 100, 8, 52, "cuda_runtime")],
    )
    measured = measure(read_all(tmp_path, document), "all")
    # The first product ends 20 sooner, so the second is launched 20 sooner and ends 20 + 5 sooner.
    assert what_if(measured, ["compute/matmul=2x"]).mean.wall_ns == measured.mean.wall_ns - 25


def test_a_free_data_loader_removes_the_data_wait(tmp_path):
    document = trace(
        device=[("gemm", 7, 10, 20, 5), ("gemm", 7, 60, 70, 55)],
        host=[("enumerate(DataLoader)#x.__next__", 100, 22, 52, "user_annotation")],
    )
    measured = measure(read_all(tmp_path, document), "all")
    assert measured.mean.by_kind()["data_wait"] == 30
    prediction = what_if(measured, ["data_wait=0"])
    assert prediction.mean.wall_ns == 60 - 30 + 1  # the nanosecond that keeps the order
    assert [str(change.account) for change in prediction.changes if change.ns < -1] == ["data_wait"]


def test_perfect_overlap_leaves_communication_at_the_step_end(tmp_path):
    device = [("gemm", 7, 10, 20, 5), (REDUCE, 8, 20, 50, 6), ("gemm", 7, 50, 70, 7), ("gemm", 7, 70, 72, 8)]
    measured = measure(read_all(tmp_path, trace(device=device)), "all")
    # The second product no longer waits for the all-reduce; the last one, which ends the step, still does.
    wall, accounts = wall_and_accounts(what_if(measured, ["perfect-overlap"]))
    assert (wall, accounts) == (42, {"compute/matmul": 32, "comm/all_reduce": 10})


def stage(rank):
    """Stage 0 computes until 40 and sends; stage 1 has waited since 12, and computes from 50."""
    name, peer, start = ("recv", "Src Rank", 12) if rank else ("send", "Dst Rank", 40)
    args = {"Collective name": name, peer: 1 - rank, "Process Group Name": "0", "Process Group Ranks": [0, 1]}
    before, after = ([], [("gemm", 7, 50, 60, 7)]) if rank else ([("gemm", 7, 10, 40, 5)], [])
    device = [*before, ("ncclDevKernel_SendRecv", 8, start, 50, 6, args | {"Group size": 2}), *after]
    return trace(device=device, rank=rank, world=2, host_name="one")


def test_a_receive_moves_with_its_send(tmp_path):
    measured = measure(read_all(tmp_path, stage(0), stage(1)), "all")
    assert measured.ranks[1].ledgers[0].by_kind()["bubble"] == 28
    prediction = what_if(measured, ["compute=2x"])
    assert [ledger.wall_ns for ledger in prediction.would.by_rank] == [40 - 15, 48 - 15 - 5]


def cpu_rank(rank, works):
    """Computes, all-reduces with its peer until 200, and resumes afterwards."""
    return trace(
        host=[
            ("aten::mm", 100, 10, 10 + works, "cpu_op"),
            ("c10d::allreduce_", 100, 10 + works, 15 + works, "cpu_op"),
            ("gloo:all_reduce", 101, 12 + works, 200, "user_annotation", {"Process Group Ranks": "[0, 1]"}),
            ("aten::mul", 100, 205, 215, "cpu_op"),
        ],
        marks=[("1", 0, 220)], rank=rank, world=2, host_name="one", backend="gloo",
    )  # fmt: skip


def test_on_cpus_the_training_thread_waits_for_its_collectives(tmp_path):
    measured = measure(read_all(tmp_path, cpu_rank(0, 40), cpu_rank(1, 140)))
    assert measured.mean.late == {1: 100}
    prediction = what_if(measured, ["no-stragglers"])
    assert [ledger.wall_ns for ledger in prediction.would.by_rank] == [120, 120]
    assert prediction.mean.by_kind().get("straggler", 0) == 0
    faster = what_if(measured, ["network=2x"])
    assert faster.mean.wall_ns == 220 - 24  # the transfer lasts from 152 to 200


def one_op_each(took, rank_index, step):
    n = len(took)
    zero, every = np.zeros(n, np.int64), np.ones(n, bool)
    start, unit = np.array(step) * 100, np.arange(n)
    ops = Ops(start, zero, zero + WORK, np.array(rank_index), zero, zero, zero, unit, np.array(step))
    return typical_lengths(ops, np.array(took, np.int64), every, every).tolist()


@pytest.mark.parametrize(
    ("took", "takes"),
    [
        ([100, 108], 104),  # neither is late: the mean over both
        ([100, 108, 500], 104),  # the third is late, and left out
        ([10, 50], 10),
        ([50, 60, 52, 51], 51),
    ],
)
def test_typical_length_is_the_mean_over_ranks_in_time(took, takes):
    assert one_op_each(took, range(len(took)), [0] * len(took)) == [takes] * len(took)


def test_a_rank_is_late_by_its_mean_over_steps():
    # Rank 1 is late in one step of two: each step of rank 0 counts, and none of rank 1.
    assert one_op_each([10, 14, 10, 90], [0, 0, 1, 1], [0, 1, 0, 1]) == [12] * 4


def test_an_op_without_counterpart_keeps_its_own_ranks_mean():
    n = np.arange(4)
    rank_index, label = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 7])
    ops = Ops(n, n, n * 0 + WORK, rank_index, n * 0, label, n, n, n * 0)
    # Rank 1 is late; its op with label 7 no other rank has.
    lengths = typical_lengths(ops, np.array([10, 20, 30, 90]), np.ones(4, bool), np.ones(4, bool))
    assert lengths.tolist() == [10, 20, 10, 90]


def test_pieces_of_one_unit_keep_their_proportion():
    rank_index = np.array([0, 0, 1])
    zero = np.zeros(3, np.int64)
    ops = Ops(np.array([0, 30, 0]), zero, zero + HOST, rank_index, zero, zero, zero, rank_index, zero)
    assert typical_lengths(ops, np.array([30, 10, 20]), np.ones(3, bool), np.ones(3, bool)).tolist() == [15, 5, 20]


def test_transfer_times_do_not_make_a_rank_late():
    zero = np.zeros(4, np.int64)
    role, rank_index = np.array([WORK, TRANSFER, WORK, TRANSFER]), np.array([0, 0, 1, 1])
    ops = Ops(zero, zero, role, rank_index, zero, zero, zero, zero, zero)
    own = role == WORK
    assert typical_lengths(ops, np.array([10, 90, 10, 30]), np.ones(4, bool), own).tolist() == [10, 60, 10, 60]


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("no-stragler", BadInput, ["'no-stragler'", "'no-stragglers'"]),
        ("", BadInput, ["''", "network=2x", "op:aten::mm=roofline"]),
        ("no-stragglers=2x", BadInput, ["no-stragglers", "'no-stragglers=2x'", "'2x'"]),
        ("netwrk=2x", UnknownName, ["'netwrk'", "'network'"]),
        ("comput/norm=2x", UnknownName, ["'comput/norm'", "'compute'"]),
        ("network=fast", BadInput, ["'fast'", "'network=fast'", "network=2x"]),
        ("network=0x", BadInput, ["'0x'", "'network=0x'", "network=2x"]),
        ("network=-2x", BadInput, ["'-2x'", "'network=-2x'", "network=2x"]),
        ("network=roofline", BadInput, ["'roofline'", "'network=roofline'", "network=2x"]),
        ("straggler=0", BadInput, ["straggler", "no-stragglers"]),
        ("bubble/warmup=0", BadInput, ["bubble"]),
        ("op:=2x", BadInput, ["'op:=2x'", "op:aten::mm=2x"]),
    ],
)
def test_invalid_suppositions_are_refused_with_a_next_step(text, kind, values):
    with refused(kind, *values):
        parse(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("no-stragglers", ["no-stragglers", "ranks"]),
        ("network=2x", ["network=2x", "collective"]),
        ("data_wait=0", ["data_wait=0", "compute/elementwise, compute/matmul, launch_gap/launch"]),
        ("op:aten::conv2d=2x", ["op:aten::conv2d=2x"]),
        ("op:aten::mn=2x", ["op:aten::mn=2x", "'aten::mm'"]),
        ("op:aten::mm=roofline", ["op:aten::mm=roofline", "2x"]),
    ],
)
def test_suppositions_that_match_nothing_are_refused(tmp_path, text, values):
    measured = measure(read_all(tmp_path, HOST_BOUND), "all")
    with refused(BadInput, *values):
        what_if(measured, [text])


def test_suppositions_add_up(tmp_path):
    measured = measure(read_all(tmp_path, HOST_BOUND), "all")
    assert what_if(measured, ["no-launch-gaps", "compute=2x"]).mean.wall_ns == 20
    assert what_if(measured, ["compute=2x", "no-launch-gaps"]).mean.wall_ns == 20


PUBLIC = [
    "a100_ddp_resnet.json.gz",
    "diff_test.json.gz",
    "mi300_resnet_ac.json.gz",
    "v100_dlrm_8ranks",
    "cpu_gloo_3ranks",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_replay_to_the_nanosecond(public_trace, name):
    measured = measure(read([public_trace(name)]))
    assert comparable(what_if(measured, []).would) == comparable(measured)


def test_perfect_overlap_equals_free_communication_on_one_rank(public_trace):
    measured = measure(read([public_trace("diff_test.json.gz")]))
    hidden, free = (what_if(measured, [text]).mean.wall_ns for text in ("perfect-overlap", "network=0"))
    assert abs(hidden - free) < 1_000 < measured.mean.wall_ns - hidden


def test_what_if_matches_the_published_64_rank_job():
    pytest.importorskip("duckdb")
    from validation.stragglers import analyse, model, rows

    from validation.stragglers import read as read_ops  # isort: skip

    folder = PUBLIC_DATA / "stragglers"
    if not (folder / "trace-AR.parquet").exists():
        pytest.skip("the public straggler trace is not on this machine")
    answer = analyse(model(read_ops(folder / "trace-AR.parquet")))
    for row, published, ours in rows(answer, folder):
        assert ours == pytest.approx(published, rel=1e-3, abs=1e-3), row


@pytest.mark.torch
@pytest.mark.slow
def test_a_planted_wait_for_data_is_what_the_prediction_saves():
    pytest.importorskip("torch")
    from validation.whatif import PLANTS, compare, record

    (plant,) = (plant for plant in PLANTS if plant.name == "loader")
    assert 0.98 * 80e6 < compare(plant, record(plant)).predicted_ns < 1.5 * 80e6


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 2**40), st.integers(0, 2)), min_size=1))
def test_equal_rows_and_no_others_have_the_same_number(rows):
    numbers = _number_rows(*(np.array(column, np.int64) for column in zip(*rows))).tolist()
    assert len(set(numbers)) == len(set(rows)) == len(set(zip(rows, numbers)))
    assert sorted(set(numbers)) == list(range(len(set(rows))))
