"""Torch's memory snapshots: reading plain data only, exact replay, categories, fragmentation and the report.

Without an accelerator, snapshots come from a simulator (tests/caching_allocator.py), whose history is the oracle, or
from torch's profile of a real run on the CPU, with torch's categories.
"""

import gzip
import io
import json
import pickle
import pickletools
import re
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.caching_allocator import MIB, CachingAllocator
from tests.memory_runs import BACKWARD, CALLS, TORCH, frame, linear, training
from tests.refused import missing_values, refused
from tests.report.render.test_html import BROWSER, Elements, drawn
from trainyard import units, words
from trainyard.errors import BadFile, DamagedFile, FileTooLarge, MissingFile
from trainyard.formats.plain_pickle import loads
from trainyard.plugins import AS_WRITTEN
from trainyard.report.memory import memory_view as report
from trainyard.report.memory.memory_terminal import print_memory, sparkline
from trainyard.trace.memory import snapshot as reader
from trainyard.trace.memory.allocator import AllocatorSettings
from trainyard.trace.memory.categories import KINDS, phase_and_kind, source_location
from trainyard.trace.memory.measure_snapshot import measure, record
from trainyard.trace.memory.recognise import is_snapshot
from trainyard.trace.memory.replay_allocations import bytes_at_moments
from trainyard.trace.memory.snapshot import ACTIONS, Frame, load

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def dumped(tmp_path: Path, snapshot: object, name: str = "snapshot.pickle") -> Path:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(snapshot))
    return path


def measured(tmp_path: Path, run: CachingAllocator):
    snapshot, memories = measure(dumped(tmp_path, run.snapshot()))
    return snapshot, memories[0]


# ---- plain data only -------------------------------------------------------------------------------------------


@given(PLAIN, st.sampled_from([3, 4, 5]))
def test_plain_data_round_trips(value, protocol):
    assert loads(pickle.dumps(value, protocol), "x") == value


@given(st.dictionaries(st.text(), st.lists(st.integers() | st.text())))
def test_plain_data_without_bytes_round_trips_in_protocol_2(value):
    assert loads(pickle.dumps(value, 2), "x") == value


def test_shared_and_recursive_lists_keep_their_identity():
    shared: list = [1]
    shared.append(shared)
    decoded = loads(pickle.dumps([shared, shared]), "x")
    assert decoded[0] is decoded[1] is decoded[0][1]


class Touches:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_no_object_in_a_file_is_called(tmp_path, protocol):
    path = dumped(tmp_path, {"segments": []})
    path.write_bytes(pickle.dumps({"segments": [Touches(tmp_path / "touched")]}, protocol))
    with refused(BadFile, path) as caught:
        load(path)
    assert caught.value.next_step
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("value", "opcode"),
    [
        ({1}, "EMPTY_SET"),
        (frozenset(), "FROZENSET"),
        (bytearray(b"x"), "BYTEARRAY8"),
        *((value, "STACK_GLOBAL") for value in (1j, ..., len, Path("x"), np.int64(3))),
    ],
    ids=repr,
)
def test_values_other_than_plain_data_are_refused(value, opcode):
    with refused(BadFile, "x", f"opcode {opcode}"):
        loads(pickle.dumps(value, 5), "x")


ADMITTED = re.findall(
    r"\w+",
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE "
    "BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE "
    "TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS APPEND APPENDS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET ",
)
REFUSED = [code for code in pickletools.opcodes if code.name not in ADMITTED]


@pytest.mark.parametrize("opcode", REFUSED, ids=lambda code: code.name)
def test_every_other_opcode_is_refused_by_name(opcode):
    with refused(BadFile, "x", f"opcode {opcode.name}", "byte 2"):
        loads(b"\x80\x04" + opcode.code.encode("latin-1") + b"os\nsystem\n.", "x")


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"\x80\x04Nr\xff\xff\xff\xff.", ()),
        (b"\x80\x04}N" + b"2\x86" * 60 + b"Ns.", ("opcode DUP", "byte 4")),
        (b"\x80\x04}N" + b"\x85" * 60 + b"Ns.", ("dict's key", "byte 65")),
        (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fx.", ("byte 11", 13)),
        (b"\x80\x04\x8e" + b"\xff" * 8 + b"x.", ("byte 11", 13)),
        (b"\x80\x04\x95" + b"\xff" * 8 + b"N.", ("byte 11", 13)),
        (b"\x80\x04\x8b\xff\xff\xff\xff.", ("byte 7", 8)),
        (b"\x80\x04h\x05.", ("byte 3", 5)),
        (b"\x80\x04(((.", ("byte 6", 6)),
        (b"\x80\x04](K\x01u.", ("list", "dict", "byte 6")),
        (b"\x80\x04}(K\x01e.", ("dict", "list", "byte 6")),
        (b"\x80\x04}(\x8c\x01au.", ("byte 8", 9)),
        (b"\x80\x09N.", ("protocol 9", "byte 1")),
        (b"", ("byte 0", 0)),
    ],
)
def test_malicious_pickles_use_little_memory(data, values):
    tracemalloc.start()
    try:
        if values:
            with pytest.raises(BadFile) as caught:
                loads(data, "x")
            assert missing_values(caught.value.message, "x", *values) == []
        else:
            assert loads(data, "x") is None
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_deep_nesting_does_not_crash():
    loads(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".", "x")


@given(st.data())
@settings(max_examples=300)
def test_damaged_pickles_are_bad_files_or_other_plain_data(data):
    content = bytearray(pickle.dumps(training(layers=2, steps=1)[0].snapshot()))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with suppress(BadFile):
        loads(bytes(content[:cut]), "x")


# ---- files -----------------------------------------------------------------------------------------------------


def test_pickle_json_gzip_and_bare_segments_load_equally(tmp_path):
    snapshot = training(layers=3, steps=2)[0].snapshot()
    plain = dumped(tmp_path, snapshot)
    packed, text = tmp_path / "snapshot.pickle.gz", tmp_path / "snapshot.json"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    text.write_text(json.dumps(snapshot))
    first = load(plain)
    for path in (packed, text):
        assert is_snapshot(path)
        other = load(path)
        assert (other.devices[0].segments, other.stacks) == (first.devices[0].segments, first.stacks)
        assert (other.devices[0].trace.size == first.devices[0].trace.size).all()
    bare = load(dumped(tmp_path, snapshot["segments"], "bare.pickle"))
    assert [len(segment.blocks) for segment in bare.devices[0].segments] == [
        len(segment.blocks) for segment in first.devices[0].segments
    ]


def test_other_files_are_not_taken_for_snapshots(tmp_path):
    for name, text in [("a.json", '{"traceEvents": [], "segments": 1}'), ("b.json", "[]"), ("c", "")]:
        (tmp_path / name).write_text(text)
        assert not is_snapshot(tmp_path / name)
    assert not is_snapshot(tmp_path / "absent")
    (tmp_path / "d.gz").write_bytes(b"\x1f\x8bnot gzip at all")
    assert not is_snapshot(tmp_path / "d.gz")


@pytest.mark.parametrize(
    ("snapshot", "values"),
    [
        ({}, ["$.segments"]),
        ("text", ["$.segments"]),
        ({"segments": [1]}, ["$.segments[0]", "blocks"]),
        (
            {"segments": [{"address": 0, "total_size": 5, "blocks": [{"size": 4}]}]},
            ["$.segments[0]", "total_size is 5", 4],
        ),
        (
            {"segments": [{"address": -1, "total_size": 0, "blocks": []}]},
            ["$.segments[0].address", "2**62", "int"],
        ),
        ({"segments": [{"address": True, "total_size": 0, "blocks": []}]}, ["$.segments[0].address", "2**62", "bool"]),
        ({"segments": [{"address": 0, "total_size": 1 << 70, "blocks": []}]}, ["$.segments[0].total_size", "2**62"]),
        ({"segments": [{"address": 0, "total_size": 0, "blocks": [None]}]}, ["$.segments[0].blocks[0]"]),
        ({"segments": [], "device_traces": [1]}, ["$.device_traces"]),
        ({"segments": [], "device_traces": []}, ["0 segments", "0 events"]),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, ["0 segments", "0 events"]),
    ],
)
def test_errors_name_the_invalid_field(tmp_path, snapshot, values):
    path = dumped(tmp_path, snapshot)
    with refused(BadFile, path, *values) as caught:
        measure(path)
    assert caught.value.next_step


def test_long_names_are_truncated_before_pattern_matching(tmp_path):
    run = CachingAllocator()
    for file in ("/torch/nn/init.py", "x" * 10**6, "none", "adam" * 10**5):
        for name in ("a" * 10**6, "(1" * 10**6, "aBackward" * 10**5, "_" * 10**6):
            run.malloc(1, [frame(file, 1, name)])
    snapshot, _ = measured(tmp_path, run)
    assert max(len(line.name) + len(line.file) for stack in snapshot.stacks for line in stack) <= 1000


def test_small_files_with_shared_lists_are_refused(tmp_path):
    trace = [{"action": "snapshot", "size": 0}] * 3000
    path = dumped(tmp_path, {"segments": [], "device_traces": [trace] * 3000})
    with refused(BadFile, path, "$.device_traces", f"{path.stat().st_size:,}"):
        load(path)
    segment = {"address": 0, "total_size": 3000, "blocks": [{"size": 1, "state": "inactive"}] * 3000}
    path = dumped(tmp_path, {"segments": [segment] * 3000})
    with refused(BadFile, path, "$.segments[4]", f"{path.stat().st_size:,}"):
        load(path)


def pickle_with(value: object, placeholder: str, opcodes: bytes) -> bytes:
    """A pickle of `value` in which `opcodes` replace the text `placeholder`."""
    data, text = pickle.dumps(value, 3), b"X" + len(placeholder).to_bytes(4, "little") + placeholder.encode()
    assert data.count(text) == 1
    return data.replace(text, opcodes)


TOWERS = {
    "nested tuples": b")" + b"q\xffh\xff\x86" * 60,
    "nested lists": b"(" * 60 + b"]" + b"q\xffh\xffl" * 60,
    "deep lists": b"(" * 3000 + b"]" + b"l" * 3000,
    "a large number": b"\x8b" + (2501).to_bytes(4, "little") + (2**20_000).to_bytes(2501, "little"),
}


@pytest.mark.parametrize("tower", TOWERS)
def test_exponentially_large_values_are_not_hashed_or_printed(tmp_path, tower):
    snapshot = CachingAllocator()
    snapshot.malloc(1000, [frame("/x/y.py", 1, "f")], metadata="m")
    document = json.loads(json.dumps(snapshot.snapshot()))
    document["external_annotations"] = [{"name": "eval", "device": 0, "time_us": 5}]
    document["device_traces"][0][0]["category"] = "input"
    path, start = tmp_path / "tower.pickle", time.process_time()
    for container, key in list(nodes(document)):
        original, container[key] = container[key], "placeholder"
        path.write_bytes(pickle_with(document, "placeholder", TOWERS[tower]))
        container[key] = original
        with suppress(BadFile):
            read, memories = measure(path)
            view = report.view_of(read, memories[0], memories)
            assert report.page(view)
            assert msgspec.json.encode(record(read, memories[0]))
    assert time.process_time() - start < 10


COPIES = 30_000
"""Copies of a text in the snapshots of the next test."""


def test_long_shared_texts_are_truncated(tmp_path):
    """Two equal texts, one of them shared: each comparison would read all of them, each annotation repeat them."""

    def loaded(length):
        """The snapshot with texts of `length` characters, the CPU seconds to read it, and the text."""
        text, equal = ("x" * (length - 2) + end for end in ("yz", "y"))
        equal += "z"
        assert text == equal
        assert text is not equal
        lines = [frame(text, 1, text)] + [frame(equal, 1, equal)] * COPIES
        alloc = {"action": "alloc", "addr": 1, "size": 1, "stream": 0}
        entries = [{**alloc, "user_metadata": text, "frames": lines}] + [{**alloc, "user_metadata": equal}] * COPIES
        marks = [{"time_us": 1, "name": text}] * COPIES
        path = dumped(tmp_path, {"segments": [], "device_traces": [entries], "external_annotations": marks})
        start = time.process_time()
        read = load(path)
        return read, time.process_time() - start, text

    _, short_s, _ = loaded(10**3)
    read, long_s, text = loaded(10**6)
    assert long_s < 4 * short_s
    assert [len(label) for label in read.labels] == [0, 500]
    assert [len(mark.text) for mark in read.marks] == [500]
    with refused(BadFile, "x", "dict's key", "500 characters"):
        loads(pickle.dumps({text: 1}), "x")


def test_default_size_limit_of_snapshots_is_below_that_of_traces(tmp_path, monkeypatch):
    path = dumped(tmp_path, training(layers=2, steps=1)[0].snapshot())
    monkeypatch.setattr(reader, "DEFAULT_MAX_BYTES", 1000)
    for limit in ((), (AS_WRITTEN.limit,)):
        with refused(FileTooLarge, path, units.show_size(1000), "--limit"):
            measure(path, *limit)
    assert measure(path, path.stat().st_size)


def test_damaged_and_oversized_files_are_bad_files(tmp_path):
    path = dumped(tmp_path, training(layers=2, steps=1)[0].snapshot())
    packed = tmp_path / "cut.gz"
    packed.write_bytes(gzip.compress(path.read_bytes())[:-20])
    with refused(DamagedFile, packed, "gzip"):
        load(packed)
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(10**7)))
    with refused(FileTooLarge, bomb, units.show_size(10**6), "--limit"):
        measure(bomb, 10**6)
    joined = tmp_path / "joined.gz"
    joined.write_bytes(gzip.compress(path.read_bytes()[:1000]) + gzip.compress(path.read_bytes()[1000:]))
    assert load(joined, path.stat().st_size).devices[0].segments == load(path).devices[0].segments
    with refused(FileTooLarge, joined, units.show_size(path.stat().st_size - 1), "--limit"):
        load(joined, path.stat().st_size - 1)
    for name, text, kind, values in [
        ("e", b"", DamagedFile, ["0 bytes"]),
        ("t", b"hello", BadFile, ["pickle", "protocol 2", "JSON"]),
        ("j", b'{"segments": [', DamagedFile, ["JSON", "14 bytes"]),
    ]:
        (tmp_path / name).write_bytes(text)
        with refused(kind, tmp_path / name, *values):
            load(tmp_path / name)
    with refused(MissingFile, tmp_path / "absent"):
        load(tmp_path / "absent")


ODD = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
)


def nodes(value):
    """Yields (container, key) of every value in a structure."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from nodes(value[key])


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_odd_values_give_a_bad_file_or_a_report(tmp_path_factory, data):
    snapshot = json.loads(json.dumps(training(layers=2, steps=1, capacity=230 * MIB)[0].snapshot()))
    all_nodes = list(nodes(snapshot))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = all_nodes[data.draw(st.integers(0, len(all_nodes) - 1))]
        container[key] = data.draw(ODD)
    path = dumped(tmp_path_factory.mktemp("odd"), snapshot)
    with suppress(BadFile):
        read, memories = measure(path)
        memory = report.busiest(memories)
        assert report.page(report.view_of(read, memory, memories))
        assert msgspec.json.encode(record(read, memory))
        print_memory(report.view_of(read, memory, memories), Console(file=io.StringIO(), width=100))


def test_invalid_entries_are_left_out_and_counted(tmp_path):
    run, _ = training(layers=2, steps=1)
    snapshot = run.snapshot()
    snapshot["device_traces"][0] += [{}, 3, {"action": "dance"}, {"action": "alloc", "addr": "here", "size": 1}]
    snapshot["device_traces"][0].append({"action": "alloc", "addr": 1, "size": 1, "time_us": 1 << 61})
    read, memories = measure(dumped(tmp_path, snapshot))
    assert read.unreadable_count == 5
    assert len(memories[0].device.trace.action) == len(run.trace)
    assert any("5 entries could not be read" in note for note in record(read, memories[0]).notes)


def test_the_format_of_torch_1_13_is_read(tmp_path):
    """Blocks with a history but without addresses or requested sizes, entries without timestamps."""
    history = [{"addr": 4096, "real_size": 700, "frames": linear(0)}]
    blocks = [
        {"size": 1024, "state": "active_allocated", "history": history},
        {"size": 512, "state": "active_pending_free"},
        {"size": 2 * MIB - 1536, "state": "inactive"},
    ]
    segment = {
        "device": 1,
        "address": 4096,
        "total_size": 2 * MIB,
        "stream": 0,
        "segment_type": "small",
        "blocks": blocks,
    }
    snapshot, memories = measure(dumped(tmp_path, {"segments": [segment]}))
    [memory] = memories
    assert memory.device.index == 1
    assert (memory.peak.allocated, memory.peak.requested, memory.peak.active) == (1024, 700, 1536)
    assert memory.peak.holders[0].location == "user/model.py:20 forward"
    assert memory.end.rounding == 324
    assert "no trace" in record(snapshot, memory).notes[0]


# ---- replay ----------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 512, 600, MIB, MIB + 1, 3 * MIB, 11 * MIB, 30 * MIB]) | st.integers(1, 40 * MIB)
ACTIVITY = st.lists(
    st.tuples(st.just("malloc"), SIZES, st.sampled_from([0, 0, 0, 7]))
    | st.tuples(st.sampled_from(["free", "pend", "complete", "empty"]), st.integers(0, 10**6), st.just(0)),
    min_size=1,
    max_size=120,
)


def simulated(activity, **options) -> CachingAllocator:
    run = CachingAllocator(**options)
    live: list[int] = []
    pending: list[int] = []
    for action, number, stream in activity:
        if action == "malloc":
            try:
                live.append(run.malloc(number, linear(number % 5), stream))
            except MemoryError:
                continue
        elif action in ("free", "pend") and live:
            address = live.pop(number % len(live))
            run.free(address, pending=action == "pend")
            if action == "pend":
                pending.append(address)
        elif action == "complete" and pending:
            run.complete(pending.pop(number % len(pending)))
        elif action == "empty":
            run.empty_cache()
    return run


@given(ACTIVITY, st.booleans(), st.sampled_from([1 << 40, 200 * MIB]))
@settings(max_examples=150, deadline=None)
def test_replay_matches_the_allocators_history(tmp_path_factory, activity, expandable, capacity):
    run = simulated(activity, expandable=expandable, capacity=capacity)
    if not run.trace:
        return
    _, memory = measured(tmp_path_factory.mktemp("replay"), run)
    replayed = memory.replay
    totals_of_replay = np.stack([replayed.requested, replayed.allocated, replayed.active, replayed.reserved])
    assert (np.array(run.history) == totals_of_replay.T).all()
    assert (replayed.inconsistencies, replayed.matching_blocks) == (0, replayed.checked_blocks)


@given(ACTIVITY, st.booleans(), st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_truncated_trace_still_ends_at_the_snapshot(tmp_path_factory, activity, expandable, max_entries):
    run = simulated(activity, expandable=expandable, max_entries=max_entries)
    if not run.trace:
        return
    snapshot, memory = measured(tmp_path_factory.mktemp("ring"), run)
    replayed = memory.replay
    history = np.array(run.history[-len(replayed.allocated) :])
    # Requested and reserved bytes are known at every moment, allocated and active bytes only at the end.
    assert (replayed.requested == history[:, 0]).all()
    assert (replayed.reserved == history[:, 3]).all()
    assert replayed.allocated[-1] == history[-1, 1] == sum(s["allocated_size"] for s in run.snapshot()["segments"])
    assert replayed.active[-1] == history[-1, 2] == sum(s["active_size"] for s in run.snapshot()["segments"])
    assert replayed.inconsistencies == 0
    before = record(snapshot, memory).before
    assert (before > 0) == any("before the trace began" in note for note in record(snapshot, memory).notes)


@given(ACTIVITY, st.sampled_from([10**9, 30]))
@settings(max_examples=60, deadline=None)
def test_parts_add_up_at_every_moment(tmp_path_factory, activity, max_entries):
    run = simulated(activity, max_entries=max_entries)
    if not run.trace:
        return
    _, memory = measured(tmp_path_factory.mktemp("parts"), run)
    replayed, peak, lives = memory.replay, memory.peak, memory.replay.lives
    assert (memory.by_kind.sum(axis=0) == replayed.allocated).all()
    assert (replayed.requested <= replayed.allocated).all()
    assert (replayed.allocated <= replayed.active).all()
    assert (replayed.active <= replayed.reserved).all()
    assert peak.allocated == replayed.allocated.max() == sum(peak.held.values())
    assert sum(holder.size for holder in peak.holders) == peak.allocated
    assert sum(holder.requested for holder in peak.holders) == peak.requested
    assert sum(holder.count for holder in peak.holders) == int(lives.is_allocated(peak.moment).sum())
    for fragments, moment in ((peak.fragments, peak.moment), (memory.end, len(replayed.allocated) - 1)):
        assert fragments.reserved == replayed.reserved[moment]
        assert fragments.active == replayed.active[moment]
        assert fragments.unused == fragments.reserved - fragments.active
        assert 0 <= fragments.split <= fragments.unused
        assert fragments.largest <= fragments.unused <= fragments.largest * fragments.pieces


def test_events_missing_from_the_trace_are_counted(tmp_path):
    run, _ = training(layers=4, steps=2)
    snapshot = run.snapshot()
    trace = snapshot["device_traces"][0]
    snapshot["device_traces"][0] = [entry for entry in trace if not entry["action"].startswith("free")]
    read, memories = measure(dumped(tmp_path, snapshot))
    assert memories[0].replay.inconsistencies > 0
    assert memories[0].replay.allocated[-1] == sum(s["allocated_size"] for s in snapshot["segments"])
    assert any("missing from the trace" in note for note in record(read, memories[0]).notes)


def test_block_reallocated_without_an_event_keeps_its_stream(tmp_path):
    run = CachingAllocator()
    run.free(run.malloc(5 * MIB, stream=7))
    address = run.malloc(5 * MIB, stream=7)
    snapshot = run.snapshot()
    del snapshot["device_traces"][0][-1]
    replayed = measure(dumped(tmp_path, snapshot))[1][0].replay
    assert replayed.inconsistencies == 1
    assert replayed.lives.address.tolist() == [address, address]
    assert replayed.lives.stream.tolist() == [7, 7]


def test_requested_free_keeps_its_event_if_the_completion_is_missing(tmp_path):
    run = CachingAllocator()
    run.free(run.malloc(5 * MIB))
    run.malloc(512)
    snapshot = run.snapshot()
    events = [entry for entry in snapshot["device_traces"][0] if entry["action"] != "free_completed"]
    snapshot["device_traces"][0] = events
    replayed = measure(dumped(tmp_path, snapshot))[1][0].replay
    requested = [entry["action"] for entry in events].index("free_requested")
    assert replayed.inconsistencies == 1
    assert requested < len(events) - 1
    assert (replayed.lives.stop[0], replayed.lives.done[0]) == (requested, len(events) - 1)


def test_totals_beyond_64_bits_are_refused(tmp_path):
    trace = [{"action": "alloc", "addr": number, "size": 1 << 61} for number in range(4)]
    path = dumped(tmp_path, {"segments": [], "device_traces": [trace]})
    with refused(BadFile, path, f"{float(4 << 61):.4g}", "2**62"):
        measure(path)


def test_sizes_are_rounded_like_the_allocators():
    plain, quarters = (
        AllocatorSettings(),
        AllocatorSettings.from_snapshot({"roundup_power2_divisions": {"1": 4, "2": 4, "64": 4}}, from_allocator=True),
    )
    assert [plain.round_up(size) for size in (1, 511, 512, 513, 5000)] == [512, 512, 512, 1024, 5120]
    assert quarters.round_up(84 * MIB) == 96 * MIB
    assert quarters.round_up(64 * MIB) == 64 * MIB
    assert quarters.round_up(32 * MIB + 1) == 32 * MIB + 512
    assert plain.block_bytes(2 * MIB, 3 * MIB) == 3 * MIB
    assert plain.block_bytes(2 * MIB, 3 * MIB + 512) == 2 * MIB
    assert plain.block_bytes(512, 1024) == 512
    assert plain._replace(expandable=True).block_bytes(2 * MIB, 3 * MIB) == 2 * MIB
    assert plain._replace(max_split=2 * MIB).block_bytes(2 * MIB, 30 * MIB) == 30 * MIB
    assert plain._replace(exact=True).round_up(7) == 7


# ---- categories ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python_only", [False, True])
def test_categories_of_a_run_are_exact(tmp_path, python_only):
    run, requested = training(layers=8, steps=3)
    snapshot = run.snapshot()
    if python_only:
        for entry in snapshot["device_traces"][0]:
            entry["frames"] = [line for line in entry["frames"] if line["filename"].endswith(".py")]
    read, [memory] = measure(dumped(tmp_path, snapshot))
    lives, count = memory.replay.lives, len(memory.device.trace.action)
    for kind, peak in requested.items():
        rows = memory.category == KINDS.index(kind)
        assert bytes_at_moments(lives.requested[rows], lives.start[rows], lives.stop[rows], count).max() == peak, kind
    comm = memory.category == KINDS.index("communication")
    assert lives.requested[comm].tolist() == [8 * MIB] * 3
    assert lives.stream[comm].tolist() == [7] * 3
    assert python_only == any("attributed to the autograd engine" in note for note in record(read, memory).notes)
    unknown = lives.requested[memory.category == KINDS.index("unknown")]
    assert unknown.tolist() == [4 * MIB + 7] * 3


FSDP = [
    frame(f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_state.py", 90, "fsdp_hook_wrapper"),
    frame(f"{TORCH}/nn/parallel/distributed.py", 1661, "_run_ddp_forward"),
]
ENGINE = frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)")


@pytest.mark.parametrize(
    ("stack", "phase", "kind"),
    [
        ([], "other", ""),
        (linear(0), "forward", ""),
        ([*linear(0), *FSDP], "forward", ""),
        ([frame(f"{TORCH}/distributed/tensor/_dispatch.py", 150, "dispatch"), *linear(0)], "forward", ""),
        ([frame(f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 200, "allocate"), *FSDP, *CALLS],
         "forward", "communication"),
        ([frame("??", 0, "c10d::ProcessGroupNCCL::collective(at::Tensor&)"), ENGINE], "backward", "communication"),
        ([*linear(0), frame(f"{TORCH}/utils/checkpoint.py", 1100, "recompute_fn")], "backward", "activation"),
        ([*linear(0), frame("/home/user/optim_test.py", 9, "<module>")], "forward", ""),
        ([frame("/x/apex/optimizers/fused_adam.py", 120, "step")], "optimizer", ""),
        ([frame("/home/user/ops.py", 12, "backward"), frame(f"{TORCH}/autograd/function.py", 320, "apply")],
         "backward", ""),
        ([frame(f"{TORCH}/nn/init.py", 70, "_no_grad_normal_"), frame(f"{TORCH}/nn/modules/linear.py", 99, "__init__")],
         "init", ""),
        ([frame(f"{TORCH}/utils/data/_utils/pin_memory.py", 60, "pin_memory")], "other", "input"),
    ],
)  # fmt: skip
def test_innermost_recognized_frame_decides(stack, phase, kind):
    phases = ["forward", "backward", "optimizer", "init", "other"]
    lines = tuple(Frame(line["filename"], line["line"], line["name"]) for line in stack)
    assert phase_and_kind(lines) == (phases.index(phase), kind)


def test_category_set_by_the_program_takes_precedence(tmp_path):
    run = CachingAllocator()
    run.malloc(1000, linear(0), metadata="optimizer_state")
    run.malloc(3000, linear(0), metadata="whatever it likes")
    _, memory = measured(tmp_path, run)
    assert memory.peak.held == {"optimizer_state": 1024, "activation": 3072}


def test_annotations_are_marks_at_their_times(tmp_path):
    run, _ = training(layers=2, steps=1)
    snapshot = run.snapshot()
    trace = snapshot["device_traces"][0]
    trace.insert(9, {"action": "user_defined", "time_us": trace[8]["time_us"], "user_metadata": "step 1"})
    snapshot["external_annotations"] = [{"name": "eval", "device": 0, "time_us": trace[0]["time_us"] + 30}]
    snapshot["external_annotations"].append({"name": "before the trace", "device": 0, "time_us": 5})
    _, [memory] = measure(dumped(tmp_path, snapshot))
    assert [(mark.ns, mark.text) for mark in memory.marks] == [(30_000, "eval"), (int(memory.ns[10]), "step 1")]


def test_location_shown_is_the_users_line():
    def lines(*stack):
        return tuple(Frame(line["filename"], line["line"], line["name"]) for line in stack)

    assert source_location(lines(*linear(3))) == "user/model.py:23 forward"
    assert source_location(lines(frame(f"{TORCH}/nn/functional.py", 9, "relu"))) == "nn/functional.py:9 relu"
    assert (
        source_location((Frame("", 0, "torch::autograd::Engine::thread_main"),))
        == "torch::autograd::Engine::thread_main"
    )
    assert source_location(lines(*BACKWARD)) == "autograd AddmmBackward0"
    assert source_location(()) == ""


@pytest.mark.torch
@pytest.mark.slow
def test_torchs_own_categories_agree_on_a_real_run(tmp_path):
    """Profiles a real training run on the CPU; torch's viewer converts it to a snapshot with torch's categories.

    Torch splits an allocation at each in-place change: the parts are merged here, as an allocator sees them. Torch also
    counts memory that the forward pass frees as activation, and tensors that the optimizer computes from parameters as
    parameter, so only long-lived allocations are compared.
    """
    torch = pytest.importorskip("torch")
    from torch.cuda._memory_viz import _profile_to_snapshot

    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(3):
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    snapshot = _profile_to_snapshot(profile)
    read, [memory] = measure(dumped(tmp_path, snapshot))
    assert not read.allocator
    assert memory.peak.fragments is None
    assert (memory.by_kind.sum(axis=0) == memory.replay.allocated).all()

    trace, labels, merged = snapshot["device_traces"][0], [], []
    index_of: dict[int, int] = {}
    at = 0
    while at < len(trace):
        entry = {key: value for key, value in trace[at].items() if key != "category"}
        later = trace[at + 2] if at + 2 < len(trace) else {}
        if entry["action"] == "free_requested" and (later.get("action"), later.get("addr")) == ("alloc", entry["addr"]):
            labels[index_of[entry["addr"]]].append(later["category"])
            at += 3
            continue
        if entry["action"] == "alloc":
            index_of[entry["addr"]] = len(merged)
        merged.append(entry)
        labels.append([trace[at].get("category")])
        at += 1
    snapshot["device_traces"][0] = merged
    _, [memory] = measure(dumped(tmp_path, snapshot))
    lives = memory.replay.lives
    ours = {
        kind: {int(start) for start in lives.start[(memory.category == KINDS.index(kind)) & (lives.start >= 0)]}
        for kind in KINDS
    }
    theirs = {kind: {at for at, named in enumerate(labels) if kind in named[:1]} for kind in KINDS}
    big = {int(start) for start, size in zip(lives.start, lives.size) if size >= 256}
    assert ours["gradient"] & big == theirs["gradient"] & big
    assert ours["optimizer_state"] & big == theirs["optimizer_state"] & big
    assert ours["parameter"] & big == (theirs["parameter"] & big) - ours["temporary"]
    assert ours["activation"] & big
    assert ours["activation"] & big <= theirs["activation"] & big


# ---- fragmentation and shortages -------------------------------------------------------------------------------


def test_fragmentation_of_a_small_heap_is_exact(tmp_path):
    run = CachingAllocator()
    blocks = [run.malloc(5 * MIB - 100) for _ in range(4)]
    run.free(blocks[1])
    run.free(blocks[3])
    spare = run.malloc(12 * MIB)
    run.free(spare)
    _, memory = measured(tmp_path, run)
    end = memory.end
    assert (end.reserved, end.active, end.unused) == (32 * MIB, 10 * MIB, 22 * MIB)
    assert (end.pieces, end.largest, end.split, end.rounding, end.segments) == (3, 12 * MIB, 10 * MIB, 200, 2)


def shortage_of(tmp_path: Path, run: CachingAllocator, size: int, stream: int = 0):
    """The shortage that a request of `size` bytes causes."""
    with pytest.raises(MemoryError):
        run.malloc(size, linear(1), stream)
    _, memory = measured(tmp_path, run)
    [shortage] = memory.shortages
    assert shortage.requested == size
    assert shortage.location == "user/model.py:21 forward"
    return shortage


def test_failed_requests_have_the_right_reason(tmp_path):
    run = CachingAllocator(capacity=40 * MIB)
    blocks = [run.malloc(5 * MIB) for _ in range(8)]
    for block in blocks[::2]:
        run.free(block)
    shortage = shortage_of(tmp_path, run, 12 * MIB)
    assert (shortage.reason, shortage.unused, shortage.largest, shortage.device_free) == (
        "fragmented",
        20 * MIB,
        5 * MIB,
        0,
    )

    run = CachingAllocator(capacity=40 * MIB)
    blocks = [run.malloc(5 * MIB, stream=7) for _ in range(8)]
    for block in (blocks[0], blocks[1], blocks[4]):
        run.free(block)
    shortage = shortage_of(tmp_path, run, 9 * MIB)
    assert (shortage.reason, shortage.unused, shortage.usable) == ("elsewhere", 15 * MIB, 0)

    run = CachingAllocator(capacity=50 * MIB)
    blocks = [run.malloc(5 * MIB) for _ in range(8)]
    run.free(blocks[0])
    assert shortage_of(tmp_path, run, 12 * MIB).reason == "divided"
    shortage = shortage_of(tmp_path, CachingAllocator(capacity=40 * MIB), 100 * MIB)
    assert (shortage.reason, shortage.device_free) == ("full", 40 * MIB)


def test_every_reason_has_a_remedy(tmp_path):
    assert set(report._REMEDIES) == set(words.SHORTAGES)
    run, _ = training(capacity=2860 * MIB)
    snapshot, memory = measured(tmp_path, run)
    assert memory.shortages[0].reason == "fragmented"
    view = report.view_of(snapshot, memory)
    assert view.title.startswith("Out of memory at event ")
    assert "expandable_segments:True" in view.warnings[0]


# ---- the report ------------------------------------------------------------------------------------------------

NAMES = ["</script><img src=x onerror=alert(1)>", "\x1b[31mred\x07", "=cmd()", "a\u2028b", "lone \ud800 surrogate"]


def hostile() -> CachingAllocator:
    run = CachingAllocator()
    for number, name in enumerate(NAMES):
        run.malloc(MIB * (number + 2), [frame(f"/x/{name}/y.py", 1, name)])
    return run


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(-50, 50), st.integers(0, 9)), min_size=1), st.integers(1, 40)
)
def test_thinning_keeps_every_extreme(moves, buckets):
    gaps, sizes, more = (np.array(column, np.int64) for column in zip(*moves))
    ns, allocated = np.cumsum(gaps), np.cumsum(sizes)
    keep = report.moments_kept(ns, allocated, allocated + more, buckets)
    assert len(keep) <= 5 * buckets
    assert (np.diff(keep) > 0).all()
    assert {0, len(ns) - 1, int(allocated.argmax())} <= set(keep.tolist())
    assert allocated[keep].min() == allocated.min()
    assert (allocated + more)[keep].max() == (allocated + more).max()


def test_long_trace_gives_a_small_page(tmp_path):
    size, segments = 2 * MIB, []
    trace, live = [], []
    for number in range(1500):
        block = {"address": number * size, "size": size, "requested_size": size, "state": "inactive", "frames": []}
        segments.append({"device": 0, "address": number * size, "total_size": size, "stream": 0, "blocks": [block]})
    stacks = [linear(number) for number in range(300)]
    for event in range(40_000):
        address = (event * 7919) % 1500 * size
        live.append(address)
        trace.append(
            {"action": "alloc", "addr": address, "size": size - event % 999, "time_us": event * 3, "stream": 0}
        )
        trace[-1]["frames"] = stacks[event % 300]
        if len(live) > 700 + event // 200:
            for action in ("free_requested", "free_completed"):
                trace.append({"action": action, "addr": live[0], "size": size, "time_us": event * 3 + 1, "stream": 0})
            live.pop(0)
    snapshot, [memory] = measure(dumped(tmp_path, {"segments": segments, "device_traces": [trace]}))
    view = report.view_of(snapshot, memory)
    assert view.curve.moments > 100_000
    assert len(view.curve.ns) <= 2000
    assert max(map(sum, zip(*view.curve.kinds))) == memory.peak.allocated
    assert len(report.page(view).encode()) < 600_000


def test_the_view_adds_up(tmp_path):
    run, _ = training(layers=24, steps=2)
    snapshot, memory = measured(tmp_path, run)
    view = report.view_of(snapshot, memory)
    peak = [column[view.curve.peak] for column in view.curve.kinds]
    assert sum(peak) == sum(view.held.values()) == memory.peak.allocated
    assert sum(holder.size for holder in view.holders) + view.rest[1] == memory.peak.allocated
    for segments, (_, fragments) in zip(view.segments, view.fragments, strict=True):
        assert sum(row.size for row in segments.rows) + segments.left_bytes == fragments.reserved
        assert len(segments.rows) + segments.left_out == fragments.segments
        for row in segments.rows:
            assert sum(length for _, length in row.pieces) == row.size
    text = msgspec.json.decode(msgspec.json.encode(record(snapshot, memory)))
    assert text["peak"]["held"] == memory.peak.held


def test_hostile_names_are_escaped(tmp_path):
    snapshot, memory = measured(tmp_path, hostile())
    document = Elements(report.page(report.view_of(snapshot, memory)))
    assert [tag for tag, _ in document.tags if tag in ("script", "img", "style")] == ["style", "script", "script"]
    assert not re.search("[<\u2028\u2029]", document.inside["script"][0])
    out = io.StringIO()
    print_memory(report.view_of(snapshot, memory), Console(file=out, width=200, highlight=False))
    assert "onerror" in out.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\ud800]", out.getvalue())


def test_the_terminal_shows_the_curve_and_the_peak(tmp_path):
    run, _ = training(layers=24, steps=2)
    snapshot, memory = measured(tmp_path, run)
    view = report.view_of(snapshot, memory, [memory, memory._replace(device=memory.device._replace(index=3))])
    out = io.StringIO()
    print_memory(view, Console(file=out, width=120, highlight=False), top=5)
    text = out.getvalue()
    assert f"{memory.peak.allocated:,}" in text
    assert "Optimizer state" in text
    assert re.search(r"\d+ more places", text)
    assert "Device 3: peak " in text
    assert max(sparkline(view.curve)) == "█"
    assert sparkline(view.curve)[0] < "█"


def test_every_documented_action_is_known():
    torch = pytest.importorskip("torch")
    import torch.cuda.memory as documented

    assert torch
    for action in re.findall(r'^\s+"(\w+)",?\s+#', documented._snapshot.__doc__ or "", re.MULTILINE):
        assert action in ACTIONS or action.startswith(("active", "inactive"))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("case", ["run", "oom", "hostile", "ring", "still"])
def test_browser_draws_the_page_without_errors(tmp_path, case):
    run = {
        "run": lambda: training(layers=24, steps=3)[0],
        "oom": lambda: training(layers=24, capacity=2860 * MIB)[0],
        "hostile": hostile,
        "ring": lambda: training(layers=24, steps=3, max_entries=200, expandable=True)[0],
        "still": lambda: training(layers=24, steps=1, max_entries=0)[0],
    }[case]()
    snapshot, memory = measured(tmp_path, run)
    report.write(report.view_of(snapshot, memory), tmp_path / "memory.html")
    document, complaints = drawn(tmp_path / "memory.html", "#theme=dark&kind=Activations")
    assert complaints == []
    document = re.sub(r"(?s)<script.*?</script>", "", document)
    assert "Allocations at the peak" in document
    assert 'class="segment"' in document
    assert (case == "oom") == ("why did it fail?" in document)
    assert "<img" not in document
