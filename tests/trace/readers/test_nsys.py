"""Nsight Systems exports: totals of real files against plain SQL, and the tables that real files at hand lack."""

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from tests.conftest import PUBLIC_DATA
from tests.trace.readers import reader_fixtures as make
from trainyard.events import CALL, COPY, KERNEL, MEMSET, NOTE, OP
from trainyard.plugins import ReadOptions
from trainyard.trace.measure import measure
from trainyard.trace.readers.nsys import Nsys

REAL = ("nsysai_h100_2gpu_1s.sqlite", "pipit_saxpy.sqlite")
WORK = {
    KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL", COPY: "CUPTI_ACTIVITY_KIND_MEMCPY", MEMSET: "CUPTI_ACTIVITY_KIND_MEMSET",
}  # fmt: skip
COUNT_CALLS = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE globalTid >> 24 = ? >> 24 AND eventClass != 67"
COUNT_RANGES = (
    "SELECT count(*) FROM NVTX_EVENTS WHERE globalTid >> 24 = ? >> 24 AND eventType IN (59, 60) AND end IS NOT NULL"
)
DIRECTIONS = {"h2d": (1, 3, 9, 11), "d2h": (2, 4, 12), "d2d": (5, 6, 7, 8, 10, 13)}


def real_file(name):
    path = PUBLIC_DATA / "foreign" / "nsys" / name
    if not path.exists():
        pytest.skip(f"the public profile {name} is not on this machine")
    return path


def query(path, text, *values):
    """The rows of a query, by SQLite alone."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(text, values).fetchall()


def union_ns(intervals):
    """Length of a union of intervals, by walking along them."""
    total, reached = 0, None
    for start, stop in sorted(intervals):
        if reached is None or start > reached:
            total, reached = total + stop - start, stop
        elif stop > reached:
            total, reached = total + stop - reached, stop
    return total


def processes_with_work(path):
    """(globalPid, deviceId), ascending."""
    union = " UNION ".join(f"SELECT globalPid, deviceId FROM {table}" for table in WORK.values())  # noqa: S608
    return sorted(query(path, union))


# --- real files


@pytest.mark.parametrize("name", REAL)
def test_work_of_a_real_export_equals_sql(name):
    path = real_file(name)
    read = Nsys().read(path)
    expected = processes_with_work(path)
    assert len(read) == len(expected)
    for events, (pid, device) in zip(read, expected):
        by_kind = {}
        for kind, table in WORK.items():
            rows = query(path, f"SELECT start, end FROM {table} WHERE globalPid = ? AND deviceId = ?", pid, device)  # noqa: S608
            by_kind[kind] = rows
            mine = events.work.what == kind
            assert int(mine.sum()) == len(rows)
            assert int((events.work.stop - events.work.start)[mine].sum()) == sum(stop - start for start, stop in rows)
        intervals = [interval for rows in by_kind.values() for interval in rows]
        first, last = min(start for start, _ in intervals), max(stop for _, stop in intervals)
        window_ns = events.window[1] - events.window[0]
        assert window_ns == last - first
        (ledger, _) = measure([events], "all").ledgers
        assert ledger.wall_ns == window_ns
        kernels = by_kind[KERNEL]
        assert ledger.unions["compute"] == ledger.by_kind()["compute"] == union_ns(kernels)
        assert ledger.unions["copy"] == union_ns(by_kind[COPY] + by_kind[MEMSET])
        assert ledger.by_kind()["compute"] + ledger.by_kind()["copy"] == union_ns(intervals)


@pytest.mark.parametrize("name", REAL)
def test_copies_of_a_real_export_equal_sql(name):
    path = real_file(name)
    table = "CUPTI_ACTIVITY_KIND_MEMCPY"
    for events, (pid, device) in zip(Nsys().read(path), processes_with_work(path)):
        (ledger, _) = measure([events], "all").ledgers
        for direction, kinds in DIRECTIONS.items():
            marks = ", ".join("?" * len(kinds))
            where = f"globalPid = ? AND deviceId = ? AND copyKind IN ({marks})"
            rows = query(path, f"SELECT start, end, bytes FROM {table} WHERE {where}", pid, device, *kinds)  # noqa: S608
            entries = [entry for entry in ledger.entries if str(entry.account) == f"copy/{direction}"]
            assert sum(entry.count for entry in entries) == len(rows)
            names = {"h2d": "Memcpy HtoD", "d2h": "Memcpy DtoH", "d2d": "Memcpy DtoD"}
            mine = [row for row in range(len(events.work)) if events.names[events.work.name[row]] == names[direction]]
            assert int(events.work.bytes[mine].sum()) == sum(size for _, _, size in rows)


@pytest.mark.parametrize("name", REAL)
def test_host_rows_of_a_real_export_equal_sql(name):
    path = real_file(name)
    read = Nsys().read(path)
    for process, (pid, _) in zip(read, processes_with_work(path)):
        ((calls,),) = query(path, COUNT_CALLS, pid)
        ((ranges,),) = query(path, COUNT_RANGES, pid)
        names = [process.names[name] for name in process.host.name]
        host = Counter(
            "call" if kind == CALL and not name.startswith("MPI_") else "range"
            for name, kind in zip(names, process.host.what.tolist())
            if not name.startswith(("phase::", "sampled: ", "mpi:"))
        )
        assert (host["call"], host["range"]) == (calls, ranges)


def test_real_mpi_program_has_steps_peers_and_no_python():
    (events,) = Nsys().read(real_file("pipit_saxpy.sqlite"))
    assert (events.rank, events.world, events.python) == (0, 2, False)
    assert events.device == "NVIDIA A100-SXM4-40GB"
    assert [mark.label for mark in events.marks] == ["0", "1", "2", "3", "4"]
    measured = measure([events])
    mean = measured.mean.by_account()
    waits = [(start, stop) for start, stop, name in query(
        real_file("pipit_saxpy.sqlite"),
        "SELECT start, end, value FROM NVTX_EVENTS JOIN StringIds ON textId = id WHERE end IS NOT NULL",
    ) if name.startswith("MPI_") and start > 950_000_000 and stop < 1_960_000_000]  # fmt: skip
    exposed = sum(ns for account, ns in mean.items() if account.kind == "comm")
    assert exposed == pytest.approx(union_ns(waits) / 4, rel=0.01)


def test_real_export_without_device_names_notes_it_once():
    read = Nsys().read(real_file("nsysai_h100_2gpu_1s.sqlite"))
    assert [(events.device, events.python) for events in read] == [("", True), ("", True)]
    notes = measure(read).notes
    assert sum("TARGET_INFO_GPU" in note for note in notes) == 1
    assert not [note for note in notes if note.startswith("experimental")]


# --- tables that the real files lack

NVTX = "start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT, domainId INT"
THREAD = make.global_id(make.PID, make.PID)
PROCESS = make.global_id()


def written(path, kernels, calls, tables=(), **rows):
    """A database of kernels and calls (start, stop, correlation), and of rows of other tables, whose columns `tables`
    gives."""
    kinds = {**make.NSYS_TABLES, **dict(tables)}
    process = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [(a, b, 0, 7, number, PROCESS, make.GEMM, make.GEMM) for a, b, number in kernels],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            (a, b, THREAD if len(more) == 0 else more[0], number, make.LAUNCH) for a, b, number, *more in calls
        ],
    }
    return make.write_nsys(path, {table: values for table, values in process.items() if values}, tables=kinds, **rows)


def ranges(*spans, thread=THREAD):
    """NVTX rows of (start, stop, text)."""
    return [(start, stop, 59, text, None, thread) for start, stop, text in spans]


def read_one(path, **options):
    (events,) = Nsys().read(path, ReadOptions(**options))
    return events


def iteration_file(path, names, parts=(), kernels=2, **rows):
    """One range of 900 ns for each name, which launches `kernels` kernels; `parts`: (start, stop, text) inside each
    range."""
    calls, work, spans = [], [], []
    for index, name in enumerate(names):
        at = 10_000 + 1_000 * index
        spans.append((at, at + 900, name))
        spans += [(at + start, at + stop, text) for start, stop, text in parts]
        for number in range(kernels):
            correlation = kernels * index + number + 1
            calls.append((at + 200 * number + 10, at + 200 * number + 20, correlation))
            work.append((at + 200 * number + 50, at + 200 * number + 150, correlation))
    return written(path, work, calls, NVTX_EVENTS=ranges(*spans), **rows)


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ([f"iteration {number}" for number in (7, 8, 9)], ["7", "8", "9"]),
        (["train_step"] * 3, ["0", "1", "2"]),
        (["saxpy"] * 4, ["0", "1", "2", "3"]),
        ([f"epoch 2 iter {number}" for number in (5, 6)], None),
        ([f"batch {number}, lr 3" for number in (5, 6)], ["5", "6"]),
        ([f"layer {number}" for number in range(12)], None),
        (["micro-batch"] * 8, None),
        (["saxpy"] * 2, None),
        ([f"iteration {number}" for number in (9, 3, 7)], None),
    ],
)
def test_repeated_ranges_mark_steps(names, labels, tmp_path):
    events = read_one(iteration_file(tmp_path / "n", names))
    assert [mark.label for mark in events.marks] == (labels or [])
    assert (events.inferred is not None) == bool(labels)


def test_outermost_ranges_are_the_steps(tmp_path):
    parts = ((0, 400, "forward"), (400, 800, "backward"), (10, 390, "layer 0"))
    events = read_one(iteration_file(tmp_path / "n", [f"step {number}" for number in range(4)], parts, kernels=4))
    assert [mark.label for mark in events.marks] == ["0", "1", "2", "3"]
    phases = Counter(entry.phase for entry in measure([events], "all").mean.entries if entry.account.kind == "compute")
    assert set(phases) == {"forward", "backward"}


def test_stated_marks_win_over_repeated_ranges(tmp_path):
    parts = ((0, 890, "train_step"),)
    path = iteration_file(tmp_path / "n", [f"it {number}" for number in range(3)], parts)
    stated = [read_one(path, mark=mark) for mark in ("it ", "train_step")]
    assert [mark.label for events in stated for mark in events.marks] == ["0", "1", "2"] * 2
    assert [mark.start % 10_000 for mark in stated[1].marks] == [0, 1000, 2000]
    assert [(events.mark, events.inferred) for events in stated] == [("it ", None), ("train_step", None)]


def test_steps_of_ranges_are_inferred_once(tmp_path):
    path = iteration_file(tmp_path / "n", [f"it {number}" for number in range(6)], kernels=6)
    events = read_one(path, mark="absent")
    measured = measure([events])
    assert (events.mark, [mark.label for mark in events.marks]) == ("absent", [str(number) for number in range(6)])
    assert events.inferred
    assert measured.steps.how == "inferred"
    assert (measured.steps.confidence, measured.steps.evidence) == (0.84, events.inferred.evidence)
    assert [part.label for part in measured.ranks[0].parts] == [mark.label for mark in events.marks]
    assert sum("--mark" in note and "'absent'" in note for note in measured.notes) == 1


def test_ranges_that_launch_a_part_are_not_steps(tmp_path):
    parts = ((0, 200, "attention"), (200, 400, "mlp"))
    events = read_one(iteration_file(tmp_path / "n", ["epoch"], parts * 4, kernels=4))
    assert events.marks == ()


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("forward", "forward"), ("fwd_pass", "forward"), ("DeepSpeedEngine.backward", "backward"),
        ("backward-compute", "backward"), ("forward-backward", "other"), ("optimizer.step", "optimizer"),
        ("DeepSpeedEngine.step", "optimizer"), ("Optimizer.zero_grad", "other"), ("AdamW.step", "optimizer"),
        ("forwarding table", "other"), ("forward, op_id = 4", "forward"), ("eval", "other"),
    ],
)  # fmt: skip
def test_ranges_set_phases(name, phase, tmp_path):
    path = written(tmp_path / "n", [(100, 200, 1)], [(50, 60, 1)], NVTX_EVENTS=ranges((40, 90, name)))
    assert {entry.phase for entry in measure([read_one(path)]).mean.entries} == {phase}


def test_thread_without_ranges_has_the_phase_of_the_main_thread(tmp_path):
    helper = make.global_id(make.PID, 77)
    spans = ranges((0, 400, "forward"), (400, 900, "backward"))
    calls = [(50, 60, 1), (500, 510, 2, helper), (950, 960, 3, helper)]
    path = written(tmp_path / "n", [(100, 200, 1), (600, 700, 2), (970, 980, 3)], calls, NVTX_EVENTS=spans)
    compute = {
        entry.phase: entry.ns for entry in measure([read_one(path)]).mean.entries if entry.account.kind == "compute"
    }
    assert compute == {"forward": 100, "backward": 100, "other": 10}


MPI_TABLES = {
    "MPI_RANKS": "globalTid INT, rank INT",
    "MPI_P2P_EVENTS": "start INT, end INT, globalTid INT, textId INT, remoteRank INT, size INT",
    "MPI_COLLECTIVES_EVENTS": "start INT, end INT, globalTid INT, textId INT, size INT, recvSize INT",
    "MPI_START_WAIT_EVENTS": "start INT, end INT, globalTid INT, textId INT",
}


def test_mpi_tables_explain_idle_time_and_state_the_rank(tmp_path):
    path = written(
        tmp_path / "n", [(100, 200, 1), (1000, 1100, 2)], [(50, 60, 1), (900, 910, 2)], tables=MPI_TABLES,
        StringIds=[*enumerate(make.NSYS_NAMES, 1), (90, "MPI_Recv"), (91, "MPI_Iallreduce"), (92, "MPI_Wait")],
        MPI_RANKS=[(THREAD, 5)], MPI_P2P_EVENTS=[(300, 400, THREAD, 90, 1, 64)],
        MPI_COLLECTIVES_EVENTS=[(400, 550, THREAD, 91, 64, 64)], MPI_START_WAIT_EVENTS=[(600, 800, THREAD, 92)],
    )  # fmt: skip
    events = read_one(path)
    ledger = measure([events]).mean
    assert events.rank == 5
    assert {str(account): ns for account, ns in ledger.by_account().items() if account.kind == "comm"} == {
        "comm/send_recv": 100, "comm/all_reduce": 150, "comm/other": 200,
    }  # fmt: skip
    assert any("MPI tables" in note for note in events.notes)


def test_each_process_has_the_rank_that_mpi_states(tmp_path):
    tables = {**make.NSYS_TABLES, "MPI_RANKS": "globalTid INT, rank INT"}
    threads = [make.global_id(50, 50), make.global_id(51, 51)]
    path = make.write_nsys(
        tmp_path / "n", make.nsys_rows(50), make.nsys_rows(51), tables=tables, MPI_RANKS=[*zip(threads, (1, 0))]
    )
    read = Nsys().read(path)
    assert [events.rank for events in read] == [1, 0]
    assert [rank.events.rank for rank in measure(read).ranks] == [0, 1]


ENVIRONMENTS = (
    ("OMPI_COMM_WORLD_RANK=3;OMPI_COMM_WORLD_SIZE=8", (3, 8)),
    ("PATH=/bin\0PMI_RANK=1\0PMI_SIZE=2\0", (1, 2)),
    ("SLURM_PROCID=4;SLURM_NTASKS=8;SLURM_STEP_NUM_TASKS=6", (4, 6)),
    ("RANK=2;WORLD_SIZE=2", (-1, 0)),
    ("SLURM_PROCID=0;SLURM_NTASKS=1", (-1, 0)),
    ("RANK=x;WORLD_SIZE=4", (-1, 0)),
)


@pytest.mark.parametrize(("environment", "expected"), ENVIRONMENTS)
def test_rank_from_the_environment_of_the_launcher(environment, expected, tmp_path):
    path = written(tmp_path / "n", [(100, 200, 1)], [], TARGET_INFO_SYSTEM_ENV=[("DeviceEnvironment", environment)])
    events = read_one(path)
    assert (events.rank, events.world) == expected


def test_environment_is_not_that_of_several_processes(tmp_path):
    rank = {"TARGET_INFO_SYSTEM_ENV": [("DeviceEnvironment", "RANK=1;WORLD_SIZE=4")]}
    path = make.write_nsys(tmp_path / "n", make.nsys_rows(50), make.nsys_rows(51), **rank)
    assert [events.rank for events in Nsys().read(path)] == [-1, -1]


def test_openacc_and_system_calls_name_idle_time(tmp_path):
    tables = {
        "CUPTI_ACTIVITY_KIND_OPENACC_OTHER": "start INT, end INT, nameId INT, globalTid INT, eventKind INT, "
        "lineNo INT, srcFile INT",
        "OSRT_API": "start INT, end INT, globalTid INT, nameId INT",
    }
    path = written(
        tmp_path / "n", [(100, 200, 1), (1000, 1100, 2)], [(50, 60, 1), (900, 910, 2)], tables=tables,
        StringIds=[*enumerate(make.NSYS_NAMES, 1), (90, "Wait"), (91, "/src/solver.c"), (92, "nanosleep")],
        CUPTI_ACTIVITY_KIND_OPENACC_OTHER=[(250, 450, 90, THREAD, 7, 12, 91)],
        OSRT_API=[(500, 800, THREAD, 92), (500, 800, make.global_id(1, 1), 92)],
    )  # fmt: skip
    events = read_one(path)
    accounts = {str(account): ns for account, ns in measure([events]).mean.by_account().items()}
    assert accounts["launch_gap/sync"] == 200
    named = {events.names[name] for name in events.host.name}
    assert {"OpenACC wait: Wait solver.c:12", "OS: nanosleep"} <= named
    assert any("OpenACC" in note and "calls of the operating system" in note for note in events.notes)


def test_kernels_of_a_graph_are_booked_by_name_and_whole_graphs_noted(tmp_path):
    graph = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    columns = "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT, graphId INT"
    path = written(
        tmp_path / "n", [(100, 200, 1), (210, 300, 1)], [(50, 60, 1), (310, 320, 2)], tables={graph: columns},
        **{graph: [(400, 2_400, 0, 7, 2, PROCESS, 12)]},
    )  # fmt: skip
    events = read_one(path)
    accounts = {str(account): ns for account, ns in measure([events]).mean.by_account().items()}
    assert (accounts["compute/matmul"], accounts["compute/other"]) == (190, 2_000)
    assert any("--cuda-graph-trace=node" in note and "2.0 µs" in note for note in events.notes)


def test_unified_memory_moves_outside_streams(tmp_path):
    faults = {"CUDA_UM_GPU_PAGE_FAULT_EVENTS": "start INT, end INT, globalPid INT, deviceId INT"}
    path = written(
        tmp_path / "n", [(100, 200, 1)], [(50, 60, 1)], tables=faults,
        CUPTI_ACTIVITY_KIND_MEMCPY=[
            (300, 400, 0, None, None, PROCESS, 4096, 11), (400, 450, 0, None, None, PROCESS, 512, 12),
        ],
        CUDA_UM_GPU_PAGE_FAULT_EVENTS=[(110, 150, PROCESS, 0)],
    )  # fmt: skip
    events = read_one(path)
    accounts = {str(account): ns for account, ns in measure([events]).mean.by_account().items()}
    assert (accounts["copy/h2d"], accounts["copy/d2h"]) == (100, 50)
    assert "unified memory" in events.streams
    assert any("1 page faults" in note for note in events.notes)


def test_samples_name_functions_outside_traced_calls(tmp_path):
    tables = {
        "COMPOSITE_EVENTS": "id INT, start INT, globalTid INT",
        "SAMPLING_CALLCHAINS": "id INT, symbol INT, module INT, unresolved INT, stackDepth INT",
    }
    strings = [(90, "memcpy"), (91, "/lib/libc-2.31.so"), (92, "check"), (93, "/bin/solver")]
    samples = [(number, 100 * number, THREAD) for number in range(20)]
    chains = [row for number in range(20) for row in ((number, 90, 91, None, 0), (number, 92, 93, None, 1))]
    path = written(
        tmp_path / "n", [(200, 300, 1), (1600, 1700, 2)], [(150, 160, 1), (1500, 1550, 2)], tables=tables,
        StringIds=[*enumerate(make.NSYS_NAMES, 1), *strings], COMPOSITE_EVENTS=samples, SAMPLING_CALLCHAINS=chains,
    )  # fmt: skip
    events = read_one(path)
    sampled = [
        row for row in range(len(events.host)) if events.names[events.host.name[row]] == "sampled: check (solver)"
    ]
    spans = [(int(events.host.start[row]), int(events.host.stop[row])) for row in sampled]
    free = union_ns([(0, 2_200)]) - 10 - 50
    assert union_ns(spans) == free == sum(stop - start for start, stop in spans)
    assert not any(start < 155 < stop or start < 1_525 < stop for start, stop in spans)
    assert {int(kind) for kind in events.host.what[sampled]} == {NOTE}


def test_clock_of_newer_exports_counts_from_boot(tmp_path):
    session = {"TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT, systemClockNs INT"}
    row = {"TARGET_INFO_SESSION_START_TIME": [(10**18, 10**9)]}
    path = written(tmp_path / "n", [(10**9 + 100, 10**9 + 200, 1)], [], tables=session, **row)
    assert read_one(path).window == (10**18 + 100, 10**18 + 200)
    path = written(tmp_path / "k", [(100, 200, 1)], [], tables=session, **row)  # times since the session's start
    assert read_one(path).window == (10**18 + 100, 10**18 + 200)
    normalized = {**session, "META_DATA_EXPORT": "name TEXT, value TEXT"}
    rows = {**row, "META_DATA_EXPORT": [("EXPORT_PARAM_TIME_NORMALIZE", "true")]}
    path = written(tmp_path / "m", [(10**18, 10**18 + 100, 1)], [], tables=normalized, **rows)
    assert read_one(path).window == (10**18, 10**18 + 100)


def test_record_functions_are_annotations_and_ops_stay_ops(tmp_path):
    spans = ranges(
        (10, 90, "FSDP::pre_forward (block.1), op_id = 7"), (20, 30, "aten::mm, seq = 5, op_id = 9"),
        (40, 50, "MmBackward0, seq = 5, op_id = 11"), (60, 70, "aten::view, op_id = 12, sizes = [[2]]"),
        (71, 80, "nccl:_all_gather_base, op_id = 13"),
    )  # fmt: skip
    events = read_one(written(tmp_path / "n", [(100, 200, 1)], [(62, 65, 1)], NVTX_EVENTS=spans))
    kinds = {events.names[name]: int(kind) for name, kind in zip(events.host.name, events.host.what)}
    assert kinds["FSDP::pre_forward (block.1)"] == NOTE
    assert (kinds["aten::mm"], kinds["MmBackward0"], kinds["aten::view"]) == (OP, OP, OP)
    assert [collective.name for collective in events.host.collectives.values()] == ["all_gather"]
