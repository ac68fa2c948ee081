"""Fields of a config.json that Llama-like architectures share: RMSNorm, RoPE, SwiGLU, grouped-query attention."""

from __future__ import annotations

from typing import Any, cast

from trainyard.errors import BadFile
from trainyard.models.hugging_face_config import MAX_NUMBER, HuggingFaceKeys, short


def rope_base(config: HuggingFaceKeys, default: float) -> float:
    """The base of RoPE, from the old keys (`rope_theta`, `rope_scaling`) or the new one (`rope_parameters`); `default`
    if none of them has it. Refuses scaled RoPE."""
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise BadFile(f"{config.where} at $.{key}: {short(value)}, not a table.")
        scaling = cast("dict[str, Any]", value)
        scaling_type = scaling.get("rope_type", scaling.get("type", "default"))
        if scaling_type != "default":
            config.refuse(key, f"RoPE scaling is not modelled, and it is {short(scaling_type)}")
        theta = scaling.get("rope_theta")
        if isinstance(theta, int | float) and 0 < theta < MAX_NUMBER:
            default = float(theta)
    return config.number("rope_theta", default)


def llama_family(config: HuggingFaceKeys, default_rope_base: float = 10_000.0) -> dict[str, Any]:
    """Model fields common to the Llama family: RMSNorm, RoPE, SwiGLU. `default_rope_base`: of configs without a
    base."""
    config.must("hidden_act", ["silu"], "only SwiGLU is modelled")
    config.must("attention_dropout", [0, 0.0], "dropout is not modelled")
    return {
        "layers": config.layers(),
        "hidden_size": config.integer("hidden_size"),
        "ffn_hidden_size": config.integer("intermediate_size"),
        "heads": config.integer("num_attention_heads"),
        "vocab": config.integer("vocab_size"),
        "norm": "rms",
        "mlp": "swiglu",
        "position": "rope",
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "rope_theta": rope_base(config, default_rope_base),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
    }


def llama_family_grouped(config: HuggingFaceKeys, default_rope_base: float = 10_000.0) -> dict[str, Any]:
    """The fields of `llama_family` and those of grouped-query attention. `default_rope_base`: as there."""
    common = llama_family(config, default_rope_base)
    heads, width = common["heads"], common["hidden_size"]
    if config.get("head_dim") is None and width % heads:
        raise BadFile(
            f"{config.where} at $.{config.prefix}hidden_size: {width} % {heads} heads = {width % heads}, but "
            "head_dim is missing.",
            "Add head_dim, or correct hidden_size or num_attention_heads.",
        )
    return {**common, "kv_heads": kv_heads(config, heads), "head_dim": config.integer("head_dim", width // heads)}


def kv_heads(config: HuggingFaceKeys, heads: int) -> int:
    """The key/value heads; by default one per query head. Raises `BadFile` unless each serves as many of the `heads`
    query heads."""
    count = config.integer("num_key_value_heads", heads)
    if heads % count:
        raise BadFile(
            f"{config.where} at $.{config.prefix}num_key_value_heads: num_attention_heads {heads} % {count} = "
            f"{heads % count}, but each key/value head serves a whole number of query heads.",
            f"Make it a divisor of {heads}.",
        )
    return count
