"""Constraints on expert parallelism. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout]. The axis is `ep`, the number of ranks
that the experts of a layer are divided over.
"""

from __future__ import annotations

from math import gcd

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.units import show_divisors


def check(job: Job) -> None:
    """Raises `BadJob`, with the nearest valid layout, if ep does not divide the experts or the ranks."""
    layout, model = job.layout, job.model
    if layout.ep == 1:
        return
    if model is None or not model.experts:
        raise BadJob(f"ep = {layout.ep} at $.layout, but the model has no experts.", "Use ep = 1.")
    ranks = layout.dp_shard * layout.cp
    valid_ep = largest_divisor(gcd(model.experts, ranks), layout.ep)
    if model.experts % layout.ep:
        raise BadJob(
            f"experts {model.experts} % ep {layout.ep} = {model.experts % layout.ep}, but each rank holds a whole "
            "number of experts.",
            f"Use ep = {valid_ep}; degrees that divide the experts and dp_shard * cp = {ranks} ranks: "
            f"{show_divisors([model.experts, ranks])}.",
        )
    if ranks % layout.ep:
        raise BadJob(
            f"dp_shard {layout.dp_shard} * cp {layout.cp} = {ranks} ranks at $.layout, {ranks} % ep {layout.ep} = "
            f"{ranks % layout.ep}, but experts are divided over groups of ep of these ranks.",
            f"Use ep = {valid_ep}." if valid_ep > 1 else f"Use ep = 1, or dp_shard = {layout.ep}.",
        )
    replicas = ranks // layout.ep  # ranks that have the same experts and shard each of their matrices by rows
    for field in ("hidden_size", "moe_ffn_hidden_size"):
        rows = getattr(model, field)
        if rows % replicas:
            raise BadJob(
                f"{field} {rows} % {replicas} = {rows % replicas} at $.model, but of {ranks} ranks of dp_shard * cp, "
                f"{replicas} share each part of ep {layout.ep} and shard the rows of an expert's matrices equally.",
                f"Use {field} = {(rows // replicas + 1) * replicas}, or ep = {_nearest_valid_ep(job)}.",
            )


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`."""
    return max(divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0)


def _nearest_valid_ep(job: Job) -> int:
    """The smallest larger ep for which the ranks that share an expert can shard its rows equally, else 1."""
    layout, model = job.layout, job.decoder
    ranks = layout.dp_shard * layout.cp
    common_divisor = gcd(model.experts, ranks)
    common_rows = gcd(model.hidden_size, model.moe_ffn_hidden_size)
    valid_eps = (
        ep
        for ep in range(layout.ep + 1, common_divisor + 1)
        if common_divisor % ep == 0 and common_rows % (ranks // ep) == 0
    )
    return next(valid_eps, 1)
