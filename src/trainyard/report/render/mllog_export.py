"""A run as MLPerf's log: `:::MLLOG` lines, with the loss of each step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from trainyard.formats.mllog import line
from trainyard.numerics.convergence.curves import seed_of
from trainyard.record import Run


def text(run: Run) -> str:
    """The log of a run, one line per entry."""
    return "".join(f"{entry}\n" for entry in _lines(run))


def _lines(run: Run) -> Iterator[str]:
    """The lines of the log: benchmark, seed, the losses of the lowest rank that has any, and status; times in ms since
    1970."""
    recipe = run.job.recipe
    batch = recipe.tokens_per_step // recipe.seq_len
    began_ms = int(datetime.fromisoformat(run.started).timestamp() * 1000)
    yield line("submission_benchmark", run.job.name, began_ms)
    yield line("global_batch_size", batch, began_ms)
    if (seed := seed_of(run)) is not None:
        yield line("seed", seed, began_ms)
    yield line("run_start", None, began_ms, event="INTERVAL_START")
    now_ms = began_ms
    samples = run.kept()
    rank = min((sample.rank for sample in samples if sample.loss is not None), default=-1)
    for sample in samples:
        if sample.rank != rank or sample.loss is None:
            continue
        now_ms = max(now_ms, sample.ended_ns // 1_000_000)
        where = {"step_num": sample.step + 1, "samples_count": (sample.step + 1) * batch}
        yield line("train_loss", sample.loss, now_ms, where)
    status = "success" if run.state == "complete" else "aborted"
    yield line("run_stop", None, now_ms, {"status": status}, event="INTERVAL_END")
