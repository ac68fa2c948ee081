"""A job on fewer nodes than it has: the same training on a smaller layout. Pure, and no torch."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job


def shrunk(job: Job, nodes: int) -> Job:
    """The same job on `nodes` of its nodes: the same global batch on fewer ranks, each running more micro-batches.

    Replicas go first; where the nodes do not divide them, shards. Raises `BadJob` with the arithmetic.
    """
    of, layout = job.recovery.nodes, job.layout
    if nodes == of:
        return job
    axis = next((axis for axis in ("dp_replicate", "dp_shard") if getattr(layout, axis) % of == 0), None)
    if axis is None:
        raise BadJob(
            f"nodes = {of} at $.recovery, but neither dp_replicate {layout.dp_replicate} nor dp_shard "
            f"{layout.dp_shard} is a multiple of it: without a node no whole part of the batch is left.",
            f"Make dp_replicate a multiple of {of}, or use least_nodes = {of}.",
        )
    return replace(job, layout=replace(layout, **{axis: getattr(layout, axis) // of * nodes}))


def sizes(job: Job, check: Callable[[Job], object]) -> tuple[int, ...]:
    """With how many nodes the job can go on, the most first. `check` raises `BadJob` for a job that cannot be trained.

    Raises `BadJob` where ranks cannot be divided over all nodes, or the job cannot be trained on the least of them.
    """
    recovery, ranks = job.recovery, job.layout.ranks
    if ranks % recovery.nodes:
        raise BadJob(
            f"{ranks} ranks over nodes = {recovery.nodes} at $.recovery: {ranks} % {recovery.nodes} = "
            f"{ranks % recovery.nodes} would have no place.",
            f"Make the layout a multiple of {recovery.nodes} ranks.",
        )
    least = recovery.least_nodes or recovery.nodes
    check(shrunk(job, least))
    found = [recovery.nodes]
    for nodes in range(recovery.nodes - 1, least - 1, -1):
        try:
            check(shrunk(job, nodes))
        except BadJob:
            continue
        found.append(nodes)
    return tuple(found)
