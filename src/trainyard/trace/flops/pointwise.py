"""Pointwise ops, and ops that fill or copy a tensor: each element of the result depends on one of each operand.

FLOPs: one per element of the result; zero for copies and fills. Bytes: as in `traffic`; a number passed as a tensor
without dims moves nothing.
"""

from __future__ import annotations

from trainyard.trace.flops.memory_bound import Formula, memory_bound_cost
from trainyard.trace.flops.operands import (
    BOOL,
    Cost,
    OpArguments,
    Tensor,
    broadcast,
    promote_formats,
    require_float,
)

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


def pointwise_formula(tensor_arguments: int, floats_only: bool = False, compares: bool = False) -> Formula:
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
        return memory_bound_cost(_without_python_numbers(operands), [out], flops=out.numel)

    return formula


def _without_python_numbers(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors without Python numbers, which are recorded as 64-bit tensors without dims and move no data.

    If no operand has dims, all are kept: then the op computes on scalars.
    """
    has_dims = any(tensor.dims for tensor in tensors)
    return [tensor for tensor in tensors if tensor.dims or not has_dims or tensor.format.size < 8]


def _cost_fill(args: OpArguments, in_place: bool) -> Cost:
    return memory_bound_cost([], [args[0]], flops=0)


def _cost_copy(args: OpArguments, in_place: bool) -> Cost:
    """A copy (self, src): `src` may be smaller and have another format."""
    return memory_bound_cost([args[1]], [args[0]], flops=0)


def _cost_where(args: OpArguments, in_place: bool) -> Cost:
    """where (condition, self, other): the condition does not take part in the promotion of formats."""
    tensors = args.tensors(3)
    out = Tensor(broadcast(*(tensor.dims for tensor in tensors)), promote_formats(tensors[1:]))
    return memory_bound_cost(_without_python_numbers(tensors), [out], flops=out.numel)


def _cost_masked_fill(args: OpArguments, in_place: bool) -> Cost:
    """masked_fill (self, mask, value): reads both tensors and writes the broadcast result."""
    self, mask = args[0], args[1]
    out = self if in_place else Tensor(broadcast(self.dims, mask.dims), self.format)
    return memory_bound_cost([self, mask], [out], flops=out.numel)


def _cost_dropout(args: OpArguments, in_place: bool) -> Cost:
    """native_dropout (input, p, train): writes the result and the mask."""
    input = args[0]
    return memory_bound_cost([input], [input, Tensor(input.dims, BOOL)], flops=input.numel)


def _cost_dropout_backward(args: OpArguments, in_place: bool) -> Cost:
    return memory_bound_cost([args[0], args[1]], [args[0]], flops=args[0].numel)


def _pointwise_formulas(ops: dict[int, str], floats_only: bool = False, compares: bool = False) -> dict[str, Formula]:
    """Name -> formula. `ops`: number of tensor arguments -> names; `floats_only`: the ops convert integers to the
    default format; `compares`: their results are boolean."""
    return {
        name: pointwise_formula(tensor_arguments, floats_only, compares)
        for tensor_arguments, names in ops.items()
        for name in names.split()
    }


FORMULAS: dict[str, Formula] = {
    **_pointwise_formulas(_SAME_FORMAT_OPS),
    **_pointwise_formulas(_FLOAT_OPS, floats_only=True),
    **_pointwise_formulas(_COMPARISON_OPS, compares=True),
    **dict.fromkeys(_FILL_OPS.split(), _cost_fill),
    "copy_": _cost_copy,
    "where": _cost_where,
    "masked_fill": _cost_masked_fill,
    "native_dropout": _cost_dropout,
    "native_dropout_backward": _cost_dropout_backward,
}
FLOPS_PER_ELEMENT = dict.fromkeys(FORMULAS.keys() - {*_FILL_OPS.split(), "copy_"}, 1)
"""Name of an op -> FLOPs per element of its result."""
