"""Perfetto files: those that trainyard writes are read back exactly, and the shapes of rocprofiler-systems."""

import gzip

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refused import refused
from tests.trace.readers import reader_fixtures as make
from trainyard.errors import BadFile, TrainyardError
from trainyard.events import NOTE, PYTHON
from trainyard.report.render import perfetto
from trainyard.trace.measure import measure, read
from trainyard.trace.readers import embedded
from trainyard.trace.readers.pftrace import Pftrace
from trainyard.trace.readers.rocprof import Rocprof


def write(measured, folder):
    """The Perfetto file of the ranks, unpacked."""
    packed, plain = folder / "packed.pftrace", folder / "plain.pftrace"
    perfetto.write(measured, packed)
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    return plain


@pytest.fixture(scope="module")
def demo(root, tmp_path_factory):
    measured = measure(read([root / "src" / "trainyard" / "data" / "demo"]))
    return measured, write(measured, tmp_path_factory.mktemp("demo"))


def test_written_file_is_read_back_to_the_same_ledgers(demo):
    measured, path = demo
    again = measure(Pftrace().read(path))
    assert again.ledgers == measured.ledgers
    assert (again.notes, again.alignment.aligned) == (measured.notes, measured.alignment.aligned)
    assert again.mean.wall_ns > 0


def test_written_file_keeps_all_columns(demo):
    measured, path = demo
    for rank, events in zip(measured.ranks, Pftrace().read(path), strict=True):
        for table in ("work", "host"):
            for name in getattr(events, table).__struct_fields__:
                ours, theirs = (getattr(getattr(side, table), name) for side in (events, rank.events))
                same = ours == theirs
                assert same.all() if isinstance(same, np.ndarray) else same


def test_mesh_axis_of_the_ranks_is_kept(root, tmp_path):
    measured = measure(read([root / "src" / "trainyard" / "data" / "demo"]), axis="dp_replicate")
    assert any("@dp_replicate" in str(entry.account) for entry in measured.mean.entries)
    assert measure(Pftrace().read(write(measured, tmp_path))).ledgers == measured.ledgers


def test_file_of_another_format_is_read_back(tmp_path):
    measured = measure(Rocprof().read(make.write_rocprof(tmp_path / "r.json", make.rocprof_step())))
    assert measure(Pftrace().read(write(measured, tmp_path))).ledgers == measured.ledgers


def test_cut_file_gives_the_complete_ranks(demo, tmp_path):
    measured, whole = demo
    path = tmp_path / "cut.pftrace"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2 + 1000])
    ranks = Pftrace().read(path)
    assert 1 <= len(ranks) <= len(measured.ranks)
    assert all(events.cut_short and "cut short" in events.notes[-1] for events in ranks)


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("work", "name", 10**6, "work.name"),
        ("work", "call", 10**6, "work.call"),
        ("work", "stop", -5, "order"),
        ("host", "parent", 10**6, "host.parent"),
        ("host", "parent", 1, "enclose"),
        ("host", "thread", -1, "host.thread"),
        ("host", "shape", 10**6, "host.shape"),
    ],
)
def test_changed_columns_are_refused(table, column, value, message, tmp_path):
    (events,) = Rocprof().read(make.write_rocprof(tmp_path / "r.json", make.rocprof_step()))
    changed = getattr(getattr(events, table), column).copy()
    changed[-1] = value
    damaged = msgspec.structs.replace(
        events, **{table: msgspec.structs.replace(getattr(events, table), **{column: changed})}
    )
    path = tmp_path / "x.pftrace"
    path.write_bytes(embedded.encode_packet(damaged, 1))
    with refused(BadFile, path, message):
        Pftrace().read(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The packet of a small rank."""
    path = make.write_rocprof(tmp_path_factory.mktemp("small") / "r.json", make.rocprof_step())
    (events,) = Rocprof().read(path)
    return embedded.encode_packet(events, 1)


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_profile_gives_a_ledger_or_an_error(data, small, tmp_path_factory):
    raw = bytearray(small)
    for offset, value in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)):
        raw[offset] = value
    path = tmp_path_factory.getbasetemp() / "damaged.pftrace"
    path.write_bytes(bytes(raw))
    try:
        measured = measure(Pftrace().read(path))
    except TrainyardError:
        return
    for ledger in measured.ledgers:
        assert sum(entry.ns for entry in ledger.entries) == ledger.wall_ns


# --- rocprofiler-systems: tracks with processes and threads, flows, slices by queue or by stream


class Systems(make.Pftrace):
    """A trace of rocprofiler-systems: tracks below a process."""

    def process(self, uuid, pid):
        self.packet((60, make.message((1, uuid), (3, make.message((1, pid), (6, "train"))))))

    def thread(self, uuid, pid, tid, parent):
        self.packet((60, make.message((1, uuid), (5, parent), (4, make.message((1, pid), (2, tid))))))

    def child(self, uuid, name, parent):
        self.packet((60, make.message((1, uuid), (2, name), (5, parent))))

    def counter(self, track, time):
        self.packet(*self.stamp(time), (11, make.message((9, 4), (11, track), (30, 7))))


def systems(pid=50, base=0, by_stream=False, annotated=True):
    """A launch, its kernel, a copy to the device and one back; `by_stream`: device slices are on tracks of streams;
    `annotated`: with debug annotations."""
    trace = Systems(incremental=False)
    trace.process(base + 1, pid)
    trace.thread(base + 2, pid, pid, base + 1)
    queue, copies = ("HIP Activity Stream 3",) * 2 if by_stream else (
        "GPU Kernel Dispatch [0] Queue 1", "GPU Memory Copy to Agent [4] Thread 1")  # fmt: skip
    trace.child(base + 3, queue, base + 1)
    trace.child(base + 4, copies, base + 1)
    trace.child(base + 5, "GPU [0] Power", base + 1)
    kernel, copy = ("rocm_hip_stream",) * 2 if by_stream else ("rocm_kernel_dispatch", "rocm_memory_copy")
    facts = (lambda **values: values) if annotated else (lambda **values: {})
    trace.slice("host", "train_loop()", base + 2, 600, 2000)
    for number in range(3):
        at = 700 + 400 * number
        trace.slice("rocm_hip_api", "hipLaunchKernel", base + 2, at, at + 20, **facts(corr_id=10 * number + 1))
        trace.slice("rocm_hip_api", "hipMemcpyAsync", base + 2, at + 30, at + 40, **facts(corr_id=10 * number + 2))
        trace.slice(kernel, "Cijk_Ailk_Bljk", base + 3, at + 50, at + 150, **facts(corr_id=10 * number + 1, queue=1))
        trace.slice(
            copy, "MEMORY_COPY_HOST_TO_DEVICE", base + 4, at + 160, at + 200,
            **facts(corr_id=10 * number + 2, bytes=64, src_agent_id=0, dst_agent_id=4),
        )  # fmt: skip
    trace.counter(base + 5, 1900)
    trace.slice("timer_sampling", "sample", base + 2, 1910, 1920)
    return trace.data


@pytest.mark.parametrize("by_stream", [True, False])
@pytest.mark.parametrize("annotated", [True, False])
def test_rocprofiler_systems_shapes(by_stream, annotated, tmp_path):
    path = tmp_path / "p"
    path.write_bytes(systems(by_stream=by_stream, annotated=annotated))
    (events,) = Pftrace().read(path)
    (ledger, _) = measure([events], "all").ledgers
    accounts = {str(account): ns for account, ns in ledger.by_account().items()}
    assert (accounts["compute/matmul"], accounts["copy/h2d"]) == (300, 120)
    assert accounts.get("unexplained", 0) == (0 if annotated else ledger.wall_ns - 420)
    expected = {"stream 3"} if by_stream else {"queue 1", "GPU Memory Copy to Agent [4] Thread 1"}
    assert set(events.streams) == expected
    assert not [note for note in events.notes if "left out" in note]


def test_flow_links_a_launch_with_its_kernel(tmp_path):
    trace = Systems(incremental=False)
    for track, category, name, start, stop in (
        (2, "rocm_hip_api", "hipLaunchKernel", 700, 720), (3, "rocm_kernel_dispatch", "gemm", 800, 900),
    ):  # fmt: skip
        trace.packet(*trace.stamp(start), (11, make.message((9, 1), (22, category), (23, name), (11, track), (36, 99))))
        trace.packet(*trace.stamp(stop), (11, make.message((9, 2), (11, track))))
    path = tmp_path / "p"
    path.write_bytes(trace.data)
    (events,) = Pftrace().read(path)
    assert events.work.call.tolist() == [0]


def test_each_process_is_a_rank(tmp_path):
    path = tmp_path / "p"
    path.write_bytes(systems(50) + systems(51, base=100))
    assert [len(events.work) for events in Pftrace().read(path)] == [6, 6]


def test_host_categories_name_host_activity(tmp_path):
    trace = Systems(incremental=False)
    for category, name in (("mpi", "MPI_Allreduce"), ("pthread", "pthread_mutex_lock"), ("python", "train.py:3 f"),
                           ("user", "step 1")):  # fmt: skip
        trace.slice(category, name, 2, 600 + len(trace.data), 601 + len(trace.data))
    trace.slice("device_hip", "FillBuffer", 3, 9000, 9100)
    trace.slice("device_hip", "CopyDeviceToHost", 3, 9200, 9300)
    path = tmp_path / "p"
    path.write_bytes(trace.data)
    (events,) = Pftrace().read(path)
    kinds = {events.names[name]: int(kind) for name, kind in zip(events.host.name, events.host.what)}
    assert (kinds["mpi:all_reduce"], kinds["OS: pthread_mutex_lock"], kinds["train.py:3 f"]) == (NOTE, NOTE, PYTHON)
    ledger = measure([events]).mean
    assert {str(account) for account in ledger.by_account()} >= {"copy/memset", "copy/d2h"}


def test_perfetto_file_without_work_is_refused(tmp_path):
    trace, path = Systems(incremental=False), tmp_path / "p"
    trace.counter(5, 700)
    path.write_bytes(trace.data)
    with refused(BadFile, path, "rocprofiler-systems"):
        Pftrace().read(path)
