"""Invariants of measured ledgers, over random traces."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import trace, write
from trainyard.trace.measure import measure, read

NAMES = [
    "gemm",
    "elementwise_kernel",
    "ncclDevKernel_AllReduce_RING",
    "ncclDevKernel_ReduceScatter_RING",
    "Memcpy HtoD (Pinned -> Device)",
    "Memset (Device)",
    "who_knows_what",
]
HOST = ["aten::mm", "aten::add", "Optimizer.step#A.step", "cudaStreamSynchronize", "x.py(1): f"]


@st.composite
def rank_traces(draw, rank=0, world=1):
    device = draw(
        st.lists(
            st.tuples(
                st.sampled_from(NAMES), st.integers(1, 3), st.integers(0, 400), st.integers(1, 80),
                st.one_of(st.none(), st.integers(0, 60)),
            ),
            min_size=1, max_size=12,
        )
    )  # fmt: skip
    host = draw(
        st.lists(
            st.tuples(
                st.sampled_from(HOST),
                st.integers(100, 101), st.integers(0, 400), st.integers(1, 90),
                st.sampled_from(["cpu_op", "user_annotation", "cuda_runtime", "python_function"]),
            ),
            max_size=8,
        )
    )  # fmt: skip
    cuts = sorted(draw(st.sets(st.integers(0, 400), max_size=4)))
    return trace(
        device=[(n, s, t, t + d, None if late is None else max(0, t - late)) for n, s, t, d, late in device],
        host=[(n, thread, t, t + d, cat) for n, thread, t, d, cat in host],
        marks=[(str(i), a, b) for i, (a, b) in enumerate(pairwise(cuts))],
        rank=rank,
        world=world,
        host_name="one",
    )


@given(rank_traces())
def test_steps_tile_the_window_and_sum_to_it(tmp_path_factory, document):
    path = write(tmp_path_factory.mktemp("t"), document)
    parts = measure(read([path])).ledgers[:-1]
    (whole, _) = measure(read([path]), "all").ledgers
    assert sum(part.wall_ns for part in parts) == whole.wall_ns
    totals: dict = {}
    for part in parts:
        for account, ns in part.by_account().items():
            totals[account] = totals.get(account, 0) + ns
    assert {a: ns for a, ns in totals.items() if ns} == {a: ns for a, ns in whole.by_account().items() if ns}
    for kind, ns in whole.unions.items():
        assert sum(part.unions.get(kind, 0) for part in parts) == ns


@given(rank_traces())
def test_device_accounts_own_the_union_of_device_work(tmp_path_factory, document):
    events = read([write(tmp_path_factory.mktemp("t"), document)])
    (whole, _) = measure(events, "all").ledgers
    begin, end = events[0].window
    busy = np.zeros(end - begin, bool)
    for start, stop in zip(events[0].work.start, events[0].work.stop):
        busy[start - begin : stop - begin] = True
    by_kind = whole.by_kind()
    assert sum(by_kind.get(kind, 0) for kind in ("compute", "straggler", "comm", "copy")) == busy.sum()


@given(rank_traces(0, 2), rank_traces(1, 2))
def test_alignment_only_moves_time_between_comm_and_straggler(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("t")
    files = [write(folder, first, "0.json"), write(folder, second, "1.json")]
    together = measure(read(files), "all")
    assert together.alignment.aligned in ("host", "no")
    for ledger, file in zip(together.ledgers, files):
        (alone, _) = measure(read([file]), "all").ledgers
        assert ledger.wall_ns == alone.wall_ns
        aligned, other = ledger.by_kind(), alone.by_kind()
        for kind in ("compute", "copy", "launch_gap", "unexplained"):
            assert aligned.get(kind, 0) == other.get(kind, 0)
        assert aligned.get("comm", 0) + aligned.get("straggler", 0) == other.get("comm", 0)


@st.composite
def cpu_traces(draw):
    names = [*HOST, "c10d::allreduce_", "c10d::_reduce_scatter_base_", "gloo:all_reduce", "autograd::engine::x"]
    host = draw(
        st.lists(
            st.tuples(
                st.sampled_from(names), st.integers(100, 102), st.integers(0, 400), st.integers(0, 90),
                st.sampled_from(["cpu_op", "user_annotation", "python_function"]),
            ),
            min_size=1, max_size=12,
        )
    )  # fmt: skip
    cuts = sorted(draw(st.sets(st.integers(0, 400), max_size=4)))
    return trace(
        host=[(n, thread, t, t + d, cat) for n, thread, t, d, cat in host],
        marks=[(str(i), a, b) for i, (a, b) in enumerate(pairwise(cuts))],
    )


@given(cpu_traces())
def test_cpu_windows_are_tiled_without_unexplained_time(tmp_path_factory, document):
    path = write(tmp_path_factory.mktemp("t"), document)
    events = read([path])
    (whole, _) = measure(events, "all").ledgers
    parts = measure(events).ledgers[:-1]
    begin, end = events[0].window
    assert sum(part.wall_ns for part in parts) == whole.wall_ns == end - begin
    assert whole.by_kind().get("unexplained", 0) == 0
