"""Bytes and FLOPs of memory-bound ops, from the op's arguments.

Bytes: every input tensor is read once and every result written once. A look-up reads and writes each row as often as it
is indexed. A number passed as a tensor without dims moves nothing.
FLOPs: one per element of a pointwise result or of a reduction's input; zero for copies, fills and look-ups; four per
element for a norm and a softmax, eight for a norm's backward pass and three for a softmax's.

A formula is a function of an op's arguments (`OpArguments`: `args[i]` is the tensor at position i, `args["name"]` the
one under its name in the op's schema) and of whether the op is in place (`add_`). It returns the `Cost` of one call and
raises `UnknownOperand` if the file lacks a value. All formulas have both parameters, though most ignore `in_place`.
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
    promote_formats,
    require_float,
    sum_format,
)

ASSUMES_SMALL_RESULT = "a reduction whose dims are not recorded writes far less than it reads"
ASSUMES_SMALL_INDEX = "the indices of an indexed tensor take far fewer bytes than its elements: lists are not recorded"

# Pointwise ops: number of leading arguments that may be tensors -> names of ops. The result has the promoted format of
# the operands (same format), is floating-point (float) or boolean (comparison).
_SAME_FORMAT_OPS = {
    1: "neg abs sign sgn floor ceil round trunc relu relu6 square bitwise_not tril triu hardtanh leaky_relu "
    "nan_to_num threshold clamp_min clamp_max masked_scale hardswish hardsigmoid silu gelu elu mish celu selu",
    2: "add sub mul rsub maximum minimum remainder fmod pow bitwise_and bitwise_or bitwise_xor floor_divide "
    "threshold_backward silu_backward gelu_backward tanh_backward sigmoid_backward leaky_relu_backward elu_backward "
    "hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward _prelu_kernel fmax fmin",
    3: "addcmul addcdiv lerp clamp",
}
_FLOAT_OPS = {
    1: "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sigmoid tanh sin cos tan asin acos atan sinh cosh "
    "erf erfc erfinv softplus logit log_sigmoid",
    2: "div divide true_divide atan2 hypot",
}
_COMPARISON_OPS = {
    1: "logical_not isnan isinf isfinite isposinf isneginf signbit",
    2: "eq ne lt le gt ge logical_and logical_or logical_xor",
}
_FILL_OPS = "fill_ zero_ uniform_ normal_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_"

# Views and bookkeeping ops, which do not touch data.
_VIEW_OPS = (
    "view _unsafe_view _reshape_alias reshape view_as transpose t numpy_T permute as_strided expand expand_as select "
    "slice squeeze unsqueeze detach detach_ alias narrow unbind split split_with_sizes chunk flatten unflatten movedim "
    "swapaxes diagonal empty empty_strided empty_like new_empty resize_ resolve_conj resolve_neg result_type "
    "is_same_size set_ expand_copy lift_fresh broadcast_tensors"
)
# Ops that call other ops, which do the work.
_WRAPPER_OPS = (
    "einsum to _to_copy type_as clone contiguous zeros zeros_like new_zeros ones ones_like new_ones full full_like "
    "new_full scalar_tensor softmax log_softmax cross_entropy_loss nll_loss nll_loss_nd dropout batch_norm layer_norm "
    "group_norm rms_norm _batch_norm_impl_index embedding_bag max_pool2d adaptive_avg_pool2d slice_backward "
    "select_backward concat stack flatten_dense_tensors unflatten_dense_tensors item is_nonzero conv_transpose1d"
)

# Reductions: op -> {number of arguments of the overload: indices of (dim, keepdim, dtype)}; None if it has no such
# argument. The longer overload of a pair takes the result's tensor last.
_Overload = tuple[int | None, int | None, int | None]
"""Indices of the arguments (dim, keepdim, dtype)."""
_NO_ARGUMENTS: _Overload = (None, None, None)
_DTYPE_ONLY: _Overload = (None, None, 1)
_REDUCTIONS: dict[str, dict[int, _Overload]] = {
    **{name: {2: _DTYPE_ONLY, 3: _DTYPE_ONLY, 4: (1, 2, 3), 5: (1, 2, 3)} for name in ("sum", "mean", "prod")},
    "nansum": {4: (1, 2, 3)},
    **{name: {3: (1, 2, None)} for name in ("amax", "amin", "logsumexp")},
    **{name: {1: _NO_ARGUMENTS, 3: (1, 2, None)} for name in ("max", "min", "any", "all")},
    **{name: {3: (1, 2, None)} for name in ("argmax", "argmin")},
    **{name: {4: (1, 3, None)} for name in ("var_mean", "std_mean", "var", "std")},
    "linalg_vector_norm": {5: (2, 3, 4)},
}


def _pointwise_formula(
    tensor_arguments: int, floats_only: bool = False, compares: bool = False
) -> Callable[[OpArguments, bool], Cost]:
    """The formula of a pointwise op of the first `tensor_arguments` arguments.

    `floats_only`: the op converts integers to torch's default format, which the file does not contain, so that the
    formula is undefined for them; `compares`: the result is boolean.
    """

    def formula(args: OpArguments, in_place: bool) -> Cost:
        """Bytes of all operands and of the broadcast result, and one FLOP per element of the result."""
        operands = args.tensors(tensor_arguments)
        format = BOOL if compares else promote_formats(operands)
        out = args[0] if in_place else Tensor(broadcast(*(tensor.dims for tensor in operands)), format)
        if floats_only and not in_place:
            require_float(promote_formats(operands))
        return _memory_bound_cost(_without_python_numbers(operands), [out], flops=out.numel)

    return formula


def _without_python_numbers(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors without Python numbers, which are recorded as 64-bit tensors without dims and move no data.

    If no operand has dims, all are kept: then the op computes on scalars.
    """
    has_dims = any(tensor.dims for tensor in tensors)
    return [tensor for tensor in tensors if tensor.dims or not has_dims or tensor.format.size < 8]


def _memory_bound_cost(read_tensors: list[Tensor], written_tensors: list[Tensor], *, flops: int) -> Cost:
    """The cost of an op that reads and writes these tensors once. `flops`: of the call; the format of the arithmetic is
    that of the first tensor."""
    return Cost(
        flops,
        sum(tensor.bytes for tensor in (*read_tensors, *written_tensors)),
        (read_tensors or written_tensors)[0].format,
    )


def _cost_fill(args: OpArguments, in_place: bool) -> Cost:
    return _memory_bound_cost([], [args[0]], flops=0)


def _cost_copy(args: OpArguments, in_place: bool) -> Cost:
    """A copy (self, src): `src` may be smaller and have another format."""
    return _memory_bound_cost([args[1]], [args[0]], flops=0)


def _cost_unknown_bytes(args: OpArguments, in_place: bool) -> Cost:
    """Zero FLOPs; the bytes are those of another op, or unknown: files do not record the formats of tensor lists."""
    return Cost(flops=0, bytes=None, format=UNKNOWN_FORMAT)


def _cost_view(args: OpArguments, in_place: bool) -> Cost:
    return Cost(flops=0, bytes=0, format=UNKNOWN_FORMAT)


def _cost_where(args: OpArguments, in_place: bool) -> Cost:
    """where (condition, self, other): the condition does not take part in the promotion of formats."""
    tensors = args.tensors(3)
    out = Tensor(broadcast(*(tensor.dims for tensor in tensors)), promote_formats(tensors[1:]))
    return _memory_bound_cost(_without_python_numbers(tensors), [out], flops=out.numel)


def _cost_masked_fill(args: OpArguments, in_place: bool) -> Cost:
    """masked_fill (self, mask, value): reads both tensors and writes the broadcast result."""
    self, mask = args[0], args[1]
    out = self if in_place else Tensor(broadcast(self.dims, mask.dims), self.format)
    return _memory_bound_cost([self, mask], [out], flops=out.numel)


def _cost_dropout(args: OpArguments, in_place: bool) -> Cost:
    """native_dropout (input, p, train): writes the result and the mask."""
    input = args[0]
    return _memory_bound_cost([input], [input, Tensor(input.dims, BOOL)], flops=input.numel)


def _cost_dropout_backward(args: OpArguments, in_place: bool) -> Cost:
    return _memory_bound_cost([args[0], args[1]], [args[0]], flops=args[0].numel)


def _reduction_formula(name: str) -> Callable[[OpArguments, bool], Cost]:
    """The formula of the reduction `name`, a key of _REDUCTIONS.

    The bytes are unknown if the file does not give the dims; the FLOPs, one per element of the input, are known then
    too.
    """

    def formula(args: OpArguments, in_place: bool) -> Cost:
        """Bytes of the input and of the reduced results (values, and indices if the op returns them), and one FLOP
        per element of the input."""
        input = args[0]
        if name in ("max", "min") and len(args) == 2:  # max(self, other) is pointwise
            return _pointwise_formula(2)(args, in_place)
        if len(args) not in _REDUCTIONS[name]:
            raise UnknownOperand
        dim_index, keepdim_index, dtype_index = _REDUCTIONS[name][len(args)]
        try:
            dims = _reduced_dims(args, input, dim_index, keepdim_index)
            format = sum_format(input.format) if name in ("sum", "prod", "nansum") else input.format
            format = format if dtype_index is None else args.format(dtype_index, format)
        except UnknownOperand:
            return _cost_reduction_by_result(args, input)
        if name in ("any", "all"):
            format = BOOL
        # argmax writes indices; max over a dim writes values and indices; var_mean writes two results.
        written = [Tensor(dims, LONG if name.startswith("arg") else format)]
        if name in ("max", "min") and dim_index is not None:
            written.append(Tensor(dims, LONG))
        elif name.endswith("_mean"):
            written.append(written[0])
        return _memory_bound_cost([input], written, flops=input.numel)

    return formula


def _cost_reduction_by_result(args: OpArguments, input: Tensor) -> Cost:
    """The cost of a reduction whose dims are not recorded: its node in the backward pass shows the result, else only
    the bytes of the input count."""
    try:
        return _memory_bound_cost([input], [args.result()], flops=input.numel)
    except UnknownOperand:
        return _memory_bound_cost([input], [], flops=input.numel)._replace(assumes=ASSUMES_SMALL_RESULT)


def _reduced_dims(
    args: OpArguments, input: Tensor, dim_index: int | None, keepdim_index: int | None
) -> tuple[int, ...]:
    """Dims of the result of a reduction of `input`.

    `dim_index`, `keepdim_index`: positions of the arguments `dim` (axes, possibly negative; none means all) and
    `keepdim` (reduced axes keep the length 1); None if the op has no such argument, and the result no dims. Raises
    `UnknownOperand` for axes that the input does not have.
    """
    if dim_index is None or keepdim_index is None:
        return ()
    keepdim = args.flag(keepdim_index)
    reduced_axes = args.ints(dim_index) if args.is_given(dim_index) else ()
    rank = max(1, len(input.dims))
    if any(not -rank <= axis < rank for axis in reduced_axes):
        raise UnknownOperand
    reduced_axes = {axis % rank for axis in reduced_axes} or set(range(rank))
    return tuple(
        1 if axis in reduced_axes else n for axis, n in enumerate(input.dims) if keepdim or axis not in reduced_axes
    )


def _cost_cumulative(args: OpArguments, in_place: bool) -> Cost:
    """cumsum or cumprod (self, dim, dtype): the result has the dims of the input, and the format of a sum."""
    input = args[0]
    return _memory_bound_cost(
        [input], [Tensor(input.dims, args.format(2, sum_format(input.format)))], flops=input.numel
    )


def _cost_softmax(args: OpArguments, in_place: bool) -> Cost:
    """_softmax (self, dim, half_to_float): the last argument makes the result float32."""
    input = args[0]
    return _memory_bound_cost(
        [input], [Tensor(input.dims, FLOAT if args.flag(2) else input.format)], flops=4 * input.numel
    )


def _cost_softmax_backward(args: OpArguments, in_place: bool) -> Cost:
    """_softmax_backward_data (grad_output, output, dim, input_dtype): writes the gradient in the input's format."""
    gradient, output = args[0], args[1]
    return _memory_bound_cost(
        [gradient, output], [Tensor(output.dims, args.format(3, output.format))], flops=3 * output.numel
    )


def _norm_formula(name: str) -> Callable[[OpArguments, bool], Cost]:
    """The formula of the batch, group, layer or RMS norm `name`.

    It writes the result and, for the backward pass, the mean and the reciprocal deviation (RMS norm: only this) of each
    channel, group or row, in float32 at least. Batch norm writes them in training only, and then also its running
    statistics.
    """

    def formula(args: OpArguments, in_place: bool) -> Cost:
        """Bytes of all inputs, the result and the statistics that are kept, and four FLOPs per element of the input."""
        input = args["input"]
        statistics_format = FLOAT if input.format.size < FLOAT.size else input.format
        written = [input]
        if "training" in args:  # batch norm of [batch, channels, ...]
            if _is_training(args):
                running = [tensor for word in ("running_mean", "running_var") if (tensor := args.maybe(word))]
                written += [*running, Tensor((2, *input.dims[1:2]), statistics_format)]
        elif "group" in args:  # group norm
            written.append(Tensor((2, args.int("N"), args.int("group")), statistics_format))
        else:  # layer or RMS norm over the last dims; the others have statistics
            statistics_dims = input.dims[: len(input.dims) - _normalized_axes(args)]
            written.append(Tensor((1 if "rms" in name else 2, *statistics_dims), statistics_format))
        return _memory_bound_cost(args.tensors(), written, flops=4 * input.numel)

    return formula


def _is_training(args: OpArguments) -> bool:
    """The argument `training` of a batch norm. Where values are not recorded, an op with a node in the backward pass
    trains: cuDNN's and MIOpen's kernels have no other backward pass."""
    try:
        return args.flag("training")
    except UnknownOperand:
        args.result()
        return True


def _normalized_axes(args: OpArguments) -> int:
    """The number of axes that a layer norm or RMS norm covers: those of the weight if the argument is not recorded."""
    try:
        return len(args.ints("normalized_shape"))
    except UnknownOperand:
        return len(args["weight"].dims)


def _cost_norm_backward(args: OpArguments, in_place: bool) -> Cost:
    """The backward pass of a norm: gradients of the input, the weight and the bias.

    Written are those that `output_mask` selects, all if the op has no such argument; an RMS norm has no bias.
    """
    input, weight = args["input"], args.maybe("weight")
    is_wanted = (True, True, True)
    if "output_mask" in args and args.has_values:
        is_wanted = args.flags("output_mask")
    weight_like = [weight or Tensor((0,), input.format)] * (len(is_wanted) - 1)
    return _memory_bound_cost(
        args.tensors(),
        [tensor for tensor, want in zip([input, *weight_like], is_wanted) if want],
        flops=8 * input.numel,
    )


def _cost_pool(args: OpArguments, in_place: bool) -> Cost:
    """Pooling over windows of an image [..., H, W]: one FLOP for each element of each window.

    The size of the output is that of torch's documentation of MaxPool2d without ceil_mode; with it, and for other
    images, it raises `UnknownOperand`. Max pooling also writes the index of each maximum.
    """
    image, kernel = args["self"], args.ints("kernel_size")
    stride, padding = args.ints("stride") or kernel, args.ints("padding")
    dilation = args.ints("dilation") if "dilation" in args else (1,)
    windows = [values * 2 if len(values) == 1 else values for values in (kernel, stride, padding, dilation)]
    if args.flag("ceil_mode") or len(image.dims) < 3 or any(len(values) != 2 for values in windows) or min(stride) < 1:
        raise UnknownOperand
    kernel, stride, padding, dilation = windows
    output_dims = [
        (n + 2 * pad - dilation_step * (taps - 1) - 1) // step + 1
        for n, taps, step, pad, dilation_step in zip(image.dims[-2:], kernel, stride, padding, dilation)
    ]
    if min(output_dims) < 0:
        raise UnknownOperand
    out = Tensor((*image.dims[:-2], *output_dims), image.format)
    indices = [Tensor(out.dims, LONG)] if "dilation" in args else []  # only max pooling has a dilation
    return _memory_bound_cost([image], [out, *indices], flops=out.numel * prod(kernel))


def _cost_pool_backward(args: OpArguments, in_place: bool) -> Cost:
    gradient = args["grad_output"]
    return _memory_bound_cost([gradient, args["indices"]], [args["self"]], flops=gradient.numel)


def _cost_lookup(row_dims: tuple[int, ...], table: Tensor, index: Tensor) -> Cost:
    """A look-up that reads elements with dims `row_dims` from a table and writes them to the result; `index` is
    read."""
    rows = Tensor(row_dims, table.format)
    return _memory_bound_cost([rows, index], [rows], flops=0)


def _cost_embedding(args: OpArguments, in_place: bool) -> Cost:
    table, index = args["weight"], args["indices"]
    return _cost_lookup((*index.dims, *table.dims[1:]), table, index)


def _cost_index_select(args: OpArguments, in_place: bool) -> Cost:
    """index_select (self, dim, index): as many slices of `self` along `dim` as `index` has elements."""
    table, index, axis = args["self"], args["index"], args.int("dim")
    if not -len(table.dims) <= axis < len(table.dims):
        raise UnknownOperand
    dims = list(table.dims)
    dims[axis] = index.numel
    return _cost_lookup(tuple(dims), table, index)


def _cost_gather(args: OpArguments, in_place: bool) -> Cost:
    return _cost_lookup(args["index"].dims, args["self"], args["index"])


def _cost_embedding_backward(args: OpArguments, in_place: bool) -> Cost:
    """The gradients' rows; filling the table with zeros is another op."""
    gradient = args["grad_output"]
    return _memory_bound_cost([gradient, args["indices"]], [gradient], flops=gradient.numel)


def _cost_embedding_bag(args: OpArguments, in_place: bool) -> Cost:
    """_embedding_bag: sums the rows of each bag.

    `offsets` has the position in `indices` of the first index of each bag, and with `include_last_offset` one more.
    """
    table, index, starts = args["weight"], args["indices"], args["offsets"]
    bags = starts.numel - args.flag("include_last_offset")
    rows, out = Tensor((index.numel, *table.dims[1:]), table.format), Tensor((bags, *table.dims[1:]), table.format)
    return _memory_bound_cost([rows, index, starts], [out], flops=rows.numel)


def _cost_index(args: OpArguments, in_place: bool) -> Cost:
    """`index` (self, indices): reads the elements of the result, whose size its node in the backward pass shows."""
    result = args.result()
    return _memory_bound_cost([result], [result], flops=0)._replace(assumes=ASSUMES_SMALL_INDEX)


def _cost_index_put(args: OpArguments, in_place: bool) -> Cost:
    """`index_put` (self, indices, values, accumulate): writes the values; an accumulating one also reads the
    elements that they are added to. Out of place, another op copies `self`."""
    self, values = args[0], args[2]
    if values.numel == 1:  # one value for all indexed elements, whose number is not recorded
        raise UnknownOperand
    accumulates = args.flag(3) if args.has_values else False
    read = [values, *([Tensor(values.dims, self.format)] if accumulates else [])]
    flops = values.numel if accumulates else 0
    cost = _memory_bound_cost(read, [Tensor(values.dims, self.format)], flops=flops)
    return cost._replace(assumes=ASSUMES_SMALL_INDEX)


def _cost_mse_loss(args: OpArguments, in_place: bool) -> Cost:
    """(self, target, reduction): three FLOPs per element: a difference, its square and the sum."""
    input, target = args[0], args[1]
    out = Tensor(input.dims if args.int(2) == 0 else (), input.format)
    return _memory_bound_cost([input, target], [out], flops=3 * input.numel)


def _cost_mse_loss_backward(args: OpArguments, in_place: bool) -> Cost:
    """(grad_output, self, target, reduction): three FLOPs per element: a difference and two products."""
    return _memory_bound_cost([args[0], args[1], args[2]], [args[1]], flops=3 * args[1].numel)


def _cost_nll_loss(args: OpArguments, in_place: bool) -> Cost:
    """nll_loss_forward: reads one logit per target, and its weight, if given.

    Writes the loss of each target (reduction 0), or their sum or mean, and the sum of the weights.
    """
    target, logits = args["target"], args["self"]
    read = Tensor((target.numel * (2 if args.maybe("weight") else 1),), logits.format)
    losses = Tensor((target.numel if args.int("reduction") == 0 else 1,), logits.format)
    weight_sum = Tensor((), logits.format)
    return _memory_bound_cost([read, target], [losses, weight_sum], flops=target.numel)


def _cost_nll_loss_backward(args: OpArguments, in_place: bool) -> Cost:
    """The targets' gradients; filling the others with zeros is another op."""
    target, logits = args["target"], args["self"]
    return _memory_bound_cost([args["grad_output"], target], [Tensor((target.numel,), logits.format)], flops=0)


def _pointwise_formulas(ops: dict[int, str], floats_only: bool = False, compares: bool = False) -> dict[str, Callable]:
    """Name -> formula. `ops`: number of tensor arguments -> names; `floats_only`: the ops convert integers to the
    default format; `compares`: their results are boolean."""
    return {
        name: _pointwise_formula(tensor_arguments, floats_only, compares)
        for tensor_arguments, names in ops.items()
        for name in names.split()
    }


READS_RESULT = frozenset((*_REDUCTIONS, "cat", "index", "cudnn_batch_norm", "miopen_batch_norm"))
"""Names of ops, without `aten::`, whose result determines their cost if the file does not record their values."""

FORMULAS: dict[str, Callable[[OpArguments, bool], Cost]] = {
    **_pointwise_formulas(_SAME_FORMAT_OPS),
    **_pointwise_formulas(_FLOAT_OPS, floats_only=True),
    **_pointwise_formulas(_COMPARISON_OPS, compares=True),
    **dict.fromkeys(_FILL_OPS.split(), _cost_fill),
    "copy_": _cost_copy,
    **dict.fromkeys(_VIEW_OPS.split(), _cost_view),
    **dict.fromkeys(_WRAPPER_OPS.split(), _cost_unknown_bytes),
    "where": _cost_where,
    "masked_fill": _cost_masked_fill,
    "native_dropout": _cost_dropout,
    "native_dropout_backward": _cost_dropout_backward,
    **{name: _reduction_formula(name) for name in _REDUCTIONS},
    **dict.fromkeys(("cumsum", "cumprod"), _cost_cumulative),
    **dict.fromkeys(("_softmax", "_log_softmax"), _cost_softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _cost_softmax_backward),
    **{name: _norm_formula(name) for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
                                              "native_layer_norm", "_fused_rms_norm", "native_group_norm")},
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
                     "native_layer_norm_backward", "_fused_rms_norm_backward", "native_group_norm_backward"),
                    _cost_norm_backward),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d"), _cost_pool),
    "max_pool2d_with_indices_backward": _cost_pool_backward,
    "embedding": _cost_embedding,
    "embedding_dense_backward": _cost_embedding_backward,
    "_embedding_bag": _cost_embedding_bag,
    "index_select": _cost_index_select,
    "gather": _cost_gather,
    "index": _cost_index,
    **dict.fromkeys(("index_put_", "_index_put_impl_"), _cost_index_put),
    "mse_loss": _cost_mse_loss,
    "mse_loss_backward": _cost_mse_loss_backward,
    "nll_loss_forward": _cost_nll_loss,
    "nll_loss_backward": _cost_nll_loss_backward,
}  # fmt: skip
"""Name without `aten::` (and in-place underscore, unless the op has no other form) -> formula(args, in_place)."""

_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_layer_norm", "_fused_rms_norm",
          "native_group_norm", "_native_batch_norm_legit_functional")  # fmt: skip
_FLOPS_PER_ELEMENT = {
    **dict.fromkeys(
        " ".join(
            text for ops in (_SAME_FORMAT_OPS, _FLOAT_OPS, _COMPARISON_OPS) for text in ops.values()
        ).split(),
        1,
    ),
    **dict.fromkeys((*_REDUCTIONS, "cumsum", "cumprod", "where", "masked_fill", "native_dropout",
                     "native_dropout_backward", "avg_pool2d"), 1),
    **dict.fromkeys(("_softmax", "_log_softmax", *_NORMS), 4),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data", "mse_loss", "mse_loss_backward"), 3),
    **dict.fromkeys([f"{name}_backward" for name in _NORMS], 8),
}  # fmt: skip


def flops_per_element(name: str) -> int:
    """FLOPs of an ATen op (without `aten::`) per element of its result, or of a reduction's input; 0 for ops that move
    data, and for ops that this module does not know."""
    return _FLOPS_PER_ELEMENT.get(name, 0)
