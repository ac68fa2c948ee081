"""The Kineto reader: formats, exact timestamps and damaged files."""

import gzip
import json
import zipfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from tests.trace_maker import trace, write
from trainyard import units
from trainyard.errors import BadFile, BadInput, DamagedFile, FileTooLarge, MissingFile
from trainyard.events import CALL, KERNEL, OperandShape
from trainyard.plugins import ReadOptions
from trainyard.trace.measure import measure, read
from trainyard.trace.readers.gather import Gather
from trainyard.trace.readers.kineto.reader import Kineto

GEMM = ("gemm", 7, 0, 100, 0)


def test_timestamps_beyond_float_precision_are_exact(tmp_path):
    document = trace(device=[GEMM])
    text = json.dumps(document).replace('"ts": 0.0, "dur": 0.1', '"ts": 4458676416788.067, "dur": 1428625731896.179')
    document["baseTimeNanoseconds"] = 0
    path = tmp_path / "t.json"
    path.write_text(text)
    (events,) = Kineto().read(path)
    assert events.work.start.tolist() == [4458676416788067]
    assert events.work.stop.tolist() == [4458676416788067 + 1428625731896179]


@given(st.integers(0, 2**52), st.integers(0, 6))
def test_decimal_timestamps_are_rounded_down_to_ns(ns, digits):
    text = str(Decimal(ns) / 10**digits)
    assert units.ns_from_us(text) == int(Decimal(text) * 1000)


def test_base_time_is_added(tmp_path):
    document = trace(device=[GEMM]) | {"baseTimeNanoseconds": 1_711_964_646_000_000_000}
    (events,) = Kineto().read(write(tmp_path, document))
    assert events.window == (1_711_964_646_000_000_000, 1_711_964_646_000_000_100)


def test_plain_gzipped_pretty_printed_and_bare_lists_are_equal(tmp_path):
    document = trace(device=[GEMM, ("ncclDevKernel_AllGather_RING", 8, 50, 150, 40)])
    paths = [write(tmp_path, document), write(tmp_path, document, "t.json.gz")]
    pretty, bare = tmp_path / "pretty.json", tmp_path / "bare.json"
    pretty.write_text(json.dumps(document, indent=2))
    bare.write_text(json.dumps(document["traceEvents"]))
    ledgers = [measure(read([path])).mean for path in (*paths, pretty, bare)]
    assert len({ledger.entries for ledger in ledgers}) == 1


def test_category_names_of_2021_are_read(tmp_path):
    today = trace(device=[GEMM, ("Memcpy HtoD (Pageable -> Device)", 7, 100, 120, 90)], marks=[("1", 0, 200)])
    old = json.loads(json.dumps(today))
    names = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "user_annotation": "Operator"}
    for event in old["traceEvents"]:
        event["cat"] = names[event["cat"]]
        event["tid"] = f"stream {event['tid']}" if event["cat"] in ("Kernel", "Memcpy") else str(event["tid"])
    assert (
        measure(read([write(tmp_path, old, "old.json")])).mean.entries
        == measure(read([write(tmp_path, today)])).mean.entries
    )


def test_nan_in_an_event_does_not_lose_the_file(tmp_path):
    path = tmp_path / "t.json"
    document = trace(device=[GEMM, ("elementwise_kernel", 7, 100, 200, 90)])
    document["traceEvents"][0]["args"]["est. achieved occupancy %"] = float("nan")
    path.write_text(json.dumps(document))
    assert measure(read([path])).mean.wall_ns == 200


def test_events_with_unreadable_times_are_left_out_and_counted(tmp_path):
    document = trace(device=[GEMM, ("gemm", 7, 100, 200, 90)])
    document["traceEvents"][2]["dur"] = -5
    measured = measure(read([write(tmp_path, document)]))
    assert measured.mean.wall_ns == 100
    assert any("1 events with an unreadable or negative time" in note for note in measured.notes)


def test_args_of_wrong_types_are_ignored(tmp_path):
    document = trace(device=[GEMM])
    document["traceEvents"][0]["args"] |= {"stream": 7.5, "device": 10**30, "Sequence number": "a", "External id": None}
    assert measure(read([write(tmp_path, document)])).mean.wall_ns == 100


def test_several_devices_in_one_file_are_several_ranks(tmp_path):
    first, second = trace(device=[GEMM]), trace(device=[("gemm", 7, 0, 80, 0)], device_index=1)
    first["traceEvents"] += second["traceEvents"]
    measured = measure(read([write(tmp_path, first)]))
    assert [(ledger.scope.ranks, ledger.wall_ns) for ledger in measured.ledgers[:-1]] == [((0,), 100), ((1,), 80)]


_KERNEL = '{"ph": "X", "cat": "kernel", "name": "x", "ts": %s, "dur": 1, "args": %s}'


def test_rank_that_uses_a_second_device_is_one_rank(tmp_path):
    document, stray = (
        trace(device=[GEMM], rank=1, world=4),
        trace(device=[("Memset (Device)", 7, 50, 60, 0)], device_index=0),
    )
    document["traceEvents"][0]["args"]["device"] = 1
    document["traceEvents"] += stray["traceEvents"]
    (events,) = read([write(tmp_path, document)])
    assert (events.rank, len(events.work), len(events.streams)) == (1, 2, 2)


def test_step_marks_are_of_one_thread_without_duplicates(tmp_path):
    marks = [("1", 0, 400), ("2", 410, 800)]
    document = trace(host=[("aten::mm", 100, 10, 300, "cpu_op")], marks=marks)
    for label, start, stop in marks:
        document["traceEvents"].append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{label}", "pid": 1, "tid": 200,
             "ts": (start + 1) / 1000, "dur": (stop - start) / 1000, "args": {}}
        )  # fmt: skip
    measured = measure(read([write(tmp_path, document)]))
    assert [ledger.wall_ns for ledger in measured.ledgers[:-1]] == [410, 390]


def test_op_of_zero_length_is_accepted(tmp_path):
    document = trace(host=[("aten::mm", 100, 10, 10, "cpu_op")], marks=[("1", 0, 100)])
    assert measure(read([write(tmp_path, document)])).mean.wall_ns == 100


def test_overlapping_annotations_of_asynchronous_work_keep_their_length(tmp_path):
    host = [("gloo:all_reduce", 101, 60, 100, "user_annotation"), ("gloo:all_gather", 101, 80, 5200, "user_annotation")]
    measured = measure(read([write(tmp_path, trace(host=host, marks=[("1", 0, 6000)]))]))
    assert measured.mean.by_kind()["comm"] == 5200 - 60


DAMAGE = {
    "missing": (None, ()),
    "empty": (b"", ("0 bytes",)),
    "spaces": (b"  \n", ("3 bytes",)),
    "not json": (b"{traceEvents: oops", ("0 trace events", "18 bytes")),
    "text": (b"hello", ("kineto", "xplane")),
    "nothing whole in it": (b'{"traceEvents": [{"ph": "X", "cat": "ker', ("0 trace events", "23 bytes")),
    "gzip of nothing": (gzip.compress(b"x" * 10**6)[:12], ("gzip", "12 bytes")),
    "no events": (b'{"traceEvents": []}', ("0 trace events", "19 bytes")),
    "another schema": (b'{"rows": [1, 2]}', ("kineto", "xplane")),
    "wrong types": (b'{"traceEvents": {"a": 1}}', ("0 trace events", "25 bytes")),
    "endless nesting": (
        b'{"traceEvents": [' + (_KERNEL % (1, "[" * 200_000 + "]" * 200_000)).encode() + b"]}",
        ("0 trace events", "1,000 brackets"),
    ),
    "a stamp of a million digits": (
        b'{"traceEvents": [' + (_KERNEL % ("1e999999", "{}")).encode() + b"]}",
        ("1 events",),
    ),
    "no work": (b'{"traceEvents": [{"ph": "i", "name": "x", "ts": 1}]}', ("1 events",)),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_file_gives_one_error_with_its_path(kind, tmp_path):
    data, values = DAMAGE[kind]
    path = tmp_path / "t.json"
    if data is not None:
        path.write_bytes(data)
    classes = {"missing": MissingFile, "empty": DamagedFile, "gzip of nothing": DamagedFile}
    with refused(classes.get(kind, BadFile), path, *values) as caught:
        read([path])
    assert caught.value.exit_code == 2


_MANY = trace(device=[("gemm", 7, 100 * number, 100 * number + 60, 100 * number) for number in range(50)])


_HOST_ONLY = trace(host=[("aten::mm", 1, 100 * number, 100 * number + 60, "cpu_op") for number in range(50)])


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_truncated_file_is_analysed_with_a_note(name, tmp_path):
    path = write(tmp_path, _MANY, name)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    measured = measure(read([path]))
    assert 60 < measured.mean.wall_ns < 4960
    assert any("The complete events are analysed" in note and "ends" in note for note in measured.notes)


@pytest.mark.parametrize(("document", "warned"), [(_HOST_ONLY, True), (_MANY, False)])
def test_truncated_host_events_warn_of_lost_device_events(document, warned, tmp_path):
    path = write(tmp_path, document)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    notes = measure(read([path])).notes
    assert any("may have lost device events" in note for note in notes) == warned
    path.write_bytes(data)
    assert not any("lost device events" in note for note in measure(read([path])).notes)


def test_damaged_gzip_gives_the_events_before_the_damage(tmp_path):
    path = write(tmp_path, _MANY, "t.json.gz")
    data = bytearray(path.read_bytes())
    data[-6] ^= 1  # the checksum
    path.write_bytes(data)
    measured = measure(read([path]))
    assert measured.mean.wall_ns == 4960
    assert any("gzip stream is damaged" in note for note in measured.notes)


def test_zip_with_several_ranks(tmp_path):
    archive = tmp_path / "traces.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for rank in range(2):
            document = trace(device=[GEMM], rank=rank, world=2, host_name="a")
            packed.writestr(f"rank{rank}.json", json.dumps(document))
        packed.writestr("readme.txt", "no trace")
    assert [ledger.scope.ranks for ledger in measure(read([archive])).ledgers[:-1]] == [(0,), (1,)]


def test_junk_between_events_is_skipped_and_counted(tmp_path):
    text = json.dumps(trace(device=[GEMM, ("gemm", 7, 100, 200, 90)]))
    path = tmp_path / "t.json"
    path.write_text(text.replace('}, {"ph"', '}, oops, {"ph": }, 7 {"ph"', 1))
    measured = measure(read([path]))
    assert measured.mean.wall_ns == 200
    assert any("entries of t.json are not readable events" in note for note in measured.notes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("distributedInfo", {"rank": "a"}), ("distributedInfo", [1]), ("deviceProperties", "x"), ("host_name", 7),
        ("baseTimeNanoseconds", "x"), ("baseTimeNanoseconds", 10**40), ("distributedInfo", {"pg_config": "odd"}),
    ],
)  # fmt: skip
def test_invalid_metadata_is_left_out_with_a_note(field, value, tmp_path):
    measured = measure(read([write(tmp_path, trace(device=[GEMM]) | {field: value})]))
    assert measured.mean.wall_ns == 100
    assert any(note.startswith(f"{field} is not in Kineto's format") for note in measured.notes)


def test_decompression_bomb_stops_at_the_limit(tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 10**7))
    with refused(FileTooLarge, path, "976.6 KiB", "--limit"):
        Kineto().read(path, ReadOptions(limit=10**6))


def test_header_after_the_events_equals_one_before_them(tmp_path):
    args = {"Collective name": "allreduce", "Process Group Name": "7", "Seq": 1}
    document = trace(device=[("ncclDevKernel_AllReduce_Sum", 7, 0, 100, 0, args)], rank=0, world=4)
    document["baseTimeNanoseconds"] = 5000
    document["distributedInfo"]["pg_config"] = [{"pg_name": "7", "pg_desc": "mesh_tp", "ranks": [0, 1], "pg_size": 2}]
    late = {"traceEvents": document.pop("traceEvents")} | document
    early = document | {"traceEvents": late["traceEvents"]}
    for order in (early, late):
        (events,) = Kineto().read(write(tmp_path, order))
        assert events.window[0] == 5000
        assert [collective.group for collective in events.work.collectives.values()] == ["mesh_tp"]


@pytest.mark.parametrize(
    ("dims", "lists"),
    [
        ([[[3, 4], [5]], []], (((3, 4), (5,)), ())),
        ([[[], []], [2]], (((), ()), ())),
        ([[[3, "x"]], [2]], ()),
        ([[[-1]], []], ()),
        ([[[[1]]], []], ()),
        ([[[3], 4], []], ()),
        ([[], [2, 3]], ()),
    ],
)
def test_dims_of_listed_tensors_are_read(tmp_path, dims, lists):
    args = {"Input Dims": dims, "Input type": ["TensorList", "float"], "Concrete Inputs": ["", ""]}
    document = trace(device=[("k", 7, 0, 100, 0)], host=[("aten::cat", 100, 0, 50, "cpu_op", args)])
    (events,) = Kineto().read(write(tmp_path, document))
    assert events.shapes[0].lists == lists
    assert events.shapes[0].dims[0] == ()


def test_shapes_stream_waits_and_sizes_are_read(tmp_path):
    document = trace(
        device=[
            ("gemm", 7, 0, 100, 0),
            ("gemm", 8, 150, 200, 120, {"est. achieved occupancy %": 31}),
            ("Memcpy HtoD (Pageable -> Device)", 7, 210, 220, 200, {"bytes": 4096}),
        ],
        host=[
            ("aten::mm", 100, 0, 50, "cpu_op",
             {"Input Dims": [[2, 3], [3, 4], []], "Input type": ["float", "half", "Scalar"],
              "Concrete Inputs": ["", "", "1"]}),
            ("cudaStreamWaitEvent", 100, 110, 115, "cuda_runtime", {"correlation": 77}),
            ("Stream Wait Event", 100, 110, 115, "cuda_sync",
             {"correlation": 77, "stream": 8, "device": 0, "wait_on_stream": 7}),
        ],
    )  # fmt: skip
    (events,) = Kineto().read(write(tmp_path, document))
    (row,) = np.flatnonzero(events.host.shape >= 0)
    shape = events.shapes[events.host.shape[row]]
    assert shape == OperandShape(dims=((2, 3), (3, 4), ()), types=("float", "half", "Scalar"), values=("", "", "1"))
    assert events.work.occupancy.tolist() == [-1, 31, -1]
    assert events.work.bytes.tolist() == [-1, -1, 4096]
    assert [events.streams[stream] if stream >= 0 else "" for stream in events.work.awaits] == ["", "stream 7", ""]


def test_user_annotations_can_mark_steps(tmp_path):
    host = [("train_step", 100, 100 * step, 100 * step + 90, "user_annotation") for step in range(3)]
    device = [("gemm", 7, 100 * step + 10, 100 * step + 80, 100 * step + 5) for step in range(3)]
    (events,) = Kineto().read(write(tmp_path, trace(device=device, host=host)), ReadOptions(mark="train_step"))
    assert [mark.label for mark in events.marks] == ["0", "1", "2"]


@given(st.data())
def test_truncated_or_flipped_bytes_give_a_result_or_bad_input(tmp_path_factory, data):
    """Either the file is read and its ledgers balance, or the error is BadInput."""
    content = json.dumps(trace(device=[GEMM, ("elementwise_kernel", 7, 120, 200, 90)], marks=[("1", 0, 300)])).encode()
    raw = bytearray(content[: data.draw(st.integers(0, len(content)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    path.write_bytes(raw)
    try:
        measured = measure(read([path]))
    except BadInput:
        return
    assert all(sum(e.ns for e in ledger.entries) == ledger.wall_ns for ledger in measured.ledgers)


def test_two_files_of_one_rank_are_refused(tmp_path):
    files = [write(tmp_path, trace(device=[GEMM], rank=0, world=2), f"{name}.json") for name in "ab"]
    with refused(BadInput, "a.json", "b.json", "rank 0"):
        measure(read(files))


def test_folder_without_traces_is_refused(tmp_path):
    with refused(MissingFile, tmp_path, ".json.gz", ".pftrace"):
        read([Path(tmp_path)])


@pytest.mark.parametrize("reader", ["kineto", "gather"])
def test_stream_waits_are_assigned_to_their_device(tmp_path, reader):
    """Device 1 makes its stream 8 wait for its stream 7; the streams of device 0 have the same numbers."""
    rows = [(7, 0, 100, 0), (8, 150, 200, 120), (7, 0, 100, 0), (8, 150, 200, 120)]
    if reader == "kineto":
        args = {"correlation": 77, "stream": 8, "device": 1, "wait_on_stream": 7}
        host = [("cudaStreamWaitEvent", 100, 110, 115, "cuda_runtime", {"correlation": 77}),
                ("Stream Wait Event", 100, 110, 115, "cuda_sync", args)]  # fmt: skip
        device = [("gemm", *row, {"device": index // 2}) for index, row in enumerate(rows)]
        by_device = Kineto().read(write(tmp_path, trace(device=device, host=host)))
    else:
        gather = Gather("x")
        gather.span("cudaStreamWaitEvent", CALL, 100, 110, 115, correlation=77)
        for index, (stream, start, stop, launch) in enumerate(rows):
            gather.span("cudaLaunchKernel", CALL, 100, launch, launch + 1, correlation=index)
            gather.work("gemm", KERNEL, f"stream {stream}", index // 2, start, stop, correlation=index)
        gather.wait(77, 1, "stream 8", "stream 7")
        by_device = gather.events([])
    waited = [[each.streams[on] if on >= 0 else "" for on in each.work.awaits] for each in by_device]
    assert waited == [["", ""], ["", "stream 7"]]
