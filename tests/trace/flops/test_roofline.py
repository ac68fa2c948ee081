"""Attribution of FLOPs to kernels and ledgers, and the roofline table: exact cases, properties and public traces."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import MAIN, trace, write
from trainyard.machine import Claim, Device, RateCurve
from trainyard.trace.classify.kernels import Classified
from trainyard.trace.flops.attribution import apportion, sum_by_part_and_key
from trainyard.trace.flops.roofline import op_roofline
from trainyard.trace.measure import measure, read
from trainyard.trace.readers.nesting import nearest_ancestor
from trainyard.trace.top_kernels import top_work

SINGLE, HALF = "float", "c10::BFloat16"


def claim(value, unit="FLOP/s"):
    return Claim(value=value, unit=unit, source="this test")


# A peak of 1 FLOP/ns in bfloat16, half of that measured; 1 byte/ns.
DEVICE = Device(
    name="Pretend 9000",
    vendor="pretend",
    memory=claim(1e9, "bytes"),
    bandwidth=claim(1e9, "bytes/s"),
    peak={"float32": claim(2e8), "tf32": claim(4e8), "bfloat16": claim(1e9)},
    achieved={"matmul": RateCurve(points=((1.0, 5e8),), claim=claim(5e8))},
)


def op(name, start, stop, dims, types, values=(), thread=MAIN):
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": list(values) or [""] * len(dims)}
    return (name, thread, start, stop, "cpu_op", args)


def addmm(start, stop, m=8, k=10, n=5, kind=HALF, name="aten::addmm"):
    if name == "aten::linear":
        return op(name, start, stop, [[m, k], [n, k], [n]], [kind] * 3)
    return op(name, start, stop, [[n], [m, k], [k, n], [], []], [kind] * 3 + ["Scalar"] * 2, ["", "", "", "1", "1"])


def measured(tmp_path, **rows):
    return measure(read([write(tmp_path, trace(**rows))]))


def test_kernels_share_the_work_of_their_innermost_op(tmp_path):
    """linear around addmm: the two kernels of the product share its cost 3 : 1, linear's own kernel has zero."""
    host = [addmm(1000, 9000, name="aten::linear"), addmm(2000, 5000)]
    device = [("gemm", 7, 20000, 20300, 3000), ("splitKreduce", 7, 20300, 20400, 4000), ("pad", 7, 20400, 20500, 6000)]
    seen = measured(tmp_path, host=host, device=device)
    flops, moved = 2 * 8 * 10 * 5, 2 * (5 + 80 + 50 + 40)
    assert seen.ranks[0].flops.tolist() == [600, 200, 0]
    assert seen.ranks[0].bytes.tolist() == [263, 87, 0]
    (entry,) = (entry for entry in seen.mean.entries if entry.account.what == "matmul")
    assert (entry.flops, entry.bytes) == (flops, moved)
    rows = {row.op: row for row in op_roofline(seen, DEVICE).rows}
    assert rows["aten::addmm"].count == 1
    assert rows["aten::addmm"].flops == flops
    assert rows["aten::linear"].flops is None
    assert rows["aten::linear"].ns == 100


def test_reachable_time_is_the_longer_of_compute_and_memory(tmp_path):
    host = [
        addmm(1000, 2000, m=100, k=100, n=100),
        op("aten::add", 3000, 4000, [[50, 20], [20], []], [SINGLE, SINGLE, "Scalar"], ["", "", "1"]),
        op("aten::mystery", 5000, 6000, [[3]], [SINGLE]),
    ]
    device = [("gemm", 7, 10_000_000, 15_000_000, 1500), ("add", 7, 15_000_000, 15_010_000, 3500),
              ("what", 7, 15_010_000, 15_020_000, 5500)]  # fmt: skip
    seen = measured(tmp_path, host=host, device=device)
    table = op_roofline(seen, DEVICE)
    product, add, mystery = table.rows
    assert (product.op, product.shape) == ("aten::addmm", "bfloat16[100] bfloat16[100,100] bfloat16[100,100]")
    # Two million FLOPs at half a FLOP a ns: the measured best, not the peak.
    assert (product.bound, product.reachable_ns, product.loss_ns) == ("compute", 4_000_000, 1_000_000)
    assert product.flops_rate == pytest.approx(4e8)
    assert (add.bound, add.flops, add.bytes) == ("memory", 1000, 4 * (1000 + 20 + 1000))
    # A fifth of a FLOP a ns, the slowest peak: 5,000 ns. The bytes take longer.
    assert (add.reachable_ns, add.loss_ns) == pytest.approx((8080, 1920), abs=1)
    assert (mystery.op, mystery.bound, mystery.loss_ns, mystery.flops) == ("aten::mystery", "unknown", None, None)
    assert (table.known_ns, table.compute_ns) == (5_010_000, 5_020_000)
    assert {entry.flops for entry in seen.mean.entries if entry.account.what == "other"} == {None}
    bare = op_roofline(seen)
    assert "Pretend 9000" in bare.notes[0]
    assert all(row.reachable_ns is None and row.bound == "unknown" for row in bare.rows)
    assert next(row for row in bare.rows if row.op == "aten::addmm").flops_rate == product.flops_rate


@pytest.mark.parametrize(("kernel", "ns", "dtype"), [("sgemm", 20000, "float32"), ("sgemm", 3000, "tf32"),
                                                    ("xmma_gemm_tf32f32_x", 20000, "tf32")])  # fmt: skip
def test_tf32_is_detected_by_kernel_name_or_speed(tmp_path, kernel, ns, dtype):
    """800 FLOPs take at least 4000 ns in float32."""
    seen = measured(tmp_path, host=[addmm(1000, 2000, kind=SINGLE)], device=[(kernel, 7, 20000, 20000 + ns, 1500)])
    (row,) = op_roofline(seen, DEVICE).rows
    assert row.dtype == dtype
    assert row.reachable_ns == (4000 if dtype == "float32" else 2000)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", "float8"), ("nvjet_qqtst_128x128", "float8"), ("gemm", "bfloat16")],
)
def test_quantised_products_are_compared_with_the_float8_peak(tmp_path, kernel, dtype):
    """Transformer Engine's layers record their 16-bit inputs."""
    args = {"Input Dims": [[8, 10], [5, 10], []], "Input type": [HALF, HALF, ""], "Concrete Inputs": ["", "", ""]}
    host = [("_Linear", MAIN, 1000, 5000, "cpu_op", args)]
    trace_of_layer = measured(tmp_path, host=host, device=[(kernel, 7, 20000, 20900, 3000)])
    eight = msgspec.structs.replace(DEVICE, peak={**DEVICE.peak, "float8": claim(2e9)})
    (row,) = op_roofline(trace_of_layer, eight).rows
    assert (row.flops, row.dtype) == (2 * 8 * 10 * 5, dtype)


@pytest.mark.parametrize("kernel", ["cudnn::winograd_nonfused::winogradForwardOutput4x4", "implicit_convolve_sgemm"])
def test_winograd_has_no_minimum_time(tmp_path, kernel):
    """Its kernels take fewer multiplications than the formula of a direct convolution counts."""
    values = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"]
    types = ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar"]
    host = [op("aten::conv2d", 1000, 5000, [[1, 4, 9, 9], [6, 4, 3, 3], *[[]] * 5], types, values)]
    (row,) = op_roofline(measured(tmp_path, host=host, device=[(kernel, 7, 20000, 99000, 3000)]), DEVICE).rows
    assert row.flops == 2 * 6 * 7 * 7 * 36
    assert (row.reachable_ns is None) == ("winograd" in kernel)


def test_an_upper_bound_of_flops_has_no_reachable_time(tmp_path):
    packed, starts = [300, 8, 64], [3]
    values = ["", "", "", "", "", "150", "150", "0.", "True", "False", "", "", ""]
    types = [HALF] * 3 + ["int"] * 2 + ["Scalar"] * 5 + [""] * 3
    varlen = op("aten::_flash_attention_forward", 1000, 2000, [packed] * 3 + [starts] * 2 + [[]] * 8, types, values)
    seen = measured(tmp_path, host=[varlen], device=[("flash", 7, 20000, 30000, 1500)])
    table = op_roofline(seen, DEVICE)
    (row,) = table.rows
    assert (row.at_most, row.bound, row.loss_ns) == (True, "unknown", None)
    assert row.flops == 4 * 64 * 8 * 300 * 151 // 2
    assert any("upper bounds" in note for note in table.notes)
    assert seen.ranks[0].flops.tolist() == [-1]
    assert seen.mean.entries[0].flops is None


def test_roofline_averages_steps_and_counts_ops_once(tmp_path):
    """Three steps, the first cut off; an op whose two kernels run in it is one call."""
    host, device = [], []
    for step in range(3):
        at = 100_000 * step
        host.append(addmm(at + 1000, at + 5000))
        device += [("gemm", 7, at + 10_000, at + 10_300, at + 2000), ("reduce", 7, at + 10_300, at + 10_400, at + 3000)]
    marks = [(step, 100_000 * step, 100_000 * step + 90_000) for step in range(3)]
    seen = measured(tmp_path, host=host, device=device, marks=marks)
    (row,) = op_roofline(seen, DEVICE).rows
    assert (row.count, row.ns, row.flops) == (1, 400, 800)
    assert next(entry for entry in seen.mean.entries if entry.account.what == "matmul").flops == 800


def test_copies_have_recorded_bytes_and_cpu_ops_their_work(tmp_path):
    copy = ("Memcpy HtoD (Pageable -> Device)", 7, 20000, 30000, 1500, {"bytes": 4096})
    seen = measured(tmp_path, device=[copy, ("gemm", 7, 30000, 31000, 1600)])
    assert seen.ranks[0].bytes.tolist() == [4096, -1]
    inner = op("aten::as_strided", 2500, 2600, [[5], [], [], []], [HALF, "ScalarList", "ScalarList", ""])
    cpu = measured(tmp_path, host=[addmm(1000, 9000, name="aten::linear"), addmm(2000, 5000), inner], device=[])
    assert int(cpu.ranks[0].flops[cpu.ranks[0].flops > 0].sum()) == 800
    (product,) = (row for row in op_roofline(cpu, DEVICE).rows if row.op == "aten::addmm")
    assert (product.count, product.ns, product.flops) == (1, 2900, 800)


def test_a_call_forwarded_by_a_tensor_subclass_counts_once(tmp_path):
    """DTensor: the outer op has the global shape, the inner one that of the local shard; dispatch is between them."""
    host = [
        addmm(1000, 9000, m=16), ("PythonSubclass", MAIN, 1500, 8000, "cpu_op"), addmm(2000, 5000),
        op("aten::add", 6000, 7000, [[8], [8], []], [HALF, HALF, "Scalar"], ["", "", "1"]),
    ]  # fmt: skip
    seen = measured(tmp_path, host=host)
    (entry,) = (entry for entry in seen.mean.entries if entry.account.what == "matmul")
    assert (entry.count, entry.flops, entry.ns) == (1, 800, 4500)
    (row,) = (row for row in top_work(seen, "kernels") if row.name == "aten::addmm")
    assert row.count == 1
    products = [row for row in op_roofline(seen, DEVICE).rows if row.op == "aten::addmm"]
    assert sorted((row.count, row.flops) for row in products if row.shape) == [(1, 800)]
    assert [row.count for row in products if not row.shape] == [0]


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_apportioned_shares_sum_to_the_whole(whole, weights):
    shares = apportion(whole, weights)
    assert sum(shares) == whole
    if total := sum(weights):
        assert all(abs(share * total - whole * weight) < total for share, weight in zip(shares, weights))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=60))
def test_nearest_matches_a_walk_over_parents(rows):
    parent = [choice % (index + 1) - 1 for index, (_, choice) in enumerate(rows)]
    wanted = [want for want, _ in rows]
    nearest_rows = nearest_ancestor(np.array(wanted, bool), np.array(parent, np.int32)).tolist()
    for row, above in zip(range(len(rows)), nearest_rows):
        at = parent[row]
        while at >= 0 and not wanted[at]:
            at = parent[at]
        assert above == at


@pytest.mark.torch
def test_flops_of_a_profiled_step_match_torchs_counter(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(1)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(4, 6, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.BatchNorm2d(6),
        torch.nn.Flatten(), torch.nn.Linear(96, 20), torch.nn.GELU(), torch.nn.Linear(20, 5),
    )  # fmt: skip
    image = torch.randn(3, 4, 8, 8, requires_grad=True)

    def step():
        output = layers(image)
        torch.einsum("bi,bj->bij", output, output).softmax(-1).sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    seen = measure(read([tmp_path / "trace.json"]))
    # torch's counter takes a grouped convolution's weight gradient for an ungrouped one's, so there are no groups here.
    heavy = [entry for entry in seen.mean.entries if entry.account.what in ("matmul", "conv")]
    assert sum(entry.flops or 0 for entry in heavy) == counter.get_total_flops()
    assert None not in {entry.flops for entry in heavy}


def test_a_trace_without_compute_has_an_empty_roofline(tmp_path):
    copy = ("Memcpy HtoD (Pageable -> Device)", 7, 20000, 30000, 1500, {"bytes": 4096})
    table = op_roofline(measured(tmp_path, device=[copy]), DEVICE)
    assert (table.rows, table.compute_ns) == ((), 0)


# ---- public traces


@pytest.mark.parametrize("name", ["h100_qwen_0.5b", "mi300_qwen_0.5b"])
def test_qwen_matrix_products_are_two_flops_per_weight_and_token(name, public_trace):
    """24 layers of 4 x 1024 x 1024 and 3 x 1024 x 2816 weights, 16 sequences of 559 tokens, and the rotary angles."""
    seen = measure(read([public_trace(f"{name}.json.gz")]))
    flops = sum(entry.flops or 0 for entry in seen.mean.entries if entry.account.what == "matmul")
    weights = 24 * (4 * 1024**2 + 3 * 1024 * 2816)
    assert flops == 2 * weights * 16 * 559 + 2 * 32 * 559
    attention = sum(entry.flops or 0 for entry in seen.mean.entries if entry.account.what == "attention")
    assert attention == 24 * 4 * 64 * 16 * 16 * (559 * 560 // 2)
    table = op_roofline(seen)
    assert table.notes == ()
    assert table.known_ns > 0.9 * table.compute_ns
    assert [row for row in table.rows if row.reachable_ns and row.busy_ns < row.reachable_ns] == []
    assert table.rows[0].op == "aten::_flash_attention_forward"


def test_resnet_18_backward_flops_are_twice_the_forward(public_trace):
    """1.81 billion multiply-adds an image are published (torchvision); ten images."""
    mean = measure(read([public_trace("mi300_resnet_ac.json.gz")])).mean
    conv = {entry.phase: entry.flops for entry in mean.entries if entry.account.what == "conv"}
    first = 2 * 10 * 64 * 112 * 112 * 3 * 7 * 7
    assert conv["forward"] == 2 * 10 * 1_813_561_344
    assert conv["backward"] == 2 * conv["forward"] - first
    assert conv["recompute"] == conv["forward"] - first


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(-1, 2**62)), max_size=9))
def test_sums_of_costs_do_not_overflow(rows):
    key, column = np.array(rows, np.int64).reshape(-1, 2).T
    start = np.arange(len(rows))
    classified = Classified(start, start + 1, key, key, key, key, np.ones(len(rows), bool), {}, np.empty(0, np.int8))
    sums = sum_by_part_and_key(column, classified, np.array([0, 99]), 2)[0].tolist()
    for index, total in enumerate(sums):
        values = column[key == index].tolist()
        most = 2**62 // max(1, len(values))
        known = values and min(values) >= 0 and max(values) <= most
        assert total == (sum(values) if known else -1)
