"""Devices of one process: each device that it keeps busy is a rank."""

import pytest

from tests.trace_maker import trace, write
from trainyard.trace.measure import measure_files
from trainyard.trace.readers.kineto.reader import Kineto


def several_devices(devices, lengths=(), **facts) -> dict:
    """One process with a kernel on each of `devices`, of the length in `lengths` or 1 µs."""
    documents = [
        trace([("gemm", 7, 500 * index, 500 * index + (lengths[index] if lengths else 1000), 0)], device_index=device)
        for index, device in enumerate(devices)
    ]
    document = trace(**facts, devices=len(devices))
    for index, other in enumerate(documents):
        for event in other["traceEvents"]:
            event["args"]["correlation"] += 10 * index
        document["traceEvents"] += other["traceEvents"]
    return document


@pytest.mark.parametrize(
    ("facts", "devices", "ranks", "world"),
    [
        ({}, [0, 1], [0, 1], 0),
        ({}, [2, 5], [2, 5], 0),
        ({"rank": 0, "world": 1}, [0, 1, 2], [0, 1, 2], 3),
        ({"rank": 0, "world": 4}, [0, 1, 2, 3], [0, 1, 2, 3], 16),
        ({"rank": 0, "world": 2}, [0, 1], [0, 1], 4),
        ({"rank": 0, "world": 4}, [0, 1], [0, 1], 8),
        ({"rank": 3, "world": 4}, [6, 7], [6, 7], 8),
        ({"rank": 1, "world": 2}, [0, 1], [2, 3], 4),
    ],
)
def test_each_busy_device_is_a_rank(tmp_path, facts, devices, ranks, world):
    events = Kineto().read(write(tmp_path, several_devices(devices, **facts)))
    assert [(rank.rank, rank.device_index, rank.world, len(rank.work)) for rank in events] == [
        (rank, device, world, 1) for rank, device in zip(ranks, devices)
    ]
    assert sum("device" in note for rank in events for note in rank.notes) == 1


def test_devices_of_a_merged_file_without_launches_are_the_ranks(tmp_path):
    document = several_devices([0, 1, 2, 3], rank=0, world=4)
    document["traceEvents"] = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
    events = Kineto().read(write(tmp_path, document))
    assert [(rank.rank, rank.world) for rank in events] == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_processes_with_several_devices_are_one_job(tmp_path):
    files = [
        write(tmp_path, several_devices([2 * rank, 2 * rank + 1], rank=rank, world=2), f"rank{rank}.json")
        for rank in range(2)
    ]
    measured = measure_files(files)
    assert [ledger.scope.ranks for ledger in measured.by_rank] == [(0,), (1,), (2,), (3,)]
    assert measured.world == 4


def test_collectives_are_numbered_by_device(tmp_path):
    document = several_devices([0, 1], rank=1, world=2)
    for event in document["traceEvents"]:
        if event["cat"] == "kernel":
            event["args"] |= {"Collective name": "send", "Process Group Ranks": "[0, 1]", "Dst Rank": 0}
    first, second = Kineto().read(write(tmp_path, document))
    assert (first.work.collectives[0].ranks, first.work.collectives[0].peer) == ((0, 2), 0)
    assert (second.work.collectives[0].ranks, second.work.collectives[0].peer) == ((1, 3), 1)


@pytest.mark.parametrize("facts", [{}, {"rank": 1, "world": 4}])
def test_brief_work_counts_for_the_busiest_device(tmp_path, facts):
    (events,) = Kineto().read(write(tmp_path, several_devices([0, 3, 1], [40, 1000, 49], **facts)))
    assert (events.device_index, len(events.work)) == (3, 3)
    assert {"device 0 stream 7", "device 3 stream 7"} < set(events.streams)
    (note,) = [note for note in events.notes if "device 3" in note]
    assert "1 event on device 0, 1 event on device 1" in note


def test_brief_work_beside_several_busy_devices(tmp_path):
    events = Kineto().read(write(tmp_path, several_devices([0, 1, 2], [1000, 1100, 20])))
    assert [(rank.device_index, len(rank.work)) for rank in events] == [(0, 1), (1, 2)]
