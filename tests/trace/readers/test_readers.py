"""The readers of rocprofv3, Perfetto, xplane, Nsight Systems and Neuron files: exact ledgers, and behaviour on damaged
and hostile files and on those of other versions."""

import copy
import json
import math
import sqlite3
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refused import missing_values, refused
from tests.trace.readers import reader_fixtures as make
from tests.trace_maker import trace
from trainyard.errors import BadFile, FileTooLarge, TrainyardError
from trainyard.events import CALL, NOTE, OP, PYTHON
from trainyard.formats.protobuf import (
    FIXED64,
    LENGTH,
    VARINT,
    Malformed,
    as_double,
    as_int64,
    as_text,
    fields,
    first_message,
)
from trainyard.plugins import ReadOptions
from trainyard.trace.measure import measure
from trainyard.trace.readers import hlo, nsys, whole_files
from trainyard.trace.readers.annotate import collective_call, copy_name, parse_annotation
from trainyard.trace.readers.neuron import Neuron
from trainyard.trace.readers.nsys import Nsys
from trainyard.trace.readers.pftrace import Pftrace
from trainyard.trace.readers.rocprof import Rocprof
from trainyard.trace.readers.xplane import Xplane

PROTO = {"pftrace": make.pftrace_step, "tpu": make.tpu_step, "gpu": make.gpu_step}
READERS = {"rocprof": Rocprof, "pftrace": Pftrace, "tpu": Xplane, "gpu": Xplane, "nsys": Nsys, "neuron": Neuron}


def written(folder, kind):
    """Writes the golden step of one kind to a file."""
    path = folder / f"{kind}.profile"
    path.unlink(missing_ok=True)
    if kind in PROTO:
        path.write_bytes(PROTO[kind]())
    elif kind == "rocprof":
        make.write_rocprof(path, make.rocprof_step())
    elif kind == "nsys":
        make.write_nsys(path, make.nsys_rows(), **NSYS_FACTS)
    else:
        path.write_text(json.dumps(make.neuron_step()))
    return path


NSYS_FACTS = {
    "TARGET_INFO_GPU": [(0, "Pretend H"), (1, "Pretend H")],
    "TARGET_INFO_SESSION_START_TIME": [(10**18,)],
    "TARGET_INFO_SYSTEM_ENV": [("Hostname", "node-b")],
}


def booked(ledger):
    """(account, phase) -> (ns, hidden ns)"""
    return {(str(entry.account), entry.phase): (entry.ns, entry.hidden_ns) for entry in ledger.entries}


def read_one(reader, path):
    (events,) = reader.read(path)
    return events


# --- golden steps: the numbers are computed by hand from reader_fixtures.py

ROCPROF = {
    ("compute/matmul", "forward"): (100, 0),  # 1000 to 1100, under aten::mm
    ("compute/elementwise", "other"): (40, 0),  # 1320 to 1360
    ("comm/all_reduce", "other"): (100, 50),  # 1050 to 1200, 50 of it under the product
    ("copy/h2d", "other"): (80, 0),  # 1200 to 1280
    ("launch_gap/sync", "other"): (20, 0),  # 1280 to 1300, in hipDeviceSynchronize
    ("launch_gap/python", "other"): (10, 0),  # 1300 to 1310
    ("launch_gap/launch", "other"): (10, 0),  # 1310 to 1320, in hipLaunchKernel
}
GOLDEN = {
    "rocprof": ("3", 360, ROCPROF),
    "pftrace": ("3", 360, ROCPROF),
    "gpu": (
        "7",
        230,
        {
            ("compute/matmul", "forward"): (100, 0),  # 2000 to 2100, a dot_general
            ("compute/elementwise", "other"): (50, 0),  # 2150 to 2200
            ("comm/all_reduce", "other"): (40, 60),  # 2040 to 2140
            ("launch_gap/queue", "other"): (10, 0),  # 2140 to 2150: launched at 1920
            ("copy/h2d", "other"): (30, 0),
        },
    ),
    "nsys": (
        "8",
        340,
        {
            ("compute/matmul", "forward"): (100, 0),  # 1000 to 1100
            ("compute/elementwise", "other"): (40, 0),  # 1300 to 1340
            ("comm/all_gather", "other"): (50, 50),  # 1050 to 1150
            ("copy/h2d", "other"): (50, 10),  # 1140 to 1200, 10 of it under the all-gather
            ("copy/memset", "other"): (10, 0),
            ("launch_gap/sync", "other"): (30, 0),  # 1210 to 1240
            ("launch_gap/python", "other"): (10, 0),
            ("launch_gap/launch", "other"): (10, 0),
            ("launch_gap/queue", "other"): (40, 0),  # 1260 to 1300
        },
    ),
    "neuron": (
        "window",
        140,
        {
            ("compute/matmul", "forward"): (50, 0),  # 100 to 150
            ("compute/elementwise", "forward"): (35, 25),  # 125 to 175, 230 to 240
            ("compute/reduction", "forward"): (20, 0),
            ("launch_gap/queue", "forward"): (35, 0),  # 175 to 200, 220 to 230
        },
    ),
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_ledger_of_a_step_is_exact(kind, tmp_path):
    label, wall, expected = GOLDEN[kind]
    measured = measure(READERS[kind]().read(written(tmp_path, kind)))
    assert measured.mean.scope.steps == (label,)
    assert measured.mean.wall_ns == wall == sum(ns for ns, _ in expected.values())
    assert booked(measured.mean) == expected


def test_tpu_steps_come_from_the_device(tmp_path):
    measured = measure(Xplane().read(written(tmp_path, "tpu")))
    first, second = measured.ranks[0].ledgers
    assert booked(first) == {
        ("compute/matmul", "forward"): (500, 0),
        ("compute/matmul", "backward"): (300, 0),
        ("compute/elementwise", "other"): (300, 0),
        ("comm/all_reduce", "other"): (400, 300),  # from its start at 1500 to its done at 2200
    }
    assert booked(second) == {
        ("compute/matmul", "forward"): (500, 0),
        ("copy/d2d", "other"): (150, 0),
        ("unexplained", "other"): (350, 0),
    }
    assert (first.scope.steps, second.scope.steps) == (("4",), ("5",))
    assert (first.wall_ns, second.wall_ns) == (1500, 1000)


@pytest.mark.parametrize("kind", READERS)
def test_only_readers_not_met_by_real_files_are_experimental(kind, tmp_path):
    measured = measure(READERS[kind]().read(written(tmp_path, kind)))
    is_experimental = any("not yet validated on real files" in note for note in measured.notes)
    assert is_experimental == (kind not in ("gpu", "nsys", "rocprof", "neuron"))


def test_pftrace_equals_json_for_every_clock(tmp_path):
    path = tmp_path / "p"
    ledgers = [measure(Rocprof().read(written(tmp_path, "rocprof"))).mean.entries]
    for incremental in (True, False):
        path.write_bytes(make.pftrace_step(incremental))
        ledgers.append(measure(Pftrace().read(path)).mean.entries)
    assert ledgers[0] == ledgers[1] == ledgers[2]


# --- recognition of files


@pytest.mark.parametrize("kind", READERS)
def test_only_the_right_reader_accepts_a_file(kind, tmp_path):
    path = written(tmp_path, kind)
    assert {reader for reader in READERS.values() if reader().sniff(path)} == {READERS[kind]}


def test_no_reader_here_accepts_kineto_or_other_files(tmp_path):
    kernel = [("gemm", 7, 0, 100, 0)]
    texts = [json.dumps(trace(device=kernel)), json.dumps(trace(device=kernel)["traceEvents"]), "", "{", "\x0a", "PK"]
    paths = [tmp_path / str(number) for number in range(len(texts))]
    for path, content in zip(paths, texts):
        path.write_text(content)
    for path in (*paths, tmp_path, tmp_path / "missing"):
        assert not [reader for reader in READERS.values() if reader().sniff(path)]


@pytest.mark.parametrize("kind", READERS)
def test_missing_empty_and_oversized_files_are_bad_files(kind, tmp_path, monkeypatch):
    reader, empty = READERS[kind](), tmp_path / "empty"
    empty.write_bytes(b"")
    for path in (tmp_path / "missing", empty, tmp_path):
        with pytest.raises(BadFile) as caught:
            reader.read(path)
        assert missing_values(caught.value.message, path) == []
    path = written(tmp_path, kind)
    monkeypatch.setattr(whole_files, "MAX_BYTES", 10)
    with refused(FileTooLarge, path, "10 B"):
        reader.read(path)


# --- several devices and processes


def test_each_tpu_of_a_file_is_a_rank_with_its_own_steps(tmp_path):
    path = tmp_path / "two.xplane.pb"
    path.write_bytes(make.tpu_pair())
    first, second = Xplane().read(path)
    assert (first.device_index, second.device_index, second.source) == (0, 1, "two.xplane.pb:1")
    assert second.marks[0].start - first.marks[0].start == 50
    measured = measure((first, second))
    assert [rank.events.rank for rank in measured.ranks] == [0, 1]
    assert measured.alignment.aligned == "host"


def test_each_gpu_and_process_of_a_rocprof_file_is_a_rank(tmp_path):
    two = make.rocprof_process(
        kernel_dispatch=[make.dispatch(1, 0, 10, 1), make.dispatch(1, 5, 20, 2, agent=make.GPU_1)]
    )
    other = make.rocprof_process(kernel_dispatch=[make.dispatch(3, 7, 9, 1)])
    idle = make.rocprof_process(hip_api=[make.api(1, 0, 0, 5, 1)])
    read = Rocprof().read(make.write_rocprof(tmp_path / "r.json", two, other, idle))
    assert [(events.window, events.device) for events in read] == [
        ((0, 10), "Pretend MI"),
        ((5, 20), "gfx942"),
        ((7, 9), "Pretend MI"),
    ]
    assert "1 processes without device work were left out." in read[0].notes


def test_nsys_processes_that_number_their_gpu_0_are_distinguished(tmp_path):
    seen = {"TARGET_INFO_CUDA_DEVICE": [(0, 0, 50), (1, 0, 51)]}
    path = make.write_nsys(tmp_path / "n", make.nsys_rows(50), make.nsys_rows(51), **NSYS_FACTS, **seen)
    read = Nsys().read(path)
    assert [events.device_index for events in read] == [0, 1]
    assert [len(events.marks) for events in read] == [1, 1]
    measured = measure(read)
    assert measured.alignment.aligned == "host"
    assert booked(measured.mean)["compute/matmul", "forward"] == (100, 0)


# --- rocprofv3


def test_rocprof_file_with_one_process_without_a_list(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": make.rocprof_step()}))
    assert measure(Rocprof().read(path)).mean.wall_ns == 360


def test_damaged_and_repeated_records_are_counted(tmp_path):
    process = make.rocprof_step()
    kernels = process["buffer_records"]["kernel_dispatch"]
    kernels += [dict(kernels[0]), {**kernels[0], "end_timestamp": 1}, {"start_timestamp": 5}, "no record"]
    kernels.append({**kernels[1], "start_timestamp": 1.5})
    read = read_one(Rocprof(), make.write_rocprof(tmp_path / "r.json", process))
    assert len(read.work) == 4
    assert "4 events with an unreadable or negative time were left out." in read.notes
    assert "1 device events are duplicates and count once." in read.notes


def test_kernel_without_symbol_agent_or_stream_counts(tmp_path):
    bare = {"start_timestamp": 10, "end_timestamp": 30}
    process = {"buffer_records": {"kernel_dispatch": [bare], "memory_copy": None}}
    read = read_one(Rocprof(), make.write_rocprof(tmp_path / "r.json", process))
    assert (read.names, read.streams, read.device_index) == (("kernel -1",), ("queue -1",), -1)
    assert booked(measure([read]).mean) == {("compute/other", "other"): (20, 0)}


def test_nan_and_invalid_utf8_do_not_lose_other_data(tmp_path):
    path = make.write_rocprof(tmp_path / "r.json", make.rocprof_step())
    content = path.read_bytes().replace(b'"callback_records": {}', b'"callback_records": {"value": NaN}')
    path.write_bytes(content.replace(b"vectorized", b"vector\xff\xfezed"))
    read = read_one(Rocprof(), path)
    assert measure([read]).mean.wall_ns == 360
    assert any("vector\ufffd\ufffdzed" in name for name in read.names)


def test_steps_with_another_prefix(tmp_path):
    process = make.rocprof_step()
    process["strings"]["marker_api"][0]["value"] = "iteration 12"
    path = make.write_rocprof(tmp_path / "r.json", process)
    (read,) = Rocprof().read(path, ReadOptions(mark="iteration "))
    assert [mark.label for mark in read.marks] == ["12"]


# --- Perfetto


def test_truncated_pftrace_is_read_with_a_note(tmp_path):
    data, path = make.pftrace_step(), tmp_path / "p"
    path.write_bytes(data[:-3])  # within the end of the last kernel
    read = read_one(Pftrace(), path)
    assert len(read.work) == 3
    assert any("cut short" in note for note in read.notes)
    assert "1 slices without a beginning or an end were left out." in read.notes


def test_other_slices_are_counted_and_foreign_traces_refused(tmp_path):
    trace, path = make.Pftrace(), tmp_path / "p"
    trace.slice("gfx", "draw", 1, 600, 700)
    path.write_bytes(trace.data)
    with refused(BadFile, path, "rocprofv3"):
        Pftrace().read(path)
    trace.slice("kernel_dispatch", "gemm", 2, 800, 900, agent=3)
    path.write_bytes(trace.data)
    read = read_one(Pftrace(), path)
    assert "1 slices of other categories than those of AMD's profilers were left out." in read.notes
    assert (read.device_index, read.streams) == (3, ("track 2",))


# --- xplane


@given(st.integers(0, 2**40), st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), min_size=1, max_size=12))
@settings(deadline=None, max_examples=60)
def test_times_round_down_and_do_not_create_overlap(tmp_path_factory, begin, gaps):
    plane, at, exact = make.Plane("/device:GPU:0"), 0, []
    for gap, length in gaps:
        exact.append((begin * 1000 + at + gap, begin * 1000 + at + gap + length))
        at += gap + length
    events = [(f"k{index}", start - begin * 1000, stop - start, {}) for index, (start, stop) in enumerate(exact)]
    plane.line("Stream #1", begin, *events)
    path = tmp_path_factory.getbasetemp() / "floor.xplane.pb"
    path.write_bytes(make.xspace(plane))
    work = read_one(Xplane(), path).work
    rows = sorted((work.name[row], work.start[row], work.stop[row]) for row in range(len(work)))
    assert [(start, stop) for _, start, stop in rows] == [(start // 1000, stop // 1000) for start, stop in exact]
    assert all(row[2] <= following[1] for row, following in pairwise(rows))


def test_done_ends_its_named_start_or_the_oldest(tmp_path):
    plane = make.Plane("/device:TPU:0")
    plane.line(
        "XLA Ops",
        0,
        ("%all-gather-start.1 = f32[8] all-gather-start(f32[4] %a)", 0, 1000, {}),
        ("%all-gather-start.2 = f32[8] all-gather-start(f32[4] %b)", 10_000, 1000, {}),
        ("%all-gather-done.2 = f32[8] all-gather-done(f32[8] %all-gather-start.2)", 50_000, 5000, {}),
        ("all-gather-done.7", 60_000, 5000, {}),
        ("all-gather-done.8", 90_000, 5000, {}),
        ("reduce-scatter-start.1", 94_000, 1000, {}),
        ("reduce-scatter-start.1", 97_000, 1000, {}),
    )
    path, other = tmp_path / "x", make.Plane("/device:TPU:0 SparseCore 1")
    other.line("Sparse Core Ops", 0, ("gather.1", 0, 1000, {}))
    path.write_bytes(make.xspace(plane, other))
    read = read_one(Xplane(), path)
    work = read.work
    assert "1 other device planes were not read: /device:TPU:0 SparseCore 1." in read.notes
    spans = sorted(
        (start, stop, work.collectives[row].name) for row, (start, stop) in enumerate(zip(work.start, work.stop))
    )
    gathers = [(0, 65, "all_gather"), (10, 55, "all_gather"), (90, 95, "all_gather")]
    assert spans == [*gathers, (94, 95, "reduce_scatter"), (97, 98, "reduce_scatter")]


def test_recomputation_is_distinguished_from_the_backward_pass(tmp_path):
    plane = make.Plane("/device:TPU:0")
    path = "jit(step)/transpose(jvp(Block))/rematted_computation/dot_general"
    plane.line("XLA Ops", 0, ("fusion.1", 0, 1_000_000, {"tf_op": path}), ("sort.2", 2_000_000, 1_000_000, {}))
    file = tmp_path / "x"
    file.write_bytes(make.xspace(plane))
    (rank,) = measure(Xplane().read(file)).ranks
    assert {entry.phase for entry in rank.ledgers[0].entries if entry.account.kind == "compute"} == {
        "recompute",
        "other",
    }


def test_error_for_a_file_without_devices_names_its_planes(tmp_path):
    host, path = make.Plane("/host:CPU"), tmp_path / "x"
    path.write_bytes(make.xspace(host))
    assert Xplane().sniff(path)
    with refused(BadFile, path, "/host:CPU"):
        Xplane().read(path)
    path.write_bytes(make.xspace(make.Plane("/device:TPU:3")))
    with refused(BadFile, path, "1 devices"):
        Xplane().read(path)


def test_truncated_xplane_gives_the_complete_planes(tmp_path):
    data, path = make.tpu_pair(), tmp_path / "x"
    path.write_bytes(data[:-60])
    assert any("cut short" in note for note in read_one(Xplane(), path).notes)


@pytest.mark.parametrize(
    ("text", "op", "collective"),
    [
        ("%fusion.3 = (f32[8]{0:T(8,128)}, u32[]) fusion(f32[8] %p), kind=kLoop", ("fusion.3", "fusion", "", ""), None),
        ("all-reduce.14", ("all-reduce.14", "all-reduce", "", ""), "all_reduce"),
        ("reduce-scatter.1.clone", ("reduce-scatter.1.clone", "reduce-scatter", "", ""), "reduce_scatter"),
        ("all-reduce-scatter.2", ("all-reduce-scatter.2", "all-reduce-scatter", "", ""), "reduce_scatter"),
        ("ragged-all-to-all.2", ("ragged-all-to-all.2", "ragged-all-to-all", "", ""), "all_to_all"),
        (
            "collective-permute-start",
            ("collective-permute-start", "collective-permute-start", "start", ""),
            "send_recv",
        ),
        (
            "%all-gather-done.1 = f32[8]{0} all-gather-done((f32[4], f32[8]) %all-gather-start.5)",
            ("all-gather-done.1", "all-gather-done", "done", "all-gather-start.5"),
            "all_gather",
        ),
        ("reduce.7", ("reduce.7", "reduce", "", ""), None),
        ("sender.1", ("sender.1", "sender", "", ""), None),
        ("", ("", "", "", ""), None),
    ],
)
def test_operations_by_their_text(text, op, collective):
    assert tuple(hlo.op_of(text)) == op
    assert hlo.collective_of(hlo.op_of(text)) == collective


@pytest.mark.parametrize(
    ("opcode", "category", "path", "op_class"),
    [
        ("fusion", "convolution fusion", "jit(f)/jvp(D)/dot_general", "matmul"),
        ("fusion", "convolution fusion", "jit(f)/add", None),
        ("fusion", "output fusion", "jit(f)/conv_general_dilated[window=1]", "conv"),
        ("convolution", "convolution", "", "conv"),
        ("fusion", "loop fusion", "jit(f)/LayerNorm_0/mul", "norm"),
        ("fusion", "loop fusion", "jit(f)/LayerNorm_0/dot_general", "matmul"),
        ("fusion", "loop fusion", "jit(f)/jit(_softmax)/exp", "softmax"),
        ("custom-call", "custom-call", "jit(f)/flash_attention/pallas_call", "attention"),
        ("custom-call", "custom-call", "", None),
        ("fusion", "loop fusion", "", "elementwise"),
        ("loop_add_fusion", "", "", "elementwise"),
        ("wrapped_transpose", "", "", "elementwise"),
        ("dot", "", "", "matmul"),
        ("reduce", "", "", "reduction"),
    ],
)
def test_class_of_an_operation(opcode, category, path, op_class):
    assert hlo.class_of(opcode, category, path) == op_class


# --- Nsight Systems


def test_stream_wait_is_for_the_stream_of_the_last_record(tmp_path):
    read = read_one(Nsys(), written(tmp_path, "nsys"))
    waited = {read.streams[stream]: on for stream, on in zip(read.work.stream, read.work.awaits) if on >= 0}
    assert {stream: read.streams[on] for stream, on in waited.items()} == {"stream 9": "stream 7"}


def test_wait_is_for_the_latest_record_of_its_event(tmp_path):
    """3,000 alternating records and waits, of one event or of many."""
    count, process, thread = 3_000, make.global_id(), make.global_id(make.PID, make.PID)
    for events in (1, count):
        rows = {
            "CUPTI_ACTIVITY_KIND_RUNTIME": [(at, at + 1, thread, at, make.RECORD) for at in range(3 * count)],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                (10**6 + at, 10**6 + at + 1, 0, 9 if at % 3 == 2 else at // 3 % 2, at, process, make.GEMM, make.GEMM)
                for at in range(3 * count) if at % 3 != 1
            ],
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [(n % 2, 3 * n, process, n % events) for n in reversed(range(count))],
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [(0, 9, 3 * n + 1, process, 2, n % events) for n in range(count)],
        }  # fmt: skip
        path = make.write_nsys(tmp_path / f"{events}", rows)
        read = read_one(Nsys(), path)
        awaited = [read.streams[on] for on in read.work.awaits if on >= 0]
        assert awaited == [f"stream {n % 2}" for n in range(count)]


def test_times_are_converted_to_the_wall_clock(tmp_path):
    read = read_one(Nsys(), written(tmp_path, "nsys"))
    assert read.window == (10**18 + 1000, 10**18 + 1340)
    assert (read.device, read.host_name) == ("Pretend H", "node-b")


def test_export_without_newer_columns_and_tables_is_read(tmp_path):
    columns = {
        "CUPTI_ACTIVITY_KIND_KERNEL": "start INT, end INT, deviceId INT, streamId INT, "
        "correlationId INT, shortName INT",
        "CUPTI_ACTIVITY_KIND_RUNTIME": make.NSYS_TABLES["CUPTI_ACTIVITY_KIND_RUNTIME"],
        "StringIds": make.NSYS_TABLES["StringIds"],
    }
    rows = make.nsys_rows()
    rows["CUPTI_ACTIVITY_KIND_KERNEL"] = [(*row[:5], row[-1]) for row in rows["CUPTI_ACTIVITY_KIND_KERNEL"]]
    path = make.write_nsys(tmp_path / "n", rows, tables=columns)
    measured = measure(Nsys().read(path))
    assert booked(measured.mean)["compute/matmul", "other"] == (100, 0)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, ?, 99, 1)", (make.global_id(9, 9),))
    with refused(BadFile, path, "2 processes", "globalPid"):
        Nsys().read(path)


def test_error_names_a_missing_column(tmp_path):
    path = make.write_nsys(
        tmp_path / "n", {}, tables={"CUPTI_ACTIVITY_KIND_KERNEL": "start INT, end INT, deviceId INT"}
    )
    with refused(BadFile, path, "CUPTI_ACTIVITY_KIND_KERNEL", "streamId"):
        Nsys().read(path)
    with refused(BadFile, tmp_path / "m", "--trace=cuda,nvtx"):
        Nsys().read(make.write_nsys(tmp_path / "m", {}, tables={"StringIds": "id INT, value TEXT"}))


def test_cuda_graph_traced_as_one_interval_is_work(tmp_path):
    kind = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    columns = "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT, graphId INT"
    rows = {kind: [(0, 70, 0, 7, 1, make.global_id(), 12)]}
    read = read_one(Nsys(), make.write_nsys(tmp_path / "n", rows, tables={kind: columns}))
    assert (read.names, read.window) == (("CUDA graph 12",), (0, 70))


HOSTILE = {
    "--trace=cuda,nvtx": "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE c(start) AS (SELECT 1 "
    "UNION ALL SELECT start + 1 FROM c) SELECT start, start AS end, 0 AS deviceId, 0 AS streamId FROM c",
    "column end": "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, deviceId INT, streamId INT, end INT "
    "GENERATED ALWAYS AS (length(printf('%.*c', 90000000, 'x'))) VIRTUAL); "
    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 0, 0)",
    "SQLITE_TOOBIG": "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, "
    "demangledName TEXT); INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 1, 0, 0, printf('%.*c', 2000000, 'x'))",
}


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_database_is_refused(value, tmp_path):
    path = tmp_path / "n"
    with sqlite3.connect(path) as connection:
        connection.executescript(HOSTILE[value])
    with refused(BadFile, path, value):
        Nsys().read(path)


def test_database_with_too_many_steps_for_its_size_is_refused(tmp_path, monkeypatch):
    rows = {"CUPTI_ACTIVITY_KIND_KERNEL": [(at, at + 1, 0, 7, -1, make.global_id(), 1, 1) for at in range(5000)]}
    path = make.write_nsys(tmp_path / "n", rows)
    assert len(read_one(Nsys(), path).work) == 5000
    monkeypatch.setattr(nsys, "_EXTRA_STEPS", -(10**6))
    with refused(BadFile, path, "SQLITE_INTERRUPT"):
        Nsys().read(path)


def test_values_of_wrong_types_are_counted_or_ignored(tmp_path):
    rows = make.nsys_rows()
    process = make.global_id()
    rows["CUPTI_ACTIVITY_KIND_KERNEL"] += [
        ("soon", 5, 0, 7, 1, process, make.GEMM, make.GEMM),
        (None, 5, 0, 7, 1, process, None, None),
        (2000, 1000, 0, 7, 1, process, make.GEMM, make.GEMM),
        (1340, 1350, "gpu", b"\xff", "x", process, 12345, None),
    ]
    read = read_one(Nsys(), make.write_nsys(tmp_path / "n", rows))
    assert "3 events with an unreadable or negative time were left out." in read.notes
    assert measure([read]).mean.wall_ns == 350


# --- Neuron


def test_neuron_system_profile_is_refused(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"trace_events": [], "mem_usage": []}))
    with refused(BadFile, path, "'instruction'", "'trace_events'"):
        Neuron().read(path)


def test_neuron_instructions_of_a_collective_are_communication(tmp_path):
    document, path = make.neuron_step(), tmp_path / "n.json"
    document["instruction"][2]["hlo_name"] = "%all-reduce.2 = f32[8] all-reduce(%add.1)"
    document["instruction"].append({"timestamp": "later"})
    path.write_text(json.dumps(document))
    read = read_one(Neuron(), path)
    assert [collective.name for collective in read.work.collectives.values()] == ["all_reduce"]
    assert booked(measure([read]).mean)["comm/all_reduce", "forward"] == (20, 0)
    assert read.device_index == 1
    assert "1 events with an unreadable or negative time were left out." in read.notes


# --- annotation texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten::addmm, seq = 12, op_id = 4, sizes = [[2, 3]]", ("aten::addmm", OP, 12)),
        ("aten::relu", ("aten::relu", OP, -1)),
        ("autograd::engine::evaluate_function: Mm0", ("autograd::engine::evaluate_function: Mm0", OP, -1)),
        ("layer 3, seq = many", ("layer 3, seq = many", NOTE, -1)),
        ("$train.py:12 step", ("train.py(12): step", PYTHON, -1)),
        ("forward", ("forward", NOTE, -1)),
        ("", ("", NOTE, -1)),
    ],
)  # fmt: skip
def test_annotations(text, expected):
    assert tuple(parse_annotation(text)) == expected


def test_calls_of_communication_libraries_and_copies():
    names = {
        name: collective_call(name) for name in ("ncclAllReduce", "pncclSend", "ncclBcast", "ncclCommInitRank", "x")
    }
    assert {name: collective and collective.name for name, collective in names.items()} == {
        "ncclAllReduce": "all_reduce", "pncclSend": "send_recv", "ncclBcast": "broadcast",
        "ncclCommInitRank": None, "x": None,
    }  # fmt: skip
    assert copy_name("host", "device") == "Memcpy HtoD"


def test_call_of_a_collective_is_inside_its_annotation(tmp_path):
    read = read_one(Rocprof(), written(tmp_path, "rocprof"))
    rows = [(read.names[name], kind) for name, kind in zip(read.host.name, read.host.what)]
    assert rows.index(("ncclAllReduce", CALL)) == rows.index(("nccl:all_reduce", NOTE)) + 1


# --- protocol buffers

_FIELDS = st.lists(
    st.tuples(
        st.integers(1, 2**20),
        st.one_of(
            st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=300), st.binary(max_size=9)
        ),
    ),
    max_size=8,
)


@given(_FIELDS)
def test_encoded_fields_are_decoded(written_fields):
    decoded = []
    for (field, value), (number, wire, raw) in zip(
        written_fields, fields(memoryview(make.message(*written_fields))), strict=True
    ):
        assert field == number
        if isinstance(value, float):
            assert wire == FIXED64
            assert as_double(raw) == value or math.isnan(value)
        elif isinstance(value, int):
            assert (wire, as_int64(raw)) == (VARINT, value)
        else:
            assert wire == LENGTH
            assert bytes(raw) == (value.encode() if isinstance(value, str) else value)
        decoded.append(number)
    assert len(decoded) == len(written_fields)


@pytest.mark.parametrize(
    "data",
    [b"\x0a" + b"\xff" * 8 + b"\x7f", b"\x0a\x05a", b"\x08", b"\x08" + b"\x80" * 11, b"\x0b", b"\x00\x01", b"\x09\x01"],
)  # fmt: skip
def test_malformed_message_raises_or_stops(data):
    with pytest.raises(Malformed):
        list(fields(memoryview(data)))
    lost = []
    good = make.field(3, 7)
    assert [value for _, _, value in fields(memoryview(good + data), lost)] == [7]
    assert len(lost) == 1
    assert first_message(memoryview(b""), 1) is None


def test_message_written_by_the_protobuf_library_is_read():
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2")
    data = descriptor.DESCRIPTOR.serialized_pb
    messages = [value for field, _, value in fields(memoryview(data)) if field == 4]
    names = [next(as_text(value) for field, _, value in fields(message) if field == 1) for message in messages]
    assert names == [message.name for message in descriptor.FileDescriptorProto.FromString(data).message_type]


# --- arbitrary data


def check_balanced_or_refused(reader, path):
    """Reads and measures a file: the ledgers must balance, or the error must be a `TrainyardError`."""
    try:
        measured = measure(reader.read(path))
    except TrainyardError:
        return
    for ledger in measured.ledgers:
        assert sum(entry.ns for entry in ledger.entries) == ledger.wall_ns


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
@settings(deadline=None, max_examples=120)
def test_damaged_bytes_give_a_ledger_or_an_error(kind, data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    good = _BYTES.get(kind) or _BYTES.setdefault(kind, written(folder, kind).read_bytes())
    raw = bytearray(good)
    for offset, value in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=6)):
        raw[offset] = value
    cut = data.draw(st.one_of(st.just(len(raw)), st.integers(1, len(raw))))
    path = folder / f"{kind}.damaged"
    path.write_bytes(bytes(raw[:cut]))
    READERS[kind]().sniff(path)
    check_balanced_or_refused(READERS[kind](), path)


_BYTES: dict[str, bytes] = {}
_ODD = st.sampled_from(
    [None, True, -1, 0, 2**63 - 1, 2**63, -(2**64), math.nan, "", "x", "\ud800", [], {}, [[]], {"handle": 1.5}]
)  # fmt: skip


@pytest.mark.parametrize("kind", ["rocprof", "neuron"])
@given(data=st.data())
@settings(deadline=None, max_examples=120)
def test_odd_values_give_a_ledger_or_an_error(kind, data, tmp_path_factory):
    document = {"rocprofiler-sdk-tool": [make.rocprof_step()]} if kind == "rocprof" else make.neuron_step()
    document = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        node = document
        while True:
            key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.integers(0, 9)) == 0:
                node[key] = copy.deepcopy(data.draw(_ODD))
                break
            node = node[key]
    path = tmp_path_factory.getbasetemp() / f"{kind}.odd"
    path.write_text(json.dumps(document))
    check_balanced_or_refused(READERS[kind](), path)
