"""The cost of one call of an op: a user's formula, else the package's formula for its name."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.events import OperandShape
from trainyard.trace.flops import lists, products, traffic
from trainyard.trace.flops.formula_file import FormulaEntry, FormulaSet, compiled, compiled_library
from trainyard.trace.flops.inductor import cost_of_inductor_kernel, is_inductor_kernel
from trainyard.trace.flops.operands import NO_FACTS, CallFacts, Cost, OpArguments, UnknownOperand
from trainyard.trace.flops.signatures import SIGNATURES

_READS_RESULT = products.READS_RESULT | lists.READS_RESULT | traffic.READS_RESULT
MAX_COST = 2**62
"""Costs are below this: columns are 64 bits wide, and real costs are smaller."""


class Formulas(NamedTuple):
    """The formulas that apply to a trace. `entries`: those of the user, which take precedence; `are_applied`: whether
    the FLOPs and bytes of ops are measured at all."""

    entries: tuple[FormulaEntry, ...] = ()
    are_applied: bool = True

    @property
    def own(self) -> FormulaSet:
        """The user's formulas, compiled."""
        return compiled(self.entries) if self.entries else _NONE

    @property
    def built_in(self) -> FormulaSet:
        """The package's formulas, compiled."""
        return compiled_library()

    def reads_partner(self, op: str) -> bool:
        """Whether a formula of the op may read the arguments of its other half: an op's node in the backward pass, or
        such a node's forward op."""
        return (
            op.removeprefix("aten::") in _READS_RESULT or self.own.reads_partner(op) or self.built_in.reads_partner(op)
        )

    def covers(self, op: str) -> bool:
        """Whether there is a formula for the op's name, whether or not the file has the values that it needs."""
        base_name = op.removeprefix("aten::")
        return (
            (
                op.startswith("aten::")
                and (_has_aten_formula(base_name) or _has_aten_formula(base_name.removesuffix("_")))
            )
            or is_inductor_kernel(op)
            or bool(self.own.parts(op) or self.built_in.parts(op))
        )

    def pairs(self, forward: str, node: str) -> bool:
        """Whether a formula states that `node` is the backward pass of the op `forward`."""
        return self.own.pairs(forward, node) or self.built_in.pairs(forward, node)


_NONE = FormulaSet((), "")
BUILT_IN = Formulas()
"""The package's formulas only."""
TIMES_ONLY = Formulas(are_applied=False)
"""No formulas, for ledgers of which only the times are used."""


def _has_aten_formula(name: str) -> bool:
    return name in products.FORMULAS or name in lists.FORMULAS or name in traffic.FORMULAS


def cost_of(op: str, shape: OperandShape, facts: CallFacts = NO_FACTS, formulas: Formulas = BUILT_IN) -> Cost | None:
    """FLOPs and bytes of one call, by the conventions stated in `products`, `traffic`, `lists`, `inductor` and the
    files of `data/formulas`; None if there is no formula for the op, or the file lacks a value that the formula
    needs."""
    cost = formulas.own.cost(op, shape, facts) if formulas.entries else None
    if cost is None and op.startswith("aten::"):
        cost = _aten_cost(op, shape, facts)
    elif cost is None:
        cost = cost_of_inductor_kernel(op, shape) or formulas.built_in.cost(op, shape, facts)
    return cost if cost and max(cost.flops or 0, cost.bytes or 0) < MAX_COST else None


def _aten_cost(op: str, shape: OperandShape, facts: CallFacts) -> Cost | None:
    """The cost of an ATen op; None without a formula, or if a value is missing."""
    name = op.removeprefix("aten::")
    base_name = name if name in traffic.FORMULAS or name in lists.FORMULAS else name.removesuffix("_")
    args = OpArguments(shape, SIGNATURES.get(base_name, ""), facts)
    try:
        if base_name in products.FORMULAS:
            return products.FORMULAS[base_name](args)
        if base_name in lists.FORMULAS:
            return lists.FORMULAS[base_name](args)
        if base_name in traffic.FORMULAS:
            return traffic.FORMULAS[base_name](args, name.endswith("_"))
    except (UnknownOperand, IndexError):  # IndexError: a tensor has fewer dims than the op takes.
        pass
    return None
