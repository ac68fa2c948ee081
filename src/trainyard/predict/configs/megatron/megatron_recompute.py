"""Activation checkpointing of Megatron Core's arguments: the mode, and the modules that are recomputed."""

from __future__ import annotations

from typing import Literal

from trainyard.errors import BadFile, near
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.configs.config_keys import ConfigKeys
from trainyard.words import RECOMPUTE_MODULES

Mode = Literal["none", "full", "selective"]


def activation_checkpoint(keys: ConfigKeys, layout: Layout, model: Model) -> tuple[Mode, int]:
    """(activation checkpointing mode, n), with one checkpointed layer in n."""
    granularity: dict[str, Mode] = {"full": "full", "selective": "selective"}
    mode: Mode = keys.choice("recompute-granularity", granularity, "none")
    if keys.flag("recompute-activations"):
        if mode == "full":
            keys.approximate("recompute-granularity", "Megatron replaces it: --recompute-activations is selective")
        mode = "selective"
    if mode != "full":
        return mode, 1
    recomputed_layers = keys.integer("recompute-num-layers", 1)
    stage_layers = -(-model.layers // (layout.pp * layout.interleave))  # rounded up
    if keys.get("recompute-method") == "block" and recomputed_layers < stage_layers:
        if stage_layers % recomputed_layers:
            keys.refuse(
                "recompute-num-layers",
                f"{recomputed_layers} of {stage_layers} layers of a stage, not every n-th layer",
            )
            return mode, 1
        return mode, stage_layers // recomputed_layers
    if keys.get("recompute-method") != "block" and recomputed_layers > 1:
        keys.approximate("recompute-num-layers", "predicted as recomputing one layer at a time")
    return mode, 1


def modules(keys: ConfigKeys, mode: Mode) -> tuple[str, ...]:
    """The modules of selective activation checkpointing, by default attention. Raises `BadFile` for an unknown
    one."""
    given = keys.get("recompute-modules")
    if mode != "selective":
        return ()
    named = ("core_attn",) if given is None else tuple(given) if isinstance(given, list) else (str(given),)
    for module in named:
        if module not in RECOMPUTE_MODULES:
            raise BadFile(
                f"{keys.where}: --recompute-modules {module!s:.60} is not known.",
                near(str(module), RECOMPUTE_MODULES) or f"Known: {', '.join(RECOMPUTE_MODULES)}.",
            )
    return named
