"""Arguments of pretrain_gpt.py that contradict each other, and with which Megatron does not start."""

from __future__ import annotations

from trainyard.errors import BadFile
from trainyard.predict.configs.config_keys import ConfigKeys


def check(keys: ConfigKeys) -> None:
    """Raises `BadFile` for the first contradiction, as `validate_args` of Megatron-LM and `TransformerConfig` of
    Megatron Core do."""
    if keys.flag("bf16") and keys.flag("fp16"):
        raise BadFile(f"{keys.where}: --bf16 and --fp16 are both given.", "Leave out one of them.")
    positions, seq_len = keys.integer("max-position-embeddings", 0), keys.integer("seq-length", 0)
    if positions and seq_len > positions:
        raise BadFile(
            f"{keys.where}: --seq-length {seq_len} is more than --max-position-embeddings {positions}.",
            "Increase --max-position-embeddings, also for rotary positions: Megatron checks it.",
        )
    is_full = keys.get("recompute-granularity") == "full" and not keys.flag("recompute-activations")
    if is_full and keys.get("recompute-method") is None:
        raise BadFile(
            f"{keys.where}: --recompute-granularity full without --recompute-method.",
            "Add --recompute-method uniform --recompute-num-layers 1.",
        )
