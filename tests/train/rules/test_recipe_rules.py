"""Recipes that trainyard's own trainer refuses, and recipes that contradict themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.refused import refused
from trainyard.errors import BadJob, UnknownName
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import trainable

MODEL = Model(
    layers=2, hidden_size=32, ffn_hidden_size=64, heads=2, kv_heads=2, head_dim=16, vocab=64,
    experts=4, top_k=2, moe_ffn_hidden_size=16,
)  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"activation_checkpoint": "selective", "recompute_modules": ("layernorm",)}, "recompute_modules"),
        ({"overlap_dispatch": True}, "overlap_dispatch"),
    ],
)
def test_settings_of_megatron_core_are_refused(settings: dict[str, Any], key: str) -> None:
    job = Job(
        name="a", model=MODEL, layout=Layout(dp_shard=2, ep=2),
        recipe=Recipe(seq_len=8, tokens_per_step=32, **settings),
    )  # fmt: skip
    with refused(BadJob, key):
        trainable.check(job)


def test_modules_need_selective_checkpointing() -> None:
    with refused(BadJob, "recompute_modules", "'full'"):
        Recipe(tokens_per_step=1, activation_checkpoint="full", recompute_modules=("layernorm",))
    with refused(UnknownName, "'layernrom'"):
        Recipe(tokens_per_step=1, activation_checkpoint="selective", recompute_modules=("layernrom",))
