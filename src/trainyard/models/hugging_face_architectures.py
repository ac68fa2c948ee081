"""A decoder's dimensions from a Hugging Face config.json, read as data: no code of theirs runs, nothing is fetched.

Every key is accounted for. It gives a dimension, or says nothing of the arithmetic, or must have the one value that is
modelled here; anything else is refused, by name and with the reason, unless the reader says to go on without it.
The keys are those of transformers' configuration classes (`configuration_llama.py` and its like).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, cast

from trainyard.errors import BadFile, nearest
from trainyard.models import hugging_face_hybrids
from trainyard.models.hugging_face_config import HuggingFaceKeys, short


def model(data: bytes, where: str, without: Sequence[str] = (), planned: bool = False) -> dict[str, Any]:
    """The keys of a job's [model]. Raises `BadFile` for no such file, and for what is not modelled nor in `without`.

    `planned`: only what it takes is asked. What costs nothing, and keys that are not known here, are left out by
    themselves; the name says so.
    """
    try:
        said = json.loads(data)  # which knows the endless numbers that Python writes
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where}: not JSON: {error}.") from error
    if not isinstance(said, dict):
        raise BadFile(f"{where}: not a model's config.json: it holds no table of keys.")
    said = cast("dict[str, Any]", said)
    config = HuggingFaceKeys(said, where, without, planned)
    keys = _architecture(config)(config)
    left_out = config.done()
    name = _name(said, where) + (f" without {', '.join(left_out)}" if left_out else "")
    return {"name": name, **keys}


def _name(said: dict[str, Any], where: str) -> str:
    """What the file calls the model, else the folder that it lies in."""
    named = said.get("_name_or_path")
    path = PurePath(named if isinstance(named, str) and named else PurePath(where).parent.name)
    return path.name[:100] or "unnamed"


def _architecture(config: HuggingFaceKeys) -> Callable[[HuggingFaceKeys], dict[str, Any]]:
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 else named
    if not isinstance(name, str):
        raise BadFile(
            f"{config.where} at $.architectures: {short(name)}, not a list of one name.",
            f"Known: {', '.join(ARCHITECTURES)}.",
        )
    if name in hugging_face_hybrids.REFUSED:
        reason = hugging_face_hybrids.REFUSED[name]
        raise BadFile(f"{config.where} at $.architectures: {name} is not modelled here: {reason}.")
    if name not in ARCHITECTURES:
        raise BadFile(
            f"{config.where} at $.architectures: {name[:100]!r} is not modelled here.", nearest(name, ARCHITECTURES)
        )
    return ARCHITECTURES[name]


def _rotary(config: HuggingFaceKeys, base: float) -> float:
    """The base of the rotary angles, in the old form (`rope_theta`, `rope_scaling`) or the new (`rope_parameters`)."""
    for key in ("rope_scaling", "rope_parameters"):
        said = config.get(key)
        if said is None:
            continue
        if not isinstance(said, dict):
            raise BadFile(f"{config.where} at $.{key}: {short(said)}, not a table.")
        scaling = cast("dict[str, Any]", said)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind != "default":
            config.refuse(key, f"positions are not scaled for long contexts, and it is {short(kind)}")
        theta = scaling.get("rope_theta")
        if isinstance(theta, int | float) and 0 < theta < 1e300:
            base = float(theta)
    return config.number("rope_theta", base)


def _common(config: HuggingFaceKeys, base: float = 10_000.0) -> dict[str, Any]:
    """What the family of Llama has in common: RMSNorm, rotary positions, SwiGLU."""
    config.must("hidden_act", ["silu"], "the MLP's gate is SiLU")
    config.must("attention_dropout", [0, 0.0], "there is no dropout")
    return {
        "layers": config.layers(),
        "width": config.whole("hidden_size"),
        "ffn": config.whole("intermediate_size"),
        "heads": config.whole("num_attention_heads"),
        "vocab": config.whole("vocab_size"),
        "norm": "rms",
        "mlp": "swiglu",
        "position": "rope",
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "rope_base": _rotary(config, base),
        "tied": config.flag("tie_word_embeddings"),
    }


def _grouped(config: HuggingFaceKeys, base: float = 10_000.0) -> dict[str, Any]:
    """And grouped-query attention."""
    common = _common(config, base)
    heads, width = common["heads"], common["width"]
    if config.get("head_dim") is None and width % heads:
        raise BadFile(
            f"{config.where} at $.hidden_size: {width} % {heads} heads = {width % heads}, and there is no head_dim."
        )
    kv_heads, head_dim = config.whole("num_key_value_heads", heads), config.whole("head_dim", width // heads)
    return {**common, "kv_heads": kv_heads, "head_dim": head_dim}


def _llama(config: HuggingFaceKeys) -> dict[str, Any]:
    attention, mlp = config.flag("attention_bias"), config.flag("mlp_bias")
    if attention != mlp:
        odd = "attention_bias" if attention else "mlp_bias"
        config.refuse(odd, "all matrices have biases or none, and only these would")
    return {**_grouped(config), "bias": "all" if attention and mlp else "none"}


def _windowed(config: HuggingFaceKeys) -> None:
    """Qwen's: a window only where a flag says so."""
    if config.flag("use_sliding_window"):
        config.refuse("use_sliding_window", "attention sees all earlier positions, and it is true")
    config.get("sliding_window")
    config.must("use_mrope", [False], "a position is one number")
    config.must("layer_types", [["full_attention"] * config.layers()], "all layers attend fully")


def _qwen2(config: HuggingFaceKeys) -> dict[str, Any]:
    _windowed(config)
    return {**_grouped(config), "bias": "qkv"}


def _qwen3(config: HuggingFaceKeys) -> dict[str, Any]:
    _windowed(config)
    config.must("attention_bias", [False], "no matrix has a bias beside normed queries and keys")
    return {**_grouped(config), "bias": "none", "qk_norm": True}


def _mixtral(config: HuggingFaceKeys) -> dict[str, Any]:
    config.must("sliding_window", [], "attention sees all earlier positions")
    config.must("router_jitter_noise", [0, 0.0], "there is no noise in the router")
    grouped = _grouped(config, 1e6)
    return {
        **grouped,
        "experts": config.whole("num_local_experts", 8),
        "active": config.whole("num_experts_per_tok", 2),
        "expert_ffn": grouped["ffn"],
        "router": "softmax",
        "balance": "loss" if config.flag("output_router_logits") else "none",
    }


def _deepseek_v3(config: HuggingFaceKeys) -> dict[str, Any]:
    config.must("attention_bias", [False], "latent attention has no biases")
    config.must("moe_layer_freq", [1], "all layers after the first dense ones have experts")
    config.must("scoring_func", ["sigmoid"], "scores are sigmoids")
    config.must("topk_method", ["noaux_tc"], "experts are kept evenly used by a bias")
    config.must("norm_topk_prob", [True], "the chosen experts' weights are divided by their sum")
    config.must("num_nextn_predict_layers", [0], "one token is predicted, not several")
    config.must("qk_head_dim", [config.whole("qk_nope_head_dim") + config.whole("qk_rope_head_dim")], "they are joined")
    common = _common(config)
    config.must("head_dim", [config.whole("qk_rope_head_dim")], "it repeats qk_rope_head_dim")
    config.must("num_key_value_heads", [common["heads"]], "every head has keys and values of its own")
    return {
        **common,
        "kv_heads": common["heads"],
        "head_dim": config.whole("qk_nope_head_dim"),
        "rope_dim": config.whole("qk_rope_head_dim"),
        "value_dim": config.whole("v_head_dim"),
        "q_rank": config.whole("q_lora_rank", 0),
        "kv_rank": config.whole("kv_lora_rank"),
        "experts": config.whole("n_routed_experts"),
        "active": config.whole("num_experts_per_tok"),
        "expert_ffn": config.whole("moe_intermediate_size"),
        "shared_experts": config.whole("n_shared_experts", 0, least=0),
        "dense_layers": config.whole("first_k_dense_replace", 0, least=0),
        "router": "sigmoid",
        "balance": "bias",
        "route_scale": config.number("routed_scaling_factor", 2.5),
        "expert_groups": config.whole("n_group", 8),
        "active_groups": config.whole("topk_group", 4),
    }


def _gpt2(config: HuggingFaceKeys) -> dict[str, Any]:
    config.must("activation_function", ["gelu_new", "gelu_pytorch_tanh"], "the MLP has GELU by tanh")
    for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        config.must(key, [0, 0.0], "there is no dropout", 0.1)
    config.must("scale_attn_weights", [True], "scores are divided by the root of the head's width")
    config.must("scale_attn_by_inverse_layer_idx", [False], "scores are not divided by the layer's number")
    config.must("reorder_and_upcast_attn", [False], "scores are computed in the format of the rest")
    config.must("add_cross_attention", [False], "there is no other sequence to attend to")
    width, heads = config.whole("n_embd"), config.whole("n_head")
    if width % heads:
        raise BadFile(f"{config.where} at $.n_embd: {width} % {heads} heads = {width % heads}.")
    config.whole("n_positions", 1024)
    return {
        "layers": config.layers("n_layer"),
        "width": width,
        "ffn": config.whole("n_inner", 4 * width),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": width // heads,
        "vocab": config.whole("vocab_size"),
        "norm": "layer",
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "mlp": "gelu",
        "position": "learned",
        "bias": "all",
        "tied": config.flag("tie_word_embeddings", True),
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
