"""Keys and values of job files that were renamed. A job file with an old one is refused with the new one; the job of a
stored run of the old schema is upgraded when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEYS: Mapping[str, Mapping[str, str]] = {
    "recipe": {
        "microbatch": "micro_batch_size",
        "remat": "activation_checkpoint",
        "remat_every": "activation_checkpoint_every",
        "update": "optimizer_implementation",
        "rise_steps": "warmup_steps",
        "fall_steps": "decay_steps",
        "text": "dataset",
        "workers": "num_workers",
        "prefetch": "prefetch_factor",
        "pin": "pin_memory",
    },
    "model": {
        "width": "hidden_size",
        "ffn": "ffn_hidden_size",
        "active": "top_k",
        "expert_ffn": "moe_ffn_hidden_size",
        "q_rank": "q_lora_rank",
        "kv_rank": "kv_lora_rank",
        "pattern": "hybrid_pattern",
        "space_heads": "ssm_heads",
        "space_dim": "ssm_head_dim",
        "space_groups": "ssm_groups",
        "state": "ssm_state_size",
    },
}
"""Section of a job file -> old key -> new key."""
VALUES: Mapping[str, Mapping[str, str]] = {
    "activation_checkpoint": {"op": "selective"},
    "optimizer_implementation": {"loop": "for-loop"},
}
"""New key of `[recipe]` -> old value -> new value."""


def new_key(section: str, key: str) -> str:
    """The new name of a key in a section of a job file; empty if `key` is not an old one."""
    return KEYS.get(section, {}).get(key, "")


def new_value(path: str, value: object) -> str:
    """The new name of a value at a path such as `recipe.activation_checkpoint`; empty if it is not an old one."""
    section, _, key = path.partition(".")
    return VALUES.get(key, {}).get(str(value), "") if section == "recipe" else ""


def upgraded(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job of the schema `trainyard/run/1` with the new keys and values."""
    sections = {name: _upgraded(name, job[name]) for name in KEYS if isinstance(job.get(name), dict)}
    return {**job, **sections}


def _upgraded(section: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {new_key(section, key) or key: value for key, value in fields.items()}
    return {key: new_value(f"{section}.{key}", value) or value for key, value in renamed.items()}
