"""Parameters of a decoder that are not in matrices: biases, and weights of the norms in attention."""

from __future__ import annotations

from trainyard.model import ATTENTION, EXPERTS, MLP, SPACE, Model


def of_layer(model: Model) -> float:
    """Biases of a layer, and weights of the norms in its attention, mean over layers. Routed experts and state spaces
    have no biases here."""
    kinds = model.hybrid_pattern or (ATTENTION + MLP) * model.dense_layers + (
        (ATTENTION + (EXPERTS if model.experts else MLP)) * (model.layers - model.dense_layers)
    )
    attention = model.q_lora_rank + model.kv_lora_rank if model.kv_lora_rank else 2 * model.head_dim * model.qk_norm
    mlp = shared_experts = norms = 0
    if model.bias != "none" and not model.kv_lora_rank:
        attention += (model.heads + 2 * model.kv_heads) * model.head_dim  # queries, keys and values
    if model.bias == "all":
        parts = 2 if model.mlp == "swiglu" else 1  # up, and gate
        attention += model.hidden_size
        mlp = parts * model.ffn_hidden_size + model.hidden_size
        if model.shared_experts:
            shared_experts = parts * model.shared_experts * model.moe_ffn_hidden_size + model.hidden_size
        norms = model.hidden_size if model.norm == "layer" else 0
    values = {ATTENTION: attention, MLP: mlp, EXPERTS: shared_experts, SPACE: 0}
    return sum(values[kind] + norms for kind in kinds) / model.layers
