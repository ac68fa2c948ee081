"""XLA profiles: totals of real files against a walk over the protocol buffers, and the lines that real files lack."""

from collections import Counter, defaultdict

import pytest

from tests.conftest import PUBLIC_DATA
from tests.trace.readers import reader_fixtures as make
from trainyard import machine
from trainyard.events import COPY, MEMSET, PYTHON
from trainyard.trace.measure import measure
from trainyard.trace.readers.xplane import Xplane

REAL = ("tw003.xplane.pb", "934987a2fc2f.xplane.pb")


def real_file(name):
    path = PUBLIC_DATA / "foreign" / "xplane" / name
    if not path.exists():
        pytest.skip(f"the public profile {name} is not on this machine")
    return path


# --- a decoder of its own: nothing of the reader is used


def decode(data):
    """Field number -> values of a message: integers, or bytes."""
    values_by_field, at = defaultdict(list), 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            values_by_field[tag >> 3].append(varint())
        elif tag & 7 == 2:
            size = varint()
            values_by_field[tag >> 3].append(data[at : at + size])
            at += size
        else:
            size = 8 if tag & 7 == 1 else 4
            values_by_field[tag >> 3].append(int.from_bytes(data[at : at + size], "little"))
            at += size
    return values_by_field


def entries(plane, field):
    """id -> name of the metadata in a map field."""
    pairs = [decode(entry) for entry in plane[field]]
    return {(pair[1] or [0])[0]: (decode(pair[2][0])[2] or [b""])[0].decode() for pair in pairs}


def walk(path):
    """(plane, line, name, start ns, stop ns, stat name -> value) of each event."""
    for raw in decode(path.read_bytes())[1]:
        plane = decode(raw)
        kinds, stats = entries(plane, 4), entries(plane, 5)
        for line in map(decode, plane[3]):
            begin = (line[3] or [0])[0] * 1000
            for event in map(decode, line[4]):
                start = begin + (event[2] or [0])[0]
                facts = {}
                for stat in map(decode, event[4]):
                    value = stat[3] or stat[4] or stat[5] or [stats.get((stat[7] or [0])[0], "")]
                    facts[stats[stat[1][0]]] = value[0]
                stop = start + (event[3] or [0])[0]
                where = (plane[2][0].decode(), line[2][0].decode() if line[2] else "")
                yield *where, kinds[event[1][0]], start // 1000, stop // 1000, facts


def union_ns(intervals):
    total, reached = 0, None
    for start, stop in sorted(intervals):
        if reached is None or start > reached:
            total, reached = total + stop - start, stop
        elif stop > reached:
            total, reached = total + stop - reached, stop
    return total


def device_events(path):
    """Device plane -> (name, start, stop, name of the call) of its events on streams, and all events of the host."""
    host = [event for event in walk(path) if event[0] == "/host:CPU"]
    call = {facts["correlation_id"]: name for _, _, name, _, _, facts in host if "correlation_id" in facts}
    devices = defaultdict(list)
    for plane, line, name, start, stop, facts in walk(path):
        if plane.startswith("/device:GPU") and line.startswith("Stream"):
            devices[plane].append((name, start, stop, call.get(facts.get("correlation_id"), "")))
    return devices, host


# --- real files


@pytest.mark.parametrize("name", REAL)
def test_work_of_a_real_profile_equals_a_walk(name):
    path = real_file(name)
    devices, _ = device_events(path)
    read = Xplane().read(path)
    assert [f"/device:GPU:{events.device_index}" for events in read] == sorted(devices)
    for events, (_, expected) in zip(read, sorted(devices.items())):
        work = events.work
        spans = [(start, stop) for _, start, stop, _ in expected]
        assert sorted(zip(work.start.tolist(), work.stop.tolist())) == sorted(spans)
        copies = [(start, stop) for kernel, start, stop, call in expected if "copyBuffer" in kernel or "emcpy" in call]
        assert sorted(zip(work.start[work.what == COPY], work.stop[work.what == COPY])) == sorted(copies)
        memsets = [(start, stop) for kernel, start, stop, _ in expected if "fillBuffer" in kernel]
        (ledger, _) = measure([events], "all").ledgers
        booked = Counter()
        for entry in ledger.entries:
            booked[str(entry.account)] += entry.count
        assert (booked["copy/d2d"], booked["copy/memset"]) == (len(copies), len(memsets))
        assert ledger.wall_ns == max(stop for _, stop in spans) - min(start for start, _ in spans)
        assert ledger.by_kind()["compute"] + ledger.by_kind().get("copy", 0) == union_ns(spans)
        assert ledger.unions.get("copy", 0) == union_ns(copies + memsets)
        kernels = [span for span in spans if span not in {*copies, *memsets}]
        assert ledger.unions["compute"] == union_ns(kernels)


@pytest.mark.parametrize("name", REAL)
def test_host_of_a_real_profile_equals_a_walk(name):
    path = real_file(name)
    _, host = device_events(path)
    read = Xplane().read(path)
    calls = Counter(event[2] for event in host if "correlation_id" in event[5])
    mine = Counter()
    for events in read:
        launching = set(events.work.call.tolist())
        mine.update(events.names[events.host.name[row]] for row in launching)
        frames = sum(event[2].startswith("$") for event in host)
        assert int((events.host.what == PYTHON).sum()) == frames
        assert events.python
    assert mine == calls


@pytest.mark.parametrize("name", REAL)
def test_calls_are_on_the_threads_that_made_them(name):
    """The driver's lines disappear: each joins the one thread whose annotations contain its calls."""
    for events in Xplane().read(real_file(name)):
        calls = events.work.call
        assert (calls >= 0).all()
        assert (events.host.parent[calls] >= 0).all()
        launching = set(events.host.thread[calls].tolist())
        assert set(events.host.thread.tolist()) == launching | {events.main}


@pytest.mark.parametrize(
    ("name", "device", "steps"), [("tw003.xplane.pb", "mi300x", 5), ("934987a2fc2f.xplane.pb", "mi355x", 5)]
)
def test_real_profile_has_steps_device_and_one_note_each(name, device, steps):
    read = Xplane().read(real_file(name))
    measured = measure(read)
    assert {len(events.marks) for events in read} == {steps}
    known = machine.find_device(read[0].device)
    assert known == machine.load(device).device
    assert len(measured.notes) == len(set(measured.notes))
    assert not [note for note in measured.notes if note.startswith("experimental")]
    idle = {str(account): ns for account, ns in measured.mean.by_account().items() if account.kind == "launch_gap"}
    assert idle.get("launch_gap/python", 0) < 0.05 * sum(idle.values())


def test_real_training_step_has_both_passes():
    (ledger,) = [measure(Xplane().read(real_file("934987a2fc2f.xplane.pb"))).mean]
    compute = Counter()
    for entry in ledger.entries:
        compute[entry.phase] += entry.ns if entry.account.kind == "compute" else 0
    assert compute["backward"] > compute["forward"] > 0


# --- lines and names that the real files lack


def gpu(*lines, calls=()):
    """A file of one GPU with lines (name, events), and calls (name, start ps, length ps, correlation)."""
    plane = make.Plane("/device:GPU:0", device_vendor="Nvidia")
    for name, *events in lines:
        plane.line(name, 0, *events)
    host = make.Plane("/host:CPU")
    host.line(
        "Host Threads/9", 0, *((name, at, ps, {"correlation_id": ident}) for name, at, ps, ident in calls), ident=9
    )
    return make.xspace(plane, host)


def read_one(path, data):
    path.write_bytes(data)
    (events,) = Xplane().read(path)
    return events


@pytest.mark.parametrize(
    ("line", "name", "stats", "call", "direction"),
    [
        ("Stream #1(MemcpyOther)", "MemcpyOther", {}, "", "d2d"),
        ("Stream #1(MemcpyOther)", "3", {}, "hipMemcpyDtoHAsync", "d2h"),
        ("Stream #1(MemcpyH2D,MemcpyD2H)", "MemcpyH2D", {}, "", "h2d"),
        ("Stream #1(Kernel,MemcpyD2H)", "CopyDeviceToHost", {}, "", "d2h"),
        ("Stream #1(Kernel)", "MEMORY_COPY_HOST_TO_DEVICE", {}, "", "h2d"),
        ("Stream #1(Kernel)", "MemcpyP2P", {}, "cuMemcpyPeerAsync", "d2d"),
        ("Stream #1", "x", {"memcpy_details": "kind_src:pageable kind_dst:device size:512 dest:0"}, "", "h2d"),
        ("Stream #1", "x", {"memcpy_details": "kind_src:device kind_dst:pinned size:512 dest:0"}, "", "d2h"),
        ("Stream #1", "__amd_rocclr_copyBuffer.kd", {}, "hipMemcpyHtoDAsync", "h2d"),
        ("Stream #1", "__amd_rocclr_copyBuffer.kd", {}, "hipLaunchKernel", "d2d"),
    ],
)
def test_copies_have_a_direction(line, name, stats, call, direction, tmp_path):
    data = gpu((line, (name, 0, 50_000, {"correlation_id": 1, **stats})), calls=[(call, 0, 1000, 1)] if call else ())
    ledger = measure([read_one(tmp_path / "x", data)]).mean
    assert {str(entry.account): entry.ns for entry in ledger.entries} == {f"copy/{direction}": 50}


def test_kernel_named_like_a_copy_on_a_line_of_kernels_is_compute(tmp_path):
    data = gpu(("Stream #1(Kernel)", ("loop_copy_fusion", 0, 50_000, {"correlation_id": 1})))
    ledger = measure([read_one(tmp_path / "x", data)]).mean
    assert {entry.account.kind for entry in ledger.entries} == {"compute"}


def test_memset_event_is_a_memset(tmp_path):
    events = read_one(tmp_path / "x", gpu(("Stream #1(Memset)", ("Memset", 0, 5_000, {}))))
    assert events.work.what.tolist() == [MEMSET]


def tpu(*operations, pending=(), **lines):
    plane = make.Plane("/device:TPU:0", device_type_string="TPU v9 pretend")
    for name, events in lines.items():
        plane.line(name.replace("_", " "), 0, *events)
    plane.line("XLA Ops", 0, *operations)
    plane.line("TC Overlay", 0, ("overlay", 0, 10**9, {}))
    plane.line("_counters_", 0, ("counter", 0, 10**9, {}))
    if pending:
        plane.line("Async XLA Ops", 0, *pending)
    return make.xspace(plane)


def collectives(events):
    """(start, stop, name) of the collectives."""
    work = events.work
    return sorted((int(work.start[row]), int(work.stop[row]), item.name) for row, item in work.collectives.items())


def test_asynchronous_line_repeats_pairs_and_adds_other_operations(tmp_path):
    start = ("%all-gather-start.1 = f32[8] all-gather-start(f32[4] %a)", 0, 1_000, {})
    done = ("%all-gather-done.5 = f32[8] all-gather-done(f32[8] %all-gather-start.1)", 80_000, 20_000, {})
    pending = [
        ("all-gather-start.1", 0, 1_000, {"flow": 7}),
        ("all-gather-done.5", 80_000, 20_000, {"flow": 7}),
        ("reduce-scatter-start.2", 10_000, 1_000, {"flow": 8}),
        ("reduce-scatter-done.2", 60_000, 5_000, {"flow": 8}),
        ("all-reduce.3", 30_000, 15_000, {}),
    ]
    events = read_one(tmp_path / "x", tpu(start, done, ("fusion.1", 1_000, 70_000, {}), pending=pending))
    assert collectives(events) == [(0, 100, "all_gather"), (10, 65, "reduce_scatter"), (30, 45, "all_reduce")]
    assert events.window == (0, 100)


def test_derived_lines_and_counters_are_not_work(tmp_path):
    events = read_one(tmp_path / "x", tpu(("fusion.1", 0, 1_000, {})))
    assert len(events.work) == 1


def test_infeed_and_outfeed_are_copies(tmp_path):
    operations = [("infeed.1", 0, 10_000, {}), ("fusion.2", 10_000, 5_000, {}), ("outfeed.3", 15_000, 2_000, {})]
    ledger = measure([read_one(tmp_path / "x", tpu(*operations))]).mean
    accounts = {str(account): ns for account, ns in ledger.by_account().items()}
    assert (accounts["copy/h2d"], accounts["copy/d2h"]) == (10, 2)


def test_steps_come_from_their_line_or_from_modules(tmp_path):
    operations = [(f"fusion.{index}", 100_000 * index, 90_000, {}) for index in range(4)]
    steps = [(str(index + 7), 100_000 * index, 95_000, {"step_num": index + 7}) for index in range(4)]
    stated = read_one(tmp_path / "a", tpu(*operations, Steps=steps))
    assert [mark.label for mark in stated.marks] == ["7", "8", "9", "10"]
    modules = [("jit_train_step(1234)", 100_000 * index, 95_000, {}) for index in range(4)]
    inferred = read_one(tmp_path / "b", tpu(*operations, XLA_Modules=modules))
    assert [mark.label for mark in inferred.marks] == ["0", "1", "2", "3"]
    assert stated.inferred is None
    assert inferred.inferred
    assert "jit_train_step" in inferred.inferred.evidence


def test_tpu_lines_are_named_as_unproven(tmp_path):
    assert any(note.startswith("experimental: TPU") for note in read_one(tmp_path / "x", tpu(("a.1", 0, 1, {}))).notes)


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"gpu_device_name": "Pretend H"}, "Pretend H"),
        ({"device_vendor": "AMD", "compute_cap_major": 9, "compute_cap_minor": 4, "core_count": 304,
          "memory_size": 206141652992, "clock_rate": 2100000},
         "AMD Instinct MI300X (by its properties)"),
        ({"device_vendor": "Nvidia", "compute_cap_major": 9, "compute_cap_minor": 0, "core_count": 132,
          "memory_size": 85 * 10**9, "clock_rate": 1980000},
         "Nvidia GPU, compute capability 9.0, 132 cores, 79 GiB, 1980 MHz"),
        ({"device_vendor": "AMD"}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_device_is_named_by_its_stats(facts, name, tmp_path):
    plane = make.Plane("/device:GPU:0", **facts)
    plane.line("Stream #1", 0, ("k", 0, 1_000, {}))
    assert read_one(tmp_path / "x", make.xspace(plane)).device == name


def test_calls_join_the_thread_with_the_shortest_annotations(tmp_path):
    """A waiting thread contains the calls as well; a third crosses them, and a fourth lacks one."""
    plane = make.Plane("/device:GPU:0")
    plane.line("Stream #1", 0, *(("k", 500_000 + 10_000 * n, 1_000, {"correlation_id": n}) for n in (1, 2)))
    host = make.Plane("/host:CPU")
    host.line("waits", 0, ("block", 0, 400_000, {}), ident=1)
    host.line("launches", 0, ("Execute", 90_000, 30_000, {}), ("Execute", 190_000, 30_000, {}), ident=2)
    host.line("crosses", 0, ("other", 95_000, 10_000, {}), ("other", 180_000, 90_000, {}), ident=3)
    host.line("lacks", 0, ("other", 90_000, 30_000, {}), ident=4)
    calls = [("cuLaunchKernel", 100_000 * n, 10_000, {"correlation_id": n}) for n in (1, 2)]
    host.line("Host Threads/77", 0, *calls, ident=77)
    events = read_one(tmp_path / "x", make.xspace(plane, host))
    parents = {events.names[events.host.name[events.host.parent[row]]] for row in events.work.call}
    assert parents == {"Execute"}
    assert len(set(events.host.thread.tolist())) == 2
