"""A small made-up run, and stores that hold it."""

from __future__ import annotations

import msgspec

from trainyard.job import Job, Measure
from trainyard.layout import Layout
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import Run, Sample
from trainyard.store.store import Store, new_id

JOB_TEXT = "# a job\nname = 'tiny'\n"
JOB = Job(
    name="tiny",
    model=Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8),
    layout=Layout(dp_replicate=2),
    recipe=Recipe(seq_len=8, tokens_per_step=16),
    measure=Measure(warmup=1, steps=2, repeats=2, profiled=1),
)
LEDGER = Ledger(
    wall_ns=10,
    entries=(Entry(account=Account("compute", "matmul"), ns=7), Entry(account=Account("unexplained"), ns=3)),
    scope=Scope(steps=("1",), ranks=(0,)),
)


def samples(loss: float = 5.0) -> tuple[Sample, ...]:
    """Two ranks; a warm-up step, two repeats of two steps, a profiled one. Rank 1 is the slower."""
    plan = [(0, 0, True, False, 900), (1, 0, False, False, 100), (2, 0, False, False, 110)]
    plan += [(3, 1, False, False, 120), (4, 1, False, False, 130), (5, 2, False, True, 400)]
    return tuple(
        Sample(
            step=step, rank=rank, repeat=repeat, wall_ns=wall + 10 * rank, tokens=8, loss=loss - step,
            memory_bytes=1000 + rank, profiled=profiled, warmup=warmup,
        )
        for rank in (0, 1)
        for step, repeat, warmup, profiled, wall in plan
    )  # fmt: skip


def stored(
    store: Store,
    id: str | None = None,
    started: str = "2025-01-01T00:00:00.000+00:00",
    name: str = JOB.name,
    trace: bytes = b"",
) -> Run:
    """A complete run; its one trace is not kept, or has the contents `trace`."""
    run = Run(id=id or new_id(), job=msgspec.structs.replace(JOB, name=name), started=started)
    folder = store.begin(run, JOB_TEXT)
    if trace:
        (folder / "traces" / "rank0.json.gz").write_bytes(trace)
    done = msgspec.structs.replace(
        run, state="complete", samples=samples(), ledgers=(LEDGER,), trace=("traces/rank0.json.gz",)
    )
    return store.finish(done)
