"""Prints the operations of a training that were checked against float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from trainyard import units
from trainyard.numerics.kernels.check_result import MOST_RATIO, CheckedOperation, KernelCheck, WorstElement
from trainyard.report.numerics.sentences import show
from trainyard.report.render.fitted_table import plain
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table

_MOST_EXCEEDING, _MOST_ROWS, _MOST_UNCHECKED = 4, 12, 8


def kernels_headline(check: KernelCheck) -> str:
    """The result in one sentence."""
    if check.exit_code == 3:
        return "No operation could be checked against float64."
    exceeding = check.exceeding
    number = units.counted(len(check.operations), "operation")
    if exceeding:
        verb = "exceeds its bound" if len(exceeding) == 1 else "exceed their bounds"
        return f"{len(exceeding)} of {number} {verb}, the first {_owner(exceeding[0])}."
    return f"All {number} are within their bounds of float64."


def print_kernels(check: KernelCheck, console: Console, full: bool = False) -> None:
    """Prints the operations that exceed their bounds, those that are closest to it, and what was not checked."""
    style = {0: "green", 1: "red"}.get(check.exit_code, "yellow")
    console.print(Text(plain(kernels_headline(check)), style=f"bold {style}"))
    exceeding = check.exceeding
    for operation in exceeding if full else exceeding[:_MOST_EXCEEDING]:
        for line in _lines(operation):
            console.print(Text(plain(line)))
    if len(exceeding) > _MOST_EXCEEDING and not full:
        console.print(Text(f"{len(exceeding) - _MOST_EXCEEDING:,} more with --full", style="dim"))
    if check.operations:
        console.print()
        ordered = check.operations if full else sorted(check.operations, key=lambda operation: -operation.ratio)
        print_table(_table(ordered, len(check.operations)), console, None if full else _MOST_ROWS)
    for line in _totals(check, full):
        console.print(Text(plain(line), style="dim"))


def _lines(operation: CheckedOperation) -> Iterator[str]:
    """Where the operation exceeds its bound, and by how much."""
    yield f"{_owner(operation)}: {units.counted(operation.exceeding, 'element')} of {operation.elements:,}"
    worst = operation.worst
    if worst is None:
        return
    yield f"  largest  {_value(worst)}, float64 {_number(worst.reference)}, bound {show(worst.bound)}"
    inputs = ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in worst.inputs)
    rank = f", rank {worst.rank}" if worst.rank else ""
    yield f"  element  {list(worst.index)} of result {worst.output}, step {worst.step}, call {worst.call}{rank}"
    yield f"  inputs   {inputs}"
    if worst.location:
        yield f"  code     {worst.location}"


def _owner(operation: CheckedOperation) -> str:
    module = f" of {operation.module}" if operation.module else ""
    phase = "step" if operation.phase == "optimizer" else "pass"
    return f"{operation.operation}{module} in the {operation.phase} {phase}"


def _value(worst: WorstElement) -> str:
    return worst.nonfinite or _number(worst.value)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.9g}"


def _table(operations: Sequence[CheckedOperation], count: int) -> Table:
    return Table(
        title="operations",
        notes=(
            "The last column is the largest error divided by its bound; 0 if all elements are float64 values, rounded. "
            f"{units.counted(count, 'operation')} of modules in all.",
        ),
        columns=(
            Column(title="operation"),
            Column(title="module"),
            Column(title="phase", id=True),
            Column(title="calls", digits=0),
            Column(title="elements", digits=0),
            Column(title="undetectable", id=True, optional=True),
            Column(title="of bound", id=True),
        ),
        rows=tuple(
            (
                operation.operation,
                operation.module,
                operation.phase,
                operation.calls,
                operation.elements,
                _percent(operation.undetectable, operation.elements),
                f"over {MOST_RATIO:.0e}" if operation.ratio >= MOST_RATIO else show(operation.ratio),
            )
            for operation in operations
        ),
    )


def _percent(part: int, whole: int) -> str:
    if not part:
        return ""
    share = 100 * part / whole
    return "<0.1 %" if share < 0.1 else f"{share:.1f} %"


def _totals(check: KernelCheck, full: bool) -> Iterator[str]:
    elements = sum(operation.elements for operation in check.operations)
    undetectable = sum(operation.undetectable for operation in check.operations)
    calls = sum(operation.calls for operation in check.operations)
    ranks = f" on {check.ranks} ranks" if check.ranks > 1 else ""
    yield (
        f"{units.counted(calls, 'call')} in {units.counted(len(check.steps), 'step')}{ranks}, {elements:,} elements, "
        f"{undetectable:,} of them undetectable; {check.seconds:,.1f} s"
    )
    for reason, number in check.unchecked_reasons.items():
        yield f"not checked: {reason}, {units.counted(number, 'call')}"
        if full or reason.startswith("no float64"):
            names = [f"{each.operation} ({each.calls:,})" for each in check.unchecked if each.reason == reason]
            shown = names if full else names[:_MOST_UNCHECKED]
            yield f"  {', '.join(shown)}{f' and {len(names) - len(shown)} more' if len(names) > len(shown) else ''}"
