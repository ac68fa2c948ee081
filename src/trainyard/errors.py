"""The tree of errors. Each carries the exit code of the command it ends, and the next step.

    TrainyardError                      70  an error of ours
    ├── BadInput (ValueError)            2  what we were given cannot be used
    │   ├── BadFile                      2  a file is missing, empty, truncated or of the wrong kind
    │   ├── BadJob                       2  a job file is misspelt or impossible
    │   ├── BadLedger                    2  a ledger does not balance
    │   └── UnknownName                  2  no run, machine, workload or word of that name
    ├── NotEnoughEvidence                3  a judge cannot tell yet
    └── EnvironmentFailed                4  the machine did not do its part
        ├── MissingLibrary               4  an optional library is not installed
        ├── PlaceUnwritable              4  a folder cannot be written
        ├── PortInUse                    4  another program holds the port
        ├── RankDied                     4  a rank of a running job ended early, or hung
        └── Preempted                    4  a running job was asked to save and leave, and did: it can be gone on with

`BadInput` is a `ValueError` so that msgspec, which wraps those, keeps the path in the document
(`$.layout.tp`) when a constructor refuses a decoded value.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TrainyardError(Exception):
    """Any error that trainyard raises on purpose. `next_step` is one sentence: what to do now."""

    exit_code = 70

    def __init__(self, says: str, next_step: str = "") -> None:
        super().__init__(says)
        self.says = says
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.says} {self.next_step}".rstrip()


class BadInput(TrainyardError, ValueError):
    exit_code = 2


class BadFile(BadInput):
    pass


class BadJob(BadInput):
    pass


class BadLedger(BadInput):
    pass


class UnknownName(BadInput):
    pass


class NotEnoughEvidence(TrainyardError):
    exit_code = 3


class EnvironmentFailed(TrainyardError):
    exit_code = 4


class MissingLibrary(EnvironmentFailed):
    pass


class PlaceUnwritable(EnvironmentFailed):
    pass


class PortInUse(EnvironmentFailed):
    pass


class RankDied(EnvironmentFailed):
    pass


class Preempted(EnvironmentFailed):
    pass


def nearest(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'heads'?`, or the known names when none is near."""
    known = sorted(known)
    return near(name, known) or (f"Known: {', '.join(known)}." if known else "None is known.")


def near(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'heads'?`, or nothing when none is near."""
    close = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else ""
