"""Whether weights, gradients and optimizer state alone exceed the memory. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

from typing import NamedTuple

from trainyard import words
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.train.recommender.recommender_rules import OwnTables, own_tables
from trainyard.train.recommender.recommender_sizes import Dlrm
from trainyard.train.rules.data_parallel_rules import divides_state, shards
from trainyard.train.sizes import convert
from trainyard.units import show_size

_FLOAT32 = words.DTYPES["float32"]


class LeastMemory(NamedTuple):
    """Minimum bytes of a rank during the optimizer step. All three are float32 in any precision. Activations, gathered
    weights and buffers are not included."""

    parameters: int
    gradients: int
    state: int


def least(job: Job, weights: int) -> LeastMemory:
    """The minimum memory of a rank. `weights`: its parameters before data parallelism shards them
    (`Workload.weights`). An optimizer that is not known counts as one without state. Tables with gradients of rows
    have a value of state per row, and gradients as large as the rows that a step looks up, which are not included.
    """
    layout, tables = job.layout, _row_tables(job)
    weights -= tables.weights
    local_weights = -(-weights // (layout.dp_shard * layout.cp)) if shards(layout) else weights
    weights_with_state = -(-weights // layout.dp_shard) if divides_state(layout) else local_weights
    return LeastMemory(
        parameters=_FLOAT32 * (local_weights + tables.weights),
        gradients=_FLOAT32 * local_weights,
        state=_FLOAT32 * ((job.recipe.state_values or 0) * weights_with_state + tables.rows),
    )


def _row_tables(job: Job) -> OwnTables:
    """The tables with gradients of rows on a rank, which data parallelism does not shard further."""
    return own_tables(job, convert(job, Dlrm)) if job.recipe.updates_rows else OwnTables(weights=0, rows=0)


def check(job: Job, weights: int, memory: int, device: str, shared: bool) -> None:
    """Raises `BadJob` with the arithmetic if the minimum exceeds `memory`. `weights`: as in `least`.

    `memory`: bytes of `device`, which is one rank's device, or if `shared` the host of all ranks; 0 if unknown.
    """
    if job.recipe.offload:  # little of it is on the device
        return
    least_bytes, layout = least(job, weights), job.layout  # bytes
    ranks_on_device = layout.ranks if shared else 1
    needed_bytes = sum(least_bytes) * ranks_on_device
    if not memory or needed_bytes <= memory:
        return
    # The arithmetic for the message, such as "(weights 2 GiB + gradients 2 GiB + adamw's state 4 GiB) * 8 ranks".
    terms = f"weights {show_size(least_bytes.parameters)} + gradients {show_size(least_bytes.gradients)}"
    terms += f" + {_state_owners(job)} state {show_size(least_bytes.state)}" * (least_bytes.state > 0)
    terms = f"({terms}) * {ranks_on_device} ranks" if ranks_on_device > 1 else terms
    raise BadJob(
        f"{least_bytes.parameters // _FLOAT32:,} float32 weights per rank ({layout}): {terms} = "
        f"{show_size(needed_bytes)} before activations, but {device} has {show_size(memory)}.",
        _next_step(job, shared),
    )


def _state_owners(job: Job) -> str:
    """The optimizers whose state is counted, for the message: `adamw's`, or `adamw's and rowwise_adagrad's`."""
    tables = f" and {job.recipe.embedding_optimizer}'s" if job.recipe.updates_rows else ""
    return f"{job.recipe.optimizer}'s{tables}"


def _next_step(job: Job, shared: bool) -> str:
    """Advice for a job that does not fit in memory. `shared`: all ranks share one memory, so that more ranks do not
    help."""
    smaller = "fewer layers or a smaller [model]" if job.model else "smaller [sizes]"
    if not shared:
        return f"Divide it over more ranks (dp_shard, tp or pp), or use {smaller}."
    sharded = "dp_shard in place of dp_replicate, " if job.layout.dp_replicate > 1 else ""
    return f"Use {sharded}{smaller}: all ranks share this memory."
