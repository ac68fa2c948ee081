"""Settings of a training that a search keeps the same in all layouts: recomputed modules, and dispatch to experts."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.job import Job
from trainyard.model import Model
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.words import RECOMPUTE_MODULES

MOST_IMBALANCE = 100.0
DISPATCH_BYTES = {"float8": 1.0}
"""Format of a token on its way to its experts -> bytes of a value."""
_NEEDS = {"moe_act": "experts", "moe": "experts", "shared_experts": "shared_experts", "mla_up_proj": "kv_lora_rank"}
"""Modules that only some models have, with the field of `Model` that is not 0 in these."""


class TrainingSettings(NamedTuple):
    """`recompute_modules`: those of selective activation checkpointing, by Megatron Core's names; empty: the ones that
    are cheap for the memory they save. `expert_imbalance`: tokens of the rank whose experts get most of them, over the
    mean. `dispatch_dtype`: format of tokens on their way to experts; empty: the compute dtype. `overlap_dispatch`:
    tokens are sent to experts and back during the compute of another micro-batch, in layouts that can."""

    recompute_modules: tuple[str, ...] = ()
    expert_imbalance: float = 1.0
    dispatch_dtype: str = ""
    overlap_dispatch: bool = False


def with_settings(framework: Framework, name: str, settings: TrainingSettings, model: Model | VisionModel) -> Framework:
    """The framework `name` as it trains `model` with these settings. Raises `BadInput` for a setting that the framework
    or the model does not have."""
    _check(settings, name, model)
    keeps = framework.keeps
    if settings.recompute_modules:
        keeps = keeps._replace(recompute_modules=lambda _: settings.recompute_modules)
    columns: dict[str, float] = {}
    if settings.expert_imbalance != 1:
        columns["expert_imbalance"] = settings.expert_imbalance
    if settings.dispatch_dtype:
        columns["dispatch_bytes"] = DISPATCH_BYTES[settings.dispatch_dtype]
    keeps = keeps._replace(overlaps_dispatch=settings.overlap_dispatch, columns={**keeps.columns, **columns})
    if not settings.dispatch_dtype:
        return framework._replace(keeps=keeps)

    def settings_outside(job: Job) -> tuple[str, ...]:
        """A sentence for each setting that the written configuration cannot carry."""
        note = f"Dispatch in {settings.dispatch_dtype}: set it in the library that sends tokens to experts."
        return (*framework.outside_config(job), note)

    return framework._replace(keeps=keeps, outside_config=settings_outside)


def _check(settings: TrainingSettings, framework: str, model: Model | VisionModel) -> None:
    """Raises `BadInput` for a setting that the framework or the model does not have, or a value out of range."""
    experts = isinstance(model, Model) and model.experts
    for flag, is_given in (
        ("--expert-imbalance", settings.expert_imbalance != 1),
        ("--dispatch-dtype", settings.dispatch_dtype),
        ("--overlap-dispatch", settings.overlap_dispatch),
    ):
        if is_given and not experts:
            raise BadInput(f"{flag} applies to mixtures of experts, but {model.name} has no experts.")
    for flag, is_given in (
        ("--recompute-modules", settings.recompute_modules), ("--overlap-dispatch", settings.overlap_dispatch),
    ):  # fmt: skip
        if is_given and framework != "megatron":
            raise BadInput(f"{flag} is a setting of Megatron Core, not of {framework}.", "Add --for megatron.")
    if settings.dispatch_dtype and framework == "trainyard":
        raise BadInput(
            f"--dispatch-dtype {settings.dispatch_dtype:.60}: trainyard's own trainer dispatches in the compute dtype.",
            "Add --for megatron or --for torchtitan.",
        )
    if not 1 <= settings.expert_imbalance <= MOST_IMBALANCE:
        raise BadInput(
            f"--expert-imbalance {settings.expert_imbalance:g} is not from 1 to {MOST_IMBALANCE:g}.",
            "Pass the tokens of the rank whose experts get most of them, divided by the mean over ranks.",
        )
    if settings.dispatch_dtype and settings.dispatch_dtype not in DISPATCH_BYTES:
        raise UnknownName(
            f"--dispatch-dtype {settings.dispatch_dtype:.60}: there is no such format.",
            nearest(settings.dispatch_dtype, DISPATCH_BYTES),
        )
    for module in settings.recompute_modules:
        if module not in RECOMPUTE_MODULES:
            raise UnknownName(
                f"--recompute-modules: there is no module {module:.60}.", nearest(module, RECOMPUTE_MODULES)
            )
        field = _NEEDS.get(module)
        if field and not getattr(model, field, 0):
            raise BadInput(f"--recompute-modules {module}, but {model.name} has no such module ({field} = 0).")
