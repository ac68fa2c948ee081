"""Shrink a job to fewer nodes: the same training on a smaller layout. Pure, and no torch."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job


def shrink(job: Job, nodes: int) -> Job:
    """Return the job on `nodes` of its nodes: the same global batch on fewer ranks, with more micro-batches each.

    Reduces the replicas (`dp_replicate`) in proportion to the nodes or, if the job's number of nodes does not divide
    them, the shards (`dp_shard`). Raises `BadJob` if it divides neither, or if the replicas have unequal shares: which
    of them remain is not known.
    """
    all_nodes, layout = job.recovery.nodes, job.layout
    if nodes == all_nodes:
        return job
    if not layout.has_equal_shares:
        raise BadJob(
            f"min_nodes = {job.recovery.min_nodes} of {all_nodes} nodes at $.recovery with batch_shares = "
            f"{list(layout.batch_shares)} at $.layout, but the share of a lost node cannot be divided.",
            f"Use equal shares, or min_nodes = {all_nodes}.",
        )
    axis = next((axis for axis in ("dp_replicate", "dp_shard") if getattr(layout, axis) % all_nodes == 0), None)
    if axis is None:
        raise BadJob(
            f"nodes = {all_nodes} at $.recovery, but neither dp_replicate {layout.dp_replicate} nor dp_shard "
            f"{layout.dp_shard} is a multiple of it: the batch cannot be split evenly over fewer nodes.",
            f"Make dp_replicate a multiple of {all_nodes}, or set min_nodes = {all_nodes}.",
        )
    size = getattr(layout, axis) // all_nodes * nodes
    recovery = replace(job.recovery, ranks_per_node=())
    return replace(job, layout=replace(layout, batch_shares=(), **{axis: size}), recovery=recovery)


def node_counts(job: Job, check: Callable[[Job], object]) -> tuple[int, ...]:
    """The node counts with which the job can continue if nodes fail, largest first, from all nodes to `min_nodes`.

    `check`: called with the job on each number of nodes; raises `BadJob` if that cannot be trained, and the number is
    left out. Raises `BadJob` if the ranks cannot be split evenly over all nodes, unless the job has numbers of ranks
    for them, or the job cannot be trained on `min_nodes`.
    """
    recovery, ranks = job.recovery, job.layout.ranks
    if ranks % recovery.nodes and not recovery.ranks_per_node:
        raise BadJob(
            f"{ranks} ranks cannot be split over nodes = {recovery.nodes} at $.recovery: {ranks} % {recovery.nodes} = "
            f"{ranks % recovery.nodes}.",
            f"Use a layout with a multiple of {recovery.nodes} ranks, or set ranks_per_node.",
        )
    least = recovery.min_nodes or recovery.nodes
    check(shrink(job, least))
    counts = [recovery.nodes]
    for nodes in range(recovery.nodes - 1, least - 1, -1):
        try:
            check(shrink(job, nodes))
        except BadJob:
            continue
        counts.append(nodes)
    return tuple(counts)
