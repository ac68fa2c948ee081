"""The first lines of a script that shows a difference alone."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.numerics.compare.comparison_result import Divergence
from trainyard.numerics.reproduce.captured_slice import CapturedSlice


def script_title(first: Divergence, captured: CapturedSlice, files: Iterable[str] = ()) -> list[str]:
    """The lines at the top of the script. `files`: names of those that it reads."""
    point = first.tensor
    code = point.location_b or point.location_a
    line = f" ({code})" if code else ""
    torch = captured.versions.get("torch", "")
    return [
        f"{script_subject(first)}{line}: B differs from A.",
        *(f"It is computed after {cause.description}." for cause in first.causes),
        "",
        f"Captured with torch {torch} on {captured.device}. Needs only {', '.join(['torch', *files])}.",
        "Exit codes: 1 the fault shows, 0 it does not, 2 an error.",
    ]


def script_subjects(first: Divergence) -> list[str]:
    """The tensors that a script of a difference may compute: its own, or the weight that it reads, after an update."""
    weight = first.read_weight
    update = [f"weight of {weight.module}.{weight.name} in the optimizer pass"] if weight is not None else []
    return [script_subject(first), *update]


def script_subject(first: Divergence) -> str:
    """The tensor that a script computes: `aten.silu of Network.gate in the forward pass of step 0`."""
    point = first.tensor
    where = ".".join(filter(None, (point.module, point.name)))
    owner = f" of {where}" if where else ""
    return f"{point.operation or point.role}{owner} in the {point.phase} pass of step {point.step}"
