"""Settings of a training that a search keeps the same in all layouts: recomputed modules, dispatch to experts, the
optimizer's moments, and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.model import Model
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.words import RECOMPUTE_MODULES

MOST_IMBALANCE = 100.0
DISPATCH_BYTES = {"float8": 1.0}
"""Format of a token on its way to its experts -> bytes of a value."""
MOMENT_BYTES = {"bfloat16": 4.0, "float8": 2.0}
"""Format of AdamW's moments -> bytes of the two of a weight, without the scales of blocks (1.6 % in float8)."""
_NEEDS = {"moe_act": "experts", "moe": "experts", "shared_experts": "shared_experts", "mla_up_proj": "kv_lora_rank"}
"""Modules that only some models have, with the field of `Model` that is not 0 in these."""


class TrainingSettings(NamedTuple):
    """`recompute_modules`: those of selective activation checkpointing, by Megatron Core's names; empty: the ones that
    are cheap for the memory they save. `expert_imbalance`: tokens of the rank whose experts get most of them, over the
    mean. `dispatch_dtype`: format of tokens on their way to experts; empty: the compute dtype. `overlap_dispatch`:
    tokens are sent to experts and back during the compute of another micro-batch, in layouts that can. `moments_dtype`:
    format of AdamW's moments; empty: float32. `chunked_loss`: the head and the loss are computed in chunks."""

    recompute_modules: tuple[str, ...] = ()
    expert_imbalance: float = 1.0
    dispatch_dtype: str = ""
    overlap_dispatch: bool = False
    moments_dtype: str = ""
    chunked_loss: bool = False


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
    if settings.moments_dtype:
        keeps = keeps._replace(moments=MOMENT_BYTES[settings.moments_dtype])
    if settings.chunked_loss:
        columns["chunked_loss"] = 1.0
    keeps = keeps._replace(overlaps_dispatch=settings.overlap_dispatch, columns={**keeps.columns, **columns})
    return framework._replace(keeps=keeps)


def settings_outside(settings: TrainingSettings, framework: str) -> Iterator[str]:
    """A sentence for each setting that a written configuration of the framework cannot carry."""
    if settings.dispatch_dtype:
        yield f"Dispatch in {settings.dispatch_dtype}: set it in the library that sends tokens to experts."
    if settings.moments_dtype:
        short = {"bfloat16": "bf16", "float8": "fp8"}[settings.moments_dtype]
        arguments = f"--use-precision-aware-optimizer --exp-avg-dtype {short} --exp-avg-sq-dtype {short}"
        where = f"add {arguments}." if framework == "megatron" else "pass such an optimizer in the script."
        yield f"Moments of AdamW in {settings.moments_dtype}: {where}"
    if settings.chunked_loss:
        yield "A chunked loss: the head and the cross-entropy are fused in the script, as by Liger's kernel."


def _check(settings: TrainingSettings, framework: str, model: Model | VisionModel) -> None:
    """Raises `BadInput` for a setting that the framework or the model does not have, or a value out of range."""
    experts = isinstance(model, Model) and model.experts
    for flag, is_given in (
        ("--expert-imbalance", settings.expert_imbalance != 1),
        ("--dispatch-dtype", settings.dispatch_dtype),
        ("--overlap-dispatch", settings.overlap_dispatch),
    ):
        if is_given and not experts:
            raise BadInput(
                f"{flag} applies to mixtures of experts, but {model.name} has no experts.", f"Leave out {flag}."
            )
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
    for flag, is_given in (("--moments-dtype", settings.moments_dtype), ("--chunked-loss", settings.chunked_loss)):
        if is_given and framework == "trainyard":
            raise BadInput(
                f"{flag}: trainyard's own trainer does not have it.", "Add --for megatron or --for torchtitan."
            )
    if settings.chunked_loss and not isinstance(model, Model):
        raise BadInput(f"--chunked-loss applies to models with a vocabulary, but {model.name} has none.")
    if settings.moments_dtype and settings.moments_dtype not in MOMENT_BYTES:
        raise UnknownName(
            f"--moments-dtype {settings.moments_dtype:.60}: there is no such format.",
            nearest(settings.moments_dtype, MOMENT_BYTES),
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
