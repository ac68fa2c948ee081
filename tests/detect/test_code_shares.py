"""The lines of code of a finding's time, against a brute-force search over frames and samples."""

from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.booked_maker import STEP, US, Gap, Span, a_rank
from tests.detect.test_detect import found_by, ledger
from trainyard.booked import Booked
from trainyard.code_location import LIBRARY, USER, CodeLocation, StackLocation, parse_frame
from trainyard.detect.code_shares import code_shares, idle_time
from trainyard.events import NOTE, OP, PYTHON, StackSamples

NAMES = {
    "train.py(10): main": PYTHON, "train.py(20): augment": PYTHON, "pkg/data.py(5): load": PYTHON,
    "transformers/trainer.py(9): step": PYTHON, "torch/nn/modules/module.py(1): _call_impl": PYTHON,
    "threading.py(3): wait": PYTHON, "<built-in function sleep>": PYTHON, "train.py(21): <lambda>": PYTHON,
    "aten::mm": OP, "nn.Module: Linear_0": NOTE,
}  # fmt: skip


@st.composite
def nested_spans(draw):
    """Host rows of one thread, properly nested, sorted by start, parents first."""
    rows: list[Span] = []

    def add(start, stop, parent, depth):
        name = draw(st.sampled_from(sorted(NAMES)))
        row = len(rows)
        rows.append(Span(name, start * US, stop * US, NAMES[name], parent=parent))
        at = start
        while depth < 6 and at < stop - 1 and draw(st.booleans()):
            begin = draw(st.integers(at, stop - 1))
            end = draw(st.integers(begin + 1, stop))
            if (begin, end) == (start, stop):
                break
            add(begin, end, row, depth + 1)
            at = end

    at = 0
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(at, at + 5))
        end = begin + draw(st.integers(2, 60))
        add(begin, end, -1, 0)
        at = end
    return rows


def open_at(rows, ns):
    """The rows open at a time, outermost first."""
    return [row for row, span in enumerate(rows) if span.start <= ns < span.stop]


def location_at(rows, ns):
    """The location that the documentation of `code_shares` promises, by search; None without a frame."""
    frames = [frame for row in open_at(rows, ns) if (frame := parse_frame(rows[row].name))]
    named = [frame for frame in frames if not frame.location.function.startswith("<l")]
    for owner in (USER, LIBRARY):
        of_owner = [frame for frame in named if frame.owner == owner]
        if of_owner:
            return of_owner[-1].location
    return frames[-1].location if frames else None


def gaps_between_edges(rows):
    """Idle intervals between all edges of the rows, each with its innermost row."""
    edges = sorted({time for span in rows for time in (span.start, span.stop)})
    gaps = []
    for begin, end in pairwise(edges):
        opened = open_at(rows, begin)
        gaps.append(Gap(begin, end, during=opened[-1] if opened else -1))
    return gaps


@settings(max_examples=80, deadline=None)
@given(nested_spans())
def test_recorded_frames_equal_a_search_at_each_instant(rows):
    gaps = gaps_between_edges(rows)
    rank = a_rank((), gaps, rows, cpu=True)
    got = code_shares([rank], [idle_time(rank, np.arange(len(gaps)))])
    expected: Counter[tuple[str, str]] = Counter()
    for gap in gaps:
        location = location_at(rows, gap.start)
        if location is not None:
            expected[location.file, location.function] += gap.stop - gap.start
    total = sum(gap.stop - gap.start for gap in gaps)
    least = [ns for ns in sorted(expected.values(), reverse=True)[:3] if round(ns / total, 4) >= 0.05]
    assert [share.ns for share in got] == least
    for share in got:
        assert expected[share.location.file, share.location.function] == share.ns
        assert share.share == round(share.ns / total, 4)
        assert share.samples == 0


def on_thread(rank: Booked, threads) -> Booked:
    """The rank with each host row on the given thread; the training thread is 0."""
    host = msgspec.structs.replace(rank.events.host, thread=np.array(threads, np.int32))
    return msgspec.structs.replace(rank, events=msgspec.structs.replace(rank.events, host=host))


def test_a_thread_without_frames_takes_those_of_the_training_thread():
    rows = [
        Span("train.py(10): main", 0, 100 * US, PYTHON),
        Span("train.py(20): augment", 10 * US, 20 * US, PYTHON, parent=0),
        Span("autograd::engine::evaluate_function: X", 30 * US, 60 * US),
        Span("train.py(30): backward", 40 * US, 50 * US, PYTHON, parent=2),
    ]
    gaps = [Gap(32 * US, 36 * US, during=2), Gap(42 * US, 44 * US, during=3), Gap(12 * US, 13 * US, during=-1)]
    rank = on_thread(a_rank((), gaps, rows, cpu=True), [0, 0, 1, 1])
    got = code_shares([rank], [idle_time(rank, np.arange(3))])
    assert {share.location.function: share.ns for share in got} == {
        "main": 4 * US,
        "backward": 2 * US,
        "augment": 1 * US,
    }


def test_the_function_of_a_library_below_the_user_is_named():
    rows = [
        Span("train.py(10): main", 0, 100 * US, PYTHON),
        Span("transformers/trainer.py(9): step", 0, 90 * US, PYTHON, parent=0),
        Span("torch/nn/modules/module.py(1): _call_impl", 0, 80 * US, PYTHON, parent=1),
    ]
    rank = a_rank((), [Gap(0, 70 * US, during=2), Gap(95 * US, 96 * US, during=0)], rows, cpu=True)
    (share,) = code_shares([rank], [idle_time(rank, np.arange(2))])
    assert (share.location.function, share.callee and share.callee.function) == ("main", "step")


@pytest.mark.parametrize(
    ("modules", "path"),
    [
        (["Model_0", "Block_1", "Linear_7"], "Model_0/Block_1/Linear_7"),
        (["Model", "Model.blocks.1", "Model.blocks.1.linear"], "Model.blocks.1.linear"),
        (["Model", "Model.head", "Loss"], "Model.head/Loss"),
        ([], ""),
    ],
)
def test_module_paths_come_from_the_modules_around(modules, path):
    rows = [Span("train.py(10): main", 0, 100 * US, PYTHON)]
    rows += [Span(f"nn.Module: {name}", 0, (99 - at) * US, NOTE, parent=at) for at, name in enumerate(modules)]
    rank = a_rank((), [Gap(1 * US, 2 * US, during=len(rows) - 1)], rows, cpu=True)
    (share,) = code_shares([rank], [idle_time(rank, np.arange(1))])
    assert share.module == path


def sampled(gaps, times, indices, names=("main", "augment", "log")) -> Booked:
    """A rank with samples at `times` in the functions `indices`."""
    locations = tuple(
        StackLocation(CodeLocation("train.py", 10 * (index + 1), name)) for index, name in enumerate(names)
    )
    stacks = StackSamples(
        time=np.array(times, np.int64), location=np.array(indices, np.int32), locations=locations,
        period_ns=US, error_ns=0,
    )  # fmt: skip
    rank = a_rank((), gaps, (), cpu=True)
    return msgspec.structs.replace(rank, events=msgspec.structs.replace(rank.events, stacks=stacks))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
)
def test_evenly_spaced_samples_share_the_time_of_their_intervals(indices, spacing):
    """With a constant period, the share of a function is that of its samples inside the intervals."""
    gaps, at = [], 0
    for before, length in spacing:
        gaps.append(Gap((at + before) * US, (at + before + length) * US))
        at += before + length
    times = [US // 2 + index * US for index in range(len(indices))]
    rank = sampled(gaps, times, indices)
    got = code_shares([rank], [idle_time(rank, np.arange(len(gaps)))])
    counts = Counter(index for time, index in zip(times, indices) if any(gap.start <= time < gap.stop for gap in gaps))
    shares = {share.location.line // 10 - 1: share for share in got}
    for index, count in counts.items():
        expected = count / counts.total()
        if expected >= 0.051:
            assert shares[index].share == pytest.approx(expected, abs=0.001)
            assert shares[index].samples == count
    assert set(shares) <= set(counts)


def test_files_without_stacks_show_no_code():
    rank = a_rank((), [Gap(0, US)], [Span("aten::mm", 0, US)], cpu=True)
    assert code_shares([rank], [idle_time(rank, np.arange(1))]) == ()


def test_samples_outside_the_intervals_show_no_code():
    rank = sampled([Gap(0, US)], [5 * US, 6 * US], [0, 1])
    assert code_shares([rank], [idle_time(rank, np.arange(1))]) == ()


def test_a_finding_names_the_code_of_its_time():
    gaps = [Gap(1_000 * US, 4_000 * US, "data_wait"), Gap(5_000 * US, 6_000 * US, "data_wait")]
    times = [(1_100 + 200 * index) * US for index in range(14)] + [5_500 * US]
    rank = sampled(gaps, times, [1] * 14 + [2])
    mean = ledger(compute__matmul=STEP - 4_000 * US, data_wait=4_000 * US)
    (finding,) = found_by("data_wait", rank, mean=mean)
    assert [(share.location.line, share.samples) for share in finding.code] == [(20, 14), (30, 1)]
    assert "train.py:20 (augment)" in finding.summary
    assert "train.py:30 (log)" in finding.evidence
