"""Sentences on a plan's inputs: a framework that does not run on the devices, and a sequence beyond the model's
context."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.api.plan_request import PlanRequest
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.inputs import framework_devices
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput


def input_notes(request: PlanRequest, wanted: PlannerInput, framework: str, machines: Sequence[Machine]) -> list[str]:
    """The sentences for a request that is planned for `framework` on `machines`, the kinds of devices."""
    notes = [*request.notes, *_context_notes(request, wanted.seq_len)]
    for machine in machines:
        notes += framework_devices.describe(framework, FRAMEWORKS[framework].display_name, machine)
    return notes


def budget_notes(framework: str, machine: Machine, tokens: float | None) -> list[str]:
    """A sentence on other frameworks, if a whole training is planned for our own runner and Megatron Core runs on the
    machine."""
    if not tokens or framework != "trainyard" or framework_devices.find("megatron", machine):
        return []
    return ["The days are those of our own runner. Another framework may need fewer: --for megatron."]


_LONGER = {"learned": "a longer embedding of positions", "rope": "positions that are scaled or trained for that"}
"""Kind of positions -> what a model needs for longer sequences."""


def _context_notes(request: PlanRequest, seq_len: int) -> list[str]:
    """A sentence if a sequence is longer than the context that the model's source states."""
    model, context = request.model, request.context
    if context is None or not isinstance(model, Model) or seq_len <= context.tokens:
        return []
    needed = f" The plan assumes {_LONGER[model.position]}." if model.position in _LONGER else ""
    return [
        f"Sequences of {seq_len:,} tokens are longer than the context of {model.name}, {context.tokens:,} tokens "
        f"({context.source}).{needed}"
    ]
