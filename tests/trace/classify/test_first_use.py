"""First uses by their length: the cudaFree that creates a context, the first batch; not long calls that recur."""

import pytest

from tests.trace_maker import MAIN, trace, write
from trainyard.ledger import Account
from trainyard.trace.classify.context import build_context
from trainyard.trace.measure import measure, read

MS = 1_000_000


def causes_of(folder, host, device=(), marks=()):
    """(name, start in ms) -> cause of each host span that has one."""
    document = trace(device=[("gemm", 7, 0, MS, None), *device], host=host, marks=marks)
    (events,) = read([write(folder, document)])
    context = build_context(events)
    return {
        (events.names[name], round((start - events.span[0]) / MS)): context.causes[cause]
        for name, start, cause in zip(events.host.name, events.host.start, context.cause)
        if cause >= 0
    }


def calls(name, lengths_ms, category="cuda_runtime", pause_ms=1, begin_ms=0):
    """Spans of these lengths one after the other."""
    spans, now = [], begin_ms * MS
    for length in lengths_ms:
        spans.append((name, MAIN, now, now + int(length * MS), category))
        now += int((length + pause_ms) * MS)
    return spans


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([6_000, 0.1, 0.1, 0.1], "launch_gap/init"),
        ([20, 0.1, 0.1, 0.1], "launch_gap/init"),
        ([20, 0.1, 20, 0.1], "launch_gap/alloc"),  # it recurs
        ([0.9, 0.01, 0.01, 0.01], "launch_gap/alloc"),  # too short to matter
        ([2, 0.5, 0.5, 0.5], "launch_gap/alloc"),  # within the spread of allocations
        ([0.1, 0.1, 0.1, 20], "launch_gap/alloc"),  # not the first one
    ],
)
def test_a_first_free_many_times_as_long_is_initialisation(tmp_path, lengths, expected):
    causes = causes_of(tmp_path, calls("cudaFree", lengths))
    longest = max(range(len(lengths)), key=lambda index: lengths[index])
    (key,) = [key for key in causes if key == ("cudaFree", round(sum(lengths[:longest]) + longest))]
    assert causes[key] == expected


def test_a_lone_call_is_initialisation_only_early_and_long(tmp_path):
    last = calls("cudaEventQuery", [1], begin_ms=1_000)
    early = causes_of(tmp_path, [*calls("cudaFree", [50]), *last])
    assert early == {("cudaFree", 0): "launch_gap/init"}
    late = causes_of(tmp_path, [*calls("cudaFree", [50], begin_ms=900), *last])
    assert late == {("cudaFree", 900): "launch_gap/alloc"}
    short = causes_of(tmp_path, [*calls("cudaFree", [9]), *last])
    assert short == {("cudaFree", 0): "launch_gap/alloc"}
    marked = causes_of(
        tmp_path, [*calls("cudaFree", [50], begin_ms=200), *last], marks=[("0", 0, 100 * MS), ("1", 100 * MS, 900 * MS)]
    )
    assert marked == {("cudaFree", 200): "launch_gap/alloc"}  # in the second step


def test_the_first_batch_starts_the_workers(tmp_path):
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    causes = causes_of(tmp_path, calls(name, [800, 1, 1, 1], "user_annotation"))
    assert list(causes.values()) == ["launch_gap/init", "data_wait", "data_wait", "data_wait"]
    slow = causes_of(tmp_path, calls(name, [800, 300, 1, 300], "user_annotation"))
    assert set(slow.values()) == {"data_wait"}


def test_a_long_first_op_is_initialisation_unless_it_waits(tmp_path):
    ops = calls("aten::conv2d", [500, 0.2, 0.2, 0.2], "cpu_op")
    assert causes_of(tmp_path, ops) == {("aten::conv2d", 0): "launch_gap/init"}
    sync = ("cudaStreamSynchronize", MAIN, MS, 499 * MS, "cuda_runtime")
    assert causes_of(tmp_path, [*ops, sync]) == {("cudaStreamSynchronize", 1): "launch_gap/sync"}


def test_a_wait_inside_another_wait_counts_once(tmp_path):
    ops = calls("aten::conv2d", [500, 0.2, 0.2, 0.2], "cpu_op")
    waits = [
        ("cudaDeviceSynchronize", MAIN, MS, 250 * MS, "cuda_runtime"),
        ("wait_for_batch", MAIN, 2 * MS, 249 * MS, "user_annotation"),
        ("cudaStreamSynchronize", MAIN, 3 * MS, 248 * MS, "cuda_runtime"),
    ]
    # 250 of 500 ms are not waits; 5 ms would be too short.
    assert causes_of(tmp_path, [*ops, *waits])["aten::conv2d", 0] == "launch_gap/init"


def test_a_cause_inside_initialisation_is_kept_if_it_waits(tmp_path):
    ops = calls("aten::linear", [900, 0.2, 0.2, 0.2], "cpu_op")
    inner = [
        ("cudaFree", MAIN, MS, 700 * MS, "cuda_runtime"),
        ("cudaDeviceSynchronize", MAIN, 701 * MS, 702 * MS, "cuda_runtime"),
    ]
    causes = causes_of(tmp_path, [*ops, *inner, *calls("cudaEventQuery", [1], begin_ms=9_000)])
    assert causes["cudaFree", 1] == "launch_gap/init"
    assert causes["cudaDeviceSynchronize", 701] == "launch_gap/sync"


def test_idle_time_of_initialisation_has_its_own_account(tmp_path):
    """Context creation of 6 s and a library of 3.1 s, as in a profile of warm-up steps."""
    fresh = ("fresh_kernel", 7, 9_200 * MS, 9_201 * MS, 6_050 * MS, {"launch_ns": 3_100 * MS})
    later = [("gemm", 7, (9_300 + at) * MS, (9_310 + at) * MS, (9_299 + at) * MS) for at in range(0, 100, 20)]
    document = trace(
        device=[("gemm", 7, 0, MS, 0), fresh, *later], host=calls("cudaFree", [6_000, 0.1, 0.1, 0.1], begin_ms=2)
    )
    mean = measure(read([write(tmp_path, document)])).mean
    by_account = {str(account): ns for account, ns in mean.by_account().items()}
    assert by_account["launch_gap/init"] == 9_100 * MS
    assert by_account.get("launch_gap/alloc", 0) <= MS


COMPILED = "Torch-Compiled Region: 0/0"


def test_compilation_of_ops_is_neither_compute_nor_first_use(tmp_path):
    """A step in which a region is compiled, which runs ops on fake tensors in the region's first call."""
    ms = 1_000_000
    step = 4 * ms
    rows = []
    for number in range(12):
        at = number * step
        rows += [(COMPILED, MAIN, at, at + ms, "cpu_op"), ("aten::mm", MAIN, at, at + ms // 2, "cpu_op")]
    at = 12 * step
    rows += [
        (f"{COMPILED[:-1]}1", MAIN, at, at + 60 * ms, "cpu_op"),
        ("dynamo", MAIN, at + ms, at + 51 * ms, "cpu_op"),
        ("aten::mm", MAIN, at + 2 * ms, at + 40 * ms, "cpu_op"),
        ("aten::mm", MAIN, at + 52 * ms, at + 53 * ms, "cpu_op"),
    ]
    rows += [("aten::mm", MAIN, at + 61 * ms, at + 62 * ms, "cpu_op")]
    ledger = measure(read([write(tmp_path, trace([], rows))]), "all").mean
    assert {str(account): ns for account, ns in ledger.by_account().items()} == {
        "compute/matmul": 8 * ms,
        "launch_gap/compile": 50 * ms,
        "launch_gap/launch": ledger.by_account()[Account.parse("launch_gap/launch")],
        "launch_gap/python": ledger.by_account()[Account.parse("launch_gap/python")],
    }
