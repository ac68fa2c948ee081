"""The mixes of the parity matrix: every kind of parallelism, precision and recomputation, alone and together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from trainyard.job import Job, Layout, Model, Recipe
from trainyard.numerics.parity import Mix

_DENSE = Job(
    model=Model(name="dense", layers=4, width=32, ffn=64, heads=4, kv_heads=2, head_dim=8),
    recipe=Recipe(seq_len=32, tokens_per_step=512, microbatch=2, learning_rate=1e-2, seed=7),
)
_LAYOUT = set(Layout.__struct_fields__)


def _mix(name: str, job: Job = _DENSE, **changes: Any) -> Mix:
    """`changes` to the layout and the recipe by their fields' names."""
    layout = {field: value for field, value in changes.items() if field in _LAYOUT}
    recipe = {field: value for field, value in changes.items() if field not in _LAYOUT}
    return Mix(
        name, replace(job, name=name, layout=replace(job.layout, **layout), recipe=replace(job.recipe, **recipe))
    )


def _data() -> Iterator[Mix]:
    yield _mix("DDP", dp_replicate=2)
    yield _mix("FSDP2, ZeRO-3", dp_shard=2)
    yield _mix("FSDP2, ZeRO-2", dp_shard=2, zero=2)
    yield _mix("ZeRO-1", dp_shard=2, zero=1)
    yield _mix("HSDP", dp_replicate=2, dp_shard=2)
    yield _mix("DDP without accumulation", dp_replicate=2, microbatch=8)


def _tensor() -> Iterator[Mix]:
    yield _mix("TP", tp=2)
    yield _mix("TP, SP", tp=2, sequence_parallel=True)
    yield _mix("TP, loss parallel", tp=2, loss_parallel=True)
    yield _mix("TP, SP, loss parallel", tp=2, sequence_parallel=True, loss_parallel=True)


def _context() -> Iterator[Mix]:
    yield _mix("CP all-gather", cp=2)
    yield _mix("CP Ulysses", cp=2, cp_method="ulysses")
    yield _mix("CP ring", cp=2, cp_method="ring")


def _pipeline() -> Iterator[Mix]:
    yield _mix("PP GPipe", pp=2, schedule="gpipe")
    yield _mix("PP 1F1B", pp=2, schedule="1f1b")
    yield _mix("PP interleaved 1F1B", pp=2, interleave=2, schedule="interleaved")
    yield _mix("PP looped BFS", pp=2, interleave=2, schedule="looped_bfs")
    yield _mix("PP zero-bubble", pp=2, interleave=2, schedule="zero_bubble")
    yield _mix("PP ZBV", pp=2, interleave=2, schedule="zbv")
    yield _mix("PP DualPipeV", pp=2, interleave=2, schedule="dualpipev")


MIXES: tuple[Mix, ...] = (*_data(), *_tensor(), *_context(), *_pipeline())
