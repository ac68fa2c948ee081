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
    """The lines of the log: benchmark, seed, the losses of the lowest rank that has any, and status; times in ms."""
    recipe = run.job.recipe
    batch = recipe.tokens_per_step // recipe.seq_len
    began = int(datetime.fromisoformat(run.started).timestamp() * 1000)
    yield line("submission_benchmark", run.job.name, began)
    yield line("global_batch_size", batch, began)
    if (seed := seed_of(run)) is not None:
        yield line("seed", seed, began)
    yield line("run_start", None, began, event="INTERVAL_START")
    now = began
    samples = run.kept()
    rank = min((sample.rank for sample in samples if sample.loss is not None), default=-1)
    for sample in samples:
        if sample.rank != rank or sample.loss is None:
            continue
        now = max(now, sample.ended_ns // 1_000_000)
        where = {"step_num": sample.step + 1, "samples_count": (sample.step + 1) * batch}
        yield line("train_loss", sample.loss, now, where)
    status = "success" if run.state == "complete" else "aborted"
    yield line("run_stop", None, now, {"status": status}, event="INTERVAL_END")
