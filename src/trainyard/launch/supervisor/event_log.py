"""What happens in a job's life, as lines in `life/` of the run's folder: by the supervisor and by its ranks.

supervisor.jsonl  when processes were started, what went wrong and when it was noticed, how it ended
rank<N>.jsonl     what a rank loaded and saved, and what it found wrong with a checkpoint
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from trainyard import words
from trainyard.launch import epoch
from trainyard.redact import redact_json

PART = "life"
SUPERVISOR = "supervisor"


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`at`, `noticed`: ns since the epoch; `at` is the end of what took `ns`, and of a fault its own moment.

    `started`: the job's life began. `launched`: processes of an attempt are about to be started on `nodes` nodes;
    `says`: which have come or gone.
    `fault`: of a `kind` in words.FAULTS, with who is blamed. `loaded`: training goes on with `step`, from a checkpoint
    that took `ns` to read; with 0 where none of those that are there was good. `saved`: one went out, and training
    stood still for `ns`. `ended`: no process is left.
    """

    what: Literal["started", "launched", "fault", "loaded", "saved", "ended"]
    at: int
    attempt: int = 0
    kind: str = ""
    rank: int = -1
    node: int = -1
    nodes: int = 0
    step: int = -1
    noticed: int = 0
    ns: int = 0
    says: str = ""

    def __post_init__(self) -> None:
        if self.what == "fault":
            words.check(self.kind, words.FAULTS, "fault")


class EventLogWriter:
    """Appends events to a file of its own, each whole in one write: a kill leaves no half of one behind it."""

    def __init__(self, folder: Path, writer: str, attempt: int = 0) -> None:
        path = folder / PART / f"{writer}.jsonl"
        path.parent.mkdir(exist_ok=True)
        self.attempt = attempt
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def add(self, event: JobEvent) -> None:
        os.write(self._file, redact_json(msgspec.json.encode(event)) + b"\n")

    def loaded(self, ns: int, step: int) -> None:
        """Training goes on with `step` after `ns` of reading."""
        self.add(JobEvent(what="loaded", at=epoch.now_ns(), attempt=self.attempt, ns=ns, step=step))

    def saved(self, ns: int, step: int) -> None:
        """After `step` training stood still for `ns` while a checkpoint went out."""
        self.add(JobEvent(what="saved", at=epoch.now_ns(), attempt=self.attempt, ns=ns, step=step))

    def fault(self, kind: str, says: str, rank: int = -1, step: int = -1) -> None:
        """A fault that the rank noticed itself and outlives: `disk_full`, `bad_checkpoint`."""
        now = epoch.now_ns()
        self.add(
            JobEvent(
                what="fault", at=now, noticed=now, attempt=self.attempt, kind=kind, says=says, rank=rank, step=step
            )
        )


def read(folder: Path) -> list[JobEvent]:
    """All events of a run in the order of their time; empty where nothing was written."""
    events = [event for path in sorted((folder / PART).glob("*.jsonl")) for event in _lines(path)]
    return sorted(events, key=lambda event: event.noticed or event.at)


class EventLogReader:
    """The events that are added to a run's life from now on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / PART
        self._read = {path: path.stat().st_size for path in self._folder.glob("*.jsonl")}

    def new(self) -> list[JobEvent]:
        """Since this was asked last; half a line waits for its rest."""
        events: list[JobEvent] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            at = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = at + len(whole)
            events += _events(whole)
        return sorted(events, key=lambda event: event.noticed or event.at)


def _lines(path: Path) -> Iterable[JobEvent]:
    return _events(path.read_bytes())


def _events(data: bytes) -> Iterable[JobEvent]:
    for line in data.splitlines():
        try:
            yield msgspec.json.decode(line, type=JobEvent)
        except (msgspec.MsgspecError, ValueError, RecursionError):  # a full disk tears a line
            continue
