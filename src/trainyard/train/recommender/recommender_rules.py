"""Constraints on a recommender's job. Needs no torch."""

from __future__ import annotations

from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.train.recommender.recommender_sizes import Dlrm
from trainyard.train.rules.data_parallel_rules import divides_state

TEXT = "synthetic"


def check(job: Job, sizes: Dlrm) -> None:
    """Raises `BadJob` with an alternative if recipe or layout do not fit the recommender."""
    if job.recipe.dataset != TEXT:
        raise BadJob(
            f"dataset = {job.recipe.dataset!r} at $.recipe.dataset, but {job.workload}'s samples are synthetic.",
            f"Use dataset = {TEXT!r}.",
        )
    if shards_tables(job, sizes):
        _check_sharded(job, sizes)


def shards_tables(job: Job, sizes: Dlrm) -> bool:
    """Whether the tables are sharded over ranks."""
    return sizes.tables != "replicated" and job.layout.batch_ranks > 1


def _check_sharded(job: Job, sizes: Dlrm) -> None:
    """Raises `BadJob` if the layout or recipe cannot shard embedding tables as `sizes.tables` says."""
    layout, tables = job.layout, len(sizes.rows)
    tables_key = f"tables = {sizes.tables!r} at $.sizes.tables"
    if divides_state(layout):
        raise BadJob(
            f"{tables_key} with zero = 1 at $.layout, but ZeRO-1 keeps all weights on each rank.",
            f"Use zero = 2: {replace(layout, zero=2)}.",
        )
    if job.recipe.offload:
        raise BadJob(
            f"{tables_key} with offload = true at $.recipe, but only weights sharded by FSDP can be offloaded.",
            "Use offload = false.",
        )
    if sizes.tables == "by_table" and tables < layout.batch_ranks:
        raise BadJob(
            f"{tables_key}: {tables} tables for {layout.batch_ranks} ranks; {layout.batch_ranks - tables} would have "
            "none.",
            "Use tables = 'by_row'.",
        )
