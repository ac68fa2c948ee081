"""Modules of a layer that selective activation checkpointing recomputes, by the names of Megatron Core's
`--recompute-modules` (`megatron/core/transformer/transformer_config.py`)."""

from __future__ import annotations

import numpy as np

from trainyard.model import Model
from trainyard.predict.inputs.cases import SELECTIVE, Cases, Column
from trainyard.words import RECOMPUTE_MODULES

_NAMES = tuple(RECOMPUTE_MODULES)


def usual(model: Model) -> tuple[str, ...]:
    """The modules of a model that are cheap to recompute for the memory that they save: norms, the activation function
    of experts, and the projections that expand latent attention."""
    experts = ("moe_act",) if model.experts else ()
    return ("layernorm", *experts, *(("mla_up_proj",) if model.kv_lora_rank else ()))


def is_recomputed(cases: Cases, module: str) -> Column:
    """1 in cases that recompute the module, else 0."""
    bit = np.mod(np.floor(cases.recompute_modules / 2 ** _NAMES.index(module)), 2)
    return np.where(cases.activation_checkpoint == SELECTIVE, bit, 0.0)
