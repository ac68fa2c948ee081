"""Follow the ranks of a started run: report their progress, and pass a SIGTERM on to them.

No torch here: the ranks are separate processes, which report through the run's folder.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trainyard import plugins
from trainyard.formats.appended_lines import read_appended
from trainyard.plugins import Launcher
from trainyard.record import Run, Sample
from trainyard.run.local.progress_events import ProgressMessages
from trainyard.run.session import Progress
from trainyard.store.run_folder import decode_sample

_POLL_S = 0.1
"""Seconds between two looks at the ranks' samples."""


class StartedRun(NamedTuple):
    """A run whose ranks have been started. `job_id`: its id at the launcher. `reported_bytes`: size of the part of rank
    0's samples that was reported in an earlier attempt."""

    launcher: Launcher
    job_id: str
    run: Run
    folder: Path
    messages: ProgressMessages
    reported_bytes: int = 0


def follow_ranks(started: StartedRun, progress: Callable[[Progress], None], after_poll: Callable[[], object]) -> None:
    """Report progress after each step of rank 0 until the job has ended or failed. `started`: the run, the launcher
    of its ranks, and the bytes of rank 0's sample file that were reported before (by a run that is resumed).

    `progress`: called for each new sample of rank 0; `after_poll`: called after each look at the samples, every
    `_POLL_S` seconds. The status is read before the samples, so that the last ones are not missed.
    """
    job = started.run.job
    unit = plugins.load("workloads", job.workload).unit
    appended = _read_samples(started.folder / "samples" / "rank0.jsonl", started.reported_bytes)
    running = True
    while running:
        running = not started.launcher.status(started.job_id).is_over
        for sample in next(appended):
            tokens_per_s = job.recipe.tokens_per_step * 1e9 / max(1, sample.wall_ns)
            step, steps = sample.step + 1, job.measure.in_all
            progress(Progress(step=step, steps=steps, loss=sample.loss, tokens_per_s=tokens_per_s, unit=unit))
        after_poll()
        if running:
            time.sleep(_POLL_S)


def _read_samples(path: Path, offset: int = 0) -> Iterator[list[Sample]]:
    """Yield, at each `next`, the samples that were appended to the file since the previous `next`; it never ends.

    The first time, those from byte `offset` on. A last line that is still incomplete is left for the next time; a file
    that does not exist yet is empty.
    """
    while True:
        lines = read_appended(path, offset)
        offset += len(lines)
        yield [decode_sample(line) for line in lines.splitlines()]


@contextmanager
def forward_sigterm(launcher: Launcher, job_id: str) -> Iterator[list[int]]:
    """Turn a SIGTERM into a request to the job to save and leave, while the context lasts.

    Each signal number is appended to the yielded list. Without effect outside the main thread, which alone receives
    signals. At the end the previous handler is restored.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def forward(signal_number: int, _: object) -> None:
        signals.append(signal_number)
        launcher.cancel(job_id, save=True)

    previous_handler = signal.signal(signal.SIGTERM, forward)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def say_messages(messages: ProgressMessages, signals: list[int], say: Callable[[str], None]) -> None:
    """Print that a SIGTERM was received, if `signals` has any, which is then emptied, and messages on new events."""
    if signals:
        signals.clear()
        say("SIGTERM received: each rank finishes its step, saves and leaves")
    for line in messages.lines():
        say(line)
