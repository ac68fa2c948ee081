"""Capture the profiled window of a rank: torch.profiler around some steps, exported to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from trainyard.formats.atomic import replacing_own
from trainyard.job import PROFILER_WARMUP
from trainyard.store.redact_run import copy_redacted


@contextmanager
def capture(
    folder: Path, rank: int, steps: int, device: torch.device, barrier: Callable[[], object]
) -> Iterator[profile]:
    """Profile `PROFILER_WARMUP + steps` steps: call `step()` on the yielded profiler after each. `barrier`: waits for
    all ranks.

    `folder`: the run's folder; `device`: that of the rank. Writes `traces/rank<N>.json.gz`, under that name only when
    complete.
    """
    path = folder / "traces" / f"rank{rank}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    scheduled_action = schedule(wait=0, warmup=PROFILER_WARMUP, active=steps, repeat=1)

    def choose_action(step: int) -> ProfilerAction:
        """The profiler's action for the step with this index; on a CPU, the ranks wait for each other after the
        last."""
        # Called after the last step's mark has closed and before the profiler stops. A CPU rank that exported its
        # trace while another is still in its last step would take cores from that step and distort its ledger.
        if step == PROFILER_WARMUP + steps and device.type == "cpu":
            barrier()
        return scheduled_action(step)

    with profile(
        activities=activities,
        schedule=choose_action,
        on_trace_ready=lambda profiler: _export(profiler, path),
        # On a CPU, recording shapes fragments the heap: page faults make steps several times as long (docs/log.md).
        record_shapes=device.type != "cpu",
        with_stack=False,
    ) as profiler:
        yield profiler


def _export(profiler: profile, path: Path) -> None:
    """Write the profiler's trace to `path`, compressed and without secrets."""
    uncompressed = path.with_suffix(".partial")
    profiler.export_chrome_trace(str(uncompressed))
    # For a name that ends in .gz, torch compresses line by line, which is ten times slower.
    with replacing_own(path) as compressed:
        with uncompressed.open("rb") as source:
            copy_redacted(source, compressed, compress=True)
        uncompressed.unlink()
