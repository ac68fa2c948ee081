"""FLOPs and bytes of matrix products, convolutions and attention, from the op's arguments.

A multiplication and an addition are two FLOPs; a bias, a scale and the softmax inside attention count zero, and a
convolution's taps on padding count like others, as in torch's FlopCounterMode. Causal attention counts the pairs that
the mask keeps (FlopCounterMode: all). Its backward pass is five products, since a fused kernel recomputes the scores
(Dao 2023, arXiv:2307.08691, section 2).
Bytes: every input tensor is read once and every result written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from trainyard.trace.flops.operands import (
    COMPLEX,
    FLOAT,
    INT,
    Cost,
    Format,
    OpArguments,
    Tensor,
    UnknownOperand,
    broadcast,
)
from trainyard.trace.flops.signatures import ATTENTIONS, CONVOLUTIONS

# Ops with tensors [batch, sequence, head, width]; all others have [batch, head, sequence, width].
_SEQUENCE_FIRST = ("_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
                   "_efficient_attention_backward")  # fmt: skip


def _cost(flops: int, read: Sequence[Tensor], written: Sequence[Tensor], main: Format, at_most: bool = False) -> Cost:
    if main.category == COMPLEX:
        raise UnknownOperand
    return Cost(flops, sum(tensor.bytes for tensor in (*read, *written)), main, at_most)


def _product(left: Tensor, right: Tensor) -> tuple[int, tuple[int, ...]]:
    """FLOPs and dims of `left @ right`, with torch.matmul's rules for vectors and batches."""
    if not left.dims or not right.dims:
        raise UnknownOperand
    a = left.dims if len(left.dims) > 1 else (1, *left.dims)
    b = right.dims if len(right.dims) > 1 else (*right.dims, 1)
    if a[-1] != b[-2]:
        raise UnknownOperand
    batch = broadcast(a[:-2], b[:-2])
    dims = (*batch, *(a[-2:-1] if len(left.dims) > 1 else ()), *(b[-1:] if len(right.dims) > 1 else ()))
    return 2 * prod(batch) * a[-2] * b[-1] * a[-1] * left.format.packs, dims


def _matmul(at: int, summed: bool = False) -> Callable[[OpArguments], Cost]:
    """`args[at] @ args[at + 1]`, plus the tensors before these two. `summed`: over the batch."""

    def formula(args: OpArguments) -> Cost:
        left, right = args[at], args[at + 1]
        flops, dims = _product(left, right)
        added = [args[index] for index in range(at)]
        return _cost(flops, [*added, left, right], [Tensor(dims[-2:] if summed else dims, left.format)], left.format)

    return formula


def _linear(args: OpArguments) -> Cost:
    left, weight = args[0], args[1]
    flops, dims = _product(left, Tensor(weight.dims[::-1], weight.format))
    return _cost(flops, args.tensors(3), [Tensor(dims, left.format)], left.format)


def _int_mm(args: OpArguments) -> Cost:
    flops, dims = _product(args[0], args[1])
    return _cost(flops, args.tensors(2), [Tensor(dims, INT)], args[0].format)


def _scaled_mm(args: OpArguments) -> Cost:
    """(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype)."""
    left = args[0]
    flops, dims = _product(left, args[1])
    return _cost(flops, args.tensors(6), [Tensor(dims, args.format(6, left.format))], left.format)


def _grouped_mm(offsets_at: int, dtype_at: int) -> Callable[[OpArguments], Cost]:
    """Products of groups that offsets delimit along the rows, the columns or the summed dim.

    An upper bound: data beyond the last offset belongs to no group, and its size is not in the file.
    """

    def formula(args: OpArguments) -> Cost:
        left, right = args[0], args[1]
        a, b = left.dims, right.dims
        offsets = args.maybe(offsets_at)
        if len(a) == len(b) == 3:
            flops, dims = _product(left, right)
        elif len(a) in (2, 3) and len(b) in (2, 3) and a[-1] == b[-2] and offsets is not None:
            flops = 2 * a[-2] * a[-1] * b[-1] * left.format.packs
            # Each group along the summed dim has its own result.
            dims = (*((offsets.numel,) if len(a) == len(b) else ()), a[-2], b[-1])
        else:
            raise UnknownOperand
        written = Tensor(dims, args.format(dtype_at, left.format))
        return _cost(flops, args.tensors(dtype_at), [written], left.format, at_most=offsets is not None)

    return formula


def _convolution(args: OpArguments) -> Cost:
    """A convolution of input [B, C, ...] with weight [O, C / groups, ...]; transposed: [C, O / groups, ...]."""
    image, weight = args[0], args[1]
    width = len(weight.dims) - 2
    if width < 1 or len(image.dims) not in (width + 1, width + 2):
        raise UnknownOperand
    batch, spatial = image.dims[: -1 - width], image.dims[-width:]
    stride, padding = _by_axis(args, "stride", width), _by_axis(args, "padding", width)
    dilation = _by_axis(args, "dilation", width) if "dilation" in args else (1,) * width
    if min(stride) < 1:
        raise UnknownOperand
    reach = [gap * (taps - 1) for gap, taps in zip(dilation, weight.dims[2:])]
    if args.flag("transposed") if "transposed" in args else "output_padding" in args:
        extra = _by_axis(args, "output_padding", width)
        channels = weight.dims[1] * args.int("groups")
        spots = [
            (n - 1) * step - 2 * pad + far + 1 + more
            for n, step, pad, far, more in zip(spatial, stride, padding, reach, extra)
        ]
        flops = 2 * image.numel * prod(weight.dims[1:])
    else:
        channels = weight.dims[0]
        spots = [(n + 2 * pad - far - 1) // step + 1 for n, step, pad, far in zip(spatial, stride, padding, reach)]
        flops = 2 * prod(batch) * channels * prod(spots) * prod(weight.dims[1:])
    if min(spots) < 0:
        raise UnknownOperand
    read = [tensor for name in ("bias", "z") if name in args and (tensor := args.maybe(name))]
    written = Tensor((*batch, channels, *spots), image.format)
    return _cost(flops, [image, weight, *read], [written], image.format)


def _by_axis(args: OpArguments, name: str, width: int) -> tuple[int, ...]:
    values = args.ints(name)
    if len(values) not in (1, width):
        raise UnknownOperand
    return values * width if len(values) == 1 else values


def _convolution_backward(args: OpArguments) -> Cost:
    """The gradients that `output_mask` selects: those of input and weight cost as much as a forward pass each; that of
    the bias is a sum and counts zero FLOPs."""
    gradient, image, weight = args["grad_output"], args["input"], args["weight"]
    to_image, to_weight, to_bias = args.flags("output_mask")
    pixels = image.numel if args.flag("transposed") else gradient.numel
    product = 2 * pixels * prod(weight.dims[1:])
    channels = gradient.dims[-len(weight.dims) + 1]
    read = [gradient, *([weight] if to_image else []), *([image] if to_weight else [])]
    written = [image] * to_image + [weight] * to_weight + [Tensor((channels,), gradient.format)] * to_bias
    return _cost(product * (to_image + to_weight), read, written, gradient.format)


def _attention(name: str) -> Callable[[OpArguments], Cost]:
    backward = name.endswith("_backward")

    def formula(args: OpArguments) -> Cost:
        query, key, value = args["query"], args["key"], args["value"]
        pairs, at_most = _pairs(name, args)
        wide, deep = query.dims[-1], value.dims[-1]
        flops = 2 * pairs * (3 * wide + 2 * deep if backward else wide + deep)
        if backward:
            return _cost(flops, args.tensors(), [query, key, value], query.format, at_most)
        out = Tensor((*query.dims[:-1], deep), query.format)
        # Fused kernels keep the log-sum-exp of each row of scores for the backward pass.
        fused = [] if name.startswith(("scaled", "_scaled_dot_product_attention")) else [Tensor(query.dims[:-1], FLOAT)]
        return _cost(flops, args.tensors(), [out, *fused], query.format, at_most)

    return formula


def _pairs(name: str, args: OpArguments) -> tuple[int, bool]:
    """(query-key pairs that the mask keeps, over batch and query heads; whether they are an upper bound)."""
    query, key, value = args["query"], args["key"], args["value"]
    kind = args.int("custom_mask_type") if "custom_mask_type" in args else args.flag("is_causal")
    if query.dims[-1:] != key.dims[-1:] or key.dims[:-1] != value.dims[:-1] or len(query.dims) != len(key.dims):
        raise UnknownOperand
    starts = next(
        (tensor for word in ("cum_seq_q", "cu_seqlens_q") if word in args and (tensor := args.maybe(word))), None
    )
    if starts is not None and starts.numel:
        return _packed_pairs(args, query, key, causal=bool(kind)), True
    head, sequence = (-2, -3) if name in _SEQUENCE_FIRST else (-3, -2)
    if len(query.dims) < 3 or query.dims[head] % max(1, key.dims[head]):
        raise UnknownOperand
    rows, columns = query.dims[sequence], key.dims[sequence]
    matrices = prod(query.dims[:-1]) // max(1, rows)
    windows = [word for word in ("window_size_left", "window_size_right", "window_size") if word in args]
    windowed = any(args.is_given(word) and args.int(word) >= 0 for word in windows)
    # The causal diagonal ends at the last key in flash kernels called directly and with mask 2 of the efficient kernel;
    # in others it begins at the first key.
    shift = columns - rows if name.startswith("_flash") or kind == 2 else 0
    return matrices * (_triangle(rows, columns, shift) if kind else rows * columns), windowed


def _packed_pairs(args: OpArguments, query: Tensor, key: Tensor, causal: bool) -> int:
    """Upper bound for packed sequences, [tokens, head, width]: the pairs if all are as long as the longest."""
    tokens, heads = prod(query.dims[:-2]), query.dims[-2]
    prefix = "max_seqlen_" if "max_seqlen_q" in args else "max_"
    longest_q, longest = args.int(f"{prefix}q"), args.int(f"{prefix}k")
    if min(longest_q, longest) < 0 or len(query.dims) < 3:
        raise UnknownOperand
    if causal and longest_q == longest and query.dims[:-2] == key.dims[:-2]:
        return heads * -(-tokens * (longest + 1) // 2)
    return heads * tokens * longest


def _triangle(rows: int, columns: int, shift: int) -> int:
    """Sum over rows i of min(i + 1 + shift, columns), no term below zero."""
    first = max(0, -shift)
    full_from = min(rows, max(first, columns - shift))
    growing = max(0, full_from - first)
    start = first + 1 + shift
    return growing * start + growing * (growing - 1) // 2 + (rows - max(full_from, min(first, rows))) * columns


FORMULAS: dict[str, Callable[[OpArguments], Cost]] = {
    "mm": _matmul(0),
    "bmm": _matmul(0),
    "matmul": _matmul(0),
    "mv": _matmul(0),
    "dot": _matmul(0),
    "vdot": _matmul(0),
    "addmm": _matmul(1),
    "_addmm_activation": _matmul(1),
    "addmv": _matmul(1),
    "baddbmm": _matmul(1),
    "addbmm": _matmul(1, summed=True),
    "linear": _linear,
    "_int_mm": _int_mm,
    "_scaled_mm": _scaled_mm,
    "_grouped_mm": _grouped_mm(2, 4),
    "_scaled_grouped_mm": _grouped_mm(4, 7),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    "convolution_backward": _convolution_backward,
    **{name: _attention(name) for name in ATTENTIONS},
}
"""Name without `aten::` and in-place underscore -> formula. Files do not record an einsum's equation: the products that
it calls count."""
