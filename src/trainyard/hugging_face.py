"""A decoder's dimensions from a Hugging Face config.json, read as data: no code of theirs runs, nothing is fetched.

Every key is accounted for. It gives a dimension, or says nothing of the arithmetic, or must have the one value that is
modelled here; anything else is refused, by name and with the reason, unless the reader says to go on without it.
The keys are those of transformers' configuration classes (`configuration_llama.py` and its like).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, cast

import msgspec

from trainyard.errors import BadFile, nearest

LARGEST = 2**32
"""No dimension is larger: what is computed from a file stays small."""

_SAYS_NOTHING = re.compile(
    # What it is called, which tokens are special, how it generates, caches, was begun, is stored or was made.
    r"_.*|architectures|auto_map|model_type|transformers_version|.*_token_id|use_cache|initializer_range|torch_dtype"
    r"|dtype|task_specific_params|output_past|output_hidden_states|output_attentions|return_dict|use_return_dict"
    r"|keys_to_ignore_at_inference|quantization_config|pretraining_tp|ep_size|label2id|id2label|num_labels"
    r"|max_position_embeddings|max_window_layers|n_ctx|summary_.*|rope_interleave"
    # Weights of losses that are not taken, unless a key that is looked at says so.
    r"|router_aux_loss_coef|aux_loss_alpha|seq_aux\Z"
)


_COSTS_NOTHING = re.compile(
    r"rope_scaling|rope_parameters|.*dropout|.*_pdrop|router_jitter_noise|scale_attn.*|reorder_and_upcast_attn"
    r"|attention_bias|mlp_bias|scoring_func|topk_method|norm_topk_prob"
)
"""What is refused because another thing would be learned, though a step takes about as long."""


def model(data: bytes, where: str, without: Sequence[str] = (), planned: bool = False) -> dict[str, Any]:
    """The keys of a job's [model]. Raises `BadFile` for no such file, and for what is not modelled nor in `without`.

    `planned`: only what it takes is asked. What costs nothing, and keys that are not known here, are left out by
    themselves; the name says so.
    """
    try:
        said = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise BadFile(f"{where}: not a model's config.json: it holds no table of keys.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFile(f"{where}: not JSON: {error}.") from error
    config = _Config(said, where, without, planned)
    keys = _architecture(config)(config)
    left_out = config.done()
    name = _name(said, where) + (f" without {', '.join(left_out)}" if left_out else "")
    return {"name": name, **keys}


class _Config:
    """The keys of one file, which of them were asked for, and what cannot be modelled."""

    def __init__(self, said: dict[str, Any], where: str, without: Sequence[str], planned: bool) -> None:
        self.said = said
        self.where = where
        self.without = without
        self.planned = planned
        self.asked: set[str] = set()
        self.refused: dict[str, str] = {}

    def get(self, key: str) -> Any:
        """None where the file says null, or nothing."""
        self.asked.add(key)
        return self.said.get(key)

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= LARGEST:
            raise BadFile(f"{self.where} at $.{key}: {_short(value)}, not a whole number from {least} to {LARGEST:,}.")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
            raise BadFile(f"{self.where} at $.{key}: {_short(value)}, not a positive number.")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise BadFile(f"{self.where} at $.{key}: {_short(value)}, neither true nor false.")
        return value

    def must(self, key: str, modelled: Sequence[object], says: str, default: object = None) -> None:
        """Refuses a key whose value is not `modelled`. `default`: what transformers takes where there is none; None
        is always modelled."""
        value = self.get(key)
        value = default if value is None else value
        if value is not None and not any(value == one and type(value) is type(one) for one in modelled):
            self.refuse(key, f"{says}, and it is {_short(value)}")

    def refuse(self, key: str, says: str) -> None:
        self.refused.setdefault(key, says)

    def done(self) -> list[str]:
        """What is left out, as asked. Raises `BadFile` for the rest of what cannot be modelled."""
        passed = {key for key in self.refused if self.planned and _COSTS_NOTHING.fullmatch(key)}
        for key, value in self.said.items():
            if key not in self.asked and value is not None and not _SAYS_NOTHING.fullmatch(key):
                passed |= {key} if self.planned else set()
                self.refuse(key, f"it is not known here, may change the arithmetic, and is {_short(value)}")
        for key in self.without:
            if key not in self.refused:
                hint = nearest(key, self.refused) if self.refused else "Nothing needs to be left out."
                raise BadFile(f"{self.where}: without = {key[:100]!r}, but that is not what stands in the way.", hint)
        missing = [key for key in self.refused if key not in self.without and key not in passed]
        if missing:
            reasons = "; ".join(f"{key[:100]}: {self.refused[key]}" for key in missing[:20])
            keys = ", ".join(f'"{key[:100]}"' for key in self.refused)
            raise BadFile(
                f"{self.where}: not modelled here: {reasons}.",
                f"To train the model without that, add without = [{keys[:1000]}] beside `from`.",
            )
        return list(self.refused)


def _short(value: object) -> str:
    shown = "missing" if value is None else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _name(said: dict[str, Any], where: str) -> str:
    """What the file calls the model, else the folder that it lies in."""
    named = said.get("_name_or_path")
    path = PurePath(named if isinstance(named, str) and named else PurePath(where).parent.name)
    return path.name[:100] or "unnamed"


def _architecture(config: _Config) -> Callable[[_Config], dict[str, Any]]:
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 else named
    if not isinstance(name, str):
        raise BadFile(
            f"{config.where} at $.architectures: {_short(name)}, not a list of one name.",
            f"Known: {', '.join(ARCHITECTURES)}.",
        )
    if name not in ARCHITECTURES:
        raise BadFile(
            f"{config.where} at $.architectures: {name[:100]!r} is not modelled here.", nearest(name, ARCHITECTURES)
        )
    return ARCHITECTURES[name]


def _rotary(config: _Config, base: float) -> float:
    """The base of the rotary angles, in the old form (`rope_theta`, `rope_scaling`) or the new (`rope_parameters`)."""
    for key in ("rope_scaling", "rope_parameters"):
        said = config.get(key)
        if said is None:
            continue
        if not isinstance(said, dict):
            raise BadFile(f"{config.where} at $.{key}: {_short(said)}, not a table.")
        scaling = cast("dict[str, Any]", said)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind != "default":
            config.refuse(key, f"positions are not scaled for long contexts, and it is {_short(kind)}")
        theta = scaling.get("rope_theta")
        if isinstance(theta, int | float) and 0 < theta < 1e300:
            base = float(theta)
    return config.number("rope_theta", base)


def _common(config: _Config, base: float = 10_000.0) -> dict[str, Any]:
    """What the family of Llama has in common: RMSNorm, rotary positions, SwiGLU."""
    config.must("hidden_act", ["silu"], "the MLP's gate is SiLU")
    config.must("attention_dropout", [0, 0.0], "there is no dropout")
    return {
        "layers": config.whole("num_hidden_layers"),
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


def _grouped(config: _Config, base: float = 10_000.0) -> dict[str, Any]:
    """And grouped-query attention."""
    common = _common(config, base)
    heads, width = common["heads"], common["width"]
    if config.get("head_dim") is None and width % heads:
        raise BadFile(
            f"{config.where} at $.hidden_size: {width} % {heads} heads = {width % heads}, and there is no head_dim."
        )
    kv_heads, head_dim = config.whole("num_key_value_heads", heads), config.whole("head_dim", width // heads)
    return {**common, "kv_heads": kv_heads, "head_dim": head_dim}


def _llama(config: _Config) -> dict[str, Any]:
    attention, mlp = config.flag("attention_bias"), config.flag("mlp_bias")
    if attention != mlp:
        odd = "attention_bias" if attention else "mlp_bias"
        config.refuse(odd, "all matrices have biases or none, and only these would")
    return {**_grouped(config), "bias": "all" if attention and mlp else "none"}


def _windowed(config: _Config) -> None:
    """Qwen's: a window only where a flag says so."""
    if config.flag("use_sliding_window"):
        config.refuse("use_sliding_window", "attention sees all earlier positions, and it is true")
    config.get("sliding_window")
    config.must("use_mrope", [False], "a position is one number")
    config.must("layer_types", [["full_attention"] * config.whole("num_hidden_layers")], "all layers attend fully")


def _qwen2(config: _Config) -> dict[str, Any]:
    _windowed(config)
    return {**_grouped(config), "bias": "qkv"}


def _qwen3(config: _Config) -> dict[str, Any]:
    _windowed(config)
    config.must("attention_bias", [False], "no matrix has a bias beside normed queries and keys")
    return {**_grouped(config), "bias": "none", "qk_norm": True}


def _mixtral(config: _Config) -> dict[str, Any]:
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


def _deepseek_v3(config: _Config) -> dict[str, Any]:
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


def _gpt2(config: _Config) -> dict[str, Any]:
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
        "layers": config.whole("n_layer"),
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


ARCHITECTURES: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "LlamaForCausalLM": _llama,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "GPT2LMHeadModel": _gpt2,
    "MixtralForCausalLM": _mixtral,
    "DeepseekV3ForCausalLM": _deepseek_v3,
}
