"""When a recommender's job cannot be. No torch here."""

from __future__ import annotations

from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.train.recommender.recommender_sizes import Dlrm
from trainyard.train.rules.data_parallel_rules import divides_state

TEXT = "synthetic"


def check(job: Job, sizes: Dlrm) -> None:
    """Raises `BadJob` with the reason and what works instead."""
    if job.recipe.text != TEXT:
        raise BadJob(
            f"text = {job.recipe.text!r} at $.recipe.text, but {job.workload}'s features, ids and clicks are made up.",
            f"Say so: text = {TEXT!r}.",
        )
    if divided(job, sizes):
        _check_divided(job, sizes)


def divided(job: Job, sizes: Dlrm) -> bool:
    """Whether no rank has all tables."""
    return sizes.tables != "replicated" and job.layout.batch_ranks > 1


def _check_divided(job: Job, sizes: Dlrm) -> None:
    layout, tables = job.layout, len(sizes.rows)
    said = f"tables = {sizes.tables!r} at $.sizes.tables"
    if divides_state(layout):
        raise BadJob(
            f"{said} with zero = 1 at $.layout, but where only optimizer state is divided each rank has all weights.",
            f"Use zero = 2: {replace(layout, zero=2)}.",
        )
    if job.recipe.offload:
        raise BadJob(
            f"{said} with offload = true at $.recipe, but only weights that are gathered wait in the host's memory.",
            "Use offload = false.",
        )
    if sizes.tables == "by_table" and tables < layout.batch_ranks:
        raise BadJob(
            f"{said}: {tables} tables on {layout.batch_ranks} ranks, {layout.batch_ranks - tables} would have none.",
            "Use tables = 'by_row'.",
        )
