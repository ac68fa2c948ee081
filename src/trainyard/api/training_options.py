"""Arguments of `plan` that describe a training beyond its layout: recomputed modules, dispatch to experts, the
optimizer and when it updates weights, the loss, and offloaded activations."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from trainyard.errors import BadInput
from trainyard.predict.inputs.training_settings import TrainingSettings
from trainyard.words import RECOMPUTE_MODULES


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Settings that all layouts of a search have, for `plan` and `check_plan`.

    `recompute_modules`: names separated by commas of the modules that selective activation checkpointing recomputes, as
    Megatron Core's `--recompute-modules`; default: norms, the activation function of experts, and the expansion of
    latent attention. `expert_imbalance`: tokens of the rank whose experts get most of them, over the mean (default: 1).
    `dispatch_dtype`: format of tokens on their way to experts; default: the compute dtype. `overlap_dispatch`: tokens
    are sent to experts and back during the compute of another micro-batch, in layouts that can. `moments_dtype`: format
    of AdamW's moments; default: float32. `chunked_loss`: the head and the loss are computed in chunks of the tokens, so
    that all logits never exist. `offload_activations`: layers whose activations are in the host's memory between their
    forward and their backward pass. `optimizer_in_backward`: weights are updated, and their gradients freed, during the
    backward pass. `optimizer`: `muon` updates the matrices of layers with one moment, and AdamW the rest; default:
    AdamW."""

    recompute_modules: str | None = None
    expert_imbalance: float | None = None
    dispatch_dtype: Literal["float8"] | None = None
    overlap_dispatch: bool = False
    moments_dtype: Literal["bfloat16", "float8"] | None = None
    chunked_loss: bool = False
    offload_activations: int | None = None
    optimizer_in_backward: bool = False
    optimizer: Literal["adamw", "muon"] = "adamw"


def read_training(options: TrainingOptions) -> TrainingSettings:
    """The settings of these options, not yet checked against a model and a framework. Raises `BadInput` for
    `recompute_modules` without a name."""
    names = [name.strip() for name in (options.recompute_modules or "").split(",")]
    if options.recompute_modules is not None and not any(names):
        raise BadInput(
            f"--recompute-modules {options.recompute_modules}: there is no name in it.",
            f"Pass names separated by commas, of {', '.join(RECOMPUTE_MODULES)}.",
        )
    return TrainingSettings(
        recompute_modules=tuple(dict.fromkeys(name for name in names if name)),
        expert_imbalance=1.0 if options.expert_imbalance is None else options.expert_imbalance,
        dispatch_dtype=options.dispatch_dtype or "",
        overlap_dispatch=options.overlap_dispatch,
        moments_dtype=options.moments_dtype or "",
        chunked_loss=options.chunked_loss,
        offloaded_layers=options.offload_activations or 0,
        updates_in_backward=options.optimizer_in_backward,
        optimizer="" if options.optimizer == "adamw" else options.optimizer,
    )


def given_options(options: TrainingOptions) -> dict[str, str]:
    """Field -> the option of the command with its value, as `--optimizer muon`, for values that are not the default."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {
        field.name: f"--{field.name.replace('_', '-')}{'' if values[field.name] is True else f' {values[field.name]}'}"
        for field in fields(options)
        if values[field.name] != field.default
    }
