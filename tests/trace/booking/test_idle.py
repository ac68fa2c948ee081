"""Properties of idle time: the intervals that it covers, and that each has one cause."""

from itertools import pairwise

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import trace, write
from trainyard.trace.booking.idle import find_idle, host_reasons
from trainyard.trace.classify.context import build_context
from trainyard.trace.classify.kernels import Keys
from trainyard.trace.measure import read

HOST = [
    ("aten::mm", "cpu_op"), ("aten::item", "cpu_op"), ("cudaMalloc", "cuda_runtime"), ("Python GC", "python_function"),
    ("enumerate(DataLoader)#x.__next__", "user_annotation"), ("c10d::barrier", "cpu_op"),
    ("x.py(1): f", "python_function"),
]  # fmt: skip


@st.composite
def traces(draw):
    device = draw(
        st.lists(
            st.tuples(
                st.integers(1, 3), st.integers(0, 400), st.integers(1, 60), st.one_of(st.none(), st.integers(0, 80)),
                st.integers(100, 101),
            ),
            min_size=1, max_size=12,
        )
    )  # fmt: skip
    host = draw(
        st.lists(
            st.tuples(st.sampled_from(HOST), st.integers(100, 101), st.integers(0, 400), st.integers(1, 90)), max_size=9
        )
    )
    return trace(
        device=[
            ("gemm", stream, at, at + long, None if late is None else max(0, at - late), {"thread": thread})
            for stream, at, long, late, thread in device
        ],
        host=[(name, thread, at, at + long, cat) for (name, cat), thread, at, long in host],
        marks=[("1", 0, 500)],
        launch_ns=3,
    )


def _events(folder, document):
    (events,) = read([write(folder, document)])
    return events


@given(traces())
def test_idle_intervals_tile_the_gaps_before_launched_work(tmp_path_factory, document):
    events = _events(tmp_path_factory.mktemp("t"), document)
    start, stop, _ = find_idle(events, build_context(events), Keys())
    begin, end = events.window
    covered = np.zeros(end - begin, int)
    for a, b in zip(start, stop):
        covered[a - begin : b - begin] += 1
    busy = np.zeros(end - begin, bool)
    for a, b in zip(events.work.start, events.work.stop):
        busy[a - begin : b - begin] = True
    wanted = np.zeros(end - begin, int)
    for at in np.flatnonzero(~busy):
        following = int(np.searchsorted(events.work.start, begin + at, "right"))
        wanted[at] = events.work.call[following] >= 0
    assert (covered == wanted).all()


@given(traces())
def test_idle_cause_is_the_host_before_and_the_queue_after_launch(tmp_path_factory, document):
    events = _events(tmp_path_factory.mktemp("t"), document)
    around, keys = build_context(events), Keys()
    work, host = events.work, events.host
    for start, stop, key in zip(*find_idle(events, around, keys)):
        account = str(keys.pairs[key][0])
        call = int(work.call[np.searchsorted(work.start, start, "right")])
        if start >= host.stop[call]:
            assert account == "launch_gap/queue"
        elif start >= host.start[call]:
            assert account == "launch_gap/launch"
        else:
            assert account != "launch_gap/queue"
            assert stop <= host.start[call]


@given(traces(), st.data())
def test_recorded_stream_waits_only_replace_queue_time(tmp_path_factory, document, data):
    events = _events(tmp_path_factory.mktemp("t"), document)
    around = build_context(events)
    streams = st.integers(-1, len(events.streams) - 1)
    awaits = np.array(data.draw(st.lists(streams, min_size=len(events.work), max_size=len(events.work))), np.int32)
    awaiting = msgspec.structs.replace(events, work=msgspec.structs.replace(events.work, awaits=awaits))
    before, after = Keys(), Keys()
    columns, others = find_idle(events, around, before), find_idle(awaiting, around, after)
    assert [column.tolist() for column in columns[:2]] == [column.tolist() for column in others[:2]]
    work = awaiting.work
    for start, old, new in zip(columns[0], columns[2], others[2]):
        was, is_ = before.pairs[old], after.pairs[new]
        following = int(np.searchsorted(work.start, start, "right"))
        ended_last = work.stream[:following][work.stop[:following] == work.stop[:following].max()]
        waits = work.awaits[following] >= 0 and str(was[0]) == "launch_gap/queue"
        if str(is_[0]) == "launch_gap/stream_wait":
            assert waits
            assert work.awaits[following] in ended_last
        else:
            assert was == is_
            assert not (waits and (ended_last == work.awaits[following]).all())


@given(traces())
def test_a_host_thread_has_one_reason_at_each_instant(tmp_path_factory, document):
    events = _events(tmp_path_factory.mktemp("t"), document)
    if not len(events.host):
        return
    for thread in np.unique(events.host.thread).tolist():
        edges, reason = host_reasons(events, build_context(events), thread)
        assert len(reason) == len(edges) + 1
        assert (reason >= 0).all()
        assert all(a <= b for a, b in pairwise(edges.tolist()))
