"""Sentences on a plan's inputs: settings, frameworks that do not run on the devices, sequences beyond the model's
context, sustained rates, and budgets."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units, words
from trainyard.api.plan_request import PlanRequest
from trainyard.api.training_options import TrainingOptions, given_options
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.inputs import adapter_support, constant_sets, framework_devices, unknown_device
from trainyard.predict.inputs.fine_tuning import FineTuning
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput


def input_notes(
    request: PlanRequest,
    wanted: PlannerInput,
    framework: str,
    machines: Sequence[Machine],
    fine_tuning: FineTuning | None = None,
) -> list[str]:
    """The sentences for a request that is planned for `framework` on `machines`, the kinds of devices."""

    def trains(other: str) -> bool:
        """Whether another framework trains the model with `fine_tuning`."""
        return not FRAMEWORKS[other].refuses(request.model) and adapter_support.trains(other, fine_tuning)

    notes = [*request.notes, *_context_notes(request, wanted.seq_len)]
    for machine in machines:
        notes += framework_devices.describe(framework, FRAMEWORKS[framework].display_name, machine, trains)
        notes += filter(None, (unknown_device.describe(machine),))
        notes += _rate_notes(machine, FRAMEWORKS[framework].software)
    return notes


_SOME_LAYOUTS = {
    "recompute_modules": "selective activation checkpointing",
    "expert_imbalance": "ep above 1",
    "dispatch_dtype": "ep above 1",
    "overlap_dispatch": "ep above 1, pp 1 or several stages per rank, and without recomputation of whole layers",
}
"""Field of `TrainingOptions` -> the layouts that it applies to; the others apply to all."""


def setting_notes(training: TrainingOptions) -> list[str]:
    """A sentence on the settings of all layouts, and one for each kind of layouts that others apply to; none for
    defaults."""
    flags_of: dict[str, list[str]] = {}
    for field, flag in given_options(training).items():
        flags_of.setdefault(_SOME_LAYOUTS.get(field, ""), []).append(flag)
    return [
        f"{f'Layouts with {kind}' if kind else 'All layouts'} have {', '.join(flags)}."
        for kind, flags in flags_of.items()
    ]


def _rate_notes(machine: Machine, software: str) -> list[str]:
    """A sentence for each sustained rate of the machine file, next to the fitted one that it replaces."""
    tuned, notes = constant_sets.choose(machine, software).values(), []
    for dtype, claim in machine.device.sustained.items():
        share = tuned.low_matmul if words.DTYPES[dtype] < 2 else tuned.matmul
        fitted = units.show_rate(machine.device.peak[dtype].value * share, "FLOP/s", 2)
        rate = units.show_rate(claim.value, "FLOP/s", 2)
        notes.append(f"Products in {dtype} attain {rate} ({claim.source}), in place of the fitted {fitted}.")
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
