"""Few mixes of the parity matrix that together have every setting, and every pair of settings of the layout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec

from trainyard.job import Job
from trainyard.layout import FACTORS, Layout
from trainyard.numerics.parity import ParityMix
from trainyard.recipe import Recipe

Setting = tuple[str, Any]
Settings = tuple[Setting, ...]

_RECIPE = Recipe(seq_len=1, tokens_per_step=1)
_OTHER_FIELDS = ("schedule", "seq_len", "tokens_per_step", "micro_batch_size", "learning_rate", "seed", "dataset")
"""The schedule belongs to the layout; the other fields are set by all mixes."""


def covering_mixes(mixes: Sequence[ParityMix]) -> list[ParityMix]:
    """A subset with every setting, and every pair of settings of the layout, of all `mixes`, in their order. Greedy:
    each mix that is added has most of the missing ones."""
    by_mix = {mix.name: settings_and_pairs(mix) for mix in mixes}
    missing, names = set[Settings]().union(*by_mix.values()), set[str]()
    while missing:
        name = max(by_mix, key=lambda name: len(by_mix[name] & missing))
        names.add(name)
        missing -= by_mix[name]
    return [mix for mix in mixes if mix.name in names]


def settings_and_pairs(mix: ParityMix) -> set[Settings]:
    """The settings of a mix, and the pairs of those of its layout."""
    layout, other = _layout_settings(mix.job), _recipe_settings(mix.job)
    return {(setting,) for setting in layout + other} | set(combinations(sorted(layout, key=str), 2))


def _layout_settings(job: Job) -> list[Setting]:
    """The fields of the layout that are not the default, and the schedule. Of an axis it is only relevant that it is
    divided, and of batch shares that they are unequal."""
    changes = [
        (name, True if name in FACTORS or name == "batch_shares" else value)
        for name, value in _changes(job.layout, Layout())
    ]
    return [*changes, ("schedule", job.recipe.schedule)]


def _recipe_settings(job: Job) -> list[Setting]:
    """The fields of the recipe that are not the default, and the kind of model."""
    changes = [setting for setting in _changes(job.recipe, _RECIPE) if setting[0] not in _OTHER_FIELDS]
    return [*changes, ("model", _model_kind(job))]


def _model_kind(job: Job) -> tuple[Any, ...]:
    """The kind of a job's model, without its sizes."""
    if job.model is None:
        return job.workload, job.sizes.get("family"), job.sizes.get("tables")
    return job.workload, job.model.mlp, job.model.router, job.model.load_balancing, job.model.kv_lora_rank > 0


def _changes(values: msgspec.Struct, defaults: msgspec.Struct) -> list[Setting]:
    """(field, value) of the fields that are not the default."""
    return [
        (name, getattr(values, name))
        for name in values.__struct_fields__
        if getattr(values, name) != getattr(defaults, name)
    ]
