"""Reads architectures that are planned but not trained here: Gemma 2 and 3, gpt-oss, Llama 4, GLM-4 and 4.5, OLMo 2.

Their dimensions are those of a decoder with RMSNorm, RoPE and gated MLPs or experts; their other parts (softcapping,
sinks, additional norms) hardly change the time of a step. The differences are listed with the plan. The keys and
defaults are those of transformers' configuration classes (such as `configuration_gemma3.py`). Each function returns
fields of `Model`: name -> value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from trainyard.errors import BadFile
from trainyard.models.hugging_face_config import HuggingFaceKeys, short
from trainyard.models.hugging_face_experts import sigmoid_experts
from trainyard.models.hugging_face_llama import kv_heads, rope_base


def text_keys(config: HuggingFaceKeys, architecture: str) -> HuggingFaceKeys:
    """The keys of the text decoder: those in `text_config`, if the config of a multimodal model nests them. Raises
    `BadFile` for a job that would train the architecture."""
    if not config.planned:
        raise BadFile(
            f"{config.where} at $.architectures: {architecture} can be planned, but not trained: {_DIFFERENCES}.",
            "Plan it: trainyard plan; or write its dimensions under [model] of the job.",
        )
    nested = config.get("text_config")
    if nested is None:
        return config
    if not isinstance(nested, dict):
        raise BadFile(f"{config.where} at $.text_config: {short(nested)}, not a table.")
    text = HuggingFaceKeys(cast("dict[str, Any]", nested), config.where, config.without, True, "text_config.")
    text.approximated.append("the text decoder alone is planned, without encoders of images and audio")
    return text


_DIFFERENCES = "its norms, scales or gates are not those of the decoder here"


def gemma2(config: HuggingFaceKeys) -> dict[str, Any]:
    """Gemma 2: GeGLU, a norm before and after each sublayer, and a sliding window in every second layer."""
    return _gemma(config, {})


def gemma3(config: HuggingFaceKeys) -> dict[str, Any]:
    """Gemma 3's text decoder: Gemma 2's with normalised queries and keys, and a window in five of six layers."""
    defaults = {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    }  # fmt: skip
    return _gemma(config, defaults) | {"qk_norm": True}


def _gemma(config: HuggingFaceKeys, defaults: Mapping[str, int]) -> dict[str, Any]:
    """Fields of Gemma 2 and 3. `defaults`: of keys that the config leaves out."""
    config.approximated.append("norms after each sublayer and softcapping are left out")
    config.ignore("hidden_activation", "hidden_act")
    fields = _decoder(config, defaults, activations=())
    return fields | {"tie_word_embeddings": config.flag("tie_word_embeddings", True)}


def gpt_oss(config: HuggingFaceKeys) -> dict[str, Any]:
    """gpt-oss: experts in every layer, biases, attention sinks, and a sliding window in every second layer."""
    config.approximated.append("biases of experts and of the output projection, and attention sinks, are left out")
    config.ignore("experts_per_token", "swiglu_limit", "attention_bias")
    fields = _decoder(config, {})
    return {
        **fields,
        "bias": "qkv",
        "experts": config.integer("num_local_experts"),
        "top_k": config.integer("num_experts_per_tok"),
        "moe_ffn_hidden_size": fields["ffn_hidden_size"],
        "load_balancing": "aux_loss",
    }


def llama4(config: HuggingFaceKeys) -> dict[str, Any]:
    """Llama 4's text decoder: a routed and a shared expert per token, in every layer or in every n-th."""
    config.approximated.append("chunked attention is predicted as full causal attention")
    config.ignore("attention_chunk_size", "no_rope_layers", "attn_temperature_tuning")
    moe_ffn_hidden_size, fields = config.integer("intermediate_size"), _decoder(config, {})
    step = config.integer("interleave_moe_layer_step", 1)
    listed = config.get("moe_layers")
    moe_layers = len(cast("list[Any]", listed)) if isinstance(listed, list) else fields["layers"] // step
    dense_layers = fields["layers"] - moe_layers
    if not 0 <= dense_layers < fields["layers"]:
        raise BadFile(
            f"{config.where} at $.{config.prefix}moe_layers: {moe_layers} MoE layers of {fields['layers']} "
            "num_hidden_layers.",
            "List the numbers of the layers that have experts, at least one of them.",
        )
    if dense_layers:
        config.approximated.append(
            f"{dense_layers} of {fields['layers']} layers have no experts, and are predicted as the first ones"
        )
    return {
        **fields,
        "ffn_hidden_size": config.integer("intermediate_size_mlp", 2 * moe_ffn_hidden_size),
        "qk_norm": config.flag("use_qk_norm", True),
        "experts": config.integer("num_local_experts"),
        "top_k": config.integer("num_experts_per_tok", 1),
        "moe_ffn_hidden_size": moe_ffn_hidden_size,
        "shared_experts": 1,
        "dense_layers": dense_layers,
        "router": "sigmoid",
        "load_balancing": "aux_loss",
    }


def glm4(config: HuggingFaceKeys) -> dict[str, Any]:
    """GLM-4: Llama's with RoPE in half of the channels; GLM-4-0414 has a norm after each sublayer too."""
    config.approximated.append("norms after each sublayer and partial RoPE are left out")
    config.ignore("partial_rotary_factor")
    return _decoder(config, {}) | {"bias": "qkv" if config.flag("attention_bias") else "none"}


def glm4_moe(config: HuggingFaceKeys) -> dict[str, Any]:
    """GLM-4.5: leading dense layers, then shared and routed experts with a sigmoid router balanced by a bias."""
    without_mtp = "no multi-token prediction layer"
    config.must("num_nextn_predict_layers", [0], "multi-token prediction is not modelled", predicted=without_mtp)
    config.ignore("partial_rotary_factor", "norm_topk_prob")
    return {
        **_decoder(config, {}),
        "bias": "qkv" if config.flag("attention_bias") else "none",
        "qk_norm": config.flag("use_qk_norm"),
        **sigmoid_experts(config, shared=1, dense_layers=1, route_scale=1.0, groups=1, top_groups=1),
    }


def olmo2(config: HuggingFaceKeys) -> dict[str, Any]:
    """OLMo 2: norms after each sublayer instead of before, and normalised queries and keys."""
    config.approximated.append("norms are predicted before each sublayer, and QK norm for each head")
    return _decoder(config, {}) | {"qk_norm": True}


def _decoder(
    config: HuggingFaceKeys, defaults: Mapping[str, int], activations: Sequence[str] = ("silu",)
) -> dict[str, Any]:
    """Fields of attention, vocabulary, norm and MLP. `defaults`: of keys that the config leaves out; `activations`:
    those of a gated MLP, others are refused; any if empty. A sliding window is replaced by full attention. Raises
    `BadFile` for sizes that contradict each other."""
    if activations:
        config.must("hidden_act", activations, "only SwiGLU is modelled")
    width = config.integer("hidden_size", defaults.get("hidden_size"))
    heads = config.integer("num_attention_heads", defaults.get("num_attention_heads"))
    default_dim = defaults.get("head_dim", width // heads)
    if config.get("head_dim") is None and "head_dim" not in defaults and width % heads:
        raise BadFile(
            f"{config.where} at $.{config.prefix}hidden_size: {width} % {heads} heads = {width % heads}, but "
            "head_dim is missing.",
            "Add head_dim, or correct hidden_size or num_attention_heads.",
        )
    default_kv_heads = defaults.get("num_key_value_heads", heads)
    layers = config.layers(default=defaults.get("num_hidden_layers"))
    _replace_window(config, layers)
    return {
        "layers": layers,
        "hidden_size": width,
        "ffn_hidden_size": config.integer("intermediate_size", defaults.get("intermediate_size")),
        "heads": heads,
        "kv_heads": kv_heads(config, heads) if config.get("num_key_value_heads") is not None else default_kv_heads,
        "head_dim": config.integer("head_dim", max(1, default_dim)),
        "vocab": config.integer("vocab_size", defaults.get("vocab_size")),
        "norm": "rms",
        "mlp": "swiglu",
        "position": "rope",
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "rope_theta": rope_base(config, 10_000.0),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
    }


def _replace_window(config: HuggingFaceKeys, layers: int) -> None:
    """Records that a sliding window is predicted as full attention. `layers`: of the model."""
    kinds = config.get("layer_types")
    if config.get("sliding_window") is not None and config.get("use_sliding_window") is not False:
        windowed = f" in {kinds.count('sliding_attention')} of {layers} layers" if isinstance(kinds, list) else ""
        config.approximate("sliding_window", f"predicted with full causal attention{windowed}")


ARCHITECTURES: dict[str, Callable[[HuggingFaceKeys], dict[str, Any]]] = {
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3,
    "GptOssForCausalLM": gpt_oss,
    "Llama4ForCausalLM": llama4,
    "Llama4ForConditionalGeneration": llama4,
    "GlmForCausalLM": glm4,
    "Glm4ForCausalLM": glm4,
    "Glm4MoeForCausalLM": glm4_moe,
    "Olmo2ForCausalLM": olmo2,
}
