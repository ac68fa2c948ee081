"""One call of an ATen op -> what it must compute and move: `cost_of`."""

from __future__ import annotations

from trainyard.events import OperandShape
from trainyard.trace.flops import products, traffic
from trainyard.trace.flops.operands import Cost, OpArguments, Unsaid
from trainyard.trace.flops.signatures import SIGNATURES

_MOST = 2**62


def cost_of(op: str, shape: OperandShape) -> Cost | None:
    """FLOPs and bytes of one call, by the conventions stated in `flops` and `traffic`; None where no formula knows the
    op, or the file does not say what the formula needs."""
    space, _, name = op.partition("::")
    if space != "aten":
        return None
    bare = name if name in traffic.FORMULAS else name.removesuffix("_")
    given = OpArguments(shape, SIGNATURES.get(bare, ""))
    try:
        if bare in products.FORMULAS:
            cost = products.FORMULAS[bare](given)
        elif bare in traffic.FORMULAS:
            cost = traffic.FORMULAS[bare](given, name.endswith("_"))
        else:
            return None
    except (Unsaid, IndexError):  # A tensor with fewer dims than the op takes is no such op's.
        return None
    # Columns are 64 bits wide; nothing real is as large.
    return cost if max(cost.flops or 0, cost.bytes or 0) < _MOST else None
