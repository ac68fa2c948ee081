"""A dead rank: who, how, and its last words. The launcher writes it; whoever waits reads it."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from trainyard.formats.atomic import replacing_own
from trainyard.redact import redact, redact_json

_TAIL = 64 * 1024
_LINES = 8


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """`exit_code` is negative for a signal, as in `subprocess`. `rank` is -1 when it is no single rank's.

    `when`: seconds since the epoch. `last_words`: the exception that ended it, else the end of its stderr.
    """

    rank: int
    pid: int
    exit_code: int
    when: float
    last_words: str = ""
    kind: str = "worker_death"
    """As in words.FAULTS; `last_words` then says how the launcher knows it."""
    shortage: str = ""
    """What a killed rank ran out of, as the kernel counts it."""
    others: tuple[Failure, ...] = ()
    """Failures at the same time, each with a cause of its own."""

    @property
    def how(self) -> str:
        """`killed by SIGKILL`, or `exit code 3`."""
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        try:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"killed by signal {-self.exit_code}"

    @property
    def says(self) -> str:
        """One sentence or more for each failure."""
        return " ".join([self.alone, *(other.says for other in self.others)])

    @property
    def alone(self) -> str:
        """The same without the failures at the same time."""
        if self.kind == "hang":
            return (
                f"rank {self.rank} hung: {self.last_words}." if self.rank >= 0 else f"the job hung: {self.last_words}."
            )
        if self.kind == "preempted":
            return f"the job was pre-empted: {self.last_words}."
        if self.kind != "worker_death":
            return f"{self.last_words}."
        subject = f"rank {self.rank}" if self.rank >= 0 else "the launcher"
        lines = self.last_words.splitlines()
        words = "It left no last words." if not lines else "Its last words: " + "\n    ".join(lines)
        how = f"{self.shortage}: {self.how}" if self.shortage else self.how
        return f"{subject} died: {how} (pid {self.pid}). {words}"

    @property
    def next_step(self) -> str:
        if self.kind == "preempted":
            return ""
        if self.shortage:
            return "Lower microbatch or seq_len, or raise the limit."
        if self.exit_code == -signal.SIGKILL:
            return "Without a kill of yours this is the kernel running out of memory: lower microbatch or seq_len."
        return "The whole of what each rank wrote stands in the run folder's logs."


def write(folder: Path, failure: Failure) -> None:
    with replacing_own(folder / "failure.json") as part:
        part.write_bytes(redact_json(msgspec.json.encode(failure)))


def forget(folder: Path) -> None:
    """What went wrong before says nothing of a run that is gone on with."""
    (folder / "failure.json").unlink(missing_ok=True)


def read(folder: Path) -> Failure | None:
    """What the launcher wrote, or None while nothing has failed."""
    try:
        return msgspec.json.decode((folder / "failure.json").read_bytes(), type=Failure)
    except FileNotFoundError:
        return None


def tail(path: Path) -> str:
    """The last lines of a log, without the blank ones; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = redact(file.read().decode("utf-8", "replace")).splitlines()
    except OSError:
        return ""
    return "\n".join([line.rstrip() for line in lines if line.strip()][-_LINES:])
