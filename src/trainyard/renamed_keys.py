"""Keys and values of job files that were renamed. A job file with an old one is refused with the new one; the job of a
stored run of the old schema is upgraded when it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainyard.errors import nearest
from trainyard.struct_types import fields_at

_UNKNOWN_KEY = re.compile(r"unknown field `(?P<key>[^`]*)`(?P<where> - at `\$(?P<path>[^`]*)`)?")
"""msgspec's message about a key that a struct does not have, with the path of the struct."""

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
        "tied": "tie_word_embeddings",
        "balance": "load_balancing",
        "rope_base": "rope_theta",
        "rope_dim": "qk_rope_head_dim",
        "value_dim": "v_head_dim",
        "expert_width": "moe_latent_size",
        "expert_groups": "n_group",
        "active_groups": "topk_group",
        "kernel": "ssm_conv_kernel",
        "chunk": "ssm_chunk_size",
        "step_rank": "ssm_dt_rank",
    },
    "checkpoint": {
        "every": "interval",
        "keep": "keep_latest_k",
    },
    "recovery": {
        "restarts": "max_restarts",
        "hang_s": "hang_timeout_s",
        "least_nodes": "min_nodes",
    },
}
"""Section of a job file -> old key -> new key."""
VALUES: Mapping[str, Mapping[str, str]] = {
    "recipe.activation_checkpoint": {"op": "selective"},
    "recipe.optimizer_implementation": {"loop": "for-loop"},
    "model.load_balancing": {"loss": "aux_loss"},
}
"""Section and new key -> old value -> new value."""
INCIDENT_KEYS: Mapping[str, str] = {"says": "summary", "when": "time", "resumed": "resumed_step"}
"""Old key of an incident of a stored run -> new key."""
EVENT_KEYS: Mapping[str, str] = {"what": "type", "says": "message"}
"""Old key of an event in the log of a stored run -> new key."""
CHAOS_KEYS: Mapping[str, str] = {"against": "reference", "rows": "faults", "strays": "unplanned"}
"""Old key of a stored chaos.json -> new key."""
FAULT_SCORE_KEYS: Mapping[str, str] = {"right": "correctly_blamed"}
"""Old key of the score of a fault in chaos.json -> new key."""
ACCEPTED_KEYS: Mapping[str, str] = {"why": "reason"}
"""Old key of an entry of trainyard-history.toml -> new key."""
POINT_KEYS: Mapping[str, str] = {"when": "time"}
"""Old key of a point of a series, as `history --json` wrote it -> new key."""
MACHINE_KEYS: Mapping[str, str] = {
    "inside": "intra_node",
    "between": "inter_node",
    "overhead": "power_overhead",
    "tuned": "calibration",
    "spread": "prediction_interval",
    "reached": "achieved",
    "peer": "peer_bandwidth",
}
"""Old key of a machine file, in any of its tables -> new key."""


def describe_machine_key(error: str, root: type) -> tuple[str, str] | None:
    """The message, without its full stop, and the next step for msgspec's `error` about an old or unknown key of a
    machine file, which is decoded as `root`; None for any other error."""
    unknown = _UNKNOWN_KEY.search(error)
    if unknown is None:
        return None
    key, where = unknown["key"], unknown["where"] or ""
    if renamed := MACHINE_KEYS.get(key):
        return f"{key!r} was renamed to {renamed!r}{where}", f"Use {renamed}."
    return f"unknown key {key!r}{where}", nearest(key, fields_at(root, unknown["path"] or ""))


def upgraded_point(point: Any) -> Any:
    """A point of a series with the new keys, unless it has them already; a value that is not an object is returned
    unchanged."""
    old_keys = {old: new for old, new in POINT_KEYS.items() if isinstance(point, dict) and new not in point}
    return _renamed(point, old_keys)


def new_key(section: str, key: str) -> str:
    """The new name of a key in a section of a job file; empty if `key` is not an old one."""
    return KEYS.get(section, {}).get(key, "")


def new_value(path: str, value: object) -> str:
    """The new name of a value at a path such as `recipe.activation_checkpoint`; empty if it is not an old one."""
    return VALUES.get(path, {}).get(str(value), "")


def upgraded(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job of an older schema of runs with the new keys and values."""
    sections = {name: _upgraded(name, job[name]) for name in KEYS if isinstance(job.get(name), dict)}
    return {**job, **sections}


def upgraded_incident(incident: Any) -> Any:
    """An incident of an older schema of runs with the new keys; a value that is not an object is returned unchanged."""
    return _renamed(incident, INCIDENT_KEYS)


def upgraded_chaos(document: Any) -> Any:
    """The contents of a chaos.json of the schema `trainyard/chaos/1` with the new keys and schema; any other value is
    returned unchanged."""
    if not isinstance(document, dict) or document.get("schema") != "trainyard/chaos/1":
        return document
    faults, unplanned = document.get("rows"), document.get("strays")
    return {
        **_renamed(document, CHAOS_KEYS),
        "faults": [_renamed(row, FAULT_SCORE_KEYS) for row in faults] if isinstance(faults, list) else faults,
        "unplanned": [upgraded_incident(row) for row in unplanned] if isinstance(unplanned, list) else unplanned,
        "schema": "trainyard/chaos/2",
    }


def upgraded_event(event: Any) -> Any:
    """An event of a run's log with the new keys; a value that is not an object is returned unchanged."""
    return _renamed(event, EVENT_KEYS)


def _renamed(fields: Any, keys: Mapping[str, str]) -> Any:
    """`fields` with the new names of `keys`, if it is an object."""
    return {keys.get(key, key): value for key, value in fields.items()} if isinstance(fields, dict) else fields


def _upgraded(section: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {new_key(section, key) or key: value for key, value in fields.items()}
    return {key: new_value(f"{section}.{key}", value) or value for key, value in renamed.items()}
