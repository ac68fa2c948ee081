"""The losses of both sides, step by step."""

from __future__ import annotations

from math import prod

from trainyard.numerics.compare.align_tensors import Alignment, Tensors
from trainyard.numerics.compare.comparison_result import LossComparison
from trainyard.numerics.compare.judge_tensors import Judgements, finite_or_none
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.tensor_record import TensorRecord

_CONSTANTS = ("aten.ones_like", "aten.full_like", "aten.ones", "aten.full", "aten.scalar_tensor")
"""Operations whose results are not losses, such as the gradient of a loss with respect to itself."""


def is_loss(key: LogicalKey, record: TensorRecord) -> bool:
    """Whether a tensor may be a loss: a floating-point scalar of the forward pass, outside of modules. Not the second
    output of an operation: that of `aten.nll_loss_forward` is the number of targets."""
    return (
        key.tensor.phase == "forward"
        and key.tensor.operation not in _CONSTANTS
        and key.tensor.role in ("output", "scalar")
        and not (key.tensor.module or key.tensor.output)
        and prod(record.shape) == 1
        and "float" in record.dtype
    )


def compare_losses(alignment: Alignment, judgements: Judgements, a: Tensors, b: Tensors) -> tuple[LossComparison, ...]:
    """The loss of each step and rank that both sides have: the last scalar before the first backward pass."""
    last: dict[tuple[int, int], int] = {}
    in_backward: set[tuple[int, int]] = set()
    for row, pair in enumerate(alignment.pairs):
        step_of_rank = (pair.a.tensor.step, pair.a.rank)
        if pair.a.tensor.phase == "backward":
            in_backward.add(step_of_rank)
        elif step_of_rank not in in_backward and is_loss(pair.a, a[pair.a]):
            last[step_of_rank] = row
    return tuple(
        LossComparison(
            step=step,
            rank=rank,
            name=pair.a.tensor.name or pair.a.tensor.operation,
            a=_value(a[pair.a]),
            b=_value(b[pair.b]),
            status=judgements.status[row],
            error=finite_or_none(judgements.error[row]),
            limit=finite_or_none(judgements.limit[row]),
        )
        for (step, rank), row in sorted(last.items())
        for pair in [alignment.pairs[row]]
    )


def _value(record: TensorRecord) -> float | None:
    """The value of a scalar; None if it is not finite."""
    return None if record.nonfinite else record.mean
