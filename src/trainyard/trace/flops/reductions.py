"""Reductions of a tensor along its axes, cumulative sums, pooling and the squared error.

FLOPs: one per element of the input, of pooling per element of each window; three for the squared error.
"""

from __future__ import annotations

from math import prod

from trainyard.trace.flops.memory_bound import Formula, memory_bound_cost
from trainyard.trace.flops.operands import BOOL, LONG, Cost, OpArguments, Tensor, UnknownOperand, sum_format
from trainyard.trace.flops.pointwise import pointwise_formula

ASSUMES_SMALL_RESULT = "a reduction whose dims are not recorded writes far less than it reads"

# Reductions: op -> {number of arguments of the overload: indices of (dim, keepdim, dtype)}; None if it has no such
# argument. The longer overload of a pair takes the result's tensor last.
_Overload = tuple[int | None, int | None, int | None]
"""Indices of the arguments (dim, keepdim, dtype)."""
_NO_ARGUMENTS: _Overload = (None, None, None)
_DTYPE_ONLY: _Overload = (None, None, 1)
REDUCTIONS: dict[str, dict[int, _Overload]] = {
    **{name: {2: _DTYPE_ONLY, 3: _DTYPE_ONLY, 4: (1, 2, 3), 5: (1, 2, 3)} for name in ("sum", "mean", "prod")},
    "nansum": {4: (1, 2, 3)},
    **{name: {3: (1, 2, None)} for name in ("amax", "amin", "logsumexp")},
    **{name: {1: _NO_ARGUMENTS, 3: (1, 2, None)} for name in ("max", "min", "any", "all")},
    **{name: {3: (1, 2, None)} for name in ("argmax", "argmin")},
    **{name: {4: (1, 3, None)} for name in ("var_mean", "std_mean", "var", "std")},
    "linalg_vector_norm": {5: (2, 3, 4)},
}


def _reduction_formula(name: str) -> Formula:
    """The formula of the reduction `name`, a key of REDUCTIONS.

    The bytes are unknown if the file does not give the dims; the FLOPs, one per element of the input, are known then
    too.
    """

    def formula(args: OpArguments, in_place: bool) -> Cost:
        """Bytes of the input and of the reduced results (values, and indices if the op returns them), and one FLOP
        per element of the input."""
        input = args[0]
        if name in ("max", "min") and len(args) == 2:  # max(self, other) is pointwise
            return pointwise_formula(2)(args, in_place)
        if len(args) not in REDUCTIONS[name]:
            raise UnknownOperand
        dim_index, keepdim_index, dtype_index = REDUCTIONS[name][len(args)]
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
        return memory_bound_cost([input], written, flops=input.numel)

    return formula


def _cost_reduction_by_result(args: OpArguments, input: Tensor) -> Cost:
    """The cost of a reduction whose dims are not recorded: its node in the backward pass shows the result, else only
    the bytes of the input count."""
    try:
        return memory_bound_cost([input], [args.result()], flops=input.numel)
    except UnknownOperand:
        return memory_bound_cost([input], [], flops=input.numel)._replace(assumes=ASSUMES_SMALL_RESULT)


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
    return memory_bound_cost([input], [Tensor(input.dims, args.format(2, sum_format(input.format)))], flops=input.numel)


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
    return memory_bound_cost([image], [out, *indices], flops=out.numel * prod(kernel))


def _cost_pool_backward(args: OpArguments, in_place: bool) -> Cost:
    gradient = args["grad_output"]
    return memory_bound_cost([gradient, args["indices"]], [args["self"]], flops=gradient.numel)


def _cost_mse_loss(args: OpArguments, in_place: bool) -> Cost:
    """(self, target, reduction): three FLOPs per element: a difference, its square and the sum."""
    input, target = args[0], args[1]
    out = Tensor(input.dims if args.int(2) == 0 else (), input.format)
    return memory_bound_cost([input, target], [out], flops=3 * input.numel)


def _cost_mse_loss_backward(args: OpArguments, in_place: bool) -> Cost:
    """(grad_output, self, target, reduction): three FLOPs per element: a difference and two products."""
    return memory_bound_cost([args[0], args[1], args[2]], [args[1]], flops=3 * args[1].numel)


FORMULAS: dict[str, Formula] = {
    **{name: _reduction_formula(name) for name in REDUCTIONS},
    **dict.fromkeys(("cumsum", "cumprod"), _cost_cumulative),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d"), _cost_pool),
    "max_pool2d_with_indices_backward": _cost_pool_backward,
    "mse_loss": _cost_mse_loss,
    "mse_loss_backward": _cost_mse_loss_backward,
}
FLOPS_PER_ELEMENT = {
    **dict.fromkeys((*REDUCTIONS, "cumsum", "cumprod", "avg_pool2d"), 1),
    **dict.fromkeys(("mse_loss", "mse_loss_backward"), 3),
}
"""Name of an op -> FLOPs per element of its input; of a gradient, per element of the result."""
