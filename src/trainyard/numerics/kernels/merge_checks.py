"""Add up checks of the same operation, of several calls and ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from trainyard.numerics.kernels.check_result import CheckedOperation, RankCheck, UncheckedOperation


def merge_operations(a: CheckedOperation, b: CheckedOperation) -> CheckedOperation:
    """Both checks of an operation as one."""
    is_worse = b.worst is not None and (a.worst is None or b.ratio > a.ratio)
    return replace(
        a,
        calls=a.calls + b.calls,
        elements=a.elements + b.elements,
        undetectable=a.undetectable + b.undetectable,
        exceeding=a.exceeding + b.exceeding,
        ratio=max(a.ratio, b.ratio),
        worst=b.worst if is_worse else a.worst,
    )


def merge_ranks(ranks: Iterable[RankCheck]) -> tuple[tuple[CheckedOperation, ...], tuple[UncheckedOperation, ...]]:
    """The operations of all ranks: checked ones in order of execution, those that exceed their bound first; unchecked
    ones by the number of calls."""
    checked: dict[tuple[str, str, str], CheckedOperation] = {}
    unchecked: Counter[tuple[str, str]] = Counter()
    for rank in ranks:
        for operation in rank.operations:
            key = operation.module, operation.operation, operation.phase
            checked[key] = merge_operations(checked[key], operation) if key in checked else operation
        for other in rank.unchecked:
            unchecked[other.operation, other.reason] += other.calls
    return (
        tuple(sorted(checked.values(), key=lambda operation: not operation.exceeding)),
        tuple(
            UncheckedOperation(operation=operation, reason=reason, calls=calls)
            for (operation, reason), calls in unchecked.most_common()
        ),
    )
