"""Constraints on tensor parallelism. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout]. The axis is `tp`, the number of ranks
that each matrix is divided over.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.units import show_divisors


def check(job: Job) -> None:
    """Raises `BadJob`, with the nearest valid layout, if tp cannot split the model or its sequences evenly."""
    layout, model = job.layout, job.model
    if layout.tp == 1:
        _check_alone(layout)
        return
    if model is None:
        return
    _check_known(model, layout)
    size_by_name = {
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "ffn_hidden_size": model.ffn_hidden_size,
        "vocab": model.vocab,
    }
    for name, size in size_by_name.items():
        if size % layout.tp:
            raise BadJob(
                f"tp = {layout.tp} at $.layout: {name} {size:,} % tp {layout.tp} = {size % layout.tp}, but each rank "
                f"needs a whole and equal number of {_COUNTED_UNITS[name]}.",
                _suggest_tp(size_by_name, layout.tp),
            )
    _check_sequence(job)


_COUNTED_UNITS: Mapping[str, str] = {
    "heads": "query heads",
    "kv_heads": "key/value heads",
    "ffn_hidden_size": "columns of the MLP",
    "vocab": "rows of the embedding",
}


def _suggest_tp(size_by_name: Mapping[str, int], tp: int) -> str:
    """A suggestion for the message: the largest tp, at most `tp`, that divides every size, and all that do."""
    valid_tp = next(
        divisor for divisor in range(tp, 0, -1) if not any(size % divisor for size in size_by_name.values())
    )
    degrees = show_divisors(list(size_by_name.values()))
    return f"Use tp = {valid_tp}; degrees that divide {', '.join(size_by_name)}: {degrees}."


def _check_alone(layout: Layout) -> None:
    """Raises `BadJob` for tensor-parallel settings without tensor parallelism (tp = 1)."""
    for field in ("sequence_parallel", "loss_parallel"):
        if getattr(layout, field):
            raise BadJob(
                f"{field} = true at $.layout, but tp = 1: there are no ranks to split over.",
                f"Use {field} = false, or tp = 2 or more.",
            )


def _check_known(model: Model, layout: Layout) -> None:
    """Raises `BadJob` for models whose matrices tensor parallelism does not split here."""
    if model.experts:
        raise BadJob(
            f"tp = {layout.tp} at $.layout with experts = {model.experts} at $.model, but experts' matrices are not "
            "split.",
            f"Use tp = 1, and ep = {layout.tp} to divide the experts.",
        )
    if model.kv_lora_rank:
        raise BadJob(
            f"tp = {layout.tp} at $.layout with kv_lora_rank = {model.kv_lora_rank} at $.model, but all "
            "heads share the latent "
            "and the rotary key: no rank has their full gradient.",
            f"Use tp = 1, and dp_shard = {layout.dp_shard * layout.tp}.",
        )


def _check_sequence(job: Job) -> None:
    """Raises `BadJob` unless the sequence divides evenly over the ranks that split it."""
    layout, seq_len = job.layout, job.recipe.seq_len
    if layout.sequence_parallel and seq_len % (layout.cp * layout.tp):
        by_cp = f" * cp {layout.cp}" * (layout.cp > 1)
        parts = layout.cp * layout.tp
        raise BadJob(
            f"sequence_parallel = true at $.layout: seq_len {seq_len} % (tp {layout.tp}{by_cp}) = {seq_len % parts}, "
            "but each rank needs a whole and equal number of positions.",
            f"Use seq_len = {max(1, round(seq_len / parts)) * parts}, or sequence_parallel = false.",
        )
    if job.decoder.position == "learned" and seq_len % layout.tp:
        raise BadJob(
            f"tp = {layout.tp} at $.layout with learned positions: seq_len {seq_len} % tp {layout.tp} = "
            f"{seq_len % layout.tp}, but each rank needs a whole and equal number of their rows.",
            f"Use seq_len = {max(1, round(seq_len / layout.tp)) * layout.tp}.",
        )
