"""When expert parallelism cannot be. No torch here."""

from __future__ import annotations

from math import gcd

from trainyard.errors import BadJob
from trainyard.job import Job


def check(job: Job) -> None:
    """Raises `BadJob` with the arithmetic and the nearest layout that works."""
    layout, model = job.layout, job.model
    if layout.ep == 1:
        return
    if model is None or not model.experts:
        raise BadJob(f"ep = {layout.ep} at $.layout, but the model has no experts.", "Use ep = 1.")
    holders = layout.dp_shard * layout.cp
    works = largest(gcd(model.experts, holders), layout.ep)
    if model.experts % layout.ep:
        raise BadJob(
            f"experts {model.experts} % ep {layout.ep} = {model.experts % layout.ep}, but each rank holds a whole "
            "number of experts.",
            f"Use ep = {works}.",
        )
    if holders % layout.ep:
        raise BadJob(
            f"dp_shard {layout.dp_shard} * cp {layout.cp} = {holders} ranks at $.layout, {holders} % ep {layout.ep} = "
            f"{holders % layout.ep}, but experts are divided over groups of ep of these ranks.",
            f"Use ep = {works}." if works > 1 else f"Use ep = 1, or dp_shard = {layout.ep}.",
        )
    again = holders // layout.ep
    for field in ("width", "expert_ffn"):
        rows = getattr(model, field)
        if rows % again:
            raise BadJob(
                f"{field} {rows} % {again} = {rows % again} at $.model, but the {holders} ranks of dp_shard * cp are "
                f"{again} for each of ep {layout.ep}, and they share the rows of an expert's matrices equally.",
                f"Use {field} = {(rows // again + 1) * again}, or ep = {_nearest(job)}.",
            )


def largest(of: int, upto: int) -> int:
    """The largest divisor of `of` that is not above `upto`."""
    return max(part for part in range(1, min(of, upto) + 1) if of % part == 0)


def _nearest(job: Job) -> int:
    """The smallest ep above the job's own with which the ranks that share an expert divide its rows, or 1."""
    layout, model = job.layout, job.decoder
    holders = layout.dp_shard * layout.cp
    common = gcd(model.experts, holders)
    rows = gcd(model.width, model.expert_ffn)
    fits = (ep for ep in range(layout.ep + 1, common + 1) if common % ep == 0 and rows % (holders // ep) == 0)
    return next(fits, 1)
