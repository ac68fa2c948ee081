"""When weights, their gradients and the optimizer's state alone are more than the memory there is. No torch here."""

from __future__ import annotations

from typing import NamedTuple

from trainyard import words
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.train.rules.data_parallel_rules import divides_state, shards
from trainyard.units import show_size

_FLOAT32 = words.DTYPES["float32"]
_STATE = {"adamw": 2, "sgd": 1, "muon": 1}
"""Float32 values that an optimizer keeps a weight, at the least; of one that is not known here, none."""


class Least(NamedTuple):
    """Bytes that a rank holds at once when the optimizer steps, at the least: all three are float32 whatever is
    computed in. Activations, gathered weights and buffers come on top."""

    parameters: int
    gradients: int
    state: int


def least(job: Job, weights: int) -> Least:
    """`weights`: a rank's parameters before data parallelism divides them (`Workload.weights`)."""
    layout = job.layout
    here = -(-weights // (layout.dp_shard * layout.cp)) if shards(layout) else weights
    kept = -(-weights // layout.dp_shard) if divides_state(layout) else here
    return Least(_FLOAT32 * here, _FLOAT32 * here, _FLOAT32 * _STATE.get(job.recipe.optimizer, 0) * kept)


def check(job: Job, weights: int, memory: int, where: str, shared: bool) -> None:
    """`memory`: bytes of `where`, one rank's device, or the host of all ranks where that is `shared`; 0 where it is
    unknown. Raises `BadJob` with the arithmetic where even the least is more."""
    if job.recipe.offload:  # then little of it is on the device
        return
    parts, layout = least(job, weights), job.layout
    times = layout.ranks if shared else 1
    need = sum(parts) * times
    if not memory or need <= memory:
        return
    said = f"weights {show_size(parts.parameters)} + gradients {show_size(parts.gradients)}"
    said += f" + {job.recipe.optimizer}'s state {show_size(parts.state)}" * (parts.state > 0)
    said = f"({said}) * {times} ranks" if times > 1 else said
    raise BadJob(
        f"{parts.parameters // _FLOAT32:,} float32 weights a rank ({layout}): {said} = {show_size(need)} before "
        f"activations, but {where} has {show_size(memory)}.",
        _next_step(job, shared),
    )


def _next_step(job: Job, shared: bool) -> str:
    smaller = "fewer layers or a smaller [model]" if job.model else "smaller [sizes]"
    if not shared:
        return f"Divide it over more ranks (dp_shard, tp or pp), or use {smaller}."
    sharded = "dp_shard in place of dp_replicate, " if job.layout.dp_replicate > 1 else ""
    return f"Use {sharded}{smaller}: all ranks share this memory."
