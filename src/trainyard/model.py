"""The dimensions of a decoder, as `[model]` of a job file states them, and their checks."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard import limits
from trainyard.errors import BadJob

SPACE, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"
"""The letters of `Model.hybrid_pattern`: Megatron Core's, and Nemotron-H's."""
PARTS = {SPACE: "a state space", ATTENTION: "attention", MLP: "an MLP", EXPERTS: "experts"}


_OPTIONAL = (
    "experts", "top_k", "moe_ffn_hidden_size", "shared_experts", "dense_layers", "moe_latent_size", "ssm_dt_rank",
    "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
"""Sizes of a decoder that are 0 if it does not have the part."""
_MODEL_LIMITS = (
    dict.fromkeys(("layers", "dense_layers"), limits.LAYERS)
    | dict.fromkeys(("heads", "kv_heads", "ssm_heads", "ssm_groups"), limits.HEADS)
    | dict.fromkeys(("experts", "top_k", "shared_experts", "n_group", "topk_group"), limits.EXPERTS)
    | dict.fromkeys(
        ("hidden_size", "ffn_hidden_size", "head_dim", "moe_ffn_hidden_size", "moe_latent_size", "q_lora_rank",
         "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "ssm_head_dim", "ssm_state_size", "ssm_dt_rank"),
        limits.WIDTH,
    )
    | {"vocab": limits.VOCAB, "ssm_conv_kernel": limits.TOKENS, "ssm_chunk_size": limits.TOKENS}
)  # fmt: skip


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder's dimensions. `heads` query heads share `kv_heads` key/value heads; the MLP is `ffn_hidden_size` wide.

    `experts` = 0 is a dense model; otherwise, in all layers after the first `dense_layers`, each token uses `top_k` of
    `experts`, each `moe_ffn_hidden_size` wide, in addition to `shared_experts` that every token uses.
    `kv_lora_rank` > 0 is multi-head latent attention: keys and values come from `kv_lora_rank` values a token, queries
    from `q_lora_rank` (0: from the hidden state itself); `qk_rope_head_dim` channels of each head carry the position,
    `head_dim` do not, and values have `v_head_dim` channels.
    `hybrid_pattern` makes it a hybrid, one letter per layer: M is a state space layer, * attention, - an MLP, E
    experts. A state space layer has `ssm_heads` heads of `ssm_head_dim` channels with a state of `ssm_state_size`
    numbers per channel; the heads of each of its `ssm_groups` groups share the B and C projections; a convolution over
    `ssm_conv_kernel` tokens precedes it, and it is computed in chunks of `ssm_chunk_size` tokens (Mamba-2: Dao and Gu
    2024, arXiv:2405.21060). With `ssm_dt_rank` > 0 each channel is a head whose own step size comes from a projection
    of rank `ssm_dt_rank` (Mamba: Gu and Dao 2023, arXiv:2312.00752).
    """

    name: str = "unnamed"
    layers: int
    hidden_size: int
    ffn_hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = 256
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    mlp: Literal["swiglu", "gelu", "relu2"] = "swiglu"
    position: Literal["rope", "learned", "none"] = "rope"
    rope_theta: float = 10_000.0
    bias: Literal["none", "qkv", "all"] = "none"
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    """Whether the output head shares the embedding's weights."""
    experts: int = 0
    top_k: int = 0
    moe_ffn_hidden_size: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    router: Literal["softmax", "sigmoid"] = "softmax"
    route_scale: float = 1.0
    """Sum of the routing weights of a token's experts."""
    n_group: int = 1
    topk_group: int = 1
    """A token's experts come from `topk_group` of `n_group` groups of equal size."""
    load_balancing: Literal["none", "aux_loss", "bias"] = "none"
    """Load balancing of the experts: an auxiliary loss, or a bias updated from the token counts (no loss)."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    moe_latent_size: int = 0
    """Width of the experts' input and output, with projections shared by all tokens before and after; 0:
    `hidden_size`."""
    hybrid_pattern: str = ""
    ssm_heads: int = 0
    ssm_head_dim: int = 0
    ssm_groups: int = 1
    ssm_state_size: int = 0
    ssm_conv_kernel: int = 4
    ssm_chunk_size: int = 128
    ssm_dt_rank: int = 0

    def __post_init__(self) -> None:
        """Raises `BadJob` if a dimension is out of range or contradicts another."""
        for field in ("layers", "hidden_size", "ffn_hidden_size", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, field) < 1:
                raise BadJob(f"{field} = {limits.show(getattr(self, field))} must be at least 1.")
        if self.vocab == 1:
            raise BadJob(
                "vocab = 1: a model of one token has nothing to predict.", "Pass the number of rows of the embedding."
            )
        limits.check(self, _MODEL_LIMITS)
        limits.check_positive(self, "norm_eps", "rope_theta", "route_scale")
        if self.heads % self.kv_heads:
            raise BadJob(
                f"heads {self.heads} % kv_heads {self.kv_heads} = {self.heads % self.kv_heads}, "
                "but each key/value head serves a whole number of query heads.",
                f"Make kv_heads a divisor of {self.heads}.",
            )
        rotary_field = "qk_rope_head_dim" if self.kv_lora_rank else "head_dim"
        if self.position == "rope" and getattr(self, rotary_field) % 2:
            raise BadJob(f"{rotary_field} = {getattr(self, rotary_field)} is odd, but rotary embedding turns pairs.")
        self._check_experts()
        self._check_pattern()
        if self.kv_lora_rank and not (self.qk_rope_head_dim and self.v_head_dim):
            raise BadJob(
                f"kv_lora_rank = {self.kv_lora_rank}, but qk_rope_head_dim = {self.qk_rope_head_dim} and "
                f"v_head_dim = {self.v_head_dim}.",
                "Latent attention needs both.",
            )

    def _check_experts(self) -> None:
        """Raises `BadJob` unless the numbers of experts, groups and active experts fit each other."""
        for field in _OPTIONAL:
            if getattr(self, field) < 0:
                raise BadJob(f"{field} = {limits.show(getattr(self, field))} must not be negative.")
        if self.top_k > self.experts:
            raise BadJob(f"top_k = {self.top_k} of experts = {self.experts}.")
        if not self.experts:
            return
        if not (self.top_k and self.moe_ffn_hidden_size):
            raise BadJob(
                f"experts = {self.experts}, but top_k = {self.top_k} and "
                f"moe_ffn_hidden_size = {self.moe_ffn_hidden_size}.",
                "Set top_k, the experts that a token uses, and moe_ffn_hidden_size, the width of each.",
            )
        if self.n_group < 1 or self.experts % self.n_group:
            raise BadJob(f"experts = {self.experts} are not {self.n_group} groups (n_group) of equal size.")
        if not 1 <= self.topk_group <= self.n_group:
            raise BadJob(f"topk_group = {self.topk_group} of n_group = {self.n_group}.")
        eligible = self.experts // self.n_group * self.topk_group
        if self.top_k > eligible:
            raise BadJob(
                f"experts {self.experts} / n_group {self.n_group} * topk_group {self.topk_group} = "
                f"{eligible}, but a token uses top_k = {self.top_k}.",
                "Raise topk_group.",
            )

    def _check_pattern(self) -> None:
        """Raises `BadJob` unless `hybrid_pattern` has one known letter per layer and fits the other fields."""
        if not self.hybrid_pattern:
            return
        if unknown := sorted(set(self.hybrid_pattern) - set(PARTS)):
            known = ", ".join(f"{letter} {means}" for letter, means in PARTS.items())
            raise BadJob(
                f"hybrid_pattern has {', '.join(map(repr, unknown))}, but each letter must be one of: {known}."
            )
        if len(self.hybrid_pattern) != self.layers:
            raise BadJob(
                f"hybrid_pattern has {len(self.hybrid_pattern)} letters, but layers = {self.layers}: "
                "it needs one per layer.",
                f"Use layers = {len(self.hybrid_pattern)}.",
            )
        if (EXPERTS in self.hybrid_pattern) != bool(self.experts):
            raise BadJob(
                f"experts = {self.experts}, and hybrid_pattern has {self.hybrid_pattern.count(EXPERTS)} layers of "
                "experts (E)."
            )
        if self.dense_layers:
            raise BadJob(
                f"dense_layers = {self.dense_layers}, but hybrid_pattern defines which layers have experts.",
                "Leave dense_layers out.",
            )
        if SPACE not in self.hybrid_pattern:
            raise BadJob(
                f"hybrid_pattern = {self.hybrid_pattern[:20]!r} has 0 state space layers (M).",
                "Leave hybrid_pattern out: only hybrid models need it.",
            )
        for field in ("ssm_heads", "ssm_head_dim", "ssm_groups", "ssm_state_size", "ssm_conv_kernel", "ssm_chunk_size"):
            if getattr(self, field) < 1:
                raise BadJob(
                    f"{field} = {getattr(self, field)} must be at least 1 if hybrid_pattern has a state space layer."
                )
        if self.ssm_heads % self.ssm_groups:
            raise BadJob(
                f"ssm_heads {self.ssm_heads} % ssm_groups {self.ssm_groups} = "
                f"{self.ssm_heads % self.ssm_groups}, but each group has a whole number of heads."
            )
