"""The changes of operations between two recordings as text and as a table."""

from __future__ import annotations

from trainyard.compare.operations.largest_changes import OperationChange, OperationChanges
from trainyard.report.view.view import Column, Table

_SEPARATOR = " / "
_MAX_LABEL = 60
"""Characters of a label that are shown; names of kernels are longer."""


def show_path(path: tuple[str, ...]) -> str:
    """The path of an operation: `forward / Block_* / aten::softmax`, with long labels shortened."""
    return _SEPARATOR.join(crop(label, _MAX_LABEL) for label in path)


def crop(text: str, width: int) -> str:
    """The text, with its end replaced by three dots if it has more than `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def show_match(change: OperationChange) -> str:
    """How the operation is related to the one before: `fused 4 → 1`, `renamed from aten::relu`, `moved from ...`;
    empty if only its time changed."""
    text = "" if change.match == "same" else change.match
    if change.match in ("fused", "split"):
        text = f"{change.match} {change.joined_before} → {change.joined_after}"
    elif change.match == "renamed":
        text = f"renamed from {show_path(change.path_before[-1:])}"
    elif change.match == "moved":
        text = f"moved from {show_path(change.path_before)}"
    return text


def show_places(change: OperationChange) -> str:
    """The number of nodes that the path stands for; empty for one."""
    return f"{change.places} places" if change.places > 1 else ""


def show_calls(change: OperationChange) -> str:
    """Calls per step and rank before and after, `96 → 48`; a single number if they are equal, empty without calls."""
    before, after = (f"{calls:,.1f}".removesuffix(".0") for calls in (change.calls_before, change.calls_after))
    if not change.calls_before and not change.calls_after:
        return ""
    return before if before == after else f"{before} → {after}"


def operations_table(changes: OperationChanges | None, reason: str) -> Table:
    """The changes of the reported operations in ms, largest first, and the rest. `reason`: why there are none."""
    heads = ("before, ms", "after, ms", "change, ms")
    rows = [
        (
            show_path(change.path), change.before_ns / 1e6, change.after_ns / 1e6, change.ns / 1e6,
            ", ".join(filter(None, (show_match(change), show_places(change)))), show_calls(change),
        )
        for change in (changes.largest if changes else ())
    ]  # fmt: skip
    if changes:
        rest_before, rest_after, rest = (
            ns / 1e6 for ns in (changes.rest_before_ns, changes.rest_after_ns, changes.rest_ns)
        )
        rows.append(("other operations", rest_before, rest_after, rest, "", ""))
    return Table(
        title="operation",
        notes=(reason,) if reason else (),
        columns=(
            Column(title=""), *(Column(title=head, digits=3) for head in heads), Column(title="match", prose=True),
            Column(title="calls per step"),
        ),
        rows=tuple(rows),
    )  # fmt: skip
