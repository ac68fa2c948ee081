"""Duplicates count once; impossible times are described with their numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import MAIN, trace, write
from trainyard.events import KERNEL
from trainyard.trace.measure import measure_files
from trainyard.trace.readers.irregularities import _latest_stop_before, drop_duplicates
from trainyard.trace.readers.kineto.reader import Kineto
from trainyard.trace.readers.tables import DEVICE_DTYPES, DeviceTable

HOUR = 3_600_000_000_000
REGULAR = [(f"kernel{index}", 7, 20_000 * index, 20_000 * index + 15_000, 20_000 * index - 9_000) for index in range(9)]


def notes_of(tmp_path, device, host=(), **options) -> list[str]:
    (events,) = Kineto().read(write(tmp_path, trace(device, host, **options)))
    return list(events.notes)


def the_note(notes: list[str], beginning: str) -> str:
    (note,) = [note for note in notes if note.startswith(beginning)]
    return note


def test_regular_trace_has_no_notes(tmp_path):
    assert notes_of(tmp_path, REGULAR, [("aten::mm", MAIN, 0, 5000, "cpu_op")]) == []


def test_duplicated_events_count_once(tmp_path):
    once = trace(REGULAR, [("aten::mm", MAIN, 0, 5000, "cpu_op", {"External id": 4})], marks=[("1", 0, 200_000)])
    twice = dict(once) | {"traceEvents": once["traceEvents"] * 2}
    plain = measure_files([write(tmp_path, once, "once.json")])
    doubled = measure_files([write(tmp_path, twice, "twice.json")])
    assert doubled.mean.entries == plain.mean.entries
    # Nine kernels; their launches, the op and the mark.
    assert the_note(list(doubled.notes), "Duplicates:").startswith("Duplicates: 11 host spans and 9 device events")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-1, 1)), max_size=30))
def test_rows_equal_in_every_column_are_dropped(rows):
    rows.sort(key=lambda row: (row[0], -row[1]))
    columns = [np.zeros(len(rows), dtype) for dtype in DEVICE_DTYPES]
    table = DeviceTable(*columns)
    table.start[:] = [start for start, _, _ in rows]
    table.stop[:] = [start + length for start, length, _ in rows]
    table.correlation[:] = [correlation for _, _, correlation in rows]
    table.external[:] = -1
    kept, dropped = drop_duplicates(table)
    with_identity = [row for row in rows if row[1] or row[2] >= 0]
    assert dropped == len(with_identity) - len(set(with_identity))
    left = list(zip(kept.start.tolist(), (kept.stop - kept.start).tolist(), kept.correlation.tolist()))
    assert sorted(left) == sorted([*set(with_identity), *(row for row in rows if not row[1] and row[2] < 0)])
    assert (np.diff(kept.start) >= 0).all()


def test_overlaps_on_one_stream_are_described(tmp_path):
    overlapping = [*REGULAR, ("late", 7, 165_000, 185_000, 150_000)]
    note = the_note(notes_of(tmp_path, overlapping), "Overlaps:")
    assert "1 kernel begin" in note.replace("begins", "begin")
    assert "10.0 µs" in note
    assert notes_of(tmp_path, [*REGULAR, ("other stream", 8, 165_000, 185_000, 150_000)]) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=40))
def test_latest_stop_before_each_row(rows):
    rows.sort(key=lambda row: row[0])
    group, stop = (np.array(column, np.int64) for column in zip(*rows))
    is_first = np.append(True, np.diff(group) != 0)
    latest = _latest_stop_before(stop, is_first)
    for row in np.flatnonzero(~is_first).tolist():
        first = int(np.flatnonzero(is_first[: row + 1])[-1])
        assert latest[row] == stop[first:row].max()


def test_kernel_before_its_launch_is_described(tmp_path):
    early = [*REGULAR[:-1], ("early", 7, 160_000, 175_000, 172_000)]
    note = the_note(notes_of(tmp_path, early), "Negative latency:")
    assert "1 device event of 9" in note
    assert "12.0 µs (early)" in note


def test_work_without_duration_is_described(tmp_path):
    none = [("none", 7, 20_001 * index, 20_001 * index, 20_000 * index - 9_000) for index in range(20, 23)]
    assert "3 device events of 12 last 0 ns." in the_note(notes_of(tmp_path, [*REGULAR, *none]), "No duration:")


@pytest.mark.parametrize("on_host", [False, True])
def test_events_of_an_hour_are_described(tmp_path, on_host):
    device = REGULAR if on_host else [*REGULAR, ("endless", 8, 0, 2 * HOUR, 0)]
    host = [("endless", MAIN, 0, 2 * HOUR, "cpu_op")] if on_host else []
    note = the_note(notes_of(tmp_path, device, host), "Duration:")
    assert ("1 host span" if on_host else "1 device event") in note
    assert "7,200.0 s (endless)" in note


def test_times_in_another_unit_are_described(tmp_path):
    small = [(f"kernel{index}", 7, 20 * index, 20 * index + 15, 20 * index - 9) for index in range(20)]
    assert "15 ns" in the_note(notes_of(tmp_path, small), "Unit:")


def test_launches_without_kernels_are_described(tmp_path):
    document = trace(REGULAR)
    kernels = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
    for event in (kernels[2], kernels[4], kernels[8]):
        document["traceEvents"].remove(event)
    (events,) = Kineto().read(write(tmp_path, document))
    # The last launch may have been cut off by the end of the recording.
    assert "2 launches of 8" in the_note(list(events.notes), "Missing kernels:")
    assert (events.work.what == KERNEL).sum() == 6


def test_launches_in_a_capture_need_no_kernels(tmp_path):
    document = trace(
        REGULAR,
        [
            ("cudaStreamBeginCapture_v10000", MAIN, 49_000, 49_500, "cuda_runtime"),
            ("cudaStreamEndCapture", MAIN, 89_000, 89_500, "cuda_runtime"),
        ],
    )
    kernels = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
    for event in kernels[3:5]:  # launched at 51 and 71 us
        document["traceEvents"].remove(event)
    (events,) = Kineto().read(write(tmp_path, document))
    assert events.notes == ()


def test_similar_notes_of_ranks_are_shown_once(tmp_path):
    """Three ranks with one irregular kernel each."""
    files = [
        write(tmp_path, trace([*REGULAR, ("x", 8, 0, HOUR + rank, 0)], rank=rank, world=3), f"rank{rank}.json")
        for rank in range(3)
    ]
    notes = [note for note in measure_files(files).notes if "Duration:" in note]
    assert len(notes) == 1
    early = [
        write(tmp_path, trace([("x", 8, 10_000 * rank, 90_000, 99_000)], rank=rank, world=3), f"rank{rank}.json")
        for rank in range(3)
    ]
    notes = [note for note in measure_files(early).notes if "Negative latency:" in note]
    assert len(notes) == 1
    assert notes[0].startswith("Rank 0: ")
    assert "2 other ranks have similar notes" in notes[0]
