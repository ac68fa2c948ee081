"""Follow a run while it is being written: steps, losses, incidents and the ledger of the profiled window.

The ranks append samples and events to files in the run's folder; a `RunFollower` reads the lines that were added since
its last look, so that a look costs the same however long the run is. No torch.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from trainyard import plugins
from trainyard.errors import BadFile, MissingFile, TrainyardError, UnknownName
from trainyard.formats.appended_lines import read_appended
from trainyard.formats.decoding import UNREADABLE
from trainyard.job import SCRIPT, Job
from trainyard.launch.supervisor import event_log
from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.ledger import Ledger
from trainyard.record import Incident, Run, Sample
from trainyard.run.folder_lock import is_locked
from trainyard.run.record import goodput
from trainyard.store.run_damage import read_any
from trainyard.store.run_folder import decode_sample, rank_files, read_head, sample_files

State = Literal["starting", "running", "finishing", "stopped", "complete", "failed", "damaged"]
"""`starting`: no step has ended yet; `finishing`: all planned steps have ended, and the run is being recorded;
`stopped`: the process of the run ended without finishing it. The last three are those of a stored run."""
OVER: tuple[State, ...] = ("stopped", "complete", "failed", "damaged")
"""States of a run to which nothing is added any more."""
Book = Callable[[Run, Sequence[Path]], Ledger]
"""(run, profiler files of its ranks) -> the mean ledger of their steps. May raise a `TrainyardError`."""

_QUIET_S = 3
"""Seconds without a change after which a run whose folder is not locked counts as stopped."""
_QUIET_ELSEWHERE_S = 600
"""The same for a run of another host, whose lock may not be visible here."""
_MAX_STEPS = 1_000
"""Steps of a run that are kept, and that one update lists."""
_MAX_SAMPLES = 100_000
"""Samples of rank 0 that are kept for the costs of incidents."""
_MAX_FIRST_BYTES = 8 * 2**20
"""Bytes at the end of a sample file that the first look reads."""
_MAX_WARNINGS = 20


class LiveStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step, from the samples of all ranks that have ended it. `step`: counted from 0; `wall_ns`: of the slowest of
    these ranks, `slowest_rank`; `tokens_per_s`: of all ranks, in the unit of the run, 0 if unknown. `attempt`,
    `profiled`, `warmup`, `skipped`, `loss`: as in `Sample`."""

    step: int
    wall_ns: int
    slowest_rank: int
    loss: float | None = None
    tokens_per_s: float = 0.0
    attempt: int = 0
    profiled: bool = False
    warmup: bool = False
    skipped: bool = False


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """An update on a run that is being followed. `steps`: number of planned steps, 0 if unknown, as of a script;
    `new_steps`: those since the last update, at most the latest 1,000; `last`: the newest step; `unit`: of its
    `tokens_per_s`, a plural; `ranks`: number of ranks that have ended a step; `memory_bytes`: peak of any rank so far;
    `goodput`: seconds by cause; `ledger`: the mean ledger of the profiled window, once it is booked; `failure`: of a
    run that failed or is damaged; `warnings`: lines and traces that cannot be read."""

    schema: Literal["trainyard/live-run/1"] = "trainyard/live-run/1"
    id: str
    job: str
    started: str
    state: State
    steps: int
    new_steps: tuple[LiveStep, ...] = ()
    last: LiveStep | None = None
    unit: str = "tokens"
    ranks: int = 0
    memory_bytes: int = 0
    attempt: int = 0
    incidents: tuple[Incident, ...] = ()
    goodput: dict[str, float] = {}
    ledger: Ledger | None = None
    failure: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing is added to the run any more."""
        return self.state in OVER


def follow_run(folder: Path, *, interval_s: float = 1.0, book: Book | None = None) -> Iterator[LiveRun]:
    """Yield an update on the run in `folder` at once, then one whenever something has changed, until it is over.

    `interval_s`: seconds between two looks; `book`: as in `RunFollower`. Raises `BadFile` for a run.json that cannot be
    read, `UnknownName` if the run is deleted meanwhile.
    """
    follower = RunFollower(folder, book)
    update = follower.look()
    yield update
    while not update.is_over:
        time.sleep(interval_s)
        previous, update = update, follower.look()
        if update.new_steps or update != msgspec.structs.replace(previous, new_steps=()):
            yield update


class RunFollower:
    """Reads what is added to the folder of a run. `steps`: the latest steps, in order, at most 1,000."""

    def __init__(self, folder: Path, book: Book | None = None) -> None:
        """`folder`: the run's; `book`: books the profiled window of a run that continues after it, as that of a script
        does; None to show the ledger only at the end of the run, which a job of trainyard reaches right after the
        window."""
        self.folder = folder
        self.steps: deque[LiveStep] = deque(maxlen=_MAX_STEPS)
        self._book = book
        self._head: tuple[object, Run] | None = None
        """(stamp of run.json, its contents)."""
        self._samples = _SampleFiles(folder)
        self._events: tuple[object, list[JobEvent]] = (None, [])
        """(stamp of the event log, its events)."""
        self._incidents: tuple[Incident, ...] = ()
        self._goodput: dict[str, float] = {}
        self._ledger: Ledger | None = None
        self._booked: object = None
        """Stamp of the traces that `_ledger` was booked from."""
        self._traces: object = None
        """Stamp of the traces at the last look."""
        self._warnings: dict[str, None] = {}
        """Warnings in order, each once."""

    def look(self) -> LiveRun:
        """Read what was added since the last look. Raises `BadFile` for a run.json that cannot be read, `UnknownName`
        if the run was deleted since the last look."""
        run = self._read_head()
        is_unfinished = run.state == "incomplete"
        # The lock is looked at before the files, so that the last lines of a run that ends meanwhile are not missed.
        is_running = is_unfinished and self._is_running(run)
        added = self._samples.read()
        new_steps = _steps_of(run.job, added, self._samples)[-_MAX_STEPS:]
        self.steps.extend(new_steps)
        last = self.steps[-1] if self.steps else None
        previous_events, events = self._events[1], self._read_events()
        for warning in self._samples.warnings:
            self._warn(warning)
        if is_unfinished:
            state = _unfinished_state(run.job, last, is_running)
            if added or events is not previous_events:
                self._incidents = goodput.incidents(events, self._samples.lead)
                self._goodput = goodput.goodput(events, self._samples.lead)
            incidents, seconds = self._incidents, self._goodput
            self._book_window(run, last)
        else:
            run = self._read_whole(run)
            state, incidents, seconds = run.state, run.incidents, run.goodput
            self._ledger = run.ledgers[-1] if run.ledgers else None
        return LiveRun(
            id=run.id,
            job=run.job.name,
            started=run.started,
            state="stopped" if state == "incomplete" else state,
            steps=0 if run.job.workload == SCRIPT else run.job.measure.in_all,
            new_steps=tuple(new_steps),
            last=last,
            unit=plugins.unit_of(run.job),
            ranks=self._samples.ranks,
            memory_bytes=self._samples.memory_bytes,
            attempt=max(0, event_log.last_attempt(events)),
            incidents=incidents,
            goodput=seconds,
            ledger=self._ledger,
            failure=run.failure,
            warnings=tuple(self._warnings),
        )

    def _read_head(self) -> Run:
        """The contents of run.json, decoded again only if the file has changed."""
        stamp = _stamp(self.folder / "run.json")
        try:
            if self._head is None or self._head[0] != stamp:
                self._head = (stamp, read_head(self.folder))
        except MissingFile as error:
            if self._head is None:
                raise
            raise UnknownName(
                f"run {self._head[1].id} was deleted while it was followed.",
                "A script in which no step is seen, and a job that cannot start, leave no run.",
            ) from error
        return self._head[1]

    def _read_whole(self, run: Run) -> Run:
        """A run that is over with its ledgers, `damaged` if its record is; `run` itself if another process changes it
        meanwhile."""
        try:
            return read_any(self.folder)
        except BadFile as error:
            self._warn(error.message)
            return run

    def _read_events(self) -> list[JobEvent]:
        """All events of the job, read again only if the log has changed."""
        files = sorted((self.folder / event_log.PART).glob("*.jsonl"))
        stamp = [(path.name, _stamp(path)) for path in files]
        if stamp != self._events[0]:
            self._events = (stamp, event_log.read(self.folder))
        return self._events[1]

    def _is_running(self, run: Run) -> bool:
        """Whether a process still adds to the run: it holds the lock of the folder, or has changed a file lately."""
        if is_locked(self.folder):
            return True
        files = [self.folder / "run.json", *sample_files(self.folder), *(self.folder / event_log.PART).glob("*.jsonl")]
        changed = max((stamp[0] for path in files if (stamp := _stamp(path))), default=0) / 1e9
        is_here = run.provenance.host.get("name", "") in ("", socket.gethostname())
        return time.time() - changed < (_QUIET_S if is_here else _QUIET_ELSEWHERE_S)

    def _book_window(self, run: Run, last: LiveStep | None) -> None:
        """Book the profiled window if training has continued after it, and every rank has written its trace."""
        window_end = self._samples.last_profiled_step
        if self._book is None or last is None or not 0 <= window_end < last.step:
            return
        traces = rank_files(self.folder / "traces", ".json", ".json.gz")
        stamp = [(path.name, _stamp(path)) for path in traces]
        is_stable, self._traces = stamp == self._traces, stamp
        if not is_stable or stamp == self._booked or len(traces) < self._samples.ranks:
            return
        self._booked = stamp
        try:
            self._ledger = self._book(run, traces)
        except TrainyardError as error:
            self._warn(f"the profiled window cannot be booked: {error.message}")

    def _warn(self, warning: str) -> None:
        if len(self._warnings) < _MAX_WARNINGS:
            self._warnings[warning] = None


class _SampleFiles:
    """The sample files of a run. `lead`: the latest samples of rank 0; `ranks`: number of files with a sample;
    `first_rank`: the lowest of these ranks; `memory_bytes`: the peak in any sample; `last_profiled_step`: -1 if none
    was profiled; `warnings`: lines that are not samples."""

    def __init__(self, folder: Path) -> None:
        self.lead: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self.memory_bytes = 0
        self.last_profiled_step = -1
        self.warnings: list[str] = []
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        """File -> number of bytes that were read."""
        self._ranks: set[int] = set()

    @property
    def ranks(self) -> int:
        return len(self._ranks)

    @property
    def first_rank(self) -> int:
        return min(self._ranks, default=0)

    def read(self) -> list[Sample]:
        """The samples that were added since the last call, in rank order. A line that is still incomplete is left for
        the next call."""
        added = [sample for path in sample_files(self._folder) for sample in self._read_file(path)]
        for sample in added:
            self._ranks.add(sample.rank)
            self.memory_bytes = max(self.memory_bytes, sample.memory_bytes)
            if sample.rank == 0:
                self.lead.append(sample)
            if sample.profiled and not sample.warmup:
                self.last_profiled_step = max(self.last_profiled_step, sample.step)
        return added

    def _read_file(self, path: Path) -> list[Sample]:
        """The samples that were added to a file; of a long file, the first call reads the last `_MAX_FIRST_BYTES`."""
        stamp = _stamp(path)
        if stamp is None:
            return []
        size, offset = stamp[1], self._offsets.get(path)
        skips = offset is None and size > _MAX_FIRST_BYTES
        offset = size - _MAX_FIRST_BYTES if skips else min(offset or 0, size)
        try:
            data = read_appended(path, offset)
        except OSError as error:
            self.warnings.append(f"samples/{path.name}: cannot be read: {error.strerror}")
            return []
        self._offsets[path] = offset + len(data)
        lines = data.splitlines()[1 if skips else 0 :]  # the first one is cut off if bytes before it are skipped
        samples: list[Sample] = []
        for line in filter(None, lines):
            try:
                samples.append(decode_sample(line))
            except UNREADABLE as error:
                self.warnings.append(f"samples/{path.name}: a line is not a sample: {error}")
        return samples


def _steps_of(job: Job, added: Sequence[Sample], files: _SampleFiles) -> list[LiveStep]:
    """The steps that the first rank has ended, with the slowest rank of each. `added`: samples of all ranks."""
    by_step: dict[tuple[int, int], list[Sample]] = {}
    for sample in added:
        by_step.setdefault((sample.attempt, sample.step), []).append(sample)
    steps: list[LiveStep] = []
    for sample in added:
        if sample.rank != files.first_rank:
            continue
        samples = by_step[sample.attempt, sample.step]
        slowest = max(samples, key=lambda other: other.wall_ns)
        tokens = job.recipe.tokens_per_step or sum(other.tokens for other in samples)
        steps.append(
            LiveStep(
                step=sample.step,
                wall_ns=slowest.wall_ns,
                slowest_rank=slowest.rank,
                loss=sample.loss,
                tokens_per_s=tokens * 1e9 / max(1, slowest.wall_ns),
                attempt=sample.attempt,
                profiled=sample.profiled,
                warmup=sample.warmup,
                skipped=sample.skipped,
            )
        )
    return steps


def _unfinished_state(job: Job, last: LiveStep | None, is_running: bool) -> State:
    """The state of a run that is not finished. `last`: its newest step."""
    if not is_running:
        return "stopped"
    if last is None:
        return "starting"
    is_last_planned = job.workload != SCRIPT and last.step + 1 >= job.measure.in_all
    return "finishing" if is_last_planned else "running"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """(modification time in ns, size in bytes, inode) of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
