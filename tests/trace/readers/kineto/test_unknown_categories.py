"""Device work of unknown categories is read if the file shows that it ran on a device, and named in a note."""

import pytest

from tests.trace_maker import trace, write
from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, DRAWN, KERNEL, MEMSET, OP
from trainyard.trace.readers.kineto.categories import (
    FIRST_DEVICE_CODE,
    NO_WORK,
    STREAM_WAIT_CODE,
    UNKNOWN_WORK,
    code_of_category,
)
from trainyard.trace.readers.kineto.reader import Kineto

KERNELS = [(f"kernel{index}", 7, 100 * index, 100 * index + 60, 100 * index - 20) for index in range(1, 7)]


def document(category: str, count: int, **changes) -> dict:
    """Six kernels, of which `count` are of `category` and have these args instead (None: without it)."""
    edited = trace(KERNELS)
    kernels = [event for event in edited["traceEvents"] if event["cat"] == "kernel"]
    for event in kernels[:count]:
        event["cat"] = category
        event["args"] = {key: value for key, value in (event["args"] | changes).items() if value is not None}
    return edited


def label(edited: dict, pid: int, text: str) -> dict:
    edited["traceEvents"].append({"name": "process_labels", "ph": "M", "pid": pid, "tid": 0, "args": {"labels": text}})
    return edited


def test_unknown_category_with_a_stream_is_work(tmp_path):
    (known,) = Kineto().read(write(tmp_path, document("kernel", 0)))
    (events,) = Kineto().read(write(tmp_path, document("gpu_op", 4)))
    assert events.work.start.tolist() == known.work.start.tolist()
    assert events.work.call.tolist() == known.work.call.tolist()
    assert events.work.what.tolist() == [KERNEL] * 6
    (note,) = [note for note in events.notes if note.startswith("Unknown categories:")]
    assert "4 events (240 ns) of 'gpu_op'" in note
    assert "read as kernels" in note


def test_process_label_shows_a_device(tmp_path):
    edited = label(document("new_op", 4, stream=None, device=None), 0, "XPU 0")
    (events,) = Kineto().read(write(tmp_path, edited))
    assert len(events.work) == 6
    assert events.device_index == 0


@pytest.mark.parametrize("text", ["CPU", "python"])
def test_events_without_evidence_are_left_out_and_counted(tmp_path, text):
    edited = label(document("new_op", 2, stream=None), 0, text)
    (events,) = Kineto().read(write(tmp_path, edited))
    assert len(events.work) == 4
    (note,) = [note for note in events.notes if note.startswith("Unknown categories:")]
    assert "2 events (120 ns) of 'new_op'" in note
    assert "left out" in note


@pytest.mark.parametrize("category", ["hpu_op", "mtia_workloadd", "glow_op"])
def test_trace_with_only_unread_device_categories_is_refused(tmp_path, category):
    with pytest.raises(BadFile) as refused:
        Kineto().read(write(tmp_path, document(category, 6, stream=None)))
    assert category in refused.value.message


@pytest.mark.parametrize(
    ("category", "code"),
    [
        ("cpu_op", OP),
        ("Operator", OP),
        ("privateuse1_runtime", CALL),
        ("xpu_driver", CALL),
        ("MTIA_runtime", CALL),
        ("mtia_ccp_events", FIRST_DEVICE_CODE + KERNEL),
        ("concurrent_kernel", FIRST_DEVICE_CODE + KERNEL),
        ("mlu_memcpy", FIRST_DEVICE_CODE + COPY),
        ("gcu_memset", FIRST_DEVICE_CODE + MEMSET),
        ("mlu_user_annotation", FIRST_DEVICE_CODE + DRAWN),
        ("cuda_sync", STREAM_WAIT_CODE),
        ("xpu_sync", NO_WORK),
        ("overhead", NO_WORK),
        ("Trace", NO_WORK),
        ("hpu_op", FIRST_DEVICE_CODE + UNKNOWN_WORK),
        ("", FIRST_DEVICE_CODE + UNKNOWN_WORK),
        (None, FIRST_DEVICE_CODE + UNKNOWN_WORK),
    ],
)
def test_category_codes(category, code):
    assert code_of_category(category) == code


def test_device_work_of_other_vendors_is_read(tmp_path):
    edited = document("mtia_ccp_events", 6)
    for event in edited["traceEvents"]:
        event["cat"] = "mtia_runtime" if event["cat"] == "cuda_runtime" else event["cat"]
    (events,) = Kineto().read(write(tmp_path, edited))
    assert len(events.work) == 6
    assert (events.work.call >= 0).all()


@pytest.mark.parametrize("key", ["WARNING", "ERROR"])
def test_messages_about_lost_events_become_notes(tmp_path, key):
    edited = document("kernel", 0)
    edited[key] = ["Dropped 1234 activity records", "unrelated", "Profiler overflow", "Profiler overflow"]
    (events,) = Kineto().read(write(tmp_path, edited))
    notes = [note for note in events.notes if note.startswith("The profiler lost events")]
    assert [note.rpartition(": ")[2] for note in notes] == ["Dropped 1234 activity records", "Profiler overflow"]


def test_unusual_messages_of_the_profiler_are_harmless(tmp_path):
    edited = document("kernel", 0) | {"WARNING": {"dropped": 1}, "ERROR": [None, 5, ["dropped"], "lost " * 500]}
    (events,) = Kineto().read(write(tmp_path, edited))
    assert any("WARNING is not in Kineto's format" in note for note in events.notes)
    assert max(map(len, events.notes)) < 400
