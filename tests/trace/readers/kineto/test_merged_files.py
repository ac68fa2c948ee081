"""Files that were merged from several ranks' files are separated into the same ranks."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.merged_traces import SHAPES, join
from tests.trace_maker import MAIN, trace, write
from trainyard.errors import BadFile
from trainyard.events import Events
from trainyard.trace.measure import measure_files
from trainyard.trace.readers.kineto.reader import Kineto


def columns(events: Events) -> dict:
    """The events by their names' texts, without the file's name."""
    names = np.array([*events.names, ""], object)
    work, host = events.work, events.host
    return {
        "rank": events.rank,
        "device": events.device_index,
        "marks": events.marks,
        "work": [work.start.tolist(), work.stop.tolist(), names[work.name].tolist(), work.call.tolist()],
        "links": [work.op.tolist(), work.awaits.tolist(), work.what.tolist()],
        "host": [host.start.tolist(), host.stop.tolist(), names[host.name].tolist(), host.parent.tolist()],
        "collectives": sorted((row, value.name, value.ranks) for row, value in work.collectives.items()),
    }


@st.composite
def documents(draw: st.DrawFn) -> list[dict]:
    """Documents of two to four ranks, with launches, ops that share External ids, and marks."""
    ranks = draw(st.integers(2, 4))
    several_hosts = draw(st.booleans())
    merged = []
    for rank in range(ranks):
        lengths = draw(st.lists(st.integers(1, 4000), min_size=3, max_size=8))
        device, host, at = [], [], 1000 * rank
        for index, length in enumerate(lengths):
            launch = at
            start = launch + draw(st.integers(5, 3000))
            device.append((f"kernel{index}", 7, start, start + length, launch, {"External id": index + 90_001}))
            host.append(("aten::mm", MAIN, launch - 2, launch + 3, "cpu_op", {"External id": index + 90_001}))
            at = start + length + draw(st.integers(1, 2000))
        marks = [("1", 1000 * rank - 5 if rank else 0, at)]
        index = 0 if several_hosts else rank
        document = trace(device, host, marks, rank=rank, world=ranks, device_index=index)
        for event in document["traceEvents"]:
            if event["cat"] != "kernel":
                event["pid"] = 500 + rank
        merged.append(document)
    return merged


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(documents(), st.sampled_from(sorted(SHAPES)))
def test_merged_file_equals_its_ranks(tmp_path: Path, ranks: list[dict], shape: str):
    pids = {event["pid"] for document in ranks for event in document["traceEvents"] if event["cat"] == "kernel"}
    if shape in ("joined", "processes named") and len(pids) < len(ranks):
        return  # two hosts' devices have one number: see below
    apart = [Kineto().read(write(tmp_path, document))[0] for document in ranks]
    merged = Kineto().read(write(tmp_path, SHAPES[shape](ranks)))
    assert [columns(events) for events in merged] == [columns(events) for events in apart]
    assert f"The file holds {len(ranks)} ranks" in merged[0].notes[0]
    assert len({events.world for events in merged}) == 1


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("folder", ["v100_dlrm_8ranks", "cpu_gloo_3ranks"])
def test_merged_public_traces_equal_their_ranks(public_trace, tmp_path, folder, shape):
    import gzip

    files = sorted(public_trace(folder).iterdir())[:4]
    texts = [gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes() for file in files]
    merged = SHAPES[shape]([json.loads(text) for text in texts])
    base = json.loads(texts[0]).get("baseTimeNanoseconds", 0)
    read = Kineto().read(write(tmp_path, merged | {"baseTimeNanoseconds": base}))
    assert [columns(events) for events in read] == [columns(Kineto().read(file)[0]) for file in files]


def test_joined_files_of_one_device_number_are_not_mixed_up(tmp_path):
    """Correlation ids collide and both ranks' kernels have one pid: nothing separates them."""
    kernels = [(f"kernel{index}", 7, 100 * index, 100 * index + 50, 100 * index - 10) for index in range(1, 9)]
    ranks = [trace(kernels, rank=rank, world=2) for rank in range(2)]
    for rank, document in enumerate(ranks):
        for event in document["traceEvents"]:
            event["pid"] = event["pid"] if event["cat"] == "kernel" else 500 + rank
    with pytest.raises(BadFile) as refused:
        Kineto().read(write(tmp_path, join(ranks)))
    assert "2 ranks" in refused.value.message
    assert "16 of its 16 device events" in refused.value.message


def test_one_process_with_a_rank_in_its_name_is_not_merged(tmp_path):
    document = trace(device=[("gemm", 7, 0, 100, 0)], rank=3, world=8)
    for pid in (0, 1):
        document["traceEvents"].append(
            {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "train_rank3"}}
        )
    (events,) = Kineto().read(write(tmp_path, document))
    assert (events.rank, events.world) == (3, 8)


def test_events_of_unrelated_processes_are_counted(tmp_path):
    ranks = [trace(device=[("gemm", 7, 0, 100, 0)], device_index=rank) for rank in range(2)]
    merged = SHAPES["shared pids"](ranks)
    merged["traceEvents"].append({"ph": "X", "cat": "cpu_op", "name": "x", "pid": 9, "tid": 9, "ts": 1, "dur": 1})
    events = Kineto().read(write(tmp_path, merged))
    assert [len(rank.host) for rank in events] == [1, 1]
    assert any(note.startswith("1 events of processes") for note in events[0].notes)


def test_ledgers_of_a_fused_job_equal_those_of_its_files(public_trace, tmp_path):
    """Without the header the clocks are aligned by collectives, to within their residual."""
    import gzip

    files = sorted(public_trace("v100_dlrm_8ranks").iterdir())
    merged = SHAPES["fusion"]([json.loads(gzip.decompress(file.read_bytes())) for file in files])
    fused = measure_files([write(tmp_path, merged)])
    apart = measure_files(files)
    assert fused.alignment.aligned == "collectives"
    assert abs(fused.mean.wall_ns - apart.mean.wall_ns) < 10_000
    difference = {
        account: abs(ns - fused.mean.by_account().get(account, 0)) for account, ns in apart.mean.by_account().items()
    }
    assert max(difference.values()) < 10_000
