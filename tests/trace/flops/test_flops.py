"""FLOPs and bytes of ops, against counting loops, torch's FLOP counter, and the sizes of real tensors."""

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.flops.shapes import HALF, LONG, SINGLE, Listed, shape
from trainyard.events import OperandShape
from trainyard.trace.flops.op_costs import cost_of
from trainyard.trace.flops.operands import FORMATS
from trainyard.trace.flops.signatures import SIGNATURES

sizes = st.integers(1, 5)


def cost(name, *arguments):
    result = cost_of(f"aten::{name}", shape(*arguments))
    assert result is not None
    return result


# ---- matrix products


@given(sizes, sizes, sizes, sizes)
def test_matrix_products_count_two_flops_per_multiply_add(b, m, n, k):
    loops = 2 * sum(1 for _ in product(range(b), range(m), range(n), range(k)))
    read, bias = b * m * k + b * k * n, b * m * n
    batch = cost("bmm", (HALF, (b, m, k)), (HALF, (b, k, n)))
    assert (batch.flops, batch.bytes) == (loops, 2 * (read + b * m * n))
    added = cost("baddbmm", (HALF, (b, m, n)), (HALF, (b, m, k)), (HALF, (b, k, n)), 1, 1)
    assert (added.flops, added.bytes) == (loops, 2 * (read + bias + b * m * n))
    linear = cost("linear", (SINGLE, (b, m, k)), (SINGLE, (n, k)), (SINGLE, (n,)))
    assert (linear.flops, linear.bytes) == (loops, 4 * (b * m * k + n * k + n + b * m * n))
    grouped = cost("_grouped_mm", (HALF, (m, k)), (HALF, (b, k, n)), ("int", (b,)), None, None)
    assert (grouped.flops, grouped.at_most) == (2 * m * k * n, True)


def test_float4_products_count_both_numbers_of_each_byte():
    four = "c10::Float4_e2m1fn_x2"
    call_cost = cost("_scaled_mm", (four, (32, 64)), (four, (64, 16)), (SINGLE, ()), (SINGLE, ()), None, None, 15)
    assert call_cost.flops == 2 * 32 * 16 * 128
    assert call_cost.bytes == 32 * 64 + 64 * 16 + 8 + 2 * 32 * 16


def test_products_with_listed_scales_equal_those_with_tensors():
    eight, scale, offsets = "c10::Float8_e4m3fn", (SINGLE, ()), ("int", (3,))
    left, right, groups = (eight, (32, 64)), (eight, (64, 16)), (eight, (3, 64, 16))
    scales = (Listed([()]), [0], [0]) * 2
    older = cost("_scaled_mm", left, right, scale, scale, None, None, 15)
    newer = cost("_scaled_mm_v2", left, right, *scales, None, 15)
    assert (newer.flops, newer.bytes) == (older.flops, older.bytes - 8)
    assert newer.assumes
    older = cost("_scaled_grouped_mm", left, groups, scale, scale, offsets, None, None, 15)
    newer = cost("_scaled_grouped_mm_v2", left, groups, *scales, offsets, None, 15)
    assert (newer.flops, newer.bytes, newer.at_most) == (older.flops, older.bytes - 8, True)


@given(sizes, sizes, st.integers(-1, 3), st.integers(-1, 3), st.booleans())
def test_sliding_windows_count_the_pairs_that_they_keep(rows, columns, left, right, causal):
    query, key = (HALF, (2, rows, 3, 8)), (HALF, (2, columns, 3, 8))
    kept = sum(
        j <= (i + columns - rows if causal else i + columns - rows + right if right >= 0 else columns)
        and (left < 0 or j >= i + columns - rows - left)
        for i, j in product(range(rows), range(columns))
    )
    window = (None, left, right)
    call_cost = cost(
        "_flash_attention_forward", query, key, key, None, None, rows, columns, 0.0, causal, False, *window
    )
    assert (call_cost.flops, call_cost.at_most) == (6 * kept * 2 * 16, False)


# ---- convolutions


@st.composite
def convolutions(draw):
    width = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    axes = [draw(st.tuples(st.integers(3, 6), st.integers(1, 3), *[st.integers(1, 2)] * 2, st.integers(0, 2)))
            for _ in range(width)]  # fmt: skip
    return draw(sizes), groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2)), groups, axes


@given(convolutions())
def test_convolution_flops_match_loops_over_its_taps(case):
    """`axes`: (length, taps, stride, dilation, padding)."""
    batch, channels, channels_out, groups, axes = case
    if any(n + 2 * pad < gap * (k - 1) + 1 for n, k, step, gap, pad in axes):
        return
    # Positions of a window's first tap for which its last tap is inside.
    starts = [len(range(-pad, n + pad - gap * (k - 1), step)) for n, k, step, gap, pad in axes]
    loops = 2 * batch * channels_out * prod(starts) * (channels // groups) * prod(k for _, k, *_ in axes)
    lengths, taps, steps, gaps, pads = ([axis[index] for axis in axes] for index in range(5))
    image, weight = (SINGLE, (batch, channels, *lengths)), (SINGLE, (channels_out, channels // groups, *taps))
    out = (batch, channels_out, *starts)
    forward = cost("convolution", image, weight, None, steps, pads, gaps, False, [0] * len(axes), groups)
    assert forward.flops == loops
    assert forward.bytes == 4 * (prod(image[1]) + prod(weight[1]) + prod(out))
    miopen = cost("miopen_convolution", image, weight, None, pads, steps, gaps, groups, False, False)
    assert miopen == forward
    for mask in product((False, True), repeat=3):
        back = cost("convolution_backward", (SINGLE, out), image, weight, [channels_out], steps, pads, gaps, False,
                    [0] * len(axes), groups, list(mask))  # fmt: skip
        assert back.flops == loops * (mask[0] + mask[1])


@given(convolutions())
def test_transposed_convolution_costs_the_input_gradient(case):
    """Its input is the plain convolution's output: the same taps, and as many pixels if the strides skip none."""
    batch, channels, features, groups, axes = case
    lengths, taps, steps, gaps, pads = ([axis[index] for axis in axes] for index in range(5))
    image, weight = (SINGLE, (batch, channels, *lengths)), (SINGLE, (channels, features // groups, *taps))
    out = [(n - 1) * step - 2 * pad + gap * (k - 1) + 1 for n, k, step, gap, pad in axes]
    arguments = (image, weight, None, steps, pads, gaps, True, [0] * len(axes), groups)
    call_cost = cost_of("aten::convolution", shape(*arguments))
    if min(out) < 0:
        assert call_cost is None
        return
    loops = 2 * batch * prod(lengths) * channels * (features // groups) * prod(taps)
    assert call_cost is not None
    assert call_cost.flops == loops
    assert call_cost.bytes == 4 * (prod(image[1]) + prod(weight[1]) + batch * features * prod(out))
    back = cost("convolution_backward", (SINGLE, (batch, features, *out)), image, weight, [0], steps, pads, gaps, True,
                [0] * len(axes), groups, [True, True, False])  # fmt: skip
    assert back.flops == 2 * loops


def test_resnet_50_convolutions_match_the_published_flops():
    """torchvision (stride on the 3 x 3) states 4.09 billion multiply-adds an image, 0.002 of them in its last layer."""
    layers = [(3, 64, 7, 2, 224)]
    width, inside = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        narrow = 64 * 2**stage
        for block in range(blocks):
            step = 2 if stage and not block else 1
            layers += [(width, narrow, 1, 1, inside), (narrow, narrow, 3, step, inside)]
            layers += [(width, 4 * narrow, 1, step, inside)] if not block else []
            inside //= step
            layers.append((narrow, 4 * narrow, 1, 1, inside))
            width = 4 * narrow
    assert len(layers) == 53
    total = sum(
        cost("conv2d", (HALF, (1, c, n, n)), (HALF, (o, c, k, k)), None, [step] * 2, [k // 2] * 2, [1, 1], 1).flops or 0
        for c, o, k, step, n in layers
    )
    assert total == 2 * 4_087_136_256


# ---- attention


@given(sizes, st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), sizes, sizes)
def test_attention_counts_the_pairs_that_its_mask_keeps(batch, groups, heads, rows, columns, wide, deep):
    """Grouped queries: `heads` query heads a key head. Causal from the first key (sdpa) or to the last one (flash)."""
    query, key, value = (
        (batch, groups * heads, rows, wide),
        (batch, groups, columns, wide),
        (batch, groups, columns, deep),
    )
    every = [(i, j) for i in range(rows) for j in range(columns)]
    kept = {
        "first": [(i, j) for i, j in every if j <= i],
        "last": [(i, j) for i, j in every if j <= i + columns - rows],
    }
    each = 2 * batch * groups * heads * (wide + deep)
    tensors = [(HALF, dims) for dims in (query, key, value)]
    for causal, pairs in ((False, every), (True, kept["first"])):
        call_cost = cost("_scaled_dot_product_flash_attention", *tensors, 0.0, causal, False, None)
        assert call_cost.flops == each * len(pairs)
        out = batch * groups * heads * rows * deep
        moved = 2 * (prod(query) + prod(key) + prod(value) + out) + 4 * batch * groups * heads * rows
        assert call_cost.bytes == moved
    turned = [(HALF, (dims[0], dims[2], dims[1], dims[3])) for dims in (query, key, value)]
    rest = [None, None, rows, columns, 0.0, True, False, None, None, None]
    assert cost("_flash_attention_forward", *turned, *rest).flops == each * len(kept["last"])
    for mask, name in ((1, "first"), (2, "last")):
        efficient = cost("_efficient_attention_forward", *turned, None, None, None, None, None, 0.0, mask, True)
        assert efficient.flops == each * len(kept[name])


def test_attention_backward_is_five_products():
    tensor = (HALF, (2, 8, 128, 64))
    forward = cost("_scaled_dot_product_flash_attention", tensor, tensor, tensor, 0.0, False, False, None)
    sums = (SINGLE, (2, 8, 128))
    back = cost("_scaled_dot_product_flash_attention_backward", *[tensor] * 5, sums, None, None, 128, 128, 0.0, False)
    assert 2 * (back.flops or 0) == 5 * (forward.flops or 0)
    packed, starts = (HALF, (300, 8, 64)), ("int", (4,))
    some = cost("_flash_attention_forward", packed, packed, packed, starts, starts, 150, 150, 0.0, True, False, None)
    assert some.at_most
    lengths = (150, 150)
    assert some.flops == 4 * 64 * 8 * sum(n * (n + 1) // 2 for n in lengths)


# ---- values that are not in the file


def test_missing_values_give_no_cost():
    image, weight = (SINGLE, (2, 4, 9, 9)), (SINGLE, (6, 4, 3, 3))
    bare = OperandShape(dims=(image[1], weight[1], (), (), (), ()), types=(SINGLE, SINGLE, "", "", "", ""))
    assert cost_of("aten::conv2d", bare) is None
    tensor = (HALF, (2, 8, 128, 64))
    unsaid = OperandShape(dims=(tensor[1],) * 3 + ((), ()), types=(HALF,) * 3 + ("Scalar", "Scalar"))
    assert cost_of("aten::_scaled_dot_product_flash_attention", unsaid) is None
    assert cost_of("aten::mm", shape((SINGLE, (2, 3)), (SINGLE, (4, 5)))) is None
    assert cost_of("aten::mm", shape(("c10::complex<float>", (2, 3)), ("c10::complex<float>", (3, 5)))) is None
    assert cost_of("aten::mm", shape(("Martian", (2, 3)), (SINGLE, (3, 5)))) is None
    assert cost_of("aten::exp", shape((LONG, (2, 3)))) is None
    assert cost_of("mine::mm", shape((SINGLE, (2, 3)), (SINGLE, (3, 5)))) is None
    assert cost_of("aten::mm", shape((SINGLE, (2**40, 2**40)), (SINGLE, (2**40, 2**40)))) is None
    summed = cost("sum", (SINGLE, (4, 5)), None, None, None)
    assert (summed.flops, summed.bytes) == (20, 80)
    assert summed.assumes


ODD = st.one_of(
    st.sampled_from(["", "True", "False", "[1, 1]", "[]", "[True, False, True]", "0", "-7"]), st.text(max_size=9)
)
KINDS = st.one_of(st.sampled_from([*FORMATS, "", "Scalar", "ScalarList", "TensorList"]), st.text(max_size=9))


@settings(max_examples=400)
@given(
    st.sampled_from(
        [*SIGNATURES, "mm", "addmm", "matmul", "linear", "_grouped_mm", "add_", "where", "sum", "max", "copy_"]
    ),
    st.lists(st.lists(st.integers(-2, 6), max_size=5).map(tuple), max_size=14).map(tuple),
    st.lists(KINDS, max_size=14).map(tuple),
    st.lists(ODD, max_size=14).map(tuple),
)
def test_any_recorded_values_give_a_cost_or_none(name, dims, types, values):
    call_cost = cost_of(f"aten::{name}", OperandShape(dims=dims, types=types, values=values))
    assert call_cost is None or all(part is None or part >= 0 for part in call_cost[:2])


# ---- comparison with torch


def seen_by_profiler(arguments):
    """Arguments as Kineto writes them."""
    import torch

    types = {torch.float32: SINGLE, torch.bfloat16: HALF, torch.float16: "c10::Half", torch.float64: "double",
             torch.int64: LONG, torch.int32: "int", torch.bool: "bool", torch.uint8: "unsigned char"}  # fmt: skip
    numbers = {torch.float32: 6, torch.float64: 7, torch.bfloat16: 15, torch.int64: 4}
    recorded = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            recorded.append((types[argument.dtype], tuple(argument.shape)))
        else:
            recorded.append(numbers.get(argument, argument) if isinstance(argument, torch.dtype) else argument)
    return shape(*recorded)


def run(name, arguments):
    """(cost, bytes of torch's inputs and outputs) of an op that is run with all arguments of its schema."""
    import torch

    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    given_, kept = list(arguments), {}
    for argument, value in zip(op._schema.arguments, given_):
        if argument.kwarg_only:
            kept[argument.name] = value
    output = op(*given_[: len(given_) - len(kept)], **kept)
    output = output if isinstance(output, tuple | list) else (output,)
    tensors = [part for part in (*given_, *output) if isinstance(part, torch.Tensor)]
    result = cost_of(f"aten::{packet}", seen_by_profiler(given_))
    assert result is not None
    return result, sum(part.numel() * part.element_size() for part in tensors)


@pytest.mark.torch
def test_bytes_match_torchs_inputs_and_outputs():
    torch = pytest.importorskip("torch")
    f, h = torch.rand(4, 6, 5), torch.rand(4, 6, 5).bfloat16()
    i, mask = torch.randint(0, 4, (6, 5)), torch.rand(4, 6, 5) > 0.5
    image, few = torch.rand(2, 6, 8, 8), torch.rand(6)
    cases = [
        ("add.Tensor", (f, torch.rand(6, 1), 1)), ("mul.Tensor", (h, f)), ("add.Tensor", (i, i, 1)),
        ("mul.Tensor", (h, torch.rand(5).bfloat16())), ("mul.Tensor", (h, h.half())), ("eq.Tensor", (f, f)),
        ("gt.Scalar", (f, 0.5)), ("logical_not", (mask,)), ("sigmoid", (h,)), ("gelu", (f, "none")), ("neg", (i,)),
        ("where.self", (mask, f, h)), ("masked_fill.Scalar", (f, mask, 0.0)), ("addcmul", (f, f, f, 1)),
        ("threshold_backward", (f, f, 0)), ("silu_backward", (h, h)), ("clamp", (f, 0, 1)), ("div.Tensor", (f, f)),
        ("sum", (f, None)), ("sum.dim_IntList", (h, [0, -1], True, None)), ("sum.dim_IntList", (i, [1], False, None)),
        ("mean.dim", (h, [-1], False, torch.float32)), ("amax", (f, [], False)), ("max", (f,)),
        ("max.dim", (f, 1, False)), ("max.other", (f, f)), ("argmax", (f, None, False)), ("any.dim", (mask, 0, True)),
        ("linalg_vector_norm", (f, 2, None, False, None)), ("var_mean.correction", (f, [0], 1, True)),
        ("cumsum", (i, 0, None)), ("_softmax", (h, -1, False)), ("_log_softmax", (f, 1, False)),
        ("_softmax_backward_data", (f, f, 1, torch.float32)), ("native_dropout", (f, 0.5, True)),
        ("native_dropout_backward", (f, mask, 2.0)), ("native_layer_norm", (f, [6, 5], None, None, 1e-5)),
        ("native_layer_norm_backward", (f, f, [5], torch.rand(4, 6, 1), torch.rand(4, 6, 1), torch.rand(5),
                                        torch.rand(5), [True, True, True])),
        ("native_group_norm", (image, few, few, 2, 6, 64, 3, 1e-5)),
        ("native_batch_norm_backward", (image, image, few, few, few, few, few, True, 1e-5, [True, True, True])),
        ("native_batch_norm_backward", (image, image, few, few, few, few, few, True, 1e-5, [False, True, True])),
        ("max_pool2d_with_indices", (image, [3, 3], [2, 2], [1, 1], [1, 1], False)),
        ("avg_pool2d", (image, [2, 2], [], [0, 0], False, True, None)),
        ("mm", (torch.rand(3, 4), torch.rand(4, 5))),
        ("addmm", (torch.rand(5), torch.rand(3, 4), torch.rand(4, 5), 1, 1)),
        ("matmul", (torch.rand(2, 1, 3, 4), torch.rand(5, 4, 6))), ("matmul", (torch.rand(4), torch.rand(5, 4, 6))),
        ("mv", (torch.rand(3, 4), torch.rand(4))), ("dot", (few, few)),
        ("mse_loss", (f, f, 1)), ("mse_loss", (f, f, 0)), ("mse_loss_backward", (torch.rand(()), f, f, 1)),
        ("linear", (f, torch.rand(7, 5), torch.rand(7))),
        ("addbmm", (torch.rand(3, 5), torch.rand(2, 3, 4), torch.rand(2, 4, 5), 1, 1)),
        ("convolution", (image, torch.rand(4, 3, 3, 3), torch.rand(4), [2, 1], [1, 0], [1, 2], False, [0, 0], 2)),
        ("convolution", (image, torch.rand(6, 2, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 3)),
        ("convolution_backward", (torch.rand(2, 4, 6, 6), image, torch.rand(4, 6, 3, 3), [4], [1, 1], [0, 0], [1, 1],
                                  False, [0, 0], 1, [True, True, True])),
        ("_scaled_dot_product_flash_attention_for_cpu", (torch.rand(2, 3, 8, 4),) * 3 + (0.0, True, None, None)),
    ]  # fmt: skip
    for name, arguments in cases:
        call_cost, held = run(name, arguments)
        assert call_cost.bytes == held, (name, seen_by_profiler(arguments))


@pytest.mark.torch
@settings(max_examples=40)
@given(convolutions(), st.booleans())
def test_flops_match_torchs_flop_counter(case, transposed):
    """A convolution forward and backward, a matrix product and attention without a mask."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    batch, channels, features, groups, axes = case
    lengths, taps, steps, gaps, pads = ([axis[index] for axis in axes] for index in range(5))
    outer, inner = (channels, features // groups) if transposed else (features, channels // groups)
    with torch.device("meta"):
        image, weight = torch.empty(batch, channels, *lengths), torch.empty(outer, inner, *taps)
    arguments = (image, weight, None, steps, pads, gaps, transposed, [0] * len(axes), groups)
    try:
        with FlopCounterMode(display=False) as counter:
            torch.ops.aten.convolution.default(*arguments)
    except RuntimeError:
        return  # The window does not fit into the image.
    call_cost = cost_of("aten::convolution", seen_by_profiler(arguments))
    assert call_cost is not None
    assert call_cost.flops == counter.get_total_flops()
    query = torch.empty(batch, 4, features, taps[0], device="meta")
    key = torch.empty(batch, 4, 7, taps[0], device="meta")
    with FlopCounterMode(display=False) as counter:
        torch.ops.aten._scaled_dot_product_flash_attention.default(query, key, key)
    arguments = (query, key, key, 0.0, False, False, None)
    call_cost = cost_of("aten::_scaled_dot_product_flash_attention", seen_by_profiler(arguments))
    assert call_cost is not None
    assert call_cost.flops == counter.get_total_flops()


@pytest.mark.torch
def test_argument_names_match_torchs_schemas():
    torch = pytest.importorskip("torch")
    checked = 0
    for name, ours in SIGNATURES.items():
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        schemas = [[argument.name for argument in overload._schema.arguments] for overload in overloads]
        assert any(schema[: len(ours.split())] == ours.split() for schema in schemas), (name, ours, schemas)
        checked += 1
    assert checked == len(SIGNATURES)
