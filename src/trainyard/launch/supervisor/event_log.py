"""The event log of a job: JSON lines in `life/` of the run's folder, written by the supervisor and the ranks.

supervisor.jsonl  launches, faults with the times at which they were noticed, and the end
rank<N>.jsonl     checkpoints that a rank loaded and saved, and faults that it found in them
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from trainyard import renamed_keys, words
from trainyard.formats.appended_lines import read_appended
from trainyard.launch import epoch
from trainyard.redact import redact_json

PART = "life"
SUPERVISOR = "supervisor"


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. `at`: ns since the epoch, at the end of an event that took `ns`; for a fault, when it occurred.
    `noticed`: when a fault was noticed, in ns since the epoch. `verdict`: on a hang, a key of words.HANGS. `action`:
    what the run did at a faulty step, a key of words.STEP_ACTIONS.

    By `type`: "started": the supervisor started. "launched": an attempt is about to start on `nodes` nodes; `message`
    names the nodes that joined or left. "fault": of a `kind` in words.FAULTS, with the rank or node to blame. "loaded":
    training resumes with `step`, from a checkpoint that took `ns` to read; step 0 if no checkpoint was good. "saved": a
    checkpoint was saved, which stalled training for `ns`. "ended": no process is left.
    """

    type: Literal["started", "launched", "fault", "loaded", "saved", "ended"]
    at: int
    attempt: int = 0
    kind: str = ""
    rank: int = -1
    node: int = -1
    nodes: int = 0
    step: int = -1
    noticed: int = 0
    ns: int = 0
    message: str = ""
    verdict: str = ""
    action: str = ""

    def __post_init__(self) -> None:
        if self.type == "fault":
            words.check(self.kind, words.FAULTS, "fault")
        if self.action:
            words.check(self.action, words.STEP_ACTIONS, "reaction to a faulty step")


class EventLogWriter:
    """Appends events to the file of one `writer`, each in a single write: a kill does not leave a partial line.

    `folder`: the run's folder; `writer`: `supervisor` or `rank<N>`; `attempt`: number of earlier attempts of the run.
    """

    def __init__(self, folder: Path, writer: str, attempt: int = 0) -> None:
        path = folder / PART / f"{writer}.jsonl"
        path.parent.mkdir(exist_ok=True)
        self.attempt = attempt
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def add(self, event: JobEvent) -> None:
        os.write(self._file, redact_json(msgspec.json.encode(event)) + b"\n")

    def loaded(self, ns: int, step: int) -> None:
        """Log that training resumes with `step` after `ns` of reading a checkpoint."""
        self.add(JobEvent(type="loaded", at=epoch.now_ns(), attempt=self.attempt, ns=ns, step=step))

    def saved(self, ns: int, step: int) -> None:
        """Log that saving a checkpoint stalled training for `ns` after `step`."""
        self.add(JobEvent(type="saved", at=epoch.now_ns(), attempt=self.attempt, ns=ns, step=step))

    def fault(self, kind: str, message: str, rank: int = -1, step: int = -1, action: str = "") -> None:
        """Log a fault that the rank noticed itself: a `kind` such as `disk_full` or `bad_checkpoint`.

        `rank`, `step`: concerned, -1 for none; `action`: as in `JobEvent`.
        """
        now = epoch.now_ns()
        self.add(
            JobEvent(
                type="fault",
                at=now,
                noticed=now,
                attempt=self.attempt,
                kind=kind,
                message=message,
                rank=rank,
                step=step,
                action=action,
            )
        )


def read(folder: Path) -> list[JobEvent]:
    """Read all events of a run in chronological order; empty if there are none."""
    events = [event for path in sorted((folder / PART).glob("*.jsonl")) for event in _read_events(path)]
    return sorted(events, key=lambda event: event.noticed or event.at)


def last_attempt(events: Iterable[JobEvent]) -> int:
    """The last attempt that was launched, counted from 0; -1 if there was none."""
    return max((event.attempt for event in events if event.type == "launched"), default=-1)


class EventLogReader:
    """Reads the events that are added to a run's log from now on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / PART
        self._read_bytes = {path: path.stat().st_size for path in self._folder.glob("*.jsonl")}
        """File -> number of bytes that were read."""

    def new(self) -> list[JobEvent]:
        """Return the events since the last call, without a last line that is still incomplete."""
        events: list[JobEvent] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            read_bytes = self._read_bytes.get(path, 0)
            lines = read_appended(path, read_bytes)
            self._read_bytes[path] = read_bytes + len(lines)
            events += _decode_events(lines)
        return sorted(events, key=lambda event: event.noticed or event.at)


def _read_events(path: Path) -> Iterable[JobEvent]:
    return _decode_events(path.read_bytes())


def _decode_events(data: bytes) -> Iterable[JobEvent]:
    """Decode the events of a log, one JSON document per line; lines that cannot be decoded are skipped."""
    for line in data.splitlines():
        try:
            yield msgspec.convert(renamed_keys.upgraded_event(msgspec.json.decode(line)), JobEvent)
        except (msgspec.MsgspecError, ValueError, RecursionError):  # a full disk leaves partial lines
            continue
