"""Bytes and FLOPs of memory-bound ops, from the op's arguments.

Bytes: every input tensor is read once and every result written once. A look-up reads and writes each row as often as it
is indexed. A number passed as a tensor without dims moves nothing.
FLOPs: one per element of a pointwise result or of a reduction's input; zero for copies, fills and look-ups; four per
element for a norm and a softmax, eight for a norm's backward pass and three for a softmax's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from trainyard.trace.flops.operands import (
    BOOL,
    FLOAT,
    LONG,
    UNKNOWN_FORMAT,
    Cost,
    OpArguments,
    Tensor,
    UnknownOperand,
    broadcast,
    promoted,
    real,
    summed,
)

# Pointwise ops: name -> how many arguments may be tensors.
_ARITHMETIC = {
    1: "neg abs sign sgn floor ceil round trunc relu relu6 square bitwise_not tril triu hardtanh leaky_relu "
    "nan_to_num threshold clamp_min clamp_max masked_scale hardswish hardsigmoid silu gelu elu mish celu selu",
    2: "add sub mul rsub maximum minimum remainder fmod pow bitwise_and bitwise_or bitwise_xor floor_divide "
    "threshold_backward silu_backward gelu_backward tanh_backward sigmoid_backward leaky_relu_backward elu_backward "
    "hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward _prelu_kernel fmax fmin",
    3: "addcmul addcdiv lerp clamp",
}
_OF_REALS = {
    1: "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sigmoid tanh sin cos tan asin acos atan sinh cosh "
    "erf erfc erfinv softplus logit log_sigmoid",
    2: "div divide true_divide atan2 hypot",
}
_COMPARISONS = {
    1: "logical_not isnan isinf isfinite isposinf isneginf signbit",
    2: "eq ne lt le gt ge logical_and logical_or logical_xor",
}
_FILLS = "fill_ zero_ uniform_ normal_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_"

# Views and bookkeeping ops, which do not touch data.
_VIEWS = (
    "view _unsafe_view _reshape_alias reshape view_as transpose t numpy_T permute as_strided expand expand_as select "
    "slice squeeze unsqueeze detach detach_ alias narrow unbind split split_with_sizes chunk flatten unflatten movedim "
    "swapaxes diagonal empty empty_strided empty_like new_empty resize_ resolve_conj resolve_neg result_type "
    "is_same_size set_ expand_copy lift_fresh broadcast_tensors"
)
# Ops that call others, which do the work.
_AROUND = (
    "einsum to _to_copy type_as clone contiguous zeros zeros_like new_zeros ones ones_like new_ones full full_like "
    "new_full scalar_tensor softmax log_softmax cross_entropy_loss nll_loss nll_loss_nd dropout batch_norm layer_norm "
    "group_norm rms_norm _batch_norm_impl_index embedding_bag max_pool2d adaptive_avg_pool2d slice_backward "
    "select_backward concat stack flatten_dense_tensors unflatten_dense_tensors item is_nonzero conv_transpose1d"
)

# Reductions: op -> {number of arguments of the overload: indices of (dim, keepdim, dtype)}; None if it has no such
# argument. The longer overload of a pair takes the result's tensor last.
_Overload = tuple[int | None, int | None, int | None]
_WHOLE: _Overload = (None, None, None)
_ALL: _Overload = (None, None, 1)
_REDUCTIONS: dict[str, dict[int, _Overload]] = {
    **{name: {2: _ALL, 3: _ALL, 4: (1, 2, 3), 5: (1, 2, 3)} for name in ("sum", "mean", "prod")},
    "nansum": {4: (1, 2, 3)},
    **{name: {3: (1, 2, None)} for name in ("amax", "amin", "logsumexp")},
    **{name: {1: _WHOLE, 3: (1, 2, None)} for name in ("max", "min", "any", "all")},
    **{name: {3: (1, 2, None)} for name in ("argmax", "argmin")},
    **{name: {4: (1, 3, None)} for name in ("var_mean", "std_mean", "var", "std")},
    "linalg_vector_norm": {5: (2, 3, 4)},
}


def _pointwise(tensors: int, of_reals: bool = False, compares: bool = False) -> Callable[[OpArguments, bool], Cost]:
    def formula(args: OpArguments, in_place: bool) -> Cost:
        operands = args.tensors(tensors)
        format = BOOL if compares else promoted(operands)
        out = args[0] if in_place else Tensor(broadcast(*(tensor.dims for tensor in operands)), format)
        if of_reals:
            real(promoted(operands))
        return _moved(out.numel, _in_memory(operands), [out])

    return formula


def _in_memory(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors without Python numbers, which are recorded as 64-bit tensors without dims."""
    wide = any(tensor.dims for tensor in tensors)
    return [tensor for tensor in tensors if tensor.dims or not wide or tensor.format.size < 8]


def _moved(flops: int, read: list[Tensor], written: list[Tensor]) -> Cost:
    return Cost(flops, sum(tensor.bytes for tensor in (*read, *written)), (read or written)[0].format)


def _fill(args: OpArguments, in_place: bool) -> Cost:
    return _moved(0, [], [args[0]])


def _copy(args: OpArguments, in_place: bool) -> Cost:
    """(self, src): `src` may be smaller and have another format."""
    return _moved(0, [args[1]], [args[0]])


def _only_moves(args: OpArguments, in_place: bool) -> Cost:
    """Zero FLOPs; the bytes are those of another op, or unknown: files do not record the formats of tensor lists."""
    return Cost(0, None, UNKNOWN_FORMAT)


def _view(args: OpArguments, in_place: bool) -> Cost:
    return Cost(0, 0, UNKNOWN_FORMAT)


def _where(args: OpArguments, in_place: bool) -> Cost:
    tensors = args.tensors(3)
    out = Tensor(broadcast(*(tensor.dims for tensor in tensors)), promoted(tensors[1:]))
    return _moved(out.numel, _in_memory(tensors), [out])


def _masked_fill(args: OpArguments, in_place: bool) -> Cost:
    self, mask = args[0], args[1]
    out = self if in_place else Tensor(broadcast(self.dims, mask.dims), self.format)
    return _moved(out.numel, [self, mask], [out])


def _dropout(args: OpArguments, in_place: bool) -> Cost:
    image = args[0]
    return _moved(image.numel, [image], [image, Tensor(image.dims, BOOL)])


def _dropout_backward(args: OpArguments, in_place: bool) -> Cost:
    return _moved(args[0].numel, [args[0], args[1]], [args[0]])


def _reduction(name: str) -> Callable[[OpArguments, bool], Cost]:
    def formula(args: OpArguments, in_place: bool) -> Cost:
        image = args[0]
        if name in ("max", "min") and len(args) == 2:
            return _pointwise(2)(args, in_place)
        if len(args) not in _REDUCTIONS[name]:
            raise UnknownOperand
        dim_at, keep_at, dtype_at = _REDUCTIONS[name][len(args)]
        try:
            dims = _reduced(args, image, dim_at, keep_at)
            format = summed(image.format) if name in ("sum", "prod", "nansum") else image.format
            format = format if dtype_at is None else args.format(dtype_at, format)
        except UnknownOperand:
            return Cost(image.numel, None, image.format)
        if name in ("any", "all"):
            format = BOOL
        written = [Tensor(dims, LONG if name.startswith("arg") else format)]
        if name in ("max", "min") and dim_at is not None:
            written.append(Tensor(dims, LONG))
        elif name.endswith("_mean"):
            written.append(written[0])
        return _moved(image.numel, [image], written)

    return formula


def _reduced(args: OpArguments, image: Tensor, dim_at: int | None, keep_at: int | None) -> tuple[int, ...]:
    if dim_at is None or keep_at is None:
        return ()
    keep = args.flag(keep_at)
    gone = args.ints(dim_at) if args.is_given(dim_at) else ()
    rank = max(1, len(image.dims))
    if any(not -rank <= axis < rank for axis in gone):
        raise UnknownOperand
    gone = {axis % rank for axis in gone} or set(range(rank))
    return tuple(1 if axis in gone else n for axis, n in enumerate(image.dims) if keep or axis not in gone)


def _cumulative(args: OpArguments, in_place: bool) -> Cost:
    image = args[0]
    return _moved(image.numel, [image], [Tensor(image.dims, args.format(2, summed(image.format)))])


def _softmax(args: OpArguments, in_place: bool) -> Cost:
    """(self, dim, half_to_float)."""
    image = args[0]
    return _moved(4 * image.numel, [image], [Tensor(image.dims, FLOAT if args.flag(2) else image.format)])


def _softmax_backward(args: OpArguments, in_place: bool) -> Cost:
    """(grad_output, output, dim, input_dtype)."""
    gradient, output = args[0], args[1]
    return _moved(3 * output.numel, [gradient, output], [Tensor(output.dims, args.format(3, output.format))])


def _norm(name: str) -> Callable[[OpArguments, bool], Cost]:
    def formula(args: OpArguments, in_place: bool) -> Cost:
        image = args["input"]
        kept = FLOAT if image.format.size < FLOAT.size else image.format
        written = [image]
        if "training" in args:
            if args.flag("training"):
                running = [tensor for word in ("running_mean", "running_var") if (tensor := args.maybe(word))]
                written += [*running, Tensor((2, *image.dims[1:2]), kept)]
        elif "group" in args:
            written.append(Tensor((2, args.int("N"), args.int("group")), kept))
        else:
            rows = image.dims[: len(image.dims) - len(args.ints("normalized_shape"))]
            written.append(Tensor((1 if "rms" in name else 2, *rows), kept))
        return _moved(4 * image.numel, args.tensors(), written)

    return formula


def _norm_backward(args: OpArguments, in_place: bool) -> Cost:
    """Gradients of the input, the weight and the bias: those that `output_mask` selects, all if it is missing."""
    image, weight = args["input"], args.maybe("weight")
    wanted = args.flags("output_mask") if "output_mask" in args else (True, True, True)
    of_weight = [weight or Tensor((0,), image.format)] * (len(wanted) - 1)
    return _moved(
        8 * image.numel, args.tensors(), [tensor for tensor, want in zip([image, *of_weight], wanted) if want]
    )


def _pool(args: OpArguments, in_place: bool) -> Cost:
    image, kernel = args["self"], args.ints("kernel_size")
    stride, padding = args.ints("stride") or kernel, args.ints("padding")
    dilation = args.ints("dilation") if "dilation" in args else (1,)
    windows = [values * 2 if len(values) == 1 else values for values in (kernel, stride, padding, dilation)]
    if args.flag("ceil_mode") or len(image.dims) < 3 or any(len(values) != 2 for values in windows) or min(stride) < 1:
        raise UnknownOperand
    kernel, stride, padding, dilation = windows
    spots = [
        (n + 2 * pad - gap * (taps - 1) - 1) // step + 1
        for n, taps, step, pad, gap in zip(image.dims[-2:], kernel, stride, padding, dilation)
    ]
    if min(spots) < 0:
        raise UnknownOperand
    out = Tensor((*image.dims[:-2], *spots), image.format)
    indices = [Tensor(out.dims, LONG)] if "dilation" in args else []
    return _moved(out.numel * prod(kernel), [image], [out, *indices])


def _pool_backward(args: OpArguments, in_place: bool) -> Cost:
    gradient = args["grad_output"]
    return _moved(gradient.numel, [gradient, args["indices"]], [args["self"]])


def _looked_up(dims: tuple[int, ...], table: Tensor, index: Tensor) -> Cost:
    rows = Tensor(dims, table.format)
    return _moved(0, [rows, index], [rows])


def _embedding(args: OpArguments, in_place: bool) -> Cost:
    table, index = args["weight"], args["indices"]
    return _looked_up((*index.dims, *table.dims[1:]), table, index)


def _index_select(args: OpArguments, in_place: bool) -> Cost:
    table, index, axis = args["self"], args["index"], args.int("dim")
    if not -len(table.dims) <= axis < len(table.dims):
        raise UnknownOperand
    dims = list(table.dims)
    dims[axis] = index.numel
    return _looked_up(tuple(dims), table, index)


def _gather(args: OpArguments, in_place: bool) -> Cost:
    return _looked_up(args["index"].dims, args["self"], args["index"])


def _embedding_backward(args: OpArguments, in_place: bool) -> Cost:
    """The gradients' rows; filling the table with zeros is another op."""
    gradient = args["grad_output"]
    return _moved(gradient.numel, [gradient, args["indices"]], [gradient])


def _embedding_bag(args: OpArguments, in_place: bool) -> Cost:
    table, index, starts = args["weight"], args["indices"], args["offsets"]
    bags = starts.numel - args.flag("include_last_offset")
    rows, out = Tensor((index.numel, *table.dims[1:]), table.format), Tensor((bags, *table.dims[1:]), table.format)
    return _moved(rows.numel, [rows, index, starts], [out])


def _nll_loss(args: OpArguments, in_place: bool) -> Cost:
    """Reads one logit per target; writes the sum (or each, without reduction) and the sum of the weights."""
    target, logits = args["target"], args["self"]
    picked = Tensor((target.numel * (2 if args.maybe("weight") else 1),), logits.format)
    summed_up = Tensor((target.numel if args.int("reduction") == 0 else 1,), logits.format)
    return _moved(target.numel, [picked, target], [summed_up, Tensor((), logits.format)])


def _nll_loss_backward(args: OpArguments, in_place: bool) -> Cost:
    """The targets' gradients; filling the others with zeros is another op."""
    target, logits = args["target"], args["self"]
    return _moved(0, [args["grad_output"], target], [Tensor((target.numel,), logits.format)])


def _table(ops: dict[int, str], of_reals: bool = False, compares: bool = False) -> dict[str, Callable]:
    return {name: _pointwise(tensors, of_reals, compares) for tensors, names in ops.items() for name in names.split()}


FORMULAS: dict[str, Callable[[OpArguments, bool], Cost]] = {
    **_table(_ARITHMETIC),
    **_table(_OF_REALS, of_reals=True),
    **_table(_COMPARISONS, compares=True),
    **dict.fromkeys(_FILLS.split(), _fill),
    "copy_": _copy,
    **dict.fromkeys(_VIEWS.split(), _view),
    **dict.fromkeys((*_AROUND.split(), "cat", "_foreach_copy_", "_foreach_zero_"), _only_moves),
    "where": _where,
    "masked_fill": _masked_fill,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    **{name: _reduction(name) for name in _REDUCTIONS},
    **dict.fromkeys(("cumsum", "cumprod"), _cumulative),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    **{name: _norm(name) for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_layer_norm",
                                      "_fused_rms_norm", "native_group_norm")},
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
                     "native_layer_norm_backward", "_fused_rms_norm_backward", "native_group_norm_backward"),
                    _norm_backward),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d"), _pool),
    "max_pool2d_with_indices_backward": _pool_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "_embedding_bag": _embedding_bag,
    "index_select": _index_select,
    "gather": _gather,
    "nll_loss_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
}  # fmt: skip
"""Name without `aten::` (and in-place underscore, unless the op has no other form) -> formula(args, in_place)."""
