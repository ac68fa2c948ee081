"""Reads and writes a decoder's dimensions as Megatron Core's arguments.

`keys` has the arguments by name without `--`, and reports those that no function requests. The second argument of
`keys.integer` is the default, the third the minimum.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from trainyard.errors import BadFile
from trainyard.model import Model
from trainyard.predict.configs.config_keys import ConfigKeys
from trainyard.predict.configs.megatron import megatron_hybrid
from trainyard.predict.inputs.padded_vocabulary import MEGATRON_DIVISOR, VocabularyPadding, padded_rows

_VOCAB = 50304
"""GPT-2's padded vocabulary, the default if the arguments give no size."""
# A term of --moe-layer-freq: `[0]*3`, three dense layers, or `[1]`, an MoE layer.
_GROUPED = re.compile(r"\[([01])\](?:\*(\d{1,4}))?")
Positions = Literal["rope", "learned", "none"]


def read(keys: ConfigKeys) -> Model:
    """The model that Megatron-LM's arguments describe, with the defaults of `megatron/training/arguments.py`. Raises
    `BadFile` for values that the model cannot have."""
    width, heads = keys.integer("hidden-size"), keys.integer("num-attention-heads")
    layers = keys.integer("num-layers" if "encoder-num-layers" not in keys.values else "encoder-num-layers")
    gated = keys.flag("swiglu") or keys.flag("quick-geglu")
    ffn = keys.integer("ffn-hidden-size", max(64, int(4 * width * 2 / 3 / 64) * 64) if gated else 4 * width)
    head_dim = keys.integer("kv-channels", max(1, width // heads))
    groups = keys.integer("num-query-groups", heads)
    sizes: dict[str, Any] = {
        "layers": layers,
        "hidden_size": width,
        "ffn_hidden_size": ffn,
        "heads": heads,
        "head_dim": head_dim,
        "vocab": _vocab(keys),
        "kv_heads": groups if keys.flag("group-query-attention") else heads,
        "norm_eps": keys.number("norm-epsilon", 1e-5),
        "rope_theta": keys.number("rotary-base", 10_000.0),
        "qk_norm": keys.flag("qk-layernorm"),
    }
    if keys.flag("multi-latent-attention"):
        sizes |= {
            "kv_heads": heads,
            "q_lora_rank": keys.integer("q-lora-rank", 0, 0),
            "kv_lora_rank": keys.integer("kv-lora-rank", 32),
            "head_dim": keys.integer("qk-head-dim", 128),
            "qk_rope_head_dim": keys.integer("qk-pos-emb-head-dim", 64),
            "v_head_dim": keys.integer("v-head-dim", 128),
        }
    sizes |= megatron_hybrid.read(keys, layers)
    positions: dict[str, Positions] = {"learned_absolute": "learned", "rope": "rope", "yarn": "rope", "none": "none"}
    position: Positions = keys.choice("position-embedding-type", positions, "learned")
    norms: dict[str, Literal["rms", "layer"]] = {"RMSNorm": "rms", "LayerNorm": "layer"}
    return Model(
        name=keys.where.rpartition("/")[2].rpartition(".")[0] or "theirs",
        mlp="swiglu" if gated else "relu2" if keys.flag("squared-relu") else "gelu",
        norm=keys.choice("normalization", norms, "layer"),
        bias=_bias(keys),
        position="rope" if keys.flag("use-rotary-position-embeddings") else position,
        tie_word_embeddings=not keys.flag("untie-embeddings-and-output-weights"),
        **sizes,
        **_experts(keys, ffn, layers),
    )


def _vocab(keys: ConfigKeys) -> int:
    """Rows of the vocabulary: padded-vocab-size, or else vocab-size, GPT-2's by default, as Megatron pads it to a
    multiple of make-vocab-size-divisible-by x tp."""
    multiple = _padding(keys).multiple * keys.integer("tensor-model-parallel-size", 1)
    if keys.get("padded-vocab-size") is not None:
        return keys.integer("padded-vocab-size")
    if keys.get("vocab-size") is None:
        keys.approximate("vocab-size", f"predicted with a vocabulary of {_VOCAB:,} tokens")
    return padded_rows(keys.integer("vocab-size", _VOCAB), multiple)


def _padding(keys: ConfigKeys) -> VocabularyPadding:
    """How the arguments pad the vocabulary."""
    return VocabularyPadding(keys.integer("make-vocab-size-divisible-by", MEGATRON_DIVISOR), in_model=True)


def pad(keys: ConfigKeys, model: Model) -> Model:
    """The model with the vocabulary that the arguments pad it to."""
    return _padding(keys).padded_model(model, keys.integer("tensor-model-parallel-size", 1))


def padding_notes(keys: ConfigKeys, model: Model | None) -> tuple[str, ...]:
    """A sentence on the rows that are added to the vocabulary of `model`, or else to that of the arguments; none if
    there are none."""
    if model is None and keys.get("padded-vocab-size") is not None:
        return ()
    vocab = model.vocab if model else keys.integer("vocab-size", _VOCAB)
    note = _padding(keys).describe(vocab, keys.integer("tensor-model-parallel-size", 1), "Megatron Core")
    return (note,) if note else ()


def _bias(keys: ConfigKeys) -> Literal["none", "qkv", "all"]:
    if not keys.flag("disable-bias-linear"):
        return "all"
    return "qkv" if keys.flag("add-qkv-bias") else "none"


def _experts(keys: ConfigKeys, ffn: int, layers: int) -> dict[str, Any]:
    """Fields of `Model` (name -> value) for mixture-of-experts layers; empty for a dense model. `ffn`: channels of a
    dense MLP, the default of an expert's; `layers`: the layer count. Raises `BadFile` for shared experts whose width is
    not a multiple of an expert's."""
    experts = keys.integer("num-experts", 0, 0)
    if not experts:
        return {}
    moe_ffn_hidden_size = keys.integer("moe-ffn-hidden-size", ffn)
    shared = keys.integer("moe-shared-expert-intermediate-size", 0, 0)
    if shared % moe_ffn_hidden_size:
        raise BadFile(
            f"{keys.where}: --moe-shared-expert-intermediate-size {shared} % "
            f"--moe-ffn-hidden-size {moe_ffn_hidden_size} = "
            f"{shared % moe_ffn_hidden_size}: shared experts of another width are not modelled."
        )
    routers: dict[str, Literal["softmax", "sigmoid"]] = {"softmax": "softmax", "sigmoid": "sigmoid"}
    losses = keys.get("moe-router-load-balancing-type") or "aux_loss"
    bias = keys.flag("moe-router-enable-expert-bias")
    return {
        "experts": experts,
        "top_k": keys.integer("moe-router-topk", 2),
        "moe_ffn_hidden_size": moe_ffn_hidden_size,
        "shared_experts": shared // moe_ffn_hidden_size,
        "dense_layers": _dense_layers(keys, layers),
        "router": keys.choice("moe-router-score-function", routers, "softmax"),
        "route_scale": keys.number("moe-router-topk-scaling-factor", 1.0),
        "n_group": keys.integer("moe-router-num-groups", 1),
        "topk_group": keys.integer("moe-router-group-topk", 1),
        "moe_latent_size": keys.integer("moe-latent-size", 0, 0),
        "load_balancing": "bias" if bias else "none" if losses == "none" else "aux_loss",
    }


def _dense_layers(keys: ConfigKeys, layers: int) -> int:
    """Number of dense layers before the first MoE layer, from --moe-layer-freq: `([0]*3+[1]*58)` is 3, the default 1
    (every layer is MoE) is 0. Other arrangements are refused."""
    frequency = str(keys.get("moe-layer-freq") or 1)
    if frequency == "1":
        return 0
    text = frequency.replace(" ", "").removeprefix("(").removesuffix(")")
    terms = [_GROUPED.fullmatch(term) for term in text.split("+")]
    kinds = "".join(term[1] * int(term[2] or 1) for term in terms[:1000] if term)  # a 0 or 1 for each layer
    if not all(terms) or len(kinds) != layers or not re.fullmatch("0*1+", kinds):
        keys.refuse("moe-layer-freq", f"only dense layers followed by MoE layers are modelled, {layers} layers in all")
        return 0
    return kinds.count("0")


def write(model: Model) -> dict[str, object]:
    """Megatron Core's arguments of the model: name without its dashes -> value; None for a flag."""
    arguments: dict[str, object] = {
        "num-layers": model.layers,
        "hidden-size": model.hidden_size,
        "ffn-hidden-size": model.ffn_hidden_size,
        "num-attention-heads": model.heads,
        "kv-channels": model.head_dim,
        "vocab-size": model.vocab,
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
        "norm-epsilon": model.norm_eps,
        "position-embedding-type": "learned_absolute" if model.position == "learned" else model.position,
    }
    if model.position == "rope":
        arguments["rotary-base"] = int(model.rope_theta)
    if model.kv_heads != model.heads and not model.kv_lora_rank:
        arguments |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    arguments |= {"disable-bias-linear": None} if model.bias != "all" else {}
    for name, condition in (
        ("add-qkv-bias", model.bias == "qkv"),
        ("qk-layernorm", model.qk_norm),
        ("swiglu", model.mlp == "swiglu"),
        ("untie-embeddings-and-output-weights", not model.tie_word_embeddings),
        ("squared-relu", model.mlp == "relu2"),
    ):
        arguments |= {name: None} if condition else {}
    if model.kv_lora_rank:
        arguments |= {
            "multi-latent-attention": None,
            "kv-lora-rank": model.kv_lora_rank,
            "qk-head-dim": model.head_dim,
            "qk-pos-emb-head-dim": model.qk_rope_head_dim,
            "v-head-dim": model.v_head_dim,
            "rope-type": "rope",
        }
        arguments |= {"q-lora-rank": model.q_lora_rank} if model.q_lora_rank else {}
    return arguments | megatron_hybrid.write(model) | (_expert_arguments(model) if model.experts else {})


def _expert_arguments(model: Model) -> dict[str, object]:
    """The arguments of mixture-of-experts layers: name without `--` -> value, None for a flag. The first
    `model.dense_layers` layers have no experts."""
    arguments: dict[str, object] = {
        "num-experts": model.experts,
        "moe-router-topk": model.top_k,
        "moe-ffn-hidden-size": model.moe_ffn_hidden_size,
        "moe-token-dispatcher-type": "alltoall",
        "moe-router-score-function": model.router,
        "moe-router-load-balancing-type": "aux_loss" if model.load_balancing == "aux_loss" else "none",
    }
    if model.shared_experts:
        arguments["moe-shared-expert-intermediate-size"] = model.shared_experts * model.moe_ffn_hidden_size
    if model.moe_latent_size:
        arguments["moe-latent-size"] = model.moe_latent_size
    if model.dense_layers:
        arguments["moe-layer-freq"] = f"([0]*{model.dense_layers}+[1]*{model.layers - model.dense_layers})"
    if model.route_scale != 1:
        arguments["moe-router-topk-scaling-factor"] = model.route_scale
    if model.n_group > 1:
        arguments |= {"moe-router-num-groups": model.n_group, "moe-router-group-topk": model.topk_group}
    return arguments | ({"moe-router-enable-expert-bias": None} if model.load_balancing == "bias" else {})
