"""A decoder's dimensions in Megatron Core's arguments, both ways."""

from __future__ import annotations

import re
from typing import Any, Literal

from trainyard.errors import BadFile
from trainyard.job import Model
from trainyard.predict.configs.config_keys import ConfigKeys
from trainyard.predict.configs.megatron import megatron_hybrid

_VOCAB = 50304
"""GPT-2's, padded: where nothing says how many words there are."""
_GROUPED = re.compile(r"\[([01])\](?:\*(\d{1,4}))?")
Positions = Literal["rope", "learned", "none"]


def read(given: ConfigKeys) -> Model:
    width, heads = given.whole("hidden-size"), given.whole("num-attention-heads")
    layers = given.whole("num-layers" if "encoder-num-layers" not in given.said else "encoder-num-layers")
    gated = given.flag("swiglu") or given.flag("quick-geglu")
    ffn = given.whole("ffn-hidden-size", max(64, int(4 * width * 2 / 3 / 64) * 64) if gated else 4 * width)
    head_dim = given.whole("kv-channels", max(1, width // heads))
    groups = given.whole("num-query-groups", heads)
    said: dict[str, Any] = {
        "layers": layers,
        "width": width,
        "ffn": ffn,
        "heads": heads,
        "head_dim": head_dim,
        "vocab": _vocab(given),
        "kv_heads": groups if given.flag("group-query-attention") else heads,
        "norm_eps": given.number("norm-epsilon", 1e-5),
        "rope_base": given.number("rotary-base", 10_000.0),
        "qk_norm": given.flag("qk-layernorm"),
    }
    if given.flag("multi-latent-attention"):
        said |= {
            "kv_heads": heads,
            "q_rank": given.whole("q-lora-rank", 0, 0),
            "kv_rank": given.whole("kv-lora-rank", 32),
            "head_dim": given.whole("qk-head-dim", 128),
            "rope_dim": given.whole("qk-pos-emb-head-dim", 64),
            "value_dim": given.whole("v-head-dim", 128),
        }
    said |= megatron_hybrid.read(given, layers)
    learned: dict[str, Positions] = {"learned_absolute": "learned", "rope": "rope", "yarn": "rope", "none": "none"}
    position: Positions = given.choice("position-embedding-type", learned, "learned")
    norms: dict[str, Literal["rms", "layer"]] = {"RMSNorm": "rms", "LayerNorm": "layer"}
    return Model(
        name=given.where.rpartition("/")[2].rpartition(".")[0] or "theirs",
        mlp="swiglu" if gated else "relu2" if given.flag("squared-relu") else "gelu",
        norm=given.choice("normalization", norms, "layer"),
        bias=_bias(given),
        position="rope" if given.flag("use-rotary-position-embeddings") else position,
        tied=not given.flag("untie-embeddings-and-output-weights"),
        **said,
        **_experts(given, ffn, layers),
    )


def _vocab(given: ConfigKeys) -> int:
    if given.get("padded-vocab-size") is None and given.get("vocab-size") is None:
        given.otherwise("vocab-size", f"{_VOCAB:,} words are taken for what the tokenizer has")
        return _VOCAB
    return given.whole("padded-vocab-size" if "padded-vocab-size" in given.said else "vocab-size")


def _bias(given: ConfigKeys) -> Literal["none", "qkv", "all"]:
    if not given.flag("disable-bias-linear"):
        return "all"
    return "qkv" if given.flag("add-qkv-bias") else "none"


def _experts(given: ConfigKeys, ffn: int, layers: int) -> dict[str, Any]:
    experts = given.whole("num-experts", 0, 0)
    if not experts:
        return {}
    each = given.whole("moe-ffn-hidden-size", ffn)
    shared = given.whole("moe-shared-expert-intermediate-size", 0, 0)
    if shared % each:
        raise BadFile(
            f"{given.where}: --moe-shared-expert-intermediate-size {shared} % --moe-ffn-hidden-size {each} = "
            f"{shared % each}: shared experts are as wide as the others here."
        )
    routers: dict[str, Literal["softmax", "sigmoid"]] = {"softmax": "softmax", "sigmoid": "sigmoid"}
    losses = given.get("moe-router-load-balancing-type") or "aux_loss"
    bias = given.flag("moe-router-enable-expert-bias")
    return {
        "experts": experts,
        "active": given.whole("moe-router-topk", 2),
        "expert_ffn": each,
        "shared_experts": shared // each,
        "dense_layers": _dense_layers(given, layers),
        "router": given.choice("moe-router-score-function", routers, "softmax"),
        "route_scale": given.number("moe-router-topk-scaling-factor", 1.0),
        "expert_groups": given.whole("moe-router-num-groups", 1),
        "active_groups": given.whole("moe-router-group-topk", 1),
        "expert_width": given.whole("moe-latent-size", 0, 0),
        "balance": "bias" if bias else "none" if losses == "none" else "loss",
    }


def _dense_layers(given: ConfigKeys, layers: int) -> int:
    """How many come before the first with experts: `([0]*3+[1]*58)`, or 1 for none."""
    said = str(given.get("moe-layer-freq") or 1)
    if said == "1":
        return 0
    text = said.replace(" ", "").removeprefix("(").removesuffix(")")
    parts = [_GROUPED.fullmatch(part) for part in text.split("+")]
    kinds = "".join(part[1] * int(part[2] or 1) for part in parts[:1000] if part)
    if not all(parts) or len(kinds) != layers or not re.fullmatch("0*1+", kinds):
        given.refuse("moe-layer-freq", f"here {layers} layers are some without experts, then all with")
        return 0
    return kinds.count("0")


def write(model: Model) -> dict[str, object]:
    """Arguments by name; None for one without a value."""
    said: dict[str, object] = {
        "num-layers": model.layers,
        "hidden-size": model.width,
        "ffn-hidden-size": model.ffn,
        "num-attention-heads": model.heads,
        "kv-channels": model.head_dim,
        "vocab-size": model.vocab,
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
        "norm-epsilon": model.norm_eps,
        "position-embedding-type": "learned_absolute" if model.position == "learned" else model.position,
    }
    if model.position == "rope":
        said["rotary-base"] = int(model.rope_base)
    if model.kv_heads != model.heads and not model.kv_rank:
        said |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    said |= {"disable-bias-linear": None} if model.bias != "all" else {}
    for name, wanted in (
        ("add-qkv-bias", model.bias == "qkv"),
        ("qk-layernorm", model.qk_norm),
        ("swiglu", model.mlp == "swiglu"),
        ("untie-embeddings-and-output-weights", not model.tied),
        ("squared-relu", model.mlp == "relu2"),
    ):
        said |= {name: None} if wanted else {}
    if model.kv_rank:
        said |= {
            "multi-latent-attention": None,
            "kv-lora-rank": model.kv_rank,
            "qk-head-dim": model.head_dim,
            "qk-pos-emb-head-dim": model.rope_dim,
            "v-head-dim": model.value_dim,
            "rope-type": "rope",
        }
        said |= {"q-lora-rank": model.q_rank} if model.q_rank else {}
    return said | megatron_hybrid.write(model) | (_written_experts(model) if model.experts else {})


def _written_experts(model: Model) -> dict[str, object]:
    said: dict[str, object] = {
        "num-experts": model.experts,
        "moe-router-topk": model.active,
        "moe-ffn-hidden-size": model.expert_ffn,
        "moe-token-dispatcher-type": "alltoall",
        "moe-router-score-function": model.router,
        "moe-router-load-balancing-type": "aux_loss" if model.balance == "loss" else "none",
    }
    if model.shared_experts:
        said["moe-shared-expert-intermediate-size"] = model.shared_experts * model.expert_ffn
    if model.expert_width:
        said["moe-latent-size"] = model.expert_width
    if model.dense_layers:
        said["moe-layer-freq"] = f"([0]*{model.dense_layers}+[1]*{model.layers - model.dense_layers})"
    if model.route_scale != 1:
        said["moe-router-topk-scaling-factor"] = model.route_scale
    if model.expert_groups > 1:
        said |= {"moe-router-num-groups": model.expert_groups, "moe-router-group-topk": model.active_groups}
    return said | ({"moe-router-enable-expert-bias": None} if model.balance == "bias" else {})
