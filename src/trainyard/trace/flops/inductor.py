"""FLOPs and bytes of the Triton kernels that torch.compile generates, from their name and recorded arguments.

Inductor opens a span around each launch, `triton_<kind>_fused_<source ops>_<number>`, with the kernel's tensors and
then the lengths of its loops as arguments. The name lists each source op once, in alphabetical order.

Bytes: every tensor is transferred once, and no more of it than the loops have iterations (a look-up reads a few rows of
a table). Which tensors are updated in place, and so are transferred twice, is not recorded.
FLOPs: those of the source ops per iteration, by the conventions of `traffic`; an op that occurs several times counts
once. Templates (`tem`) count two FLOPs per multiply-add of their product; attention with a block mask is an upper
bound.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

from trainyard.events import OperandShape
from trainyard.trace.flops import lists, products, signatures, traffic
from trainyard.trace.flops.operands import Cost, OpArguments, Tensor, UnknownOperand
from trainyard.trace.flops.traffic import flops_per_element

ASSUMES_TRANSFERS = "kernels of torch.compile transfer each argument once, also those that they update in place"
_NAME = re.compile(
    r"(?:graph_\d+_)?triton_(?P<kind>poi|red|per|tem|mm|bmm|for|mix|split_scan|spl)_(?:fused_)?(?P<ops>.*?)(?:_\d+)*$"
)
_REDUCTIONS = ("red", "per", "mix", "split_scan", "spl")
_SEVERAL_LOADS = ("pool", "upsample", "im2col", "unfold", "conv")
"""Source ops that read an element in several iterations, or several elements in one."""
_KNOWN_OPS = {
    *products.FORMULAS, *traffic.FORMULAS, *lists.FORMULAS, *signatures.SIGNATURES, "flex_attention",
    "flex_attention_backward", "copy", "iota", "arange", "index_put", "scatter", "constant_pad_nd",
}  # fmt: skip


def is_inductor_kernel(op: str) -> bool:
    """Whether an op's name is that of a generated Triton kernel."""
    return _NAME.match(op) is not None


def cost_of_inductor_kernel(op: str, shape: OperandShape) -> Cost | None:
    """The cost of a launch; None for ops that are not Inductor's kernels, and without recorded arguments."""
    match = _NAME.match(op)
    if match is None:
        return None
    try:
        args = OpArguments(shape)
        tensors = args.tensors()
        if not tensors:
            return None
        if match["kind"] in ("tem", "mm", "bmm"):
            return _cost_template(match["kind"] + "_" + match["ops"], tensors)
        return _cost_generated(match["kind"], match["ops"], args, tensors)
    except UnknownOperand:
        return None


@lru_cache(maxsize=65536)
def source_ops(text: str) -> tuple[str, ...]:
    """The ops in a kernel's name: `add_native_layer_norm` -> (add, native_layer_norm). The longest known name counts;
    words that are not part of one are left out."""
    words = text.split("_")
    ops: list[str] = []
    start = 0
    while start < len(words):
        # Names have up to eight words; those with a leading underscore begin with an empty one.
        for stop in range(min(len(words), start + 8), start, -1):
            if (name := "_".join(words[start:stop])) in _KNOWN_OPS:
                ops.append(name)
                start = stop
                break
        else:
            start += 1
    return tuple(ops)


def _cost_generated(kind: str, fused: str, args: OpArguments, tensors: list[Tensor]) -> Cost:
    """The cost of a pointwise kernel or a reduction."""
    iterations = _iterations(kind, args, tensors)
    limited = not any(word in fused for word in _SEVERAL_LOADS)
    moved = sum((min(tensor.numel, iterations) if limited else tensor.numel) * tensor.format.size for tensor in tensors)
    per_element = sum(flops_per_element(name) for name in source_ops(fused))
    widest = max(tensors, key=lambda tensor: tensor.bytes)
    return Cost(per_element * iterations, moved, widest.format, on_matrix_units=False, assumes=ASSUMES_TRANSFERS)


def _iterations(kind: str, args: OpArguments, tensors: list[Tensor]) -> int:
    """Iterations of a kernel's loops: the product of the last two or three recorded lengths for a reduction, of the
    last one to three else, whichever is the size of one of the tensors. Raises `UnknownOperand` without lengths."""
    lengths: list[int] = []
    for index in range(len(args) - 1, -1, -1):
        value = args.value(index)
        if type(value) is not int or value < 0:
            break
        lengths.insert(0, value)
    if not lengths:
        raise UnknownOperand
    fewest = min(len(lengths), 2 if kind in _REDUCTIONS else 1)
    products_of_last = [prod(lengths[-count:]) for count in range(fewest, min(3, len(lengths)) + 1)]
    sizes = {tensor.numel for tensor in tensors}
    return next((iterations for iterations in products_of_last if iterations in sizes), products_of_last[0])


def _cost_template(fused: str, tensors: list[Tensor]) -> Cost:
    """The cost of a template: a matrix product, or attention with a block mask. Raises `UnknownOperand` for others, and
    if the tensors allow several products."""
    moved = sum(tensor.bytes for tensor in tensors)
    if "flex_attention" in fused:
        with_heads = [tensor for tensor in tensors if len(tensor.dims) == 4]
        if len(with_heads) < 3:
            raise UnknownOperand
        query, key, value = with_heads[:3]
        if query.dims[-1] != key.dims[-1] or key.dims[:-1] != value.dims[:-1]:
            raise UnknownOperand
        pairs = prod(query.dims[:-1]) * key.dims[-2]
        widths = query.dims[-1] + value.dims[-1]
        if "backward" in fused:
            widths = 3 * query.dims[-1] + 2 * value.dims[-1]
        return Cost(2 * pairs * widths, moved, query.format, at_most=True, on_matrix_units=True)
    out = tensors[-1]
    flops = {
        2 * out.numel * left.dims[-1] * left.format.packs
        for left in tensors[:-1]
        for right in tensors[:-1]
        if left is not right and len(left.dims) == len(right.dims) in (2, 3)
        and left.dims[-1] == right.dims[-2] and left.dims[:-2] == right.dims[:-2]
        and prod(left.dims[:-1]) * right.dims[-1] == out.numel
    }  # fmt: skip
    if len(flops) != 1:
        raise UnknownOperand
    return Cost(flops.pop(), moved, tensors[0].format, on_matrix_units=True)
