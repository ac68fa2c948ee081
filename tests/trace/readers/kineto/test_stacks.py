"""Sampled stacks in a Kineto file: their clock, their locations, and damage."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace_maker import MAIN, trace, write
from trainyard.code_location import LIBRARY, SYSTEM, USER
from trainyard.recorded_stacks import CLOCK_MARK, STACKS_KEY, RecordedStacks
from trainyard.trace.measure import read

MS = 1_000_000
FILES = [("train.py", USER), ("lib/x.py", LIBRARY), ("torch/y.py", SYSTEM)]
FUNCTIONS = [(0, "main"), (0, "augment"), (1, "fetch"), (2, "call"), (0, "<lambda>")]
FRAMES = [(-1, 0, 10), (0, 1, 20), (1, 2, 30), (2, 3, 40), (0, 4, 12), (-1, 3, 41), (-1, 2, 31)]
LOCATIONS = {
    0: ("train.py", 10, "main", None),
    1: ("train.py", 20, "augment", None),
    2: ("train.py", 20, "augment", "fetch"),
    3: ("train.py", 20, "augment", "fetch"),
    4: ("train.py", 12, "main", None),
    5: ("torch/y.py", 41, "call", None),
    6: ("lib/x.py", 31, "fetch", None),
}
"""Innermost frame -> file, line, function of the user (else of a library, else of the rest), library below it."""


def stacks(**changed):
    fields = {
        "version": 1, "period_ns": 2 * MS, "cpu_ns": 10_000, "wall_ns": 100 * MS, "clock_ns": [1_000],
        "files": FILES, "functions": FUNCTIONS, "frames": FRAMES, "gap_ns": [2 * MS] * 3, "frame": [0, 1, 2],
    }  # fmt: skip
    return json.loads(msgspec.json.encode(RecordedStacks(**{**fields, **changed})))


def document(stacks=None, marks=((0, 5_000, 6_000),)):
    """A CPU trace of two steps with annotations around readings of the samples' clock: (index, start, stop)."""
    host = [(f"{CLOCK_MARK}{index}", MAIN, start, stop, "user_annotation") for index, start, stop in marks]
    host += [("aten::mm", MAIN, 10 * MS, 11 * MS, "cpu_op"), ("aten::mm", MAIN, 30 * MS, 31 * MS, "cpu_op")]
    without = trace(host=host, marks=[("1", 0, 20 * MS), ("2", 20 * MS, 40 * MS)])
    return without | ({STACKS_KEY: stacks} if stacks is not None else {})


def events_of(tmp_path, document, name="trace.json"):
    (events,) = read([write(tmp_path, document, name)])
    return events


def test_locations_are_the_innermost_frames_of_the_user(tmp_path):
    frames = list(LOCATIONS)
    got = events_of(tmp_path, document(stacks(frame=frames, gap_ns=[MS] * len(frames)))).stacks
    assert got is not None
    described = [got.locations[index] for index in got.location.tolist()]
    assert {
        frame: (
            stack.location.file, stack.location.line, stack.location.function,
            stack.callee.function if stack.callee else None,
        )
        for frame, stack in zip(frames, described)
    } == LOCATIONS  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    offset=st.integers(-(10**9), 10**15),
    readings=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 50_000), st.integers(0, 50_000)), min_size=1, max_size=6
    ),
)
def test_the_offset_of_the_clocks_is_within_its_error(tmp_path_factory, offset, readings):
    """An annotation begins before and ends after its reading of the clock."""
    clock = [at + 10**9 for at, _, _ in readings]
    marks = [
        (index, at + offset - before, at + offset + after)
        for index, (at, (_, before, after)) in enumerate(zip(clock, readings))
    ]
    written = document(stacks(clock_ns=clock), marks)
    got = events_of(tmp_path_factory.mktemp("clock"), written).stacks
    assert got is not None
    assert abs(int(got.time[0]) - (2 * MS + offset)) <= got.error_ns + 1_000
    assert got.error_ns <= min(before + after for _, before, after in readings) // 2 + 1_000


def test_drifting_clocks_have_an_error_that_covers_the_drift(tmp_path):
    marks = [(0, 1_000, 1_100), (1, 2_000_000, 2_000_100), (2, 4_300_000, 4_300_100)]
    got = events_of(tmp_path, document(stacks(clock_ns=[0, 2_000_000, 4_000_000]), marks)).stacks
    assert got is not None
    assert got.error_ns >= 298_000


DAMAGE = {
    "not an object": 7,
    "null": None,
    "another version": stacks(version=2),
    "unlike lengths": stacks(gap_ns=[1]),
    "frame of no function": stacks(frames=[(-1, 99, 1)], frame=[0] * 3),
    "function of no file": stacks(functions=[(9, "f")] * 5),
    "unknown owner": stacks(files=[("a.py", 3)] * 3),
    "sample of no frame": stacks(frame=[0, 1, 99]),
    "cycle of parents": stacks(frames=[(1, 0, 1), (0, 0, 1)], frame=[0] * 3),
    "negative frame": {**stacks(), "frame": [-1, 0, 0]},
    "huge times": stacks(gap_ns=[2**61] * 3),
    "text for a time": {**stacks(), "gap_ns": ["soon", 1, 1]},
    "missing column": {key: value for key, value in stacks().items() if key != "frames"},
    "no samples": stacks(frame=[], gap_ns=[]),
    "a clock that nothing relates": stacks(clock_ns=[]),
    "a clock that is off by a second": stacks(clock_ns=[0, 10**9]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_stacks_are_left_out_with_a_note(name, tmp_path):
    events = events_of(
        tmp_path, document(DAMAGE[name] if DAMAGE[name] is not None else {}, [(0, 0, 1_000), (1, 0, 1_000)])
    )
    assert events.stacks is None
    assert sum("stacks were left out" in note for note in events.notes) == 1
    assert len(events.marks) == 2


def test_files_without_stacks_have_no_note_about_them(tmp_path):
    events = events_of(tmp_path, document())
    assert events.stacks is None
    assert not any("stacks" in note for note in events.notes)


def test_a_file_cut_inside_its_stacks_keeps_its_events(tmp_path):
    text = json.dumps(document(stacks())).encode()
    begin = text.index(STACKS_KEY.encode())
    for cut in range(begin, len(text), max(1, (len(text) - begin) // 7)):
        path = tmp_path / "trace.json"
        path.write_bytes(text[:cut])
        (events,) = read([path])
        assert events.stacks is None
        assert events.cut_short
        assert len(events.marks) == 2


def test_hostile_names_are_bounded_and_redacted(tmp_path):
    files = [("\x1b[2J" + "d/" * 100_000 + "x.py", USER), ("https://me:hunter2@host/x.py", USER), ("y.py", USER)]
    functions = [(0, "f\n" * 100_000), (1, "g"), (2, "h"), (2, "i"), (2, "j")]
    got = events_of(
        tmp_path, document(stacks(files=files, functions=functions, frames=[(-1, 0, 1), (-1, 1, 2)], frame=[0, 0, 1]))
    ).stacks
    assert got is not None
    assert all(len(stack.location.file) <= 400 for stack in got.locations)
    assert all(len(stack.location.function) <= 120 for stack in got.locations)
    assert not any("hunter2" in stack.location.file for stack in got.locations)


def test_stacks_survive_spilling_and_compression(tmp_path):
    from trainyard.events import Events
    from trainyard.trace.parallel import spill

    events = events_of(tmp_path, document(stacks()), "trace.json.gz")
    spill.save(tmp_path / "events", events)
    loaded = spill.load(tmp_path / "events", Events)
    assert events.stacks is not None
    assert loaded.stacks is not None
    assert loaded.stacks.locations == events.stacks.locations
    assert loaded.stacks.time.tolist() == events.stacks.time.tolist()


def test_stacks_are_appended_to_the_file_of_the_profiler(tmp_path):
    pytest.importorskip("torch")
    from trainyard.run.local.capture import add_stacks

    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document(), indent=1) + "\n")
    add_stacks(path, msgspec.convert(stacks(), RecordedStacks))
    assert json.loads(path.read_text())[STACKS_KEY]["period_ns"] == 2 * MS
    assert events_of(tmp_path, json.loads(path.read_text())).stacks is not None
    path.write_text("[not the end of a document")
    add_stacks(path, msgspec.convert(stacks(), RecordedStacks))
    assert path.read_text() == "[not the end of a document"
