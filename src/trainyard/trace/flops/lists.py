"""FLOPs and bytes of ops on lists of tensors: concatenation, `_foreach_` ops and fused optimizers.

Files record the dims of listed tensors, but not their format: it is read from the name of the kernel that the op
launched (`element_format`); without one, only the FLOPs are known. Each tensor is read once and each result is written
once. FLOPs: one per element of a pointwise result or of a reduction's input; a fused optimizer's are the additions,
multiplications, divisions and roots of its update per parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from trainyard.trace.flops.operands import (
    FORMATS,
    UNKNOWN_FORMAT,
    Cost,
    Format,
    OpArguments,
    TensorGroup,
    UnknownOperand,
)

ADAM_FLOPS, ADAMW_FLOPS, ADAGRAD_FLOPS, SGD_FLOPS = 13, 14, 7, 2
"""FLOPs of an update per parameter, without weight decay (AdamW: with it)."""
DECAY_FLOPS, MOMENTUM_FLOPS = 2, 2
"""FLOPs per parameter that a weight decay, or a momentum, adds to Adam's, SGD's and Adagrad's update."""
_FOREACH_NAMES = (
    "add sub mul div addcmul addcdiv lerp pow sqrt rsqrt reciprocal neg abs exp log maximum minimum clamp_min "
    "clamp_max sign sigmoid tanh floor ceil round trunc"
)
_C_TYPES = {
    "c10::BFloat16": "c10::BFloat16", "__nv_bfloat16": "c10::BFloat16", "c10::Half": "c10::Half",
    "__half": "c10::Half", "float": "float", "double": "double", "long": "long int", "int": "int",
}  # fmt: skip
_C_TYPE = "|".join(map(re.escape, _C_TYPES))
_ELEMENT = re.compile(
    rf"(?:Functor|CatArray\w*)<(?:at::native::)?(?:\(anonymous namespace\)::|<unnamed>::)?"
    rf"(?:(?P<type>{_C_TYPE})|OpaqueType<(?P<size>1|2|4|8|16)u?>)(?=[ ,>])"
)

_CAST = re.compile(rf"(?:CopyFunctor|at::native::Copy)<(?P<to>{_C_TYPE}), (?P<source>{_C_TYPE})(?=[ ,>])")


@lru_cache(maxsize=4096)
def element_format(kernel: str) -> Format | None:
    """The format of the elements of a kernel on lists of tensors, by the first template argument of its functor:
    `AdamFunctor<float>`, `CatArrayBatchedCopy<OpaqueType<2u>, ...>` (any format of that size). None for other kernels,
    and for copies from another format."""
    match = _ELEMENT.search(kernel)
    if match is None:
        return None
    if match["size"]:
        return Format(int(match["size"]), UNKNOWN_FORMAT.category)
    cast = _CAST.search(kernel)
    if cast and cast["to"] != cast["source"]:
        return None
    return FORMATS[_C_TYPES[match["type"]]]


def _list_cost(args: OpArguments, *, read: list[TensorGroup], written: list[TensorGroup], flops: int) -> Cost:
    """The cost of an op that reads each tensor of the lists `read` once and writes each of the lists `written` once.
    The format of the elements is that of the op's kernel; if it is unknown, the bytes are None."""
    itemsize = args.facts.element.size if args.facts.element else 0
    moved = sum(group.numel for group in (*read, *written)) * itemsize
    return Cost(flops, moved if itemsize else None, args.facts.element or UNKNOWN_FORMAT)


def _groups(args: OpArguments, stop: int) -> list[TensorGroup]:
    """The lists among the first `stop` arguments that were passed; an empty list has no dims and is left out."""
    groups = []
    for index in range(min(stop, len(args))):
        try:
            groups.append(args.group(index))
        except UnknownOperand:
            continue
    if not groups:
        raise UnknownOperand
    return groups


def _cost_foreach(args: OpArguments) -> Cost:
    """A pointwise op on the first list, with further lists of the same dims, numbers or a tensor."""
    groups = _groups(args, 3)
    return _list_cost(args, read=groups, written=groups[:1], flops=groups[0].numel)


def _cost_foreach_reduction(args: OpArguments) -> Cost:
    """A norm or a maximum of each tensor: one number for each."""
    groups = _groups(args, 1)
    norms = TensorGroup(dims=((len(groups[0].dims),),), itemsize=0)  # one number for each tensor of the list
    return _list_cost(args, read=groups, written=[norms], flops=groups[0].numel)


def _cost_foreach_copy(args: OpArguments) -> Cost:
    """(self, src): reads the second list and writes the first; without their dims, only the FLOPs are known."""
    try:
        written = args.group(0)
    except UnknownOperand:
        return Cost(flops=0, bytes=None, format=UNKNOWN_FORMAT)
    return _list_cost(args, read=[written], written=[written], flops=0)


def _cost_foreach_zero(args: OpArguments) -> Cost:
    """Writes each tensor; without their dims, only the FLOPs are known."""
    try:
        return _list_cost(args, read=[], written=[args.group(0)], flops=0)
    except UnknownOperand:
        return Cost(flops=0, bytes=None, format=UNKNOWN_FORMAT)


def _cost_unscale(args: OpArguments) -> Cost:
    """(self, found_inf, inv_scale): divides gradients by the loss scale in place, and checks that they are finite."""
    group = args.group(0)
    return _list_cost(args, read=[group], written=[group], flops=group.numel)


def _cost_cat(args: OpArguments) -> Cost:
    """`aten::cat` (tensors, dim): each input is read once and written once into the result. If the dims of the inputs
    are not recorded, the size is that of the result's gradient, as recorded for the op of the backward pass
    (`args.result()`); without that, the bytes are unknown."""
    try:
        return _list_cost(args, read=[group := args.group(0)], written=[group], flops=0)
    except UnknownOperand:
        pass
    try:
        result = args.result()
        return Cost(flops=0, bytes=2 * result.bytes, format=result.format)
    except UnknownOperand:
        return Cost(flops=0, bytes=None, format=UNKNOWN_FORMAT)


def _adam_formula(update_flops: int) -> Callable[[OpArguments], Cost]:
    """The formula of `_fused_adam_` and `_fused_adamw_` (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs,
    state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf)."""

    def formula(args: OpArguments) -> Cost:
        """Reads parameters, gradients and moments; writes all but the gradients, which a loss scale divides too."""
        parameters, gradients, *moments = (args.group(index) for index in range(4))
        moments += _optional_group(args, 4)
        written = [parameters, *moments, *([gradients] if args.maybe(13) else [])]
        decays = update_flops == ADAM_FLOPS and args.is_nonzero(9)
        per_parameter = update_flops + (DECAY_FLOPS if decays else 0)
        return _list_cost(
            args,
            read=[parameters, gradients, *moments],
            written=written,
            flops=per_parameter * parameters.numel,
        )

    return formula


def _cost_sgd(args: OpArguments) -> Cost:
    """`_fused_sgd_` (self, grads, momentum_buffer_list, weight_decay, momentum, ...)."""
    parameters, gradients = args.group(0), args.group(1)
    buffers = _optional_group(args, 2)
    per_parameter = SGD_FLOPS + MOMENTUM_FLOPS * bool(buffers) + DECAY_FLOPS * args.is_nonzero(3)
    return _list_cost(
        args,
        read=[parameters, gradients, *buffers],
        written=[parameters, *buffers],
        flops=per_parameter * parameters.numel,
    )


def _cost_adagrad(args: OpArguments) -> Cost:
    """`_fused_adagrad_` (self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, ...)."""
    parameters, gradients, sums = (args.group(index) for index in range(3))
    per_parameter = ADAGRAD_FLOPS + DECAY_FLOPS * args.is_nonzero(6)
    return _list_cost(
        args,
        read=[parameters, gradients, sums],
        written=[parameters, sums],
        flops=per_parameter * parameters.numel,
    )


def _optional_group(args: OpArguments, index: int) -> list[TensorGroup]:
    """The list at `index`; none if it is empty."""
    try:
        return [args.group(index)]
    except UnknownOperand:
        return []


READS_RESULT = frozenset(("cat",))
"""Names of ops, without `aten::`, whose result determines their cost if the file does not record their lists."""

FORMULAS: dict[str, Callable[[OpArguments], Cost]] = {
    **dict.fromkeys([f"_foreach_{name}" for name in _FOREACH_NAMES.split()], _cost_foreach),
    **dict.fromkeys(("_foreach_norm", "_foreach_max"), _cost_foreach_reduction),
    "_foreach_copy_": _cost_foreach_copy,
    "_foreach_zero_": _cost_foreach_zero,
    "_amp_foreach_non_finite_check_and_unscale_": _cost_unscale,
    "cat": _cost_cat,
    "_fused_adam": _adam_formula(ADAM_FLOPS),
    "_fused_adamw": _adam_formula(ADAMW_FLOPS),
    "_fused_sgd": _cost_sgd,
    "_fused_adagrad": _cost_adagrad,
}
"""Name without `aten::` (and in-place underscore, unless the op has no other form) -> formula."""
