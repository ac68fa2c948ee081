"""FLOPs and bytes of matrix products, convolutions and attention, from the op's arguments.

A multiplication and an addition are two FLOPs; a bias, a scale and the softmax inside attention count zero, and a
convolution's taps on padding count like others, as in torch's FlopCounterMode. Causal attention counts the pairs that
the mask keeps (FlopCounterMode: all). Its backward pass is five products, since a fused kernel recomputes the scores
(Dao 2023, arXiv:2307.08691, section 2).
Bytes: every input tensor is read once and every result written once.

A formula is a function of an op's arguments (`OpArguments`: `args[i]` is the tensor at position i, `args["name"]` the
one under its name in the op's schema) that returns the `Cost` of one call. It raises `UnknownOperand` if the file lacks
a value. Dims are those of torch; a format is a number format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from trainyard.trace.flops.operands import (
    COMPLEX_CATEGORY,
    FLOAT,
    INT,
    Cost,
    Format,
    OpArguments,
    Tensor,
    UnknownOperand,
    broadcast,
)
from trainyard.trace.flops.pairs import causal_pairs, kept_pairs
from trainyard.trace.flops.signatures import ATTENTIONS, CONVOLUTIONS

ASSUMES_SMALL_SCALES = "the scales of a scaled product take far fewer bytes than its operands: lists are not recorded"

# Ops with tensors [batch, sequence, head, width]; all others have [batch, head, sequence, width].
_SEQUENCE_FIRST = ("_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
                   "_efficient_attention_backward")  # fmt: skip


def _matrix_cost(
    flops: int,
    read_tensors: Sequence[Tensor],
    written_tensors: Sequence[Tensor],
    arithmetic_format: Format,
    at_most: bool = False,
) -> Cost:
    """The cost of an op that reads and writes these tensors once. Raises `UnknownOperand` for complex formats.

    `arithmetic_format`: the format of the products, whose peak applies; `at_most`: the FLOPs are an upper bound.
    """
    if arithmetic_format.category == COMPLEX_CATEGORY:
        raise UnknownOperand
    return Cost(
        flops=flops,
        bytes=sum(tensor.bytes for tensor in (*read_tensors, *written_tensors)),
        format=arithmetic_format,
        at_most=at_most,
    )


def _matmul_flops_and_dims(left: Tensor, right: Tensor) -> tuple[int, tuple[int, ...]]:
    """(FLOPs, dims of the result) of `left @ right`, with torch.matmul's rules for vectors and batches.

    A product of [..., m, k] and [..., k, n] takes 2 * batch * m * n * k FLOPs, times the numbers packed into an element
    (float4 holds two). Raises `UnknownOperand` for dims that do not fit.
    """
    if not left.dims or not right.dims:
        raise UnknownOperand
    a = left.dims if len(left.dims) > 1 else (1, *left.dims)
    b = right.dims if len(right.dims) > 1 else (*right.dims, 1)
    if a[-1] != b[-2]:
        raise UnknownOperand
    batch = broadcast(a[:-2], b[:-2])
    dims = (*batch, *(a[-2:-1] if len(left.dims) > 1 else ()), *(b[-1:] if len(right.dims) > 1 else ()))
    flops = 2 * prod(batch) * a[-2] * b[-1] * a[-1] * left.format.packs
    return flops, dims


def _matmul_formula(left_index: int, sums_batch: bool = False) -> Callable[[OpArguments], Cost]:
    """The formula of `args[left_index] @ args[left_index + 1]`, plus the tensors before these two (as in addmm).

    `sums_batch`: the products are summed over the batch (addbmm).
    """

    def formula(args: OpArguments) -> Cost:
        """FLOPs and bytes of the product; the result is written in the format of the left operand."""
        left, right = args[left_index], args[left_index + 1]
        flops, dims = _matmul_flops_and_dims(left, right)
        addends = [args[index] for index in range(left_index)]
        return _matrix_cost(
            flops, [*addends, left, right], [Tensor(dims[-2:] if sums_batch else dims, left.format)], left.format
        )

    return formula


def _cost_linear(args: OpArguments) -> Cost:
    """linear (input [..., in], weight [out, in], bias): input @ weight.T + bias."""
    left, weight = args[0], args[1]
    flops, dims = _matmul_flops_and_dims(left, Tensor(weight.dims[::-1], weight.format))
    return _matrix_cost(flops, args.tensors(3), [Tensor(dims, left.format)], left.format)


def _cost_int_mm(args: OpArguments) -> Cost:
    flops, dims = _matmul_flops_and_dims(args[0], args[1])
    return _matrix_cost(flops, args.tensors(2), [Tensor(dims, INT)], args[0].format)


def _cost_scaled_mm(args: OpArguments) -> Cost:
    """_scaled_mm (self, mat2, scale_a, scale_b, bias, scale_result, out_dtype): a product of float8 with scales."""
    left = args[0]
    flops, dims = _matmul_flops_and_dims(left, args[1])
    return _matrix_cost(flops, args.tensors(6), [Tensor(dims, args.format(6, left.format))], left.format)


def _cost_scaled_mm_v2(args: OpArguments) -> Cost:
    """(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype): the scales are lists,
    whose format is not recorded."""
    left, right = args[0], args[1]
    flops, dims = _matmul_flops_and_dims(left, right)
    addends = [bias] if (bias := args.maybe(8)) else []
    written = Tensor(dims, args.format(9, left.format))
    cost = _matrix_cost(flops, [left, right, *addends], [written], left.format)
    return cost._replace(assumes=ASSUMES_SMALL_SCALES)


def _grouped_mm_formula(
    offsets_index: int, dtype_index: int, scales_listed: bool = False
) -> Callable[[OpArguments], Cost]:
    """The formula of products of groups that offsets delimit along the rows, the columns or the summed dim.

    `offsets_index`, `dtype_index`: positions of the arguments `offs` and `out_dtype`. `scales_listed`: the scales are
    lists, whose format is not recorded, so that their bytes do not count. Without offsets, both operands are [groups,
    rows, columns], and it is a batched product. With offsets, an operand whose groups are concatenated has two dims.

    An upper bound: data beyond the last offset belongs to no group, and its size is not in the file.
    """

    def formula(args: OpArguments) -> Cost:
        """FLOPs and bytes of all groups. Raises `UnknownOperand` for other dims."""
        left, right = args[0], args[1]
        a, b = left.dims, right.dims
        offsets = args.maybe(offsets_index)
        if len(a) == len(b) == 3:
            flops, dims = _matmul_flops_and_dims(left, right)
        elif len(a) in (2, 3) and len(b) in (2, 3) and a[-1] == b[-2] and offsets is not None:
            flops = 2 * a[-2] * a[-1] * b[-1] * left.format.packs
            # Each group along the summed dim has its own result.
            dims = (*((offsets.numel,) if len(a) == len(b) else ()), a[-2], b[-1])
        else:
            raise UnknownOperand
        written = Tensor(dims, args.format(dtype_index, left.format))
        if scales_listed:
            others = [tensor for index in (offsets_index, offsets_index + 1) if (tensor := args.maybe(index))]
            read = [left, right, *others]
        else:
            read = args.tensors(dtype_index)
        cost = _matrix_cost(flops, read, [written], left.format, at_most=offsets is not None)
        return cost._replace(assumes=ASSUMES_SMALL_SCALES) if scales_listed else cost

    return formula


def _cost_convolution(args: OpArguments) -> Cost:
    """A convolution of input [B, C, ...] with weight [O, C / groups, ...]; transposed: [C, O / groups, ...].

    Each output element (transposed: input element) takes a multiplication and an addition with every weight of its
    output (input) channel. The sizes of the output are those of torch's documentation of Conv2d and ConvTranspose2d.
    """
    input, weight = args[0], args[1]
    spatial_axes = len(weight.dims) - 2
    if spatial_axes < 1 or len(input.dims) not in (spatial_axes + 1, spatial_axes + 2):
        raise UnknownOperand
    if args.facts.partner is not None:
        return _cost_convolution_by_result(args, input, weight)
    batch, spatial = input.dims[: -1 - spatial_axes], input.dims[-spatial_axes:]
    stride, padding = _value_per_axis(args, "stride", spatial_axes), _value_per_axis(args, "padding", spatial_axes)
    dilation = _value_per_axis(args, "dilation", spatial_axes) if "dilation" in args else (1,) * spatial_axes
    if min(stride) < 1:
        raise UnknownOperand
    # Distance from the first to the last tap of the kernel along each spatial axis.
    kernel_reach = [gap * (taps - 1) for gap, taps in zip(dilation, weight.dims[2:])]
    if args.flag("transposed") if "transposed" in args else "output_padding" in args:
        output_padding = _value_per_axis(args, "output_padding", spatial_axes)
        channels = weight.dims[1] * args.int("groups")
        output_dims = [
            (n - 1) * step - 2 * pad + reach + 1 + extra
            for n, step, pad, reach, extra in zip(spatial, stride, padding, kernel_reach, output_padding)
        ]
        flops = 2 * input.numel * prod(weight.dims[1:])
    else:
        channels = weight.dims[0]
        output_dims = [
            (n + 2 * pad - reach - 1) // step + 1 for n, step, pad, reach in zip(spatial, stride, padding, kernel_reach)
        ]
        flops = 2 * prod(batch) * channels * prod(output_dims) * prod(weight.dims[1:])
    if min(output_dims) < 0:
        raise UnknownOperand
    read = [tensor for name in ("bias", "z") if name in args and (tensor := args.maybe(name))]
    written = Tensor((*batch, channels, *output_dims), input.format)
    return _matrix_cost(flops, [input, weight, *read], [written], input.format)


def _cost_convolution_by_result(args: OpArguments, input: Tensor, weight: Tensor) -> Cost:
    """The cost of a convolution whose strides are not recorded, from the size of its result. Raises `UnknownOperand`
    for a transposed one, whose result is longer than its input."""
    out = args.result()
    spatial_axes = len(weight.dims) - 2
    longer = any(n > length for n, length in zip(out.dims[-spatial_axes:], input.dims[-spatial_axes:]))
    if len(out.dims) != len(input.dims) or out.dims[-spatial_axes - 1] != weight.dims[0] or longer:
        raise UnknownOperand
    flops = 2 * out.numel * prod(weight.dims[1:])
    return _matrix_cost(flops, [input, weight], [out], input.format)


def _cudnn_gradient_formula(target: str) -> Callable[[OpArguments], Cost]:
    """The formula of `cudnn_convolution_backward_<target>` of PyTorch 1, inside `cudnn_convolution_backward` (self,
    grad_output, weight, ...), whose arguments are its facts."""

    def formula(args: OpArguments) -> Cost:
        """FLOPs and bytes of one gradient. Raises `UnknownOperand` if the op around it is not in the file."""
        if args.facts.partner is None:
            raise UnknownOperand
        around = OpArguments(args.facts.partner)
        input, gradient, weight = around[0], around[1], around[2]
        read, written = (weight, input) if target == "input" else (input, weight)
        return _matrix_cost(2 * gradient.numel * prod(weight.dims[1:]), [gradient, read], [written], gradient.format)

    return formula


def _value_per_axis(args: OpArguments, name: str, axis_count: int) -> tuple[int, ...]:
    """An argument such as `stride`, which has one value for each spatial axis, or one for all."""
    values = args.ints(name)
    if len(values) not in (1, axis_count):
        raise UnknownOperand
    return values * axis_count if len(values) == 1 else values


def _cost_convolution_backward(args: OpArguments) -> Cost:
    """The gradients that `output_mask` selects: those of input and weight cost as much as a forward pass each; that of
    the bias is a sum and counts zero FLOPs."""
    gradient, input, weight = args["grad_output"], args["input"], args["weight"]
    to_image, to_weight, to_bias = args.flags("output_mask")
    elements = input.numel if args.flag("transposed") else gradient.numel
    flops_per_gradient = 2 * elements * prod(weight.dims[1:])
    channels = gradient.dims[-len(weight.dims) + 1]
    read = [gradient, *([weight] if to_image else []), *([input] if to_weight else [])]
    written = [input] * to_image + [weight] * to_weight + [Tensor((channels,), gradient.format)] * to_bias
    return _matrix_cost(flops_per_gradient * (to_image + to_weight), read, written, gradient.format)


def _attention_formula(name: str) -> Callable[[OpArguments], Cost]:
    """The formula of the attention op `name`, forward or backward.

    For each query-key pair and head, the forward pass takes two products: a score (2 * query width FLOPs) and a
    weighted value (2 * value width). The backward pass takes five: the score again, its gradient and the gradient of
    the value (one with the query's width, two with the value's), and the gradients of query and key (the query's
    width).
    """
    backward = name.endswith("_backward")

    def formula(args: OpArguments) -> Cost:
        """FLOPs and bytes of the op; the backward pass writes the gradients of query, key and value."""
        query, key, value = args["query"], args["key"], args["value"]
        pairs, at_most = _query_key_pairs(name, args)
        query_width, value_width = query.dims[-1], value.dims[-1]
        flops = 2 * pairs * (3 * query_width + 2 * value_width if backward else query_width + value_width)
        if backward:
            return _matrix_cost(flops, args.tensors(), [query, key, value], query.format, at_most)
        out = Tensor((*query.dims[:-1], value_width), query.format)
        # Fused kernels keep the log-sum-exp of each row of scores for the backward pass.
        fused = [] if name.startswith(("scaled", "_scaled_dot_product_attention")) else [Tensor(query.dims[:-1], FLOAT)]
        return _matrix_cost(flops, args.tensors(), [out, *fused], query.format, at_most)

    return formula


def _query_key_pairs(name: str, args: OpArguments) -> tuple[int, bool]:
    """(Number of query-key pairs that the mask keeps, over batch and query heads; whether it is an upper bound).

    `name`: the op, which determines the order of dims and the alignment of a causal mask. Packed sequences and windows
    give an upper bound. Raises `UnknownOperand` for dims that do not fit.
    """
    query, key, value = args["query"], args["key"], args["value"]
    kind = args.int("custom_mask_type") if "custom_mask_type" in args else args.flag("is_causal")
    if query.dims[-1:] != key.dims[-1:] or key.dims[:-1] != value.dims[:-1] or len(query.dims) != len(key.dims):
        raise UnknownOperand
    # Packed sequences have the offsets of their starts as an argument.
    starts = next(
        (tensor for word in ("cum_seq_q", "cu_seqlens_q") if word in args and (tensor := args.maybe(word))), None
    )
    if starts is not None and starts.numel:
        return _max_packed_pairs(args, query, key, causal=bool(kind)), True
    head, sequence = (-2, -3) if name in _SEQUENCE_FIRST else (-3, -2)
    if len(query.dims) < 3 or query.dims[head] % max(1, key.dims[head]):
        raise UnknownOperand
    rows, columns = query.dims[sequence], key.dims[sequence]
    matrices = prod(query.dims[:-1]) // max(1, rows)
    windows = [word for word in ("window_size_left", "window_size_right", "window_size") if word in args]
    windowed = any(args.is_given(word) and args.int(word) >= 0 for word in windows)
    if windowed and name.startswith("_flash"):
        left, right = (args.int(word) if args.is_given(word) else -1 for word in windows)
        return matrices * kept_pairs(rows, columns, bool(kind), left, right), False
    # The causal diagonal ends at the last key in flash kernels called directly and with mask 2 of the efficient kernel;
    # in others it begins at the first key.
    shift = columns - rows if name.startswith("_flash") or kind == 2 else 0
    return matrices * (causal_pairs(rows, columns, shift) if kind else rows * columns), windowed


def _max_packed_pairs(args: OpArguments, query: Tensor, key: Tensor, causal: bool) -> int:
    """Upper bound of the query-key pairs of packed sequences, [tokens, head, width], over all heads.

    The lengths are not in the file, only the longest. Most pairs arise if all sequences are that long: each query token
    then has `longest_k` keys, or, with a causal mask and as many keys as queries, (longest_k + 1) / 2 on average.
    """
    tokens, heads = prod(query.dims[:-2]), query.dims[-2]
    prefix = "max_seqlen_" if "max_seqlen_q" in args else "max_"
    longest_q, longest_k = args.int(f"{prefix}q"), args.int(f"{prefix}k")
    if min(longest_q, longest_k) < 0 or len(query.dims) < 3:
        raise UnknownOperand
    if causal and longest_q == longest_k and query.dims[:-2] == key.dims[:-2]:
        return heads * -(-tokens * (longest_k + 1) // 2)  # rounded up
    return heads * tokens * longest_k


READS_RESULT = frozenset(
    ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "cudnn_convolution", "miopen_convolution",
     "cudnn_convolution_backward_input", "cudnn_convolution_backward_weight")
)  # fmt: skip
"""Names of ops, without `aten::`, whose cost follows from the op around them or, if the file does not record their
values, from their result."""

FORMULAS: dict[str, Callable[[OpArguments], Cost]] = {
    "mm": _matmul_formula(0),
    "bmm": _matmul_formula(0),
    "matmul": _matmul_formula(0),
    "mv": _matmul_formula(0),
    "dot": _matmul_formula(0),
    "vdot": _matmul_formula(0),
    "addmm": _matmul_formula(1),
    "_addmm_activation": _matmul_formula(1),
    "addmv": _matmul_formula(1),
    "baddbmm": _matmul_formula(1),
    "addbmm": _matmul_formula(1, sums_batch=True),
    "linear": _cost_linear,
    "_int_mm": _cost_int_mm,
    "_scaled_mm": _cost_scaled_mm,
    "_grouped_mm": _grouped_mm_formula(offsets_index=2, dtype_index=4),
    "_scaled_grouped_mm": _grouped_mm_formula(offsets_index=4, dtype_index=7),
    "_scaled_mm_v2": _cost_scaled_mm_v2,
    "_scaled_grouped_mm_v2": _grouped_mm_formula(offsets_index=8, dtype_index=10, scales_listed=True),
    **dict.fromkeys(CONVOLUTIONS, _cost_convolution),
    "convolution_backward": _cost_convolution_backward,
    "cudnn_convolution_backward_input": _cudnn_gradient_formula("input"),
    "cudnn_convolution_backward_weight": _cudnn_gradient_formula("weight"),
    **{name: _attention_formula(name) for name in ATTENTIONS},
}
"""Name without `aten::` and in-place underscore -> formula. Files do not record an einsum's equation: the products that
it calls count."""
