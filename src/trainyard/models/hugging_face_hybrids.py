"""Hybrids of attention and state spaces from their config.json: Nemotron-H, Jamba, Bamba and Granite 4.

What they call a layer becomes one letter of `Model.pattern`, or two where a layer goes on with an MLP or with experts.
The keys are those of transformers' configuration classes (`configuration_nemotron_h.py` and its like).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from trainyard import limits
from trainyard.errors import BadFile
from trainyard.models.hugging_face_config import HuggingFaceKeys, short

_KINDS: Mapping[str, str] = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""A kind of layer by its name -> the letter of a pattern."""


def nemotron_h(config: HuggingFaceKeys) -> dict[str, Any]:
    """Each layer is one thing; there are no positions."""
    listed = config.get("layers_block_type")
    pattern = _letters(config, "layers_block_type", listed) if listed is not None else _pattern(config)
    layers = config.layers(default=len(pattern))
    if layers != len(pattern):
        raise BadFile(f"{config.where} at $.num_hidden_layers: {layers}, but {len(pattern)} layers are listed.")
    config.must("mlp_hidden_act", ["relu2"], "MLPs square what is positive", "relu2")
    config.must("num_nextn_predict_layers", [0], "one token is predicted, not several")
    _unbiased(config)
    for key in ("attention_dropout", "hidden_dropout"):
        config.must(key, [0, 0.0], "there is no dropout")
    config.must("residual_in_fp32", [False], "what lies between layers is in the format of the rest")
    config.must("sliding_window", [], "attention sees all earlier positions")
    _passed(
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
    heads = config.whole("num_attention_heads", 32)
    both = config.get("head_dim") or config.get("attention_head_dim")
    head_dim = config.whole("head_dim" if config.get("head_dim") else "attention_head_dim", 128 if not both else None)
    return {
        "layers": layers,
        "pattern": pattern,
        "width": config.whole("hidden_size"),
        "ffn": config.whole("intermediate_size"),
        "heads": heads,
        "kv_heads": config.whole("num_key_value_heads", 8),
        "head_dim": head_dim,
        "vocab": config.whole("vocab_size"),
        "mlp": "relu2",
        "position": "none",
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "tied": config.flag("tie_word_embeddings"),
        "space_heads": config.whole("mamba_num_heads", 128),
        "space_dim": config.whole("mamba_head_dim", 64),
        "space_groups": _either(config, "n_groups", "mamba_n_groups", 8),
        "state": config.whole("ssm_state_size", 128),
        "kernel": _either(config, "conv_kernel", "mamba_d_conv", 4),
        "chunk": _either(config, "chunk_size", "mamba_chunk_size", 128),
        **_routed(config, "E" in pattern),
    }


def _routed(config: HuggingFaceKeys, experts: bool) -> dict[str, Any]:
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
    if not experts:
        _passed(config, *names)
        return {}
    config.must("norm_topk_prob", [True], "the chosen experts' weights are divided by their sum")
    each = config.whole("moe_intermediate_size")
    shared = config.whole("n_shared_experts", 1, least=0) * config.whole("moe_shared_expert_intermediate_size", each)
    return {
        "experts": config.whole("n_routed_experts"),
        "active": config.whole("num_experts_per_tok"),
        "expert_ffn": each,
        "shared_experts": _times(config, "moe_shared_expert_intermediate_size", shared, each),
        "expert_width": config.whole("moe_latent_size", 0),
        "router": "sigmoid",
        "balance": "bias",
        "route_scale": config.number("routed_scaling_factor", 1.0),
        "expert_groups": config.whole("n_group", 1),
        "active_groups": config.whole("topk_group", 1),
    }


def jamba(config: HuggingFaceKeys) -> dict[str, Any]:
    """Mamba of the first kind, then an MLP or experts; there are no positions."""
    layers, width = config.layers(), config.whole("hidden_size")
    experts, each = config.whole("num_experts", 16), config.whole("intermediate_size")
    attends, routes = _every(config, "attn_layer", 8, 4), _every(config, "expert_layer", 2, 1)
    kinds = ["*" if attends(one) else "M" for one in range(layers)]
    ends = ["E" if experts > 1 and routes(one) else "-" for one in range(layers)]
    _gated(config)
    config.must("sliding_window", [], "attention sees all earlier positions")
    some = {
        "experts": experts,
        "active": config.whole("num_experts_per_tok", 2),
        "expert_ffn": each,
        "router": "softmax",
        "balance": "loss" if config.flag("output_router_logits") else "none",
    }
    rank, inner = config.get("mamba_dt_rank"), config.whole("mamba_expand", 2) * width
    steps = -(-width // 16) if rank in (None, "auto") else config.whole("mamba_dt_rank")
    return {
        **_attended(config, width),
        **_pairs(kinds, ends),
        "width": width,
        "ffn": each,
        "position": "none",
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "space_heads": inner,
        "space_dim": 1,
        "space_groups": 1,
        "state": config.whole("mamba_d_state", 16),
        "kernel": config.whole("mamba_d_conv", 4),
        "step_rank": steps,
        **(some if "E" in ends else {}),
    }


def bamba(config: HuggingFaceKeys) -> dict[str, Any]:
    """Mamba-2 or attention, then an MLP."""
    layers, width = config.layers(), config.whole("hidden_size")
    listed = config.get("attn_layer_indices") or []
    if not isinstance(listed, list) or not all(type(one) is int and 0 <= one < layers for one in listed):
        raise BadFile(f"{config.where} at $.attn_layer_indices: {short(listed)}, not numbers of {layers} layers.")
    attends = set(cast("list[int]", listed))
    _gated(config)
    return {
        **_attended(config, width),
        **_spaces(config, width),
        **_pairs(["*" if layer in attends else "M" for layer in range(layers)], ["-"] * layers),
        "width": width,
        "ffn": config.whole("intermediate_size"),
        "position": "rope",
        **_turns(config),
        "norm_eps": config.number("rms_norm_eps", 1e-5),
    }


def granite(config: HuggingFaceKeys) -> dict[str, Any]:
    """Mamba-2 or attention, then an MLP, with experts beside it where there are some."""
    layers, width = config.layers(), config.whole("hidden_size")
    kinds = list(_letters(config, "layer_types", config.get("layer_types")))
    if len(kinds) != layers or not set(kinds) <= {"M", "*"}:
        raise BadFile(f"{config.where} at $.layer_types: {layers} layers are mamba or attention, one each.")
    shared, experts = config.whole("shared_intermediate_size", 1024), config.whole("num_local_experts", 0, least=0)
    each = config.whole("intermediate_size", shared)
    for key in ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"):
        config.must(key, [1, 1.0], "nothing is multiplied by a constant")
    said = config.get("position_embedding_type")
    config.must("position_embedding_type", ["rope", "nope"], "positions turn or are not told")
    _gated(config)
    some = (
        {
            "experts": experts,
            "active": config.whole("num_experts_per_tok", 1),
            "expert_ffn": each,
            "router": "softmax",
            "shared_experts": _times(config, "shared_intermediate_size", shared, each),
            "balance": "loss" if config.flag("output_router_logits") else "none",
        }
        if experts
        else {}
    )
    _passed(config, "num_experts_per_tok", "output_router_logits")
    return {
        **_attended(config, width),
        **_spaces(config, width),
        **_pairs(kinds, ["E" if experts else "-"] * layers),
        "width": width,
        "ffn": shared,
        "position": "rope" if said == "rope" else "none",
        **_turns(config),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        **some,
    }


def _letters(config: HuggingFaceKeys, key: str, listed: object) -> str:
    if not isinstance(listed, list) or not 0 < len(listed) <= limits.LAYERS.most:
        raise BadFile(f"{config.where} at $.{key}: {short(listed)}, not a list of kinds of layers.")
    unknown = [one for one in cast("list[Any]", listed) if not isinstance(one, str) or one not in _KINDS]
    if unknown:
        raise BadFile(
            f"{config.where} at $.{key}: {short(unknown[0])} is a kind of layer that is not modelled here.",
            f"Known: {', '.join(_KINDS)}.",
        )
    return "".join(_KINDS[one] for one in cast("list[str]", listed))


def _pattern(config: HuggingFaceKeys) -> str:
    said = config.get("hybrid_override_pattern")
    if not isinstance(said, str) or not 0 < len(said) <= limits.LAYERS.most:
        raise BadFile(f"{config.where} at $.hybrid_override_pattern: {short(said)}, not a letter a layer.")
    if unknown := sorted(set(said) - set(_KINDS.values())):
        raise BadFile(
            f"{config.where} at $.hybrid_override_pattern: {', '.join(map(short, unknown))}: no kind of layer that is "
            "modelled here.",
            f"Known: {', '.join(f'{letter} {name}' for name, letter in _KINDS.items())}.",
        )
    return said


def _pairs(kinds: Sequence[str], ends: Sequence[str]) -> dict[str, Any]:
    pattern = "".join(kind + end for kind, end in zip(kinds, ends, strict=True))
    return {"layers": len(pattern), "pattern": pattern}


def _every(config: HuggingFaceKeys, what: str, period: int, offset: int) -> Callable[[int], bool]:
    """Whether a layer is an n-th one."""
    many, first = config.whole(f"{what}_period", period), config.whole(f"{what}_offset", offset, least=0)
    return lambda layer: layer % many == first


def _attended(config: HuggingFaceKeys, width: int) -> dict[str, Any]:
    heads = config.whole("num_attention_heads")
    if config.get("head_dim") is None and width % heads:
        raise BadFile(f"{config.where} at $.hidden_size: {width} % {heads} heads = {width % heads}.")
    config.must("attention_dropout", [0, 0.0], "there is no dropout")
    _unbiased(config)
    return {
        "heads": heads,
        "kv_heads": config.whole("num_key_value_heads", heads),
        "head_dim": config.whole("head_dim", width // heads),
        "vocab": config.whole("vocab_size"),
        "tied": config.flag("tie_word_embeddings"),
        "mlp": "swiglu",
        "norm": "rms",
    }


def _spaces(config: HuggingFaceKeys, width: int) -> dict[str, Any]:
    """Of Mamba-2, by the names that Bamba gives its dimensions."""
    heads, expand = config.whole("mamba_n_heads", 128), config.whole("mamba_expand", 2)
    dim = expand * width // heads if config.get("mamba_d_head") in (None, "auto") else config.whole("mamba_d_head")
    if heads * dim != expand * width:
        raise BadFile(
            f"{config.where} at $.mamba_n_heads: {heads} x mamba_d_head {dim} = {heads * dim}, but mamba_expand "
            f"{expand} x hidden_size {width} = {expand * width}."
        )
    return {
        "space_heads": heads,
        "space_dim": dim,
        "space_groups": config.whole("mamba_n_groups", 1),
        "state": config.whole("mamba_d_state", 256),
        "kernel": config.whole("mamba_d_conv", 4),
        "chunk": config.whole("mamba_chunk_size", 256),
    }


def _unbiased(config: HuggingFaceKeys) -> None:
    for key in ("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"):
        config.must(key, [False], "no matrix has a bias")
    for key in ("mamba_conv_bias", "use_conv_bias"):
        config.must(key, [True], "the convolution has a bias")


def _gated(config: HuggingFaceKeys) -> None:
    config.must("hidden_act", ["silu"], "the MLP's gate is SiLU")


def _turns(config: HuggingFaceKeys) -> dict[str, float]:
    for key in ("rope_scaling", "rope_parameters", "partial_rotary_factor"):
        said = config.get(key)
        if said not in (None, 1, 1.0):
            config.refuse(key, f"all channels of a head turn, as far apart as positions are, and it is {short(said)}")
    return {"rope_base": config.number("rope_theta", 10_000.0)}


def _either(config: HuggingFaceKeys, key: str, other: str, default: int) -> int:
    """One of two names, of older files and of newer ones."""
    return config.whole(key if config.get(key) is not None else other, default)


def _times(config: HuggingFaceKeys, key: str, whole: int, each: int) -> int:
    if whole % each:
        config.refuse(key, f"shared experts are as wide as others, and {whole} % {each} = {whole % each}")
    return whole // each


def _passed(config: HuggingFaceKeys, *keys: str) -> None:
    """Keys that say nothing of the arithmetic here."""
    for key in keys:
        config.get(key)


ARCHITECTURES: dict[str, Callable[[HuggingFaceKeys], dict[str, Any]]] = {
    "NemotronHForCausalLM": nemotron_h,
    "JambaForCausalLM": jamba,
    "BambaForCausalLM": bamba,
    "GraniteMoeHybridForCausalLM": granite,
}
REFUSED = {
    "ZambaForCausalLM": "its layers of attention share their weights",
    "Zamba2ForCausalLM": "its layers of attention share their weights",
    "FalconH1ForCausalLM": "its layers have attention and a state space side by side",
    "MambaForCausalLM": "it has no layer of attention",
    "Mamba2ForCausalLM": "it has no layer of attention",
    "Qwen3NextForCausalLM": "its linear attention keeps another state (gated delta rule)",
    "RecurrentGemmaForCausalLM": "its recurrence is another",
}
"""Why they are not modelled."""
