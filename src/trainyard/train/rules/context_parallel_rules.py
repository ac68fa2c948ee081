"""Constraints on context parallelism. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout]. The axis is `cp`, the number of ranks
that share a sequence.
"""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.model import Model
from trainyard.units import show_divisors


def check(job: Job) -> None:
    """Raises `BadJob`, with the nearest valid layout, if cp cannot split the sequences or heads evenly."""
    layout = job.layout
    if layout.cp == 1 or job.model is None:
        return
    _check_sequence(job)
    if layout.cp_method == "ulysses":
        _check_heads(job)
    if layout.cp_method == "ring":
        _check_widths(job.model)


def _check_sequence(job: Job) -> None:
    """Raises `BadJob` unless the sequence divides into equal chunks, one or two per rank."""
    layout, seq_len = job.layout, job.recipe.seq_len
    chunks_per_rank = 1 if layout.cp_method == "ulysses" else 2
    chunks = chunks_per_rank * layout.cp
    if seq_len % chunks:
        reason = (
            "one chunk" if layout.cp_method == "ulysses" else "an early and a late chunk, so that all have equal work"
        )
        raise BadJob(
            f"cp = {layout.cp} at $.layout: seq_len {seq_len} % {chunks} chunks = {seq_len % chunks}, but with "
            f"{layout.cp_method} each rank has {reason}.",
            f"Use seq_len = {max(1, round(seq_len / chunks)) * chunks}, or a valid cp: "
            f"{'1' if seq_len % chunks_per_rank else show_divisors([seq_len // chunks_per_rank])}.",
        )


def _check_widths(model: Model) -> None:
    """Raises `BadJob` if the values of latent attention are wider than the keys, which the ring's kernels do not
    support."""
    key_width = model.head_dim + model.qk_rope_head_dim
    if model.kv_lora_rank and model.v_head_dim > key_width:
        raise BadJob(
            f"cp_method = 'ring' at $.layout: values have {model.v_head_dim} channels, keys head_dim "
            f"{model.head_dim} + qk_rope_head_dim {model.qk_rope_head_dim} = {key_width}, but the fused kernels with "
            "log-sum-exp take none wider.",
            "Use cp_method = 'all_gather'.",
        )


def _check_heads(job: Job) -> None:
    """Raises `BadJob` unless each rank gets a whole number of heads."""
    layout, heads = job.layout, job.decoder.heads
    if heads % (layout.tp * layout.cp):
        by_tp = f" * tp {layout.tp}" * (layout.tp > 1)
        raise BadJob(
            f"cp_method = 'ulysses' at $.layout: heads {heads} % (cp {layout.cp}{by_tp}) = "
            f"{heads % (layout.tp * layout.cp)}, but each rank needs a whole and equal number of heads.",
            "Use cp_method = 'all_gather', which does not split heads.",
        )
