"""Formulas of libraries: against reference implementations in torch, loops, and the formulas of equal ATen ops.

FLOPs of products are those that torch's FlopCounterMode counts in the reference, bytes those of its inputs and outputs.
"""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.flops.shapes import HALF, LONG, SINGLE, Listed, shape
from trainyard.events import OperandShape
from trainyard.trace.flops.formula_file import FormulaSet, library
from trainyard.trace.flops.op_costs import cost_of
from trainyard.trace.flops.operands import FORMATS, CallFacts

INT8, BYTE, EIGHT, INT, FP8 = "signed char", "unsigned char", "signed char", "int", "c10::Float8_e4m3fn"
TRIED: list[tuple[str, OperandShape, CallFacts]] = []
"""All calls of this module's tests: the last test checks that they reach every entry."""


def cost(op, *arguments, result=None, forward=None):
    """The cost of a call. `result`: the gradient that its node receives; `forward`: the arguments of a node's op."""
    partner = shape(result) if result else shape(*forward) if forward else None
    call = (op, shape(*arguments), CallFacts(partner=partner))
    TRIED.append(call)
    call_cost = cost_of(*call)
    assert call_cost is not None, op
    return call_cost


def size(*tensors):
    """Bytes of tensors given as (format, dims)."""
    return sum(prod(dims) * FORMATS[name].size for name, dims in tensors)


def counted(function, *dims):
    """FLOPs that torch counts in `function` of tensors with these dims, on the meta device."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    tensors = [torch.empty(*each, device="meta", requires_grad=True) for each in dims]
    with FlopCounterMode(display=False) as counter:
        function(*tensors)
    return counter.get_total_flops()


# ---- attention

sizes = st.integers(1, 5)


@st.composite
def attentions(draw):
    """(Batch, heads, key heads, rows, columns, width, value width, causal, left, right)."""
    key_heads = draw(st.integers(1, 3))
    return (draw(sizes), key_heads * draw(st.integers(1, 2)), key_heads, draw(sizes), draw(sizes), draw(sizes),
            draw(sizes), draw(st.booleans()), draw(st.integers(-1, 3)), draw(st.integers(-1, 3)))  # fmt: skip


@given(attentions())
def test_flash_attention_counts_kept_pairs_by_loops(case):
    batch, heads, key_heads, rows, columns, wide, deep, causal, left, right = case
    q, k, v = (HALF, (batch, rows, heads, wide)), (HALF, (batch, columns, key_heads, wide)), (
        HALF, (batch, columns, key_heads, deep))  # fmt: skip
    out, lse = (HALF, (batch, rows, heads, deep)), (SINGLE, (batch, heads, rows))

    def loops(left, right):
        """Pairs over batch and heads that the mask keeps, its diagonal ending at the last key."""
        kept = 0
        for i, j in product(range(rows), range(columns)):
            middle = i + columns - rows
            last = middle if causal else middle + right if right >= 0 else columns
            kept += j <= last and (left < 0 or j >= middle - left)
        return batch * heads * kept

    windowed, plain = loops(left, right), loops(-1, -1)
    options = (0.0, 0.5, causal, left, right, 0.0, None, False)
    forward = cost("flash_attn::_flash_attn_forward", q, k, v, *options)
    assert forward.flops == 2 * windowed * (wide + deep)
    assert forward.bytes == size(q, k, v, out, lse)
    back = cost("flash_attn::_flash_attn_backward", out, q, k, v, out, lse, q, k, v, *options)
    assert back.flops == 2 * windowed * (3 * wide + 2 * deep)
    assert back.bytes == size(out, q, k, v, out, lse) + size(q, k, v)
    rest = (None,) * 20
    third = cost("flash_attn_3::fwd", q, k, v, *rest, 0.5, causal, left, right)
    assert third[:2] == forward[:2]
    third_back = cost("flash_attn_3::bwd", out, q, k, v, out, lse, q, k, v, *(None,) * 6, 0.5, causal, left, right)
    assert third_back[:2] == back[:2]
    custom = cost("flash_attn_3::_flash_attn_backward", out, q, k, v, out, lse, *(None,) * 6, q, k, v, 0.5, causal,
                  left, right)  # fmt: skip
    assert custom[:2] == back[:2]
    former = cost("xformers_flash::flash_fwd", q, k, v, None, None, None, rows, columns, 0.0, 0.5, causal, left, right)
    assert former[:2] == forward[:2]
    former_back = cost("xformers_flash::flash_bwd", False, out, q, k, v, out, lse, None, None, rows, columns, 0.0, 0.5,
                       causal, left, right)  # fmt: skip
    assert former_back[:2] == back[:2]
    # Functions of earlier releases record no window.
    function = cost("FlashAttnFunc", q, k, v, 0.0, None, causal, None)
    assert function.flops == 2 * plain * (wide + deep)
    assert function.assumes
    node = cost("FlashAttnFuncBackward", out, forward=(q, k, v, 0.0, None, causal, None))
    assert node.flops == 2 * plain * (3 * wide + 2 * deep)
    assert node.bytes == back.bytes
    assert cost("FlashAttnFunc", q, k, v, None, causal)[:2] == function[:2]
    assert cost("FlashAttnFuncBackward", out, forward=(q, k, v, None, causal))[:2] == node[:2]


def test_packed_functions_equal_separate_tensors():
    q, kv = (HALF, (2, 6, 4, 8)), (HALF, (2, 6, 2, 4, 8))
    qkv, options = (HALF, (2, 6, 3, 4, 8)), (0.0, None, True, None)
    function = cost("FlashAttnFunc", q, q, q, *options)
    node = cost("FlashAttnFuncBackward", q, forward=(q, q, q, *options))
    assert cost("FlashAttnQKVPackedFunc", qkv, *options)[:2] == function[:2]
    assert cost("FlashAttnKVPackedFunc", q, kv, *options)[:2] == function[:2]
    assert cost("FlashAttnQKVPackedFuncBackward", q, forward=(qkv, *options))[:2] == node[:2]
    assert cost("FlashAttnKVPackedFuncBackward", q, forward=(q, kv, *options))[:2] == node[:2]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.booleans())
def test_packed_sequences_have_an_upper_bound(lengths, causal):
    tokens, longest = sum(lengths), max(lengths)
    q, starts = (HALF, (tokens, 3, 8)), (INT, (len(lengths) + 1,))
    pairs = 3 * sum(n * (n + 1) // 2 if causal else n * n for n in lengths)
    lse = (SINGLE, (3, tokens))
    calls = {
        "flash_attn::_flash_attn_varlen_forward": (q, q, q, starts, starts, longest, longest, 0.0, 0.5, causal),
        "FlashAttnVarlenFunc": (q, q, q, starts, starts, longest, longest, 0.0, 0.5, causal),
        "flash_attn_3::fwd": (q, q, q, *(None,) * 4, starts, starts, *(None,) * 3, longest, longest, *(None,) * 9, 0.5,
                              causal),
        "xformers_flash::flash_fwd": (q, q, q, starts, starts, None, longest, longest, 0.0, 0.5, causal),
    }  # fmt: skip
    back = {
        "flash_attn::_flash_attn_varlen_backward": (q, q, q, q, q, lse, q, q, q, starts, starts, longest, longest, 0.0,
                                                    0.5, causal),
        "flash_attn_3::bwd": (q, q, q, q, q, lse, q, q, q, starts, starts, None, None, longest, longest, 0.5, causal),
        "xformers_flash::flash_bwd": (False, q, q, q, q, q, lse, starts, starts, longest, longest, 0.0, 0.5, causal),
    }  # fmt: skip
    node = {"FlashAttnVarlenFuncBackward": calls["FlashAttnVarlenFunc"]}
    costs = [(cost(op, *arguments), 4) for op, arguments in calls.items()]
    costs += [(cost(op, *arguments), 10) for op, arguments in back.items()]
    costs += [(cost(op, q, forward=arguments), 10) for op, arguments in node.items()]
    for bound, products in costs:
        assert bound.at_most
        assert bound.flops >= products * pairs * 8
        assert bound.flops <= products * 3 * tokens * longest * 8


def test_dense_attention_matches_torchs_counter():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    assert torch
    q, k = (HALF, (2, 16, 4, 8)), (HALF, (2, 12, 4, 8))
    heads_first = [(2, 4, 16, 8), (2, 4, 12, 8), (2, 4, 12, 8)]
    function = cost("FlashAttnFunc", q, k, k, 0.0, None, False, None)
    assert function.flops == sdpa_flop_count(*heads_first)
    node = cost("FlashAttnFuncBackward", q, forward=(q, k, k, 0.0, None, False, None))
    assert node.flops == sdpa_backward_flop_count(heads_first[0], *heads_first)
    packed = (HALF, (16, 2, 4, 8))  # Transformer Engine's `sbhd`
    others = (HALF, (12, 2, 4, 8))
    starts = (INT, (3,))
    for extra in (0, 2, 4):
        arguments = (True, 16, 12, starts, starts, *(None,) * extra, packed, others, others)
        fused = cost("FusedAttnFunc", *arguments)
        assert fused.at_most
        assert fused.flops == sdpa_flop_count(*heads_first)
        fused_back = cost("FusedAttnFuncBackward", packed, forward=arguments)
        assert fused_back.flops == sdpa_backward_flop_count(heads_first[0], *heads_first)


# ---- matrix products


def test_transformer_engine_layers_match_torchs_counter():
    torch = pytest.importorskip("torch")
    linear = torch.nn.functional.linear
    x, w, bias = (HALF, (3, 4, 16)), (HALF, (24, 16)), (HALF, (24,))
    scale, wide, narrow = (HALF, (16,)), (HALF, (40, 16)), (HALF, (16, 20))
    forward = counted(linear, x[1], w[1])
    both = counted(lambda a, b: linear(a, b).sum().backward(), x[1], w[1])
    out = (HALF, (3, 4, 24))
    for weight_fp8 in ((), (None,)):
        arguments = (w, *weight_fp8, x, bias)
        call_cost = cost("_Linear", *arguments)
        assert call_cost.flops == forward
        assert call_cost.bytes == size(w, x, bias, out)
        assert cost("_LinearBackward", out, forward=arguments).flops == both - forward
    normed = cost("_LayerNormLinear", x, scale, scale, w)
    assert normed.flops == forward
    assert normed.bytes == size(x, scale, scale, w, x, out)
    assert cost("_LayerNormLinearBackward", out, forward=(x, scale, scale, w)).flops == both - forward

    def mlp(a, first, second):
        gate, up = linear(a, first).chunk(2, -1)
        return linear(gate * up, second)

    forward = counted(mlp, x[1], wide[1], narrow[1])
    both = counted(lambda *args: mlp(*args).sum().backward(), x[1], wide[1], narrow[1])
    for arguments in ((x, scale, None, wide, None, narrow), (x, scale, None, wide, None, None, False, narrow)):
        assert cost("_LayerNormMLP", *arguments).flops == forward
        assert cost("_LayerNormMLPBackward", x, forward=arguments).flops == both - forward


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_grouped_products_sum_over_the_experts(rows):
    experts, tokens = len(rows), sum(rows)
    loops = sum(2 * n * 8 * 12 for n in rows)
    a, b, turned, out = (HALF, (tokens, 8)), (HALF, (experts, 8, 12)), (HALF, (experts, 12, 8)), (HALF, (tokens, 12))
    counts = (LONG, (experts,))
    call_cost = cost("GroupedGemm", a, b, counts, False)
    assert (call_cost.flops, call_cost.bytes) == (loops, size(a, b, out))
    assert cost("GroupedGemm", a, turned, counts, True)[:2] == call_cost[:2]
    assert cost("GroupedGemmBackward", out, forward=(a, b, counts, False)).flops == 2 * loops
    weights = [(HALF, (12, 8))] * experts
    linear = cost("_GroupedLinear", a, None, *weights, result=out)
    assert (linear.flops, linear.bytes) == (loops, size(a, *weights, out))
    assert cost("_GroupedLinearBackward", out, forward=(a, None, *weights)).flops == 2 * loops
    stacked = cost("fbgemm::bf16bf16bf16_grouped_stacked", a, turned, counts)
    assert (stacked.flops, stacked.at_most) == (loops, True)


def test_low_precision_products_match_torchs_counter():
    pytest.importorskip("torch")
    products = counted(lambda a, b: a @ b, (3, 4, 16), (16, 24))
    x, w, scale = (FP8, (3, 4, 16)), (FP8, (24, 16)), (SINGLE, (1,))
    call_cost = cost("fbgemm::f8f8bf16_rowwise", x, w, scale, scale)
    assert (call_cost.flops, call_cost.bytes) == (products, size(x, w, scale, scale) + 3 * 4 * 24 * 2)
    four = cost("fbgemm::f8i4bf16_rowwise", x, (INT8, (24, 8)), scale)
    assert four.flops == products
    both = cost("fbgemm::f4f4bf16", (BYTE, (3, 4, 8)), (BYTE, (24, 8)))
    assert both.flops == products
    x, w = (INT8, (3, 4, 16)), (INT8, (24, 16))
    call_cost = cost("bitsandbytes::int8_linear_matmul", x, w)
    assert (call_cost.flops, call_cost.bytes) == (products, size(x, w) + 3 * 4 * 24 * 4)
    scaled = cost("bitsandbytes::int8_scaled_mm", x, w, (SINGLE, (12,)), (SINGLE, (24,)), None, 15)
    assert (scaled.flops, scaled.bytes) == (products, size(x, w) + 4 * 36 + 3 * 4 * 24 * 2)
    x, packed = (HALF, (3, 4, 16)), (BYTE, (192, 1))
    call_cost = cost("bitsandbytes::gemm_4bit", x, packed, [24, 16], (SINGLE, (6,)), 64)
    assert (call_cost.flops, call_cost.bytes) == (products, size(x, packed) + 24 + 3 * 4 * 24 * 2)


# ---- norms, softmax and activations


def equals_aten(op, arguments, aten, aten_arguments, **other):
    call_cost, reference = cost(op, *arguments, **other), cost_of(f"aten::{aten}", shape(*aten_arguments))
    assert reference is not None
    assert call_cost[:2] == reference[:2], op


@pytest.mark.parametrize("kind", [HALF, SINGLE])
def test_norms_and_softmax_equal_atens(kind):
    x, w, grad = (kind, (6, 4, 16)), (kind, (16,)), (kind, (6, 4, 16))
    mean = (SINGLE, (6, 4, 1))
    layer_back = (grad, x, [16], mean, mean, w, w, [True, True, True])
    rms_back = (grad, x, [16], mean, w, [True, True])
    for op in ("FusedLayerNormAffineFunction", "apex::fused_layer_norm_affine_fwd", "LigerLayerNormFunction"):
        equals_aten(op, (x, w, w), "native_layer_norm", (x, [16], w, w, 1e-5))
    for op in ("FusedLayerNormAffineFunctionBackward", "LigerLayerNormFunctionBackward"):
        equals_aten(op, (grad,), "native_layer_norm_backward", layer_back, forward=(x, w, w))
    equals_aten("apex::fused_layer_norm_affine_bwd", (grad, mean, mean, x, [16], w, w), "native_layer_norm_backward",
                layer_back)  # fmt: skip
    for op in ("FusedRMSNormAffineFunction", "apex::fused_rms_norm_affine_fwd", "LigerRMSNormFunction"):
        equals_aten(op, (x, w), "_fused_rms_norm", (x, [16], w, None))
    for op in ("FusedRMSNormAffineFunctionBackward", "LigerRMSNormFunctionBackward"):
        equals_aten(op, (grad,), "_fused_rms_norm_backward", rms_back, forward=(x, w))
    equals_aten("apex::fused_rms_norm_affine_bwd", (grad, mean, x, [16], w), "_fused_rms_norm_backward", rms_back)
    for op in ("ScaledUpperTriangMaskedSoftmax", "LigerSoftmaxFunction"):
        equals_aten(op, (x,), "_softmax", (x, -1, False))
        equals_aten(f"{op}Backward", (grad,), "_softmax_backward_data", (grad, x, -1, None), forward=(x,))
    masked = cost("ScaledMaskedSoftmax", x, (BYTE, (6, 1, 16)), 0.5)
    assert masked.bytes == size(x, x) + 96
    equals_aten(
        "ScaledMaskedSoftmaxBackward", (grad,), "_softmax_backward_data", (grad, x, -1, None), forward=(x, None)
    )


def test_activations_count_their_pointwise_ops():
    x, cosines = (HALF, (2, 3, 8)), (HALF, (1, 3, 8))

    def aten_flops(*calls):
        """FLOPs of ATen ops that compute the same."""
        return sum(cost_of(f"aten::{op}", shape(*arguments)).flops for op, *arguments in calls)

    assert cost("LigerSiLUMulFunction", x, x).flops == aten_flops(("silu", x), ("mul", x, x))
    assert cost("LigerSiLUMulFunction", x, x).bytes == size(x, x, x)
    back = cost("LigerSiLUMulFunctionBackward", x, forward=(x, x))
    # The gradients of both: silu again, its gradient, and two products.
    assert back.flops == aten_flops(("silu", x), ("silu_backward", x, x), ("mul", x, x), ("mul", x, x))
    assert back.bytes == size(x, x, x) + size(x, x)
    turned = aten_flops(("mul", x, cosines), ("mul", x, cosines), ("add", x, x, 1))
    rope = cost("LigerRopeFunction", x, x, cosines, cosines)
    assert (rope.flops, rope.bytes) == (2 * turned, size(x, x, cosines, cosines, x, x))
    assert cost("LigerRopeFunctionBackward", x, x, forward=(x, x, cosines, cosines))[:2] == rope[:2]
    fused = cost("FusedRoPEFunc", x, (SINGLE, (3, 1, 1, 8)))
    assert (fused.flops, fused.bytes) == (turned, size(x, x) + 96)
    assert cost("FusedRoPEFuncBackward", x, forward=(x, (SINGLE, (3, 1, 1, 8))))[:2] == fused[:2]
    added = cost("LigerFusedAddRMSNormFunction", x, x, (HALF, (8,)))
    assert added.flops == aten_flops(("add", x, x, 1), ("_fused_rms_norm", x, [8], (HALF, (8,)), None))
    assert added.bytes == size(x, x, x, x, (HALF, (8,)), (SINGLE, (2, 3)))
    added_back = cost("LigerFusedAddRMSNormFunctionBackward", x, x, forward=(x, x, (HALF, (8,))))
    assert added_back.flops == 9 * 48
    logits, target = (HALF, (6, 50)), (LONG, (6,))
    loss = cost("LigerCrossEntropyFunction", logits, target)
    assert loss.flops == aten_flops(
        ("_softmax", logits, -1, False), ("_softmax_backward_data", logits, logits, -1, None)
    )
    assert loss.bytes == size(logits, logits, target)
    assert cost("LigerCrossEntropyFunctionBackward", (SINGLE, ()), forward=(logits, target)).bytes == size(
        logits, logits
    )


# ---- embeddings and quantisation


def test_embedding_tables_match_embedding_bag():
    """One table: the sums of the bags, counted by loops; rows that are read more often than they exist count once."""
    rows, width, bags = 50, 8, [3, 0, 4, 2]
    indices, offsets = (LONG, (sum(bags),)), (LONG, (len(bags) + 1,))
    table, none, out = (SINGLE, (rows * width,)), (SINGLE, (0,)), (SINGLE, (len(bags), width))
    adds = sum(width for bag in bags for _ in range(bag))
    moved = adds * 4 + size(indices, offsets, out)
    arguments = (none, table, none, none, (INT, (1,)), (LONG, (1,)), (INT, (2,)))
    rest = (width, width, (LONG, (2,)), 6, indices, offsets, 0, None)
    for optimizer in ("adagrad", "rowwise_adagrad", "sgd", "adam"):
        call_cost = cost(f"fbgemm::split_embedding_codegen_lookup_{optimizer}_function", *arguments, *rest)
        assert (call_cost.flops, call_cost.bytes) == (adds, moved)
        node = cost(f"torch::autograd::CppNode<SplitLookupFunction_{optimizer}_Op>", out, forward=(*arguments, *rest))
        assert (node.flops, node.bytes) == (adds, size(out, indices, offsets) + 2 * adds * 4)
    unrecorded = shape(*arguments, *rest)
    unrecorded = type(unrecorded)(dims=unrecorded.dims, types=unrecorded.types)
    call = ("fbgemm::split_embedding_codegen_lookup_sgd_function", unrecorded, CallFacts(partner=shape(out)))
    TRIED.append(call)
    call_cost = cost_of(*call)
    assert call_cost is not None
    assert (call_cost.flops, call_cost.bytes) == (adds, moved)
    newer = cost("fbgemm::split_embedding_codegen_lookup_sgd_function_pt2", none, *arguments, *rest)
    assert newer[:2] == (adds, moved)
    pt2 = "torch::autograd::CppNode<SplitLookupFunction_sgd_Op_pt2>"
    listed = (none, Listed([(rows * width,)]), (INT, (2,)), *rest)
    assert cost("fbgemm::split_embedding_codegen_lookup_sgd_function_pt2", *listed)[:2] == (adds, moved)
    assert cost(pt2, out, forward=(none, *arguments, *rest))[:2] == node[:2]
    assert cost(pt2, out, forward=listed)[:2] == node[:2]
    dense = (table, (LONG, (1,)), (INT, (2,)), *rest)
    assert cost("fbgemm::dense_embedding_codegen_lookup_function", *dense)[:2] == (adds, moved)
    bare = type(unrecorded)(dims=shape(*dense).dims, types=shape(*dense).types)
    call = ("fbgemm::dense_embedding_codegen_lookup_function", bare, CallFacts(partner=shape(out)))
    TRIED.append(call)
    assert cost_of(*call)[:2] == (adds, moved)
    node = cost("torch::autograd::CppNode<SplitLookupFunction_Dense_Op>", out, forward=dense)
    assert node.bytes == size(out, indices, offsets) + adds * 4
    small = (none, (SINGLE, (2 * width,)), *arguments[2:])
    call_cost = cost("fbgemm::split_embedding_codegen_lookup_sgd_function", *small, *rest)
    assert call_cost.bytes == size((SINGLE, (2 * width,)), indices, offsets, out)


def test_sparse_features_are_read_and_written_once():
    lengths, values, order = (INT, (5, 8)), (LONG, (90,)), (INT, (5,))
    for op in ("fbgemm::permute_2D_sparse_data", "fbgemm::permute_sparse_features"):
        assert cost(op, order, lengths, values, None, None).bytes == size(order, lengths, lengths, values, values)
    flat = (INT, (5,))
    assert cost("fbgemm::permute_1D_sparse_data", order, flat, values, None).bytes == size(
        order, flat, flat, values, values
    )
    pooled, dims = (SINGLE, (8, 32)), (LONG, (4,))
    assert cost("fbgemm::permute_pooled_embs_auto_grad", pooled, dims, dims, dims, dims).bytes == size(
        pooled, pooled, dims, dims
    )
    node = "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >"
    assert cost(node, pooled).bytes == size(pooled, pooled)
    assert cost("fbgemm::recat_embedding_grad_output_mixed_D_batch", pooled, dims, dims).bytes == size(pooled, pooled)
    total = cost("fbgemm::asynchronous_complete_cumsum", order)
    assert (total.flops, total.bytes) == (5, size(order, order))
    assert cost("fbgemm::bounds_check_indices", dims, values, dims, 1, dims, None).bytes == size(dims, values, dims)


def test_jagged_tensors_match_their_dense_form():
    values, offsets = (SINGLE, (9, 4)), Listed([(4,)])
    dense = (SINGLE, (3, 5, 4))
    assert cost("fbgemm::jagged_to_padded_dense", values, offsets, [5], 0.0).bytes == size(values, dense)
    assert cost("fbgemm::jagged_2d_to_dense", values, (LONG, (4,)), 5).bytes == size(values, (LONG, (4,)), dense)
    assert cost("fbgemm::dense_to_jagged", dense, offsets, 9).bytes == size(values, values)


def test_quantised_tensors_have_one_scale_per_block():
    x = (HALF, (6, 64))
    rows, blocks = (SINGLE, (6,)), (SINGLE, (6,))
    assert cost("bitsandbytes::int8_vectorwise_quant", x, 0.0).bytes == size(x, (INT8, (6, 64)), rows)
    assert cost("bitsandbytes::quantize_4bit", x, 64, "nf4").bytes == size(x, (BYTE, (192,)), blocks)
    packed = ((BYTE, (192, 1)), blocks)
    assert cost("bitsandbytes::dequantize_4bit", *packed, 64, "nf4", [6, 64], 15).bytes == size(*packed, x)
    code = (SINGLE, (256,))
    assert cost("bitsandbytes::quantize_blockwise", x, code, 64).bytes == size(x, code, (BYTE, (6, 64)), blocks)
    call_cost = cost("bitsandbytes::dequantize_blockwise", (BYTE, (6, 64)), blocks, code, 64, 6)
    assert call_cost.bytes == size((BYTE, (6, 64)), blocks, code, (SINGLE, (6, 64)))
    call_cost = cost("bitsandbytes::int8_mm_dequant", (INT, (6, 64)), rows, (SINGLE, (64,)), 15, None)
    assert call_cost.bytes == size((INT, (6, 64)), rows, (SINGLE, (64,)), x)
    assert cost("fbgemm::quantize_fp8_per_row", x).bytes == size(x, (FP8, (6, 64)))


def test_optimizers_of_bitsandbytes_write_what_they_update():
    g, p, state = (HALF, (40,)), (HALF, (40,)), (SINGLE, (40,))
    adam = cost("bitsandbytes::optimizer_update_32bit", "adam", g, p, state, state)
    assert adam.bytes == size(g, p, state, state) + size(p, state, state)
    sgd = cost("bitsandbytes::optimizer_update_32bit", "momentum", g, p, state, None)
    assert sgd.bytes == size(g, p, state) + size(p, state)
    eight = (BYTE, (40,))
    call_cost = cost("bitsandbytes::optimizer_update_8bit_blockwise", "adam", g, p, eight, eight)
    assert call_cost.bytes == size(g, p, eight, eight) + size(p, eight, eight)
    assert adam.flops == 14 * 40
    assert sgd.flops == 4 * 40


def test_every_entry_is_reached_by_a_case():
    """Each entry and its backward pass gives a cost to a call of the other tests, which this one runs itself: they may
    run in other processes."""
    for name, test in list(globals().items()):
        if name.startswith("test_") and name != "test_every_entry_is_reached_by_a_case":
            test(HALF) if name == "test_norms_and_softmax_equal_atens" else test()
    unreached = []
    for number, entry in enumerate(library()):
        alone = FormulaSet([entry], "library")
        names = [pattern.replace("*", "") for pattern in entry.ops]
        forward = [call for call in TRIED if any(not part.backward for part in alone.parts(call[0]))]
        backward = [call for call in TRIED if any(part.backward for part in alone.parts(call[0]))]
        for half, calls in (("forward", forward), ("backward", backward)):
            if (half == "forward" or entry.backward) and not any(alone.cost(*call) for call in calls):
                unreached.append((number, half, names[0], entry.note))
    assert not unreached
