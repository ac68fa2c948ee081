"""The optimizer of Megatron Core's arguments."""

from __future__ import annotations

from trainyard.errors import BadFile
from trainyard.predict.configs.config_keys import ConfigKeys
from trainyard.predict.inputs.layout_space import MUON_MOMENTUM
from trainyard.predict.time.orthogonalization import ITERATIONS

_MUON = ("muon", "dist_muon")
"""Muon with its state on each rank of data parallelism, unless --use-distributed-optimizer divides it, and divided."""


def columns(keys: ConfigKeys) -> dict[str, float]:
    """Columns of `Cases` of the optimizer; empty for AdamW. Raises `BadFile` for a combination that Megatron
    refuses."""
    optimizer = keys.get("optimizer")
    if optimizer not in _MUON:
        if optimizer not in (None, "adam"):
            keys.refuse("optimizer", "its state and its update are not those of AdamW or Muon")
        return {}
    for refused in ("use-precision-aware-optimizer", "optimizer-cpu-offload"):
        if keys.flag(refused):
            raise BadFile(
                f"{keys.where}: --optimizer {optimizer} with --{refused} is refused by Megatron.",
                f"Remove --{refused}.",
            )
    for sharding in ("use-megatron-fsdp", "use-custom-fsdp"):
        if keys.flag(sharding):
            keys.refuse(sharding, "matrices that FSDP divides have to be gathered for Muon")
    if keys.get("muon-scalar-optimizer") not in (None, "adam"):
        keys.refuse("muon-scalar-optimizer", "its state is not that of AdamW")
    if keys.get("muon-tp-mode") not in (None, "blockwise"):
        keys.approximate("muon-tp-mode", "predicted with a part of each matrix per rank of tensor parallelism")
    iterations = keys.integer("muon-num-ns-steps", ITERATIONS, 1)
    return {"muon_iterations": float(iterations), "extra_table_state_bytes": MUON_MOMENTUM}
