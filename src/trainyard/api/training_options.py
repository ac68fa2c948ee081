"""Arguments of `plan` that describe a training beyond its layout: recomputed modules and dispatch to experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainyard.predict.inputs.training_settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Settings that all layouts of a search have, for `plan` and `check_plan`.

    `recompute_modules`: names separated by commas of the modules that selective activation checkpointing recomputes, as
    Megatron Core's `--recompute-modules`; empty: norms, the activation function of experts, and the expansion of latent
    attention. `expert_imbalance`: tokens of the rank whose experts get most of them, over the mean (1: balanced).
    `dispatch_dtype`: format of tokens on their way to experts; empty: the compute dtype. `overlap_dispatch`: tokens are
    sent to experts and back during the compute of another micro-batch, in layouts that can."""

    recompute_modules: str = ""
    expert_imbalance: float = 1.0
    dispatch_dtype: Literal["", "float8"] = ""
    overlap_dispatch: bool = False


def read_training(options: TrainingOptions) -> TrainingSettings:
    """The settings of these options, not yet checked against a model and a framework."""
    names = (name.strip() for name in options.recompute_modules.split(","))
    return TrainingSettings(
        recompute_modules=tuple(dict.fromkeys(name for name in names if name)),
        expert_imbalance=options.expert_imbalance,
        dispatch_dtype=options.dispatch_dtype,
        overlap_dispatch=options.overlap_dispatch,
    )
