"""Reads a decoder's dimensions from a Hugging Face config.json, as data: no remote code runs, nothing is downloaded.

Every key is accounted for. It gives a dimension, or does not affect the arithmetic, or must have the one value that is
modelled; anything else is refused, by name and with the reason, unless the user leaves it out with `without`. The keys
are those of transformers' configuration classes (such as `configuration_llama.py`). `config.must` refuses a key whose
value is not one of those that are modelled; refused keys are reported together at the end (`check_refused`). Functions
of an architecture return fields of `Model`: name -> value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from trainyard import limits
from trainyard.errors import BadFile, most_similar
from trainyard.formats import json_objects
from trainyard.models import hugging_face_contradictions, hugging_face_hybrids, hugging_face_planned
from trainyard.models.hugging_face_config import HuggingFaceKeys, short
from trainyard.models.hugging_face_experts import sigmoid_experts
from trainyard.models.hugging_face_llama import llama_family, llama_family_grouped
from trainyard.models.hugging_face_name import name_of

_MISSPELT, _MISSPELT_FAMILY = 0.9, 0.8
"""Least similarity of an architecture, and of its family, to the one that it misspells."""
_OTHER_FAMILIES = frozenset(
    {"Bloom", "Cohere", "FalconMamba", "Falcon", "Gemma", "Gemma3n", "Glm4v", "Glm4vMoe", "GPTJ", "GPTNeo", "GPTNeoX",
     "GraniteMoeShared", "Mamba", "Ministral", "Nemotron", "Olmo", "OlmoE", "OPT", "Phi", "PhiMoE", "StableLm", "Zamba"}
)  # fmt: skip
"""Families of decoders in transformers that are not modelled, some of which resemble one that is."""


class ConvertedConfig(NamedTuple):
    """A config.json as the keys of a job's [model]. `ignored`: keys without an effect on the time of a step;
    `unknown`: keys without a known meaning, which are left out; `approximated`: sentences on parts of the model that
    are predicted differently. All three are empty for training. `context`: the longest sequence in tokens, and the
    key that states it."""

    fields: dict[str, Any]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    approximated: tuple[str, ...]
    context: tuple[int, str] | None


def model(data: bytes, where: str, without: Sequence[str] = (), planned: bool = False) -> dict[str, Any]:
    """The keys of a job's [model], as in `convert`."""
    return convert(data, where, without, planned).fields


def convert(data: bytes, where: str, without: Sequence[str] = (), planned: bool = False) -> ConvertedConfig:
    """Reads the config at `where`. Raises `BadFile` if `data` is not a config.json, or has keys that are neither
    modelled nor in `without`, which the model's name lists.

    `planned`: only the cost matters. Keys that do not affect it, and unknown keys, are left out automatically, and
    parts that cannot be modelled are replaced by the nearest ones that can.
    """
    try:
        document = json_objects.loads(data)
    except ValueError as error:
        raise BadFile(f"{where}: not the JSON of a config.json: {error}.") from error
    if not isinstance(document, dict):
        raise BadFile(f"{where}: not a model's config.json: the top level is not an object.")
    document = cast("dict[str, Any]", document)
    top = HuggingFaceKeys(document, where, without, planned)
    architecture = _architecture_name(top)
    read_fields, config = _architecture(top, architecture)
    for keys in (top, config):
        hugging_face_contradictions.check_model_type(keys, architecture, (*_known(), *hugging_face_hybrids.REFUSED))
        hugging_face_contradictions.check_formats(keys)
    fields = read_fields(config)
    hugging_face_contradictions.check_layers(config, architecture)
    left_out = config.check_refused()
    requested = [key for key in left_out if key in without]
    config.approximated += [_explain_left_out(config, key, fields) for key in requested if planned]
    name = name_of(document, where) + (f" without {', '.join(requested)}" if requested else "")
    unknown = tuple(key for key in config.unknown if key not in without)
    ignored = tuple(key for key in left_out if key not in (*without, *unknown))
    return ConvertedConfig(
        fields={"name": name, **fields}, ignored=ignored, unknown=unknown, approximated=tuple(config.approximated),
        context=_context(config),
    )  # fmt: skip


def _explain_left_out(config: HuggingFaceKeys, key: str, fields: Mapping[str, Any]) -> str:
    """A sentence on the prediction without a key that the user leaves out. `fields`: those of the predicted model."""
    text = f"{config.prefix}{key}, left out as requested: {config.refused[key]}"
    if key == "hidden_act" and not fields.get("experts"):
        gate = fields["layers"] * fields["hidden_size"] * fields["ffn_hidden_size"]
        text += f"; predicted as SwiGLU, whose gate has {gate:,} parameters"
    return text


def _context(config: HuggingFaceKeys) -> tuple[int, str] | None:
    """The longest sequence in tokens that the config states, and the key; None if it does not. Raises `BadFile` for one
    that is not a whole number."""
    for key in ("max_position_embeddings", "n_positions"):
        if config.get(key) is not None:
            return config.integer(key, most=limits.TOKENS.most), f"{config.prefix}{key} in {config.where}"
    return None


def _architecture_name(config: HuggingFaceKeys) -> str:
    """The one architecture that the config lists. Raises `BadFile` if it does not list one name."""
    listed_names = config.get("architectures")
    name = listed_names[0] if isinstance(listed_names, list) and len(listed_names) == 1 else listed_names
    if not isinstance(name, str):
        raise BadFile(
            f"{config.where} at $.architectures: {short(name)}, not a list of one name.",
            f"Known: {', '.join(_known())}.",
        )
    return name


def _architecture(
    config: HuggingFaceKeys, name: str
) -> tuple[Callable[[HuggingFaceKeys], dict[str, Any]], HuggingFaceKeys]:
    """The function that reads configs of the architecture `name`, and the keys that it reads: those of the text decoder
    if the config nests them. Raises `BadFile` if the architecture is not modelled."""
    if name in hugging_face_hybrids.REFUSED:
        reason = hugging_face_hybrids.REFUSED[name]
        raise BadFile(f"{config.where} at $.architectures: {name} is not modelled: {reason}.")
    if name in hugging_face_planned.ARCHITECTURES:
        return hugging_face_planned.ARCHITECTURES[name], hugging_face_planned.text_keys(config, name)
    if name not in ARCHITECTURES:
        raise BadFile(
            f"{config.where} at $.architectures: {name[:100]!r} is not modelled.",
            _suggest(name),
        )
    return ARCHITECTURES[name], config


def _known() -> list[str]:
    """The names of all architectures that can be planned."""
    return sorted((*ARCHITECTURES, *hugging_face_planned.ARCHITECTURES))


def _suggest(name: str) -> str:
    """The next step for an unknown architecture: the known one that it misspells, else all. Families whose numbers
    differ are other models, as Phi and Phi3."""
    family, numbers = hugging_face_contradictions.family, re.compile("[0-9]+")
    stated = family(name[:100])
    same_numbers = [known for known in _known() if numbers.findall(family(known)) == numbers.findall(stated)]
    similar = most_similar(name[:100], same_numbers, _MISSPELT)
    is_misspelt = stated not in _OTHER_FAMILIES and most_similar(stated, [family(similar), similar], _MISSPELT_FAMILY)
    return f"Did you mean {similar!r}?" if similar and is_misspelt else f"Known: {', '.join(_known())}."


def _llama(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Llama-like config: grouped attention, with biases everywhere or nowhere."""
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    if attention_bias != mlp_bias:
        biased_part = "attention_bias" if attention_bias else "mlp_bias"
        config.refuse(biased_part, "either all matrices have biases or none")
    return {**llama_family_grouped(config), "bias": "all" if attention_bias and mlp_bias else "none"}


def _check_window(config: HuggingFaceKeys) -> None:
    """Refuses Qwen's sliding window, which only applies if a flag enables it; a plan has full attention instead."""
    full = "full causal attention"
    config.must("use_sliding_window", [False], "only full causal attention is modelled", predicted=full)
    config.get("sliding_window")
    config.must("use_mrope", [False], "only one-dimensional positions are modelled")
    layer_types = [["full_attention"] * config.layers()]
    config.must("layer_types", layer_types, "only full attention is modelled", predicted=full)


def _qwen2(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Qwen2 config: grouped attention, with biases of queries, keys and values."""
    _check_window(config)
    return {**llama_family_grouped(config), "bias": "qkv"}


def _qwen3(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Qwen3 config: grouped attention, with normalised queries and keys."""
    _check_window(config)
    config.must("attention_bias", [False], "biases with normalised queries and keys are not modelled")
    return {**llama_family_grouped(config), "bias": "none", "qk_norm": True}


def _check_every_window(config: HuggingFaceKeys) -> None:
    """Refuses the sliding window of all layers; a plan has full attention instead."""
    reason = "only full causal attention is modelled"
    config.must("sliding_window", [], reason, predicted="full causal attention")


def _mistral(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Mistral config: Llama's without biases."""
    _check_every_window(config)
    return llama_family_grouped(config)


def _phi3(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Phi-3 or Phi-4 config: Llama's without biases; the fused matrices have the same sizes."""
    _check_every_window(config)
    config.must("attention_bias", [False], "biases are not modelled")
    config.must("partial_rotary_factor", [1, 1.0], "partial RoPE is not modelled")
    for key in ("embd_pdrop", "resid_pdrop"):
        config.must(key, [0, 0.0], "dropout is not modelled")
    config.get("original_max_position_embeddings")
    return llama_family_grouped(config)


def _qwen3_moe(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Qwen3-MoE config: Qwen3's, with a softmax router over experts in every layer."""
    config.must("decoder_sparse_step", [1], "every layer must have experts")
    config.must("mlp_only_layers", [[]], "every layer must have experts")
    config.must("norm_topk_prob", [True], "routing weights are normalised over the active experts", default=False)
    return {
        **_qwen3(config),
        "experts": config.integer("num_experts", 128),
        "top_k": config.integer("num_experts_per_tok", 8),
        "moe_ffn_hidden_size": config.integer("moe_intermediate_size", 768),
        "router": "softmax",
        "load_balancing": "aux_loss" if config.flag("output_router_logits") else "none",
    }


def _mixtral(config: HuggingFaceKeys) -> dict[str, Any]:
    """Model fields of a Mixtral config: Llama's, with a softmax router over experts."""
    _check_every_window(config)
    config.must("router_jitter_noise", [0, 0.0], "router noise is not modelled")
    grouped = llama_family_grouped(config, default_rope_base=1e6)
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
    config.must(
        "num_nextn_predict_layers", [0], "multi-token prediction is not modelled", predicted="none of these layers"
    )
    nope_dim, qk_rope_head_dim = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    config.must("qk_head_dim", [nope_dim + qk_rope_head_dim], "it must be qk_nope_head_dim + qk_rope_head_dim")
    common = llama_family(config)
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
        **sigmoid_experts(config, shared=0, dense_layers=0, route_scale=2.5, groups=8, top_groups=4),
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
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "MistralForCausalLM": _mistral,
    "Phi3ForCausalLM": _phi3,
    "GPT2LMHeadModel": _gpt2,
    "MixtralForCausalLM": _mixtral,
    "DeepseekV3ForCausalLM": _deepseek_v3,
    **hugging_face_hybrids.ARCHITECTURES,
}
