"""Reads a decoder's dimensions from a Hugging Face config.json, as data: no remote code runs, nothing is downloaded.

Every key is accounted for. It gives a dimension, or does not affect the arithmetic, or must have the one value that is
modelled; anything else is refused, by name and with the reason, unless the user leaves it out with `without`. The keys
are those of transformers' configuration classes (such as `configuration_llama.py`). `config.must` refuses a key whose
value is not one of those that are modelled; refused keys are reported together at the end (`check_refused`). Functions
of an architecture return fields of `Model`: name -> value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, cast

from trainyard.errors import BadFile, nearest
from trainyard.models import hugging_face_hybrids
from trainyard.models.hugging_face_config import MAX_NUMBER, HuggingFaceKeys, short


def model(data: bytes, where: str, without: Sequence[str] = (), planned: bool = False) -> dict[str, Any]:
    """The keys of a job's [model]. `where`: the path of the config. Raises `BadFile` if `data` is not a config.json, or
    has keys that are neither modelled nor in `without`.

    `planned`: only the cost matters. Keys that do not affect it, and unknown keys, are left out automatically and
    listed in the name.
    """
    try:
        document = json.loads(data)  # accepts NaN and Infinity, as Python writes them
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where}: not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise BadFile(f"{where}: not a model's config.json: the top level is not an object.")
    document = cast("dict[str, Any]", document)
    config = HuggingFaceKeys(document, where, without, planned)
    read_fields = _architecture(config)
    fields = read_fields(config)
    left_out = config.check_refused()
    name = _name(document, where) + (f" without {', '.join(left_out)}" if left_out else "")
    return {"name": name, **fields}


def _name(document: dict[str, Any], where: str) -> str:
    """The model's name: of the config, else of the folder that it lies in. `where`: the path of the config."""
    config_name = document.get("_name_or_path")
    path = PurePath(config_name if isinstance(config_name, str) and config_name else PurePath(where).parent.name)
    return path.name[:100] or "unnamed"


def _architecture(config: HuggingFaceKeys) -> Callable[[HuggingFaceKeys], dict[str, Any]]:
    """The function that reads configs of the architecture named in the config. Raises `BadFile` if it is not
    modelled."""
    listed_names = config.get("architectures")
    name = listed_names[0] if isinstance(listed_names, list) and len(listed_names) == 1 else listed_names
    if not isinstance(name, str):
        raise BadFile(
            f"{config.where} at $.architectures: {short(name)}, not a list of one name.",
            f"Known: {', '.join(ARCHITECTURES)}.",
        )
    if name in hugging_face_hybrids.REFUSED:
        reason = hugging_face_hybrids.REFUSED[name]
        raise BadFile(f"{config.where} at $.architectures: {name} is not modelled: {reason}.")
    if name not in ARCHITECTURES:
        raise BadFile(
            f"{config.where} at $.architectures: {name[:100]!r} is not modelled.", nearest(name, ARCHITECTURES)
        )
    return ARCHITECTURES[name]


def _rope_base(config: HuggingFaceKeys, default: float) -> float:
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


def _llama_family(config: HuggingFaceKeys, default_rope_base: float = 10_000.0) -> dict[str, Any]:
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
        "rope_theta": _rope_base(config, default_rope_base),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
    }


def _llama_family_grouped(config: HuggingFaceKeys, default_rope_base: float = 10_000.0) -> dict[str, Any]:
    """The fields of `_llama_family` and those of grouped-query attention. `default_rope_base`: as there."""
    common = _llama_family(config, default_rope_base)
    heads, width = common["heads"], common["hidden_size"]
    if config.get("head_dim") is None and width % heads:
        raise BadFile(
            f"{config.where} at $.hidden_size: {width} % {heads} heads = {width % heads}, and there is no head_dim."
        )
    kv_heads, head_dim = config.integer("num_key_value_heads", heads), config.integer("head_dim", width // heads)
    return {**common, "kv_heads": kv_heads, "head_dim": head_dim}


def _llama(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Llama-like config: grouped attention, with biases everywhere or nowhere."""
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    if attention_bias != mlp_bias:
        biased_part = "attention_bias" if attention_bias else "mlp_bias"
        config.refuse(biased_part, "either all matrices have biases or none")
    return {**_llama_family_grouped(config), "bias": "all" if attention_bias and mlp_bias else "none"}


def _check_window(config: HuggingFaceKeys) -> None:
    """Refuses Qwen's sliding window, which only applies if a flag enables it."""
    if config.flag("use_sliding_window"):
        config.refuse("use_sliding_window", "only full causal attention is modelled, and it is true")
    config.get("sliding_window")
    config.must("use_mrope", [False], "only one-dimensional positions are modelled")
    config.must("layer_types", [["full_attention"] * config.layers()], "only full attention is modelled")


def _qwen2(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Qwen2 config: grouped attention, with biases of queries, keys and values."""
    _check_window(config)
    return {**_llama_family_grouped(config), "bias": "qkv"}


def _qwen3(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Qwen3 config: grouped attention, with normalised queries and keys."""
    _check_window(config)
    config.must("attention_bias", [False], "biases with normalised queries and keys are not modelled")
    return {**_llama_family_grouped(config), "bias": "none", "qk_norm": True}


def _mixtral(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Mixtral config: Llama's, with a softmax router over experts."""
    config.must("sliding_window", [], "only full causal attention is modelled")
    config.must("router_jitter_noise", [0, 0.0], "router noise is not modelled")
    grouped = _llama_family_grouped(config, default_rope_base=1e6)
    return {
        **grouped,
        "experts": config.integer("num_local_experts", 8),
        "top_k": config.integer("num_experts_per_tok", 2),
        "moe_ffn_hidden_size": grouped["ffn_hidden_size"],
        "router": "softmax",
        "load_balancing": "aux_loss" if config.flag("output_router_logits") else "none",
    }


def _deepseek_v3(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a DeepSeek-V3 config: latent attention, sigmoid router balanced by a bias, leading dense
    layers."""
    config.must("attention_bias", [False], "latent attention has no biases")
    config.must("moe_layer_freq", [1], "all layers after the first dense ones are MoE layers")
    config.must("scoring_func", ["sigmoid"], "only sigmoid scores are modelled")
    config.must("topk_method", ["noaux_tc"], "only load balancing by a bias is modelled")
    config.must("norm_topk_prob", [True], "routing weights are normalised over the active experts")
    config.must("num_nextn_predict_layers", [0], "multi-token prediction is not modelled")
    nope_dim, qk_rope_head_dim = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    config.must("qk_head_dim", [nope_dim + qk_rope_head_dim], "it must be qk_nope_head_dim + qk_rope_head_dim")
    common = _llama_family(config)
    config.must("head_dim", [qk_rope_head_dim], "it must equal qk_rope_head_dim")
    config.must("num_key_value_heads", [common["heads"]], "every head must have its own keys and values")
    return {
        **common,
        "kv_heads": common["heads"],
        "head_dim": nope_dim,
        "qk_rope_head_dim": qk_rope_head_dim,
        "v_head_dim": config.integer("v_head_dim"),
        "q_lora_rank": config.integer("q_lora_rank", 0),
        "kv_lora_rank": config.integer("kv_lora_rank"),
        "experts": config.integer("n_routed_experts"),
        "top_k": config.integer("num_experts_per_tok"),
        "moe_ffn_hidden_size": config.integer("moe_intermediate_size"),
        "shared_experts": config.integer("n_shared_experts", 0, least=0),
        "dense_layers": config.integer("first_k_dense_replace", 0, least=0),
        "router": "sigmoid",
        "load_balancing": "bias",
        "route_scale": config.number("routed_scaling_factor", 2.5),
        "n_group": config.integer("n_group", 8),
        "topk_group": config.integer("topk_group", 4),
    }


def _gpt2(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a GPT-2 config: learned positions, layer norm, GELU, biases everywhere."""
    config.must(
        "activation_function", ["gelu_new", "gelu_pytorch_tanh"], "only the tanh approximation of GELU is modelled"
    )
    for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        config.must(key, [0, 0.0], "dropout is not modelled", default=0.1)
    config.must("scale_attn_weights", [True], "scores are divided by sqrt(head_dim)")
    config.must("scale_attn_by_inverse_layer_idx", [False], "scores are not divided by the layer index")
    config.must("reorder_and_upcast_attn", [False], "scores are computed in the compute dtype")
    config.must("add_cross_attention", [False], "cross-attention is not modelled")
    width, heads = config.integer("n_embd"), config.integer("n_head")
    if width % heads:
        raise BadFile(f"{config.where} at $.n_embd: {width} % {heads} heads = {width % heads}.")
    config.integer("n_positions", 1024)
    return {
        "layers": config.layers("n_layer"),
        "hidden_size": width,
        "ffn_hidden_size": config.integer("n_inner", 4 * width),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": width // heads,
        "vocab": config.integer("vocab_size"),
        "norm": "layer",
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "mlp": "gelu",
        "position": "learned",
        "bias": "all",
        "tie_word_embeddings": config.flag("tie_word_embeddings", True),
    }


ARCHITECTURES: dict[str, Callable[[HuggingFaceKeys], dict[str, Any]]] = {
    "LlamaForCausalLM": _llama,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "GPT2LMHeadModel": _gpt2,
    "MixtralForCausalLM": _mixtral,
    "DeepseekV3ForCausalLM": _deepseek_v3,
    **hugging_face_hybrids.ARCHITECTURES,
}
