"""Triton kernels of torch.compile: source ops by name, iterations by the recorded lengths, bytes by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.flops.shapes import HALF, LONG, SINGLE, shape
from tests.trace_maker import MAIN, trace, write
from trainyard.trace.flops.inductor import source_ops
from trainyard.trace.flops.op_costs import cost_of
from trainyard.trace.flops.roofline import op_roofline
from trainyard.trace.flops.traffic import flops_per_element
from trainyard.trace.measure import measure, read


@pytest.mark.parametrize(
    ("text", "ops"),
    [
        ("add_native_layer_norm", ("add", "native_layer_norm")),
        ("_to_copy_add_mean_mul_pow_rsqrt", ("_to_copy", "add", "mean", "mul", "pow", "rsqrt")),
        ("_log_softmax_nll_loss_forward", ("_log_softmax", "nll_loss_forward")),
        ("native_dropout_backward_sum", ("native_dropout_backward", "sum")),
        ("_softmax__softmax_backward_data_add", ("_softmax", "_softmax_backward_data", "add")),
        ("gelu_unheard_of_mul", ("gelu", "mul")),
        ("", ()),
    ],
)
def test_names_contain_their_source_ops(text, ops):
    assert source_ops(text) == ops


@given(
    st.lists(
        st.sampled_from(["add", "mul", "silu", "native_layer_norm", "_softmax", "rsqrt", "native_dropout", "sum"]),
        unique=True,
    )
)
def test_joined_ops_are_found_again(ops):
    """In alphabetical order, as Inductor joins them."""
    assert sorted(source_ops("_".join(sorted(ops)))) == sorted(ops)


def kernel(name, *arguments):
    call_cost = cost_of(name, shape(*arguments))
    assert call_cost is not None
    return call_cost


def test_pointwise_kernel_moves_each_tensor_once():
    x, bias = (HALF, (64, 32)), (HALF, (32,))
    call_cost = kernel("triton_poi_fused_add_silu_3", x, bias, x, 2048)
    assert call_cost.flops == 2048 * (flops_per_element("add") + flops_per_element("silu")) == 2048 * 2
    assert call_cost.bytes == 2 * (2048 + 32 + 2048)
    assert call_cost.on_matrix_units is False
    tiled = kernel("triton_poi_fused_clone_0", x, x, 64, 32)
    assert (tiled.flops, tiled.bytes) == (0, 2 * 2 * 2048)


def test_lookups_count_the_rows_that_loops_reach():
    table, index, out = (SINGLE, (50_000, 64)), (LONG, (128,)), (SINGLE, (128, 64))
    call_cost = kernel("triton_poi_fused_embedding_0", index, table, out, 8192)
    assert call_cost.bytes == 8 * 128 + 4 * 8192 + 4 * 8192


def test_reductions_iterate_over_rows_and_columns():
    x, out = (HALF, (64, 512)), (SINGLE, (64,))
    call_cost = kernel("triton_red_fused_sum_1", x, out, 64, 512)
    assert (call_cost.flops, call_cost.bytes) == (64 * 512, 2 * 64 * 512 + 4 * 64)
    norm = kernel("triton_per_fused_native_layer_norm_2", x, (HALF, (512,)), out, out, x, 64, 512)
    assert norm.flops == cost_of("aten::native_layer_norm", shape(x, [512], None, None, 1e-5)).flops


def test_templates_count_the_product():
    left, right, out = (HALF, (64, 32)), (HALF, (32, 48)), (HALF, (64, 48))
    product = cost_of("aten::mm", shape(left, right))
    assert kernel("triton_tem_fused_mm_0", left, right, out)[:3] == product[:3]
    added = kernel("triton_tem_fused_addmm_relu_5", (HALF, (48,)), left, right, out)
    assert added.flops == product.flops
    batched = [(HALF, (4, *dims)) for _, dims in (left, right, out)]
    assert kernel("triton_tem_fused_bmm_1", *batched).flops == 4 * product.flops
    square = (HALF, (8, 8))
    assert kernel("triton_tem_fused_mm_9", square, square, square).flops == 2 * 8**3
    assert cost_of("triton_tem_fused_mm_0", shape(left, (HALF, (5, 5)), out)) is None
    query = (HALF, (2, 3, 16, 8))
    bound = kernel(
        "triton_tem_fused_flex_attention_0", query, query, query, (SINGLE, (2, 3, 16)), (HALF, (2, 3, 16, 8))
    )
    assert (bound.flops, bound.at_most) == (4 * 2 * 3 * 16 * 16 * 8, True)


def test_launches_without_lengths_have_no_cost():
    assert cost_of("triton_poi_fused_add_0", shape((HALF, (8,)), (HALF, (8,)))) is None
    assert cost_of("triton_poi_fused_add_0", shape()) is None
    assert cost_of("triton_add", shape((HALF, (8,)), 8)) is None


def test_a_recorded_launch_gets_its_cost(tmp_path):
    """The span of a launch as Kineto writes it, around the launch of its kernel."""
    args = {"Input Dims": [[64, 32], [64, 32], []], "Input type": [HALF, HALF, "Scalar"],
            "Concrete Inputs": ["", "", "2048"], "kernel_file": "a.py", "grid": "(2, 1, 1)"}  # fmt: skip
    name = "triton_poi_fused_mul_0"
    document = trace(host=[(name, MAIN, 1000, 5000, "cpu_op", args)], device=[(name, 7, 20000, 24000, 2000)])
    (row,) = op_roofline(measure(read([write(tmp_path, document)]))).rows
    assert (row.op, row.flops, row.bytes, row.missing) == (name, 2048, 8192, "")


@pytest.mark.torch
def test_torch_records_launches_in_this_form(tmp_path):
    """Inductor's span, opened as its launcher does, records tensors and then lengths."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    tensors = [torch.empty(4, 8), torch.empty(4, 8)]
    launch = torch._C._profiler._RecordFunctionFast("triton_poi_fused_add_0", [*tensors, 32], {"stream": 0})
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded, launch:
        pass
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    (span,) = (event for event in events if event["name"].startswith("triton"))
    assert span["args"]["Input Dims"] == [[4, 8], [4, 8], []]
    assert span["args"]["Concrete Inputs"] == ["", "", "32"]
