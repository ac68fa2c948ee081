"""Constraints on a decoder that is trained. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.model import Model

BYTES = 256
"""Token ids used by byte-level text; those of a larger vocabulary are unused."""


def check(job: Job) -> None:
    """Raises `BadJob`, with the nearest valid model, for a decoder that this package cannot train."""
    model = job.decoder
    _check_trained(model)
    if model.vocab < BYTES:
        raise BadJob(
            f"vocab = {model.vocab} at $.model, but a byte has {BYTES} values: "
            f"{BYTES} - {model.vocab} = {BYTES - model.vocab} would have no row.",
            f"Use vocab = {BYTES} or more.",
        )
    if model.kv_lora_rank:
        _check_latent(model)
    if model.experts:
        _check_experts(model)


def _check_trained(model: Model) -> None:
    """Raises `BadJob` for a model that can be planned but not trained here."""
    if model.hybrid_pattern:
        raise BadJob(
            f"hybrid_pattern = {model.hybrid_pattern[:20]!r} at $.model, but trainyard does not train "
            "state-space layers.",
            "Plan for another framework: --for megatron or torchtitan.",
        )
    for field, untrained, others in (
        ("mlp", "relu2", "'swiglu' or 'gelu'"),
        ("position", "none", "'rope' or 'learned'"),
    ):
        if getattr(model, field) == untrained:
            raise BadJob(f"{field} = {untrained!r} at $.model can be planned but not trained here.", f"Use {others}.")
    if model.moe_latent_size:
        raise BadJob(
            f"moe_latent_size = {model.moe_latent_size} at $.model, but experts here have the model's width.",
            "Use moe_latent_size = 0.",
        )


def _check_latent(model: Model) -> None:
    """Raises `BadJob` if a setting contradicts latent attention."""
    if model.position != "rope":
        raise BadJob(
            f"position = {model.position!r} at $.model, but latent attention (kv_lora_rank = {model.kv_lora_rank}) has "
            f"qk_rope_head_dim = {model.qk_rope_head_dim} rotary channels.",
            "Use position = 'rope'.",
        )
    if model.bias != "none":
        raise BadJob(f"bias = {model.bias!r} at $.model, but latent attention has none.", "Use bias = 'none'.")
    if model.qk_norm:
        raise BadJob(
            "qk_norm = true at $.model, but latent attention already normalizes the latents of queries and keys.",
            "Use qk_norm = false.",
        )


def _check_experts(model: Model) -> None:
    if model.mlp != "swiglu":
        raise BadJob(f"mlp = {model.mlp!r} at $.model, but experts are SwiGLU.", "Use mlp = 'swiglu', or experts = 0.")
    if model.bias == "all":
        raise BadJob("bias = 'all' at $.model, but experts have none.", "Use bias = 'qkv' or 'none', or experts = 0.")
