"""The cost of an op that is bound by memory, from the tensors that it reads and writes.

A formula is a function of an op's arguments (`OpArguments`: `args[i]` is the tensor at position i, `args["name"]` the
one under its name in the op's schema) and of whether the op is in place (`add_`). It returns the `Cost` of one call and
raises `UnknownOperand` if the file lacks a value. All formulas have both parameters, though most ignore `in_place`.
"""

from __future__ import annotations

from collections.abc import Callable

from trainyard.trace.flops.operands import Cost, OpArguments, Tensor

Formula = Callable[[OpArguments, bool], Cost]
"""(arguments, whether the op is in place) -> the cost of one call."""


def memory_bound_cost(read_tensors: list[Tensor], written_tensors: list[Tensor], *, flops: int) -> Cost:
    """The cost of an op that reads and writes these tensors once. `flops`: of the call; the format of the arithmetic is
    that of the first tensor."""
    return Cost(
        flops,
        sum(tensor.bytes for tensor in (*read_tensors, *written_tensors)),
        (read_tensors or written_tensors)[0].format,
    )
