"""Experts with a sigmoid router that a bias balances, as in DeepSeek-V3 and GLM-4.5."""

from __future__ import annotations

from typing import Any

from trainyard.models.hugging_face_config import HuggingFaceKeys


def sigmoid_experts(
    config: HuggingFaceKeys, *, shared: int, dense_layers: int, route_scale: float, groups: int, top_groups: int
) -> dict[str, Any]:
    """Fields of `Model` for the experts. The numbers are the defaults of keys that a config leaves out."""
    return {
        "experts": config.integer("n_routed_experts"),
        "top_k": config.integer("num_experts_per_tok"),
        "moe_ffn_hidden_size": config.integer("moe_intermediate_size"),
        "shared_experts": config.integer("n_shared_experts", shared, least=0),
        "dense_layers": config.integer("first_k_dense_replace", dense_layers, least=0),
        "router": "sigmoid",
        "load_balancing": "bias",
        "route_scale": config.number("routed_scaling_factor", route_scale),
        "n_group": config.integer("n_group", groups),
        "topk_group": config.integer("topk_group", top_groups),
    }
