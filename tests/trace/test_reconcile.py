"""HTA's and TraceLens' figures by their own rules: small cases, and the figures HTA 0.5.0 printed for public traces."""

import pytest

from tests.refused import refused
from tests.trace_maker import trace, write
from trainyard.errors import BadInput
from trainyard.trace import reconcile
from trainyard.trace.measure import read

US = 1000


def _events(folder, **document):
    (events,) = read([write(folder, trace(**document))])
    return events


def _us(figures):
    return {figure.name: figure.ns / US for figure in figures.figures}


MIXED = [
    ("gemm", 7, 0, 10 * US, 0),
    ("ncclDevKernel_AllReduce_Sum_f32", 8, 5 * US, 30 * US, 0),
    ("Memcpy HtoD (Pinned -> Device)", 9, 25 * US, 40 * US, 0),
    ("Memset (Device)", 7, 38 * US, 45 * US, 0),
    ("__amd_rocclr_copyBuffer", 7, 60 * US, 62 * US, 0),
    ("multimem_all_reduce_kernel", 8, 70 * US, 90 * US, 0),
]


def test_the_three_definitions_of_one_trace(tmp_path):
    events = _events(tmp_path, device=MIXED)
    assert _us(reconcile.hta(events)) == {
        "kernel_time": 90, "idle_time": 15 + 8, "compute_time": 10 + 2 + 20, "non_compute_time": 20 + 15,
        "communication_time": 25, "exposed_comm_time": 20,
    }  # fmt: skip
    assert _us(reconcile.tracelens(events)) == {
        "computation_time": 10 + 7 + 20, "exposed_comm_time": 20, "exposed_memcpy_time": 8 + 2, "busy_time": 67,
        "idle_time": 23, "total_time": 90, "total_comm_time": 25, "total_memcpy_time": 15 + 2,
    }  # fmt: skip
    assert reconcile.hta(events).overlap == reconcile.tracelens(events).overlap == 5 / 25


def test_without_communication_there_is_no_overlap(tmp_path):
    assert reconcile.hta(_events(tmp_path, device=MIXED[:1])).overlap is None


def test_hta_leaves_out_the_last_step_and_unlaunched_work(tmp_path):
    device = [
        ("gemm", 7, 100 * US, 110 * US, 1 * US),
        ("gemm", 7, 130 * US, 140 * US, None),
        ("gemm", 7, 150 * US, 170 * US, 49 * US),
        ("gemm", 7, 180 * US, 190 * US, 50 * US),
    ]
    two = [("1", 0, 50 * US), ("2", 50 * US, 90 * US)]
    assert _us(reconcile.hta(_events(tmp_path, device=device, marks=two)))["kernel_time"] == 70
    assert _us(reconcile.hta(_events(tmp_path, device=device, marks=two[:1])))["kernel_time"] == 90
    assert reconcile.hta(_events(tmp_path, device=device, marks=two)).window == (100 * US, 170 * US)


def test_hta_uses_the_device_side_mark_if_present(tmp_path):
    device = [("gemm", 7, 100 * US, 110 * US, 1 * US), ("gemm", 7, 120 * US, 150 * US, 60 * US)]
    document = trace(device=device, marks=[("1", 0, 50 * US), ("2", 50 * US, 90 * US)])
    drawn = {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": "ProfilerStep#2",
        "pid": 0,
        "tid": 7,
        "ts": 120,
        "dur": 30,
    }
    document["traceEvents"].append(drawn | {"args": {}})
    (events,) = read([write(tmp_path, document)])
    assert [(mark.label, mark.start, mark.stop) for mark in events.device_marks] == [("2", 120 * US, 150 * US)]
    assert _us(reconcile.hta(events))["kernel_time"] == 50


def test_hta_counts_a_kernel_within_one_us_as_negative(tmp_path):
    device = [("gemm", 7, 0, 1100, 0), ("gemm", 7, 2300, 2900, 0), ("gemm", 7, 3500, 5900, 0)]
    figures = _us(reconcile.hta(_events(tmp_path, device=device)))
    # [0, 1], [3, 2] and [4, 5]: 1 - 1 + 1 of 5.
    assert (figures["compute_time"], figures["idle_time"], figures["kernel_time"]) == (1, 4, 5)
    (exact,) = (figure.ns for figure in reconcile.tracelens(_events(tmp_path, device=device)).figures[:1])
    assert exact == 1100 + 600 + 2400


@pytest.mark.parametrize("tool", reconcile.TOOLS)
def test_a_trace_without_device_work_is_refused(tool, tmp_path):
    events = _events(tmp_path, host=[("aten::mm", 100, 0, 10, "cpu_op")])
    with refused(BadInput, "trace.json", {"hta": "HTA's", "tracelens": "TraceLens'"}[tool], "0 device operations"):
        reconcile.TOOLS[tool](events)


@pytest.mark.parametrize("tool", reconcile.TOOLS)
def test_each_differing_rule_is_a_sentence(tool, tmp_path):
    figures = reconcile.TOOLS[tool](_events(tmp_path, device=MIXED))
    assert figures.tool == tool
    assert all(sentence.endswith(".") for sentence in figures.differs)


# kernel_time, idle_time, compute_time, non_compute_time (µs) and comp_comm_overlap_pctg, as HTA 0.5.0 printed them.
PRINTED = {
    "a100_ddp_resnet": (435586, 338781, 75169, 21636, 14.31),
    "diff_control": (383404, 62119, 234760, 86525, 47.03),
    "diff_test": (628371, 46910, 429216, 152245, 68.8),
    "mi300_qwen_0.5b": (47085, 5537, 41548, 0, None),
    "mi300_resnet_ac": (56517, 1541, 17018, 37958, 22.45),
    "resnet50_loader0": (721601, 219798, 492770, 9033, None),
    "resnet50_loader4": (677173, 164699, 495912, 16562, None),
    "v100_dlrm_8ranks/rank-0": (13009, 6419, 1034, 5556, 4.5),
    "v100_dlrm_8ranks/rank-1": (18749, 6428, 1246, 11075, 2.47),
    "v100_dlrm_8ranks/rank-2": (11350, 7046, 1068, 3236, 7.88),
    "v100_dlrm_8ranks/rank-3": (18853, 8145, 1240, 9468, 3.31),
    "v100_dlrm_8ranks/rank-4": (16589, 8887, 1126, 6576, 0.56),
    "v100_dlrm_8ranks/rank-5": (16392, 9121, 1041, 6230, 0.64),
    "v100_dlrm_8ranks/rank-6": (11410, 7051, 1051, 3308, 7.56),
    "v100_dlrm_8ranks/rank-7": (10967, 8308, 1059, 1600, 9.51),
}


@pytest.mark.parametrize("name", PRINTED)
def test_hta_rules_reproduce_its_printed_figures(name, public_trace):
    (events,) = read([public_trace(f"{name}.json.gz")])
    figures = reconcile.hta(events)
    share = figures.overlap
    got = [figures.ns(name_) // US for name_ in ("kernel_time", "idle_time", "compute_time", "non_compute_time")]
    assert (*got, share if share is None else round(100 * share, 2)) == PRINTED[name]


def test_hta_assertion_corresponds_to_negative_time(public_trace):
    (events,) = read([public_trace("h100_qwen_0.5b.json.gz")])
    assert reconcile.hta(events).ns("non_compute_time") == -17 * US
