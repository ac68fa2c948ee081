"""Normalization of a tensor: batch, group, layer and RMS norms, and the softmax, with their backward passes."""

from __future__ import annotations

from trainyard.trace.flops.memory_bound import Formula, memory_bound_cost
from trainyard.trace.flops.operands import FLOAT, Cost, OpArguments, Tensor, UnknownOperand

_NORM_FLOPS, _NORM_BACKWARD_FLOPS = 4, 8
_SOFTMAX_FLOPS, _SOFTMAX_BACKWARD_FLOPS = 4, 3
"""FLOPs per element of the input, of a gradient per element of the result."""
_NORMS = (
    "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_layer_norm", "_fused_rms_norm",
    "native_group_norm",
)  # fmt: skip
_SOFTMAXES = ("_softmax", "_log_softmax")


def _cost_softmax(args: OpArguments, in_place: bool) -> Cost:
    """_softmax (self, dim, half_to_float): the last argument makes the result float32."""
    input = args[0]
    return memory_bound_cost(
        [input], [Tensor(input.dims, FLOAT if args.flag(2) else input.format)], flops=_SOFTMAX_FLOPS * input.numel
    )


def _cost_softmax_backward(args: OpArguments, in_place: bool) -> Cost:
    """_softmax_backward_data (grad_output, output, dim, input_dtype): writes the gradient in the input's format."""
    gradient, output = args[0], args[1]
    return memory_bound_cost(
        [gradient, output],
        [Tensor(output.dims, args.format(3, output.format))],
        flops=_SOFTMAX_BACKWARD_FLOPS * output.numel,
    )


def _norm_formula(name: str) -> Formula:
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
        return memory_bound_cost(args.tensors(), written, flops=_NORM_FLOPS * input.numel)

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
    return memory_bound_cost(
        args.tensors(),
        [tensor for tensor, want in zip([input, *weight_like], is_wanted) if want],
        flops=_NORM_BACKWARD_FLOPS * input.numel,
    )


FORMULAS: dict[str, Formula] = {
    **{name: _norm_formula(name) for name in _NORMS},
    **dict.fromkeys([f"{name}_backward" for name in _NORMS], _cost_norm_backward),
    **dict.fromkeys(_SOFTMAXES, _cost_softmax),
    **dict.fromkeys([f"{name}_backward_data" for name in _SOFTMAXES], _cost_softmax_backward),
}
_FUNCTIONAL = "_native_batch_norm_legit_functional"
"""A batch norm in the names of torch.compile's kernels."""
FLOPS_PER_ELEMENT = {
    **dict.fromkeys((*_NORMS, _FUNCTIONAL), _NORM_FLOPS),
    **dict.fromkeys([f"{name}_backward" for name in (*_NORMS, _FUNCTIONAL)], _NORM_BACKWARD_FLOPS),
    **dict.fromkeys(_SOFTMAXES, _SOFTMAX_FLOPS),
    **dict.fromkeys([f"{name}_backward_data" for name in _SOFTMAXES], _SOFTMAX_BACKWARD_FLOPS),
}
"""Name of an op -> FLOPs per element of its input, of a gradient per element of the result."""
