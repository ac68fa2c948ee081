"""Reads hybrids of attention and state spaces from their config.json: Nemotron-H, Jamba, Bamba and Granite 4.

A layer of theirs becomes one letter of `Model.pattern`, or two if an MLP or experts follow in the same layer.
The keys are those of transformers' configuration classes (such as `configuration_nemotron_h.py`). `config.must` refuses
a key whose value is not one of those that are modelled. Each function returns fields of `Model`: name -> value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from trainyard import limits
from trainyard.errors import BadFile
from trainyard.models.hugging_face_config import HuggingFaceKeys, short

_KINDS: Mapping[str, str] = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Name of a kind of layer -> its letter in a pattern."""


def nemotron_h(config: HuggingFaceKeys) -> dict[str, Any]:
    """Nemotron-H: one kind of block per layer, without position embeddings."""
    listed = config.get("layers_block_type")
    pattern = _pattern_of_list(config, "layers_block_type", listed) if listed is not None else _pattern_of_text(config)
    layers = config.layers(default=len(pattern))
    if layers != len(pattern):
        raise BadFile(f"{config.where} at $.num_hidden_layers: {layers}, but {len(pattern)} layers are listed.")
    config.must("mlp_hidden_act", ["relu2"], "only squared ReLU is modelled", default="relu2")
    config.must("num_nextn_predict_layers", [0], "multi-token prediction is not modelled")
    _check_biases(config)
    for key in ("attention_dropout", "hidden_dropout"):
        config.must(key, [0, 0.0], "dropout is not modelled")
    config.must("residual_in_fp32", [False], "the residual stream is in the compute dtype")
    config.must("sliding_window", [], "only full causal attention is modelled", predicted="full causal attention")
    _ignore(
        config,
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "rope_theta",
        "hidden_act",
        "norm_eps",
        "rms_norm_eps",
        "num_query_groups",
        "partial_rotary_factor",
        "moe_shared_expert_overlap",
    )
    heads = config.integer("num_attention_heads", 32)
    listed_dim = config.get("head_dim") or config.get("attention_head_dim")
    head_dim_key = "head_dim" if config.get("head_dim") else "attention_head_dim"
    head_dim = config.integer(head_dim_key, 128 if not listed_dim else None)
    return {
        "layers": layers,
        "hybrid_pattern": pattern,
        "hidden_size": config.integer("hidden_size"),
        "ffn_hidden_size": config.integer("intermediate_size"),
        "heads": heads,
        "kv_heads": config.integer("num_key_value_heads", 8),
        "head_dim": head_dim,
        "vocab": config.integer("vocab_size"),
        "mlp": "relu2",
        "position": "none",
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
        "ssm_heads": config.integer("mamba_num_heads", 128),
        "ssm_head_dim": config.integer("mamba_head_dim", 64),
        "ssm_groups": _integer_of_either(config, "n_groups", "mamba_n_groups", 8),
        "ssm_state_size": config.integer("ssm_state_size", 128),
        "ssm_conv_kernel": _integer_of_either(config, "conv_kernel", "mamba_d_conv", 4),
        "ssm_chunk_size": _integer_of_either(config, "chunk_size", "mamba_chunk_size", 128),
        **_routed(config, "E" in pattern),
    }


def _routed(config: HuggingFaceKeys, has_experts: bool) -> dict[str, Any]:
    """Model fields of the routed experts; none if the pattern has no layer of experts (`has_experts`)."""
    names = (
        "n_routed_experts",
        "n_shared_experts",
        "moe_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "moe_latent_size",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
        "norm_topk_prob",
    )
    if not has_experts:
        _ignore(config, *names)
        return {}
    config.must("norm_topk_prob", [True], "routing weights are normalised over the active experts")
    moe_ffn_hidden_size = config.integer("moe_intermediate_size")
    shared_ffn = config.integer("moe_shared_expert_intermediate_size", moe_ffn_hidden_size)
    shared = config.integer("n_shared_experts", 1, least=0) * shared_ffn
    return {
        "experts": config.integer("n_routed_experts"),
        "top_k": config.integer("num_experts_per_tok"),
        "moe_ffn_hidden_size": moe_ffn_hidden_size,
        "shared_experts": _divide_width(config, "moe_shared_expert_intermediate_size", shared, moe_ffn_hidden_size),
        "moe_latent_size": config.integer("moe_latent_size", 0),
        "router": "sigmoid",
        "load_balancing": "bias",
        "route_scale": config.number("routed_scaling_factor", 1.0),
        "n_group": config.integer("n_group", 1),
        "topk_group": config.integer("topk_group", 1),
    }


def jamba(config: HuggingFaceKeys) -> dict[str, Any]:
    """Jamba: Mamba-1 or attention, then an MLP or experts, without position embeddings."""
    layers, width = config.layers(), config.integer("hidden_size")
    experts, ffn = config.integer("num_experts", 16), config.integer("intermediate_size")
    has_attention = _every_nth(config, "attn_layer", period=8, offset=4)
    has_experts = _every_nth(config, "expert_layer", period=2, offset=1)
    kinds = ["*" if has_attention(layer) else "M" for layer in range(layers)]
    mlp_kinds = ["E" if experts > 1 and has_experts(layer) else "-" for layer in range(layers)]
    _check_silu_gate(config)
    config.must("sliding_window", [], "only full causal attention is modelled", predicted="full causal attention")
    expert_sizes = {
        "experts": experts,
        "top_k": config.integer("num_experts_per_tok", 2),
        "moe_ffn_hidden_size": ffn,
        "router": "softmax",
        "load_balancing": "aux_loss" if config.flag("output_router_logits") else "none",
    }
    # Mamba-1: each channel is a head; the rank of the step sizes is by default a sixteenth of the width, rounded up.
    dt_rank, inner = config.get("mamba_dt_rank"), config.integer("mamba_expand", 2) * width
    ssm_dt_rank = -(-width // 16) if dt_rank in (None, "auto") else config.integer("mamba_dt_rank")
    return {
        **_attention(config, width),
        **_layer_pairs(kinds, mlp_kinds),
        "hidden_size": width,
        "ffn_hidden_size": ffn,
        "position": "none",
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "ssm_heads": inner,
        "ssm_head_dim": 1,
        "ssm_groups": 1,
        "ssm_state_size": config.integer("mamba_d_state", 16),
        "ssm_conv_kernel": config.integer("mamba_d_conv", 4),
        "ssm_dt_rank": ssm_dt_rank,
        **(expert_sizes if "E" in mlp_kinds else {}),
    }


def bamba(config: HuggingFaceKeys) -> dict[str, Any]:
    """Bamba: Mamba-2 or attention, then an MLP."""
    layers, width = config.layers(), config.integer("hidden_size")
    listed = config.get("attn_layer_indices") or []
    if not isinstance(listed, list) or not all(type(layer) is int and 0 <= layer < layers for layer in listed):
        raise BadFile(f"{config.where} at $.attn_layer_indices: {short(listed)}, not numbers of {layers} layers.")
    attention_layers = set(cast("list[int]", listed))
    _check_silu_gate(config)
    return {
        **_attention(config, width),
        **_state_spaces(config, width),
        **_layer_pairs(["*" if layer in attention_layers else "M" for layer in range(layers)], ["-"] * layers),
        "hidden_size": width,
        "ffn_hidden_size": config.integer("intermediate_size"),
        "position": "rope",
        **_rotary(config),
        "norm_eps": config.number("rms_norm_eps", 1e-5),
    }


def granite(config: HuggingFaceKeys) -> dict[str, Any]:
    """Granite 4: Mamba-2 or attention, then an MLP or shared and routed experts."""
    layers, width = config.layers(), config.integer("hidden_size")
    kinds = list(_pattern_of_list(config, "layer_types", config.get("layer_types")))
    if len(kinds) != layers or not set(kinds) <= {"M", "*"}:
        raise BadFile(f"{config.where} at $.layer_types: must list mamba or attention for each of {layers} layers.")
    shared, experts = config.integer("shared_intermediate_size", 1024), config.integer("num_local_experts", 0, least=0)
    moe_ffn_hidden_size = config.integer("intermediate_size", shared)
    for key in ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"):
        config.must(key, [1, 1.0], "constant multipliers are not modelled")
    position = config.get("position_embedding_type")
    config.must("position_embedding_type", ["rope", "nope"], "only RoPE or no positions are modelled")
    _check_silu_gate(config)
    expert_sizes = (
        {
            "experts": experts,
            "top_k": config.integer("num_experts_per_tok", 1),
            "moe_ffn_hidden_size": moe_ffn_hidden_size,
            "router": "softmax",
            "shared_experts": _divide_width(config, "shared_intermediate_size", shared, moe_ffn_hidden_size),
            "load_balancing": "aux_loss" if config.flag("output_router_logits") else "none",
        }
        if experts
        else {}
    )
    _ignore(config, "num_experts_per_tok", "output_router_logits")  # without experts they have no effect
    return {
        **_attention(config, width),
        **_state_spaces(config, width),
        **_layer_pairs(kinds, ["E" if experts else "-"] * layers),
        "hidden_size": width,
        "ffn_hidden_size": shared,
        "position": "rope" if position == "rope" else "none",
        **_rotary(config),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        **expert_sizes,
    }


def _pattern_of_list(config: HuggingFaceKeys, key: str, listed: object) -> str:
    """One letter per layer from a list of kinds of layers, such as ['mamba', 'attention'] -> 'M*'. Raises `BadFile` for
    an unknown kind."""
    if not isinstance(listed, list) or not 0 < len(listed) <= limits.LAYERS.most:
        raise BadFile(f"{config.where} at $.{key}: {short(listed)}, not a list of kinds of layers.")
    unknown = [kind for kind in cast("list[Any]", listed) if not isinstance(kind, str) or kind not in _KINDS]
    if unknown:
        raise BadFile(
            f"{config.where} at $.{key}: {short(unknown[0])} is a kind of layer that is not modelled.",
            f"Known: {', '.join(_KINDS)}.",
        )
    return "".join(_KINDS[kind] for kind in cast("list[str]", listed))


def _pattern_of_text(config: HuggingFaceKeys) -> str:
    """The config's pattern, already one letter per layer. Raises `BadFile` for an unknown letter."""
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not 0 < len(pattern) <= limits.LAYERS.most:
        raise BadFile(f"{config.where} at $.hybrid_override_pattern: {short(pattern)}, not one letter per layer.")
    if unknown := sorted(set(pattern) - set(_KINDS.values())):
        raise BadFile(
            f"{config.where} at $.hybrid_override_pattern: {', '.join(map(short, unknown))}: not a kind of layer that "
            "is modelled.",
            f"Known: {', '.join(f'{letter} {name}' for name, letter in _KINDS.items())}.",
        )
    return pattern


def _layer_pairs(mixers: Sequence[str], mlps: Sequence[str]) -> dict[str, Any]:
    """The pattern of layers that each have a mixer (`M` or `*`) and an MLP or experts (`-` or `E`), and its length."""
    pattern = "".join(mixer + mlp for mixer, mlp in zip(mixers, mlps, strict=True))
    return {"layers": len(pattern), "hybrid_pattern": pattern}


def _every_nth(config: HuggingFaceKeys, prefix: str, period: int, offset: int) -> Callable[[int], bool]:
    """A predicate on the index of a layer: whether it is `offset` modulo `period`. Both are read from the keys
    `<prefix>_period` and `<prefix>_offset`; the arguments are the defaults."""
    layer_period = config.integer(f"{prefix}_period", period)
    layer_offset = config.integer(f"{prefix}_offset", offset, least=0)
    return lambda layer: layer % layer_period == layer_offset


def _attention(config: HuggingFaceKeys, width: int) -> dict[str, Any]:
    """Model fields of heads, vocabulary and norm, the same for all hybrids. `width`: the hidden size."""
    heads = config.integer("num_attention_heads")
    if config.get("head_dim") is None and width % heads:
        raise BadFile(f"{config.where} at $.hidden_size: {width} % {heads} heads = {width % heads}.")
    config.must("attention_dropout", [0, 0.0], "dropout is not modelled")
    _check_biases(config)
    return {
        "heads": heads,
        "kv_heads": config.integer("num_key_value_heads", heads),
        "head_dim": config.integer("head_dim", width // heads),
        "vocab": config.integer("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
        "mlp": "swiglu",
        "norm": "rms",
    }


def _state_spaces(config: HuggingFaceKeys, width: int) -> dict[str, Any]:
    """Model fields of the state space (Mamba-2), from Bamba's keys. `width`: the hidden size. Raises `BadFile` if heads
    x channels of a head is not the expanded width."""
    heads, expand = config.integer("mamba_n_heads", 128), config.integer("mamba_expand", 2)
    dim = expand * width // heads if config.get("mamba_d_head") in (None, "auto") else config.integer("mamba_d_head")
    if heads * dim != expand * width:
        raise BadFile(
            f"{config.where} at $.mamba_n_heads: {heads} x mamba_d_head {dim} = {heads * dim}, but mamba_expand "
            f"{expand} x hidden_size {width} = {expand * width}."
        )
    return {
        "ssm_heads": heads,
        "ssm_head_dim": dim,
        "ssm_groups": config.integer("mamba_n_groups", 1),
        "ssm_state_size": config.integer("mamba_d_state", 256),
        "ssm_conv_kernel": config.integer("mamba_d_conv", 4),
        "ssm_chunk_size": config.integer("mamba_chunk_size", 256),
    }


def _check_biases(config: HuggingFaceKeys) -> None:
    """Refuses matrices with biases and convolutions without."""
    for key in ("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"):
        config.must(key, [False], "biases of matrices are not modelled")
    for key in ("mamba_conv_bias", "use_conv_bias"):
        config.must(key, [True], "the convolution must have a bias")


def _check_silu_gate(config: HuggingFaceKeys) -> None:
    config.must("hidden_act", ["silu"], "only SwiGLU is modelled")


def _rotary(config: HuggingFaceKeys) -> dict[str, float]:
    """Model fields of the rotary embedding: its base. Refuses scaled and partial ones."""
    for key in ("rope_scaling", "rope_parameters", "partial_rotary_factor"):
        value = config.get(key)
        if value not in (None, 1, 1.0):
            config.refuse(key, f"scaled and partial RoPE are not modelled, and it is {short(value)}")
    return {"rope_theta": config.number("rope_theta", 10_000.0)}


def _integer_of_either(config: HuggingFaceKeys, key: str, other_key: str, default: int) -> int:
    """The integer at `key`, or at `other_key` if the file, of an older version, has that name for it."""
    return config.integer(key if config.get(key) is not None else other_key, default)


def _divide_width(config: HuggingFaceKeys, key: str, total: int, divisor: int) -> int:
    """The number of experts of `divisor` width that are as wide as `total`. Refuses `key`, which gave the total width,
    if it is not a multiple."""
    if total % divisor:
        config.refuse(key, f"shared experts must be as wide as the others, and {total} % {divisor} = {total % divisor}")
    return total // divisor


def _ignore(config: HuggingFaceKeys, *keys: str) -> None:
    """Marks keys as read that do not affect the arithmetic."""
    for key in keys:
        config.get(key)


ARCHITECTURES: dict[str, Callable[[HuggingFaceKeys], dict[str, Any]]] = {
    "NemotronHForCausalLM": nemotron_h,
    "JambaForCausalLM": jamba,
    "BambaForCausalLM": bamba,
    "GraniteMoeHybridForCausalLM": granite,
}
REFUSED = {
    "ZambaForCausalLM": "its attention layers share their weights",
    "Zamba2ForCausalLM": "its attention layers share their weights",
    "FalconH1ForCausalLM": "its layers run attention and a state space in parallel",
    "MambaForCausalLM": "it has no attention layer",
    "Mamba2ForCausalLM": "it has no attention layer",
    "Qwen3NextForCausalLM": "its linear attention is a gated delta rule",
    "RecurrentGemmaForCausalLM": "its recurrence is not Mamba",
}
"""Architecture -> the reason why it is not modelled."""
