"""Errors: each class has a stable `code`, the exit code of the command that it ends, and a next step for the user.

    TrainyardError                      70  internal-error       a bug in trainyard
    ├── BadInput (ValueError)            2  bad-input            an input cannot be used
    │   ├── BadFile                      2  bad-file             a file is of the wrong kind or has wrong contents
    │   │   ├── MissingFile              2  missing-file         a file does not exist
    │   │   ├── DamagedFile              2  damaged-file         a file is empty, cut short or not what was written
    │   │   └── FileTooLarge             2  file-too-large       a file is larger than what is read
    │   ├── BadJob                       2  bad-job              a job file is misspelt or impossible
    │   ├── BadLedger                    2  bad-ledger           a ledger does not balance
    │   ├── UnknownName                  2  unknown-name         there is no run, machine, workload or word of that name
    │   │   └── UnknownRevision          2  unknown-revision     git has no revision of that name
    │   └── WrongRunState                2  wrong-run-state      a run is complete, incomplete or damaged
    ├── NotEnoughEvidence                3  not-enough-evidence  a verdict needs more runs
    └── EnvironmentFailed                4  environment-failed   the machine failed, not the input
        ├── CommandFailed                4  command-failed       a command or a run that was started ended with an error
        ├── DeviceUnusable               4  device-unusable      torch cannot use the machine's devices, or has too few
        ├── DiskFull                     4  disk-full            the disk is full
        ├── HostFailed                   4  host-failed          a host of a job cannot be reached, or cannot run it
        ├── MissingLibrary               4  missing-library      an optional library is not installed
        ├── MissingProgram               4  missing-program      git or a compiler is not installed
        ├── PlaceUnwritable              4  not-writable         a file, a folder or stdout cannot be written
        ├── PortInUse                    4  port-in-use          another program holds the port
        ├── RankDied                     4  rank-died            a rank of a running job ended early, or hung
        │   └── TrainingStopped          4  training-stopped     a faulty step, at which the recipe stops the run
        ├── Preempted                    4  preempted            a running job saved its state and left on request
        ├── RemoteFailed                 4  remote-failed        the remote store cannot be reached, or failed
        ├── RunInUse                     4  run-in-use           another process is running the run
        ├── SchedulerFailed              4  scheduler-failed     a scheduler refused a job, or does not answer
        └── WorkerDied                   4  worker-died          a worker process of an analysis died

Codes are an interface: `--json` prints them, scripts compare them, and rewording a message does not change them.

`BadInput` is a `ValueError` so that msgspec, which wraps those, keeps the path in the document
(`$.layout.tp`) when a constructor refuses a decoded value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class TrainyardError(Exception):
    """Base class of the errors that trainyard raises on purpose. `next_step`: one sentence with the remedy."""

    code: ClassVar[str] = "internal-error"
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".rstrip()


class BadInput(TrainyardError, ValueError):
    code = "bad-input"
    exit_code = 2


class BadFile(BadInput):
    code = "bad-file"


class MissingFile(BadFile):
    code = "missing-file"


class DamagedFile(BadFile):
    code = "damaged-file"


class FileTooLarge(BadFile):
    code = "file-too-large"


class BadJob(BadInput):
    code = "bad-job"


class BadLedger(BadInput):
    code = "bad-ledger"


class UnknownName(BadInput):
    code = "unknown-name"


class UnknownRevision(UnknownName):
    code = "unknown-revision"


class WrongRunState(BadInput):
    code = "wrong-run-state"


class NotEnoughEvidence(TrainyardError):
    code = "not-enough-evidence"
    exit_code = 3


class EnvironmentFailed(TrainyardError):
    code = "environment-failed"
    exit_code = 4


class CommandFailed(EnvironmentFailed):
    code = "command-failed"


class DeviceUnusable(EnvironmentFailed):
    code = "device-unusable"


class DiskFull(EnvironmentFailed):
    code = "disk-full"


class MissingLibrary(EnvironmentFailed):
    code = "missing-library"


class MissingProgram(EnvironmentFailed):
    code = "missing-program"


class PlaceUnwritable(EnvironmentFailed):
    code = "not-writable"


class PortInUse(EnvironmentFailed):
    code = "port-in-use"


class RankDied(EnvironmentFailed):
    code = "rank-died"


class TrainingStopped(RankDied):
    code = "training-stopped"


class Preempted(EnvironmentFailed):
    code = "preempted"


class RemoteFailed(EnvironmentFailed):
    code = "remote-failed"


class RunInUse(EnvironmentFailed):
    code = "run-in-use"


class HostFailed(EnvironmentFailed):
    code = "host-failed"


class SchedulerFailed(EnvironmentFailed):
    """`output`: the end of the error output of the scheduler's tool, without secrets."""

    code = "scheduler-failed"

    def __init__(self, message: str, next_step: str = "", output: str = "") -> None:
        super().__init__(message, next_step)
        self.output = output


class WorkerDied(EnvironmentFailed):
    code = "worker-died"


def described(error: Exception) -> tuple[str, str]:
    """The error's message without its final full stop, and its next step. If msgspec wraps a `BadInput` that a
    constructor raised, both come from that error; the path in the document is appended to the message."""
    cause = error.__cause__
    if isinstance(cause, BadInput):
        return cause.message.rstrip(".") + str(error).removeprefix(str(cause)), cause.next_step
    return str(error).rstrip("."), ""


def nearest(name: str, known_names: Iterable[str]) -> str:
    """The suggestion for an unknown name: `Did you mean 'heads'?`, or the list of known names if none is similar."""
    known_names = sorted(known_names)
    return near(name, known_names) or (f"Known: {', '.join(known_names)}." if known_names else "None is known.")


def near(name: str, known_names: Iterable[str], cutoff: float = 0.6) -> str:
    """The suggestion for an unknown name: `Did you mean 'heads'?`, or an empty string if no known name is similar.
    `cutoff`: the least similarity, `difflib`'s ratio."""
    similar = most_similar(name, known_names, cutoff)
    return f"Did you mean {similar!r}?" if similar else ""


def most_similar(name: str, known_names: Iterable[str], cutoff: float) -> str:
    """The known name that is most similar to `name`; empty if the similarity of all, `difflib`'s ratio, is below
    `cutoff`."""
    from difflib import get_close_matches  # rarely needed, and slow to import

    close = get_close_matches(name, sorted(known_names), n=1, cutoff=cutoff)
    return close[0] if close else ""
