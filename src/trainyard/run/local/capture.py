"""Capture the profiled window of a rank: torch.profiler around some steps, exported to a file, with sampled stacks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule

from trainyard.formats.atomic import replacing_own
from trainyard.job import PROFILER_WARMUP
from trainyard.recorded_stacks import CLOCK_MARK, STACKS_KEY, RecordedStacks
from trainyard.run.local.hide_profiler_messages import QuietProfile
from trainyard.run.stacks.module_marks import ModuleMarks
from trainyard.run.stacks.sampler import StackSampler
from trainyard.store.redact_run import copy_redacted

_MAX_TAIL_BYTES = 4096


class CapturedWindow:
    """The profiled window: `step` ends a step."""

    def __init__(self, profiler: profile, sampler: StackSampler | None) -> None:
        """`sampler`: samples the stacks of this thread; None if they are not recorded."""
        self._profiler, self._sampler = profiler, sampler

    def step(self) -> None:
        """End a step of the window."""
        self._mark_clock()
        self._profiler.step()
        self._mark_clock()

    def _mark_clock(self) -> None:
        """Write an annotation around a reading of the samples' clock; the profiler drops it outside of its active
        steps."""
        if self._sampler is not None:
            with record_function(f"{CLOCK_MARK}{len(self._sampler.clock_ns)}"):
                self._sampler.read_clock()


@contextmanager
def capture(
    folder: Path,
    rank: int,
    steps: int,
    device: torch.device,
    barrier: Callable[[], object],
    stacks: bool = False,
    shapes: bool = False,
    memory: bool = False,
) -> Iterator[CapturedWindow]:
    """Profile `PROFILER_WARMUP + steps` steps: call `step()` on the yielded window after each. `barrier`: waits for
    all ranks. `stacks`: sample the Python stacks of the calling thread, and annotate the forward passes of
    modules. `shapes`: record the shapes of ops on a CPU too. `memory`: record allocations and frees.

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

    sampler = StackSampler(threading.get_ident()) if stacks else None
    marks = ModuleMarks(fast_annotation()) if stacks else None
    with QuietProfile(
        activities=activities,
        schedule=choose_action,
        on_trace_ready=lambda profiler: _export(profiler, path, sampler.finish() if sampler else None),
        # On a CPU, recording shapes fragments the heap: page faults make steps several times as long (docs/log.md).
        record_shapes=shapes or device.type != "cpu",
        profile_memory=memory,
        # It records each call, which takes as long as the calls themselves: `python -m benchmarks.stacks`.
        with_stack=False,
    ) as profiler:
        try:
            if sampler and marks:
                marks.start()
                sampler.start()
            yield CapturedWindow(profiler, sampler)
        finally:
            if sampler and marks:
                sampler.stop()
                marks.stop()


def fast_annotation() -> Callable[[str], Any]:
    """The cheapest way that this torch has to write a span into the profile: 0.6 us instead of 6 us."""
    return getattr(getattr(torch._C, "_profiler", None), "_RecordFunctionFast", record_function)


def _export(profiler: profile, path: Path, stacks: RecordedStacks | None) -> None:
    """Write the profiler's trace and the stacks to `path`, compressed and without secrets."""
    uncompressed = path.with_suffix(".partial")
    profiler.export_chrome_trace(str(uncompressed))
    if stacks is not None:
        add_stacks(uncompressed, stacks)
    # For a name that ends in .gz, torch compresses line by line, which is ten times slower.
    with replacing_own(path) as compressed:
        with uncompressed.open("rb") as source:
            copy_redacted(source, compressed, compress=True)
        uncompressed.unlink()


def add_stacks(trace: Path, stacks: RecordedStacks) -> None:
    """Append the stacks to an uncompressed Kineto file, as the last key of its document. A file that does not end like
    a document is left as it is."""
    with trace.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_TAIL_BYTES))
        tail = file.read()
        end = tail.rfind(b"}")
        if end < 0 or tail[end + 1 :].strip():
            return
        file.seek(end - len(tail), os.SEEK_END)
        file.truncate()
        file.write(b',"%b":%b}\n' % (STACKS_KEY.encode(), msgspec.json.encode(stacks)))
