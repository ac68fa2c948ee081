"""Constraints on a recommender's job. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.train.recommender.recommender_sizes import Dlrm
from trainyard.train.rules.data_parallel_rules import divides_state, shards

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
    if job.recipe.updates_rows:
        _check_row_updates(job, sizes)


class OwnTables(NamedTuple):
    """Weights and rows of the tables on a rank, as the mean over ranks."""

    weights: int
    rows: int


def own_tables(job: Job, sizes: Dlrm) -> OwnTables:
    """The tables on a rank: all, or its share of sharded ones."""
    ranks, rows = job.layout.batch_ranks if shards_tables(job, sizes) else 1, sum(sizes.rows)
    return OwnTables(weights=-(-rows * sizes.width // ranks), rows=-(-rows // ranks))


def shards_tables(job: Job, sizes: Dlrm) -> bool:
    """Whether the tables are sharded over ranks."""
    return sizes.tables != "replicated" and job.layout.batch_ranks > 1


def _check_row_updates(job: Job, sizes: Dlrm) -> None:
    """Raises `BadJob` if the layout or recipe needs dense gradients of the tables, or updates of all rows."""
    layout, recipe = job.layout, job.recipe
    key = "embedding_optimizer = 'rowwise_adagrad' at $.recipe"
    if divides_state(layout):
        raise BadJob(
            f"{key} with zero = 1 at $.layout, but ZeRO-1 gives the state of each table to one rank.",
            f"Use zero = 2 and tables = 'by_row': {replace(layout, zero=2)}.",
        )
    if shards(layout) and not shards_tables(job, sizes):
        raise BadJob(
            f"{key} with tables = 'replicated' at $.sizes.tables, but {layout} shards all replicated weights by FSDP.",
            "Use tables = 'by_row' or 'by_table', or dp_replicate in place of dp_shard.",
        )
    if "embedding" not in recipe.no_weight_decay and recipe.weight_decay != 0:
        raise BadJob(
            f"{key} with weight decay of embeddings, which would change all rows of the tables in each step.",
            "Add 'embedding' to no_weight_decay, or use weight_decay = 0.",
        )


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
    if not layout.has_equal_shares:
        raise BadJob(
            f"{tables_key} with batch_shares = {list(layout.batch_shares)} at $.layout, but all ranks exchange rows of "
            "the tables in each micro-batch.",
            "Use tables = 'replicated', or equal shares.",
        )
    if sizes.tables == "by_table" and tables < layout.batch_ranks:
        raise BadJob(
            f"{tables_key}: {tables} tables for {layout.batch_ranks} ranks; {layout.batch_ranks - tables} would have "
            "none.",
            "Use tables = 'by_row'.",
        )
