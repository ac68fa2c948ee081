"""Real files of rocprofv3 and neuron-profile: the ledgers equal the files' own totals, and sums that are computed here
from the JSON by another path."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from trainyard.cli.main import answer
from trainyard.trace.measure import measure, read

ROCPROF = "rocprofv3/908_results.json.gz"
NEURON = [f"neuron/profile_128x128x{columns}.json.gz" for columns in (184, 376, 1000)]
WORK_KINDS = ("compute", "straggler", "comm", "copy")


def working_ns(ledger) -> int:
    """ns of a ledger in which the device worked."""
    return sum(entry.ns for entry in ledger.entries if entry.account.kind in WORK_KINDS)


def swept_ns(intervals) -> int:
    """Length of the union of (start, stop) intervals, by counting the open ones at each endpoint."""
    edges = sorted([(start, 1) for start, _ in intervals] + [(stop, -1) for _, stop in intervals])
    total = opened = before = 0
    for at, change in edges:
        total += (at - before) * (opened > 0)
        opened, before = opened + change, at
    return total


# --- rocprofv3


@pytest.fixture(scope="module")
def rocprof(foreign_file):
    """(the file's only process as JSON, the events, the measured trace)."""
    path = foreign_file(ROCPROF)
    events = read([path])
    document = json.loads(gzip.decompress(path.read_bytes()))
    return document["rocprofiler-sdk-tool"][0], events[0], measure(events, "all")


def test_rocprof_wall_and_busy_time_are_exact(rocprof):
    process, events, measured = rocprof
    dispatches = process["buffer_records"]["kernel_dispatch"]
    times = [(record["start_timestamp"], record["end_timestamp"]) for record in dispatches]
    wall_ns = max(stop for _, stop in times) - min(start for start, _ in times)
    assert measured.mean.wall_ns == wall_ns == 15_122_023_494
    assert working_ns(measured.mean) == swept_ns(times) == 4_233_112_334
    assert len(events.work) == len(dispatches) == 43_915
    assert sum(entry.ns for entry in measured.mean.entries) == wall_ns


def test_rocprof_kernels_have_the_names_of_the_file(rocprof):
    process, events, _ = rocprof
    symbols = {symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in process["kernel_symbols"]}
    expected = Counter()
    for record in process["buffer_records"]["kernel_dispatch"]:
        name = symbols[record["dispatch_info"]["kernel_id"]]
        expected[name] += record["end_timestamp"] - record["start_timestamp"]
    lengths = events.work.stop - events.work.start
    booked = np.bincount(events.work.name, weights=lengths, minlength=len(events.names))
    assert {name: ns for name, ns in zip(events.names, booked.astype(int).tolist()) if ns} == dict(expected)


def test_rocprof_communication_is_the_union_of_rccl_kernels(rocprof):
    process, _, measured = rocprof
    symbols = {symbol["kernel_id"]: symbol["kernel_name"] for symbol in process["kernel_symbols"]}
    times = [
        (record["start_timestamp"], record["end_timestamp"])
        for record in process["buffer_records"]["kernel_dispatch"]
        if "ncclDevKernel" in symbols[record["dispatch_info"]["kernel_id"]]
    ]
    assert measured.mean.unions["comm"] == swept_ns(times)


def test_rocprof_device_host_and_streams_are_those_of_the_file(rocprof):
    process, events, measured = rocprof
    records = process["buffer_records"]["kernel_dispatch"]
    agents = {agent["id"]["handle"]: agent for agent in process["agents"]}
    (used,) = {record["dispatch_info"]["agent_id"]["handle"] for record in records}
    assert events.device == agents[used]["product_name"]
    assert events.device_index in (-1, agents[used]["logical_node_type_id"])
    assert events.host_name == process["metadata"]["node"]["hostname"]
    assert set(events.streams) == {f"stream {record['stream_id']['handle']}" for record in records}
    assert not any("experimental" in note for note in measured.notes)


def test_rocprof_missing_dispatches_are_counted_in_text_and_json(foreign_file, tmp_path, capsys):
    document = json.loads(gzip.decompress(foreign_file(ROCPROF).read_bytes()))
    (process,) = document["rocprofiler-sdk-tool"]
    records = process["buffer_records"]
    records["kernel_dispatch"] = records["kernel_dispatch"][:500] + records["kernel_dispatch"][1734:2000]
    process["kernel_symbols"] = []
    path = tmp_path / "lossy.json"
    path.write_text(json.dumps(document))
    for command in (["trace", str(path)], ["trace", str(path), "--json"]):
        assert answer(command) == 0
        assert "1,234 kernels" in " ".join(capsys.readouterr().out.split())


# --- Neuron


@pytest.fixture(scope="module", params=NEURON)
def neuron(request, foreign_file):
    """(the file as JSON, the events, the measured trace)."""
    path = foreign_file(request.param)
    events = read([path])
    return json.loads(gzip.decompress(path.read_bytes())), events[0], measure(events, "all")


def timeline(document, chosen) -> np.ndarray:
    """For each ns of the program, whether a chosen instruction or packet runs."""
    is_active = np.zeros(document["metadata"][0]["last_hw_timestamp"] + 1, bool)
    for record in chosen:
        is_active[record["timestamp"] : record["timestamp"] + record["duration"]] = True
    return is_active


def packets_of(document) -> list[dict]:
    return [record for record in document["dma"] if record["aggregated"] == "no"]


def working_of(document) -> list[dict]:
    """The instructions that the file does not count as waits, by its own list of active intervals."""
    active = [(entry["engine"], entry["start_ts"], entry["end_ts"]) for entry in document["active_time"]]
    return [
        record
        for record in document["instruction"]
        if any(
            record["label"].lower().startswith(engine) and start <= record["timestamp"] < stop
            for engine, start, stop in active
        )
    ]


def test_neuron_active_time_is_that_of_the_file(neuron):
    document, _, measured = neuron
    (summary,) = document["summary"]
    expected = timeline(document, [*working_of(document), *packets_of(document)])
    active_ns = working_ns(measured.mean)
    assert active_ns == int(expected.sum())
    # Times and durations are rounded down to a ns: at most a ns for each stretch of activity.
    stretches = int((np.diff(expected.astype(np.int8)) > 0).sum())
    assert 0 <= summary["total_active_time"] * 1e9 - active_ns <= stretches
    assert 0.002 < active_ns / measured.mean.wall_ns < 0.005
    assert measured.mean.wall_ns == pytest.approx(summary["total_time"] * 1e9, rel=1e-3)
    assert not any("total_active_time" in note or "experimental" in note for note in measured.notes)


@pytest.mark.parametrize("engine", ["tensor", "vector", "scalar", "gpsimd", "sync"])
def test_neuron_engine_is_a_stream_with_its_own_active_time(neuron, engine):
    document, events, _ = neuron
    streams = [index for index, name in enumerate(events.streams) if name.lower().startswith(engine)]
    rows = np.isin(events.work.stream, streams)
    times = list(zip(events.work.start[rows].tolist(), events.work.stop[rows].tolist()))
    stated_ns = document["summary"][0][f"{engine}_engine_active_time"] * 1e9
    assert 0 <= stated_ns - swept_ns(times) <= len(times)


def test_neuron_queues_are_streams_with_the_bytes_of_the_file(neuron):
    document, events, _ = neuron
    rows = [row for row in range(len(events.work)) if events.names[events.work.name[row]].startswith("DMA ")]
    queues = {events.streams[events.work.stream[row]] for row in rows}
    assert len(queues) == len({record["subgroup"] for record in packets_of(document)})
    (summary,) = document["summary"]
    stated = summary["static_dma_size"] + summary["software_dynamic_dma_size"]
    assert int(events.work.bytes[rows].sum()) == stated
    assert len(rows) == summary["static_dma_packet_count"] + summary["software_dynamic_dma_packet_count"]
    times = [(events.work.start[row], events.work.stop[row]) for row in rows]
    assert 0 <= summary["dma_active_time"] * 1e9 - swept_ns(times) <= len(rows)


def test_neuron_waits_are_idle_and_not_compute(neuron):
    _, events, measured = neuron
    assert not {events.names[name].split()[0] for name in events.work.name.tolist()} & {"EVENT_SEMAPHORE"}
    idle_ns = sum(entry.ns for entry in measured.mean.entries if entry.account.kind == "launch_gap")
    assert idle_ns == measured.mean.wall_ns - working_ns(measured.mean)
    assert {str(entry.account) for entry in measured.mean.entries if entry.account.kind == "launch_gap"} == {
        "launch_gap/queue"
    }


def test_neuron_products_belong_to_their_hlo_op_and_layer(neuron):
    document, events, measured = neuron
    products = [
        record
        for record in document["instruction"]
        if record["opcode"] in ("MATMUL", "LDWEIGHTS") and record["instruction_type"] != "TRANSPOSE"
    ]
    assert products
    for record in products:
        (row,) = np.flatnonzero(
            (events.work.start == record["timestamp"])
            & (events.work.stop - events.work.start == record["duration"])
            & (np.array(events.streams)[events.work.stream] == record["label"])
        )
        around, host_row = [], events.work.call[row]
        while host_row >= 0:
            around.append(events.names[events.host.name[host_row]])
            host_row = events.host.parent[host_row]
        assert {"class::matmul", record["hlo_name"].split()[0].lstrip("%"), record["layer"]} <= set(around)
    assert any(str(entry.account) == "compute/matmul" for entry in measured.mean.entries)


def test_neuron_warnings_of_the_profiler_are_notes(neuron):
    document, _, measured = neuron
    for warning in document["warnings"]:
        assert any(warning["message"] in note for note in measured.notes)


def test_the_folder_of_neuron_profiles_is_three_cores(foreign_file, capsys):
    folder = foreign_file(NEURON[0]).parent
    assert answer(["trace", str(folder), "--json"]) == 0
    ledgers = json.loads(capsys.readouterr().out)["ledgers"]
    assert [ledger["scope"]["ranks"] for ledger in ledgers[:-1]] == [[0], [1], [2]]


def test_the_metric_store_is_refused(foreign_file, capsys):
    assert answer(["trace", str(foreign_file("neuron/global_metric_store.json"))]) == 2
    printed = capsys.readouterr().err
    assert "[bad-file]" in printed
    assert "metric store" in printed
