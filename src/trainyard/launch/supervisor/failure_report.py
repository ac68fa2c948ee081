"""The failure of a job: the rank, how it ended, its last output. The supervisor writes it, the launcher reads it."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from trainyard.formats.atomic import replacing_own
from trainyard.redact import redact, redact_json

_TAIL = 64 * 1024
"""Bytes at the end of a log in which its last lines are searched."""
_LINES = 8
STOPPED_BY_RECIPE = "stopped_by_recipe"
"""Kind of a `Failure`: the ranks stopped the training as the recipe demands. `last_words` is their message."""
NO_OUTPUT = "It wrote no error message."


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure. `rank`: -1 if no single rank failed. `exit_code`: negative for a signal, as in `subprocess`.

    `when`: seconds since the epoch. `last_words`: the exception that ended the rank, else the end of its stderr.
    """

    rank: int
    pid: int
    exit_code: int
    when: float
    last_words: str = ""
    kind: str = "worker_death"
    """As in words.FAULTS, or `STOPPED_BY_RECIPE`; for the other kinds, `last_words` is the supervisor's evidence."""
    shortage: str = ""
    """The resource that a killed rank ran out of, by the kernel's counters."""
    verdict: str = ""
    """The verdict on a hang, a key of words.HANGS; empty if undecided."""
    others: tuple[Failure, ...] = ()
    """Simultaneous failures, each with its own cause."""

    @property
    def is_without_process(self) -> bool:
        """Whether the supervisor ended the job although no process had failed, as if a node does not arrive."""
        return self.rank < 0 and self.pid == 0

    @property
    def how(self) -> str:
        """How the process ended: `killed by SIGKILL` or `exit code 3`."""
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        try:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"killed by signal {-self.exit_code}"

    @property
    def summary(self) -> str:
        """A description of this failure and of the simultaneous ones, in full sentences."""
        return " ".join([self.alone, *(other.summary for other in self.others)])

    @property
    def alone(self) -> str:
        """A description of this failure, without the simultaneous ones, in full sentences."""
        if self.kind == "hang":
            return (
                f"rank {self.rank} hung: {self.last_words}." if self.rank >= 0 else f"the job hung: {self.last_words}."
            )
        if self.kind == "preempted":
            return f"the job was pre-empted: {self.last_words}."
        if self.kind != "worker_death" or self.is_without_process:
            return f"{self.last_words}."
        subject = f"rank {self.rank}" if self.rank >= 0 else "the launcher"
        lines = self.last_words.splitlines()
        output = NO_OUTPUT if not lines else "Its last output: " + "\n    ".join(lines)
        end = f"{self.shortage}: {self.how}" if self.shortage else self.how
        return f"{subject} died: {end} (pid {self.pid}). {output}"

    @property
    def next_step(self) -> str:
        """Advice to the user in one sentence, such as a setting to change or files to read; empty for a pre-empted
        job."""
        if self.kind == "preempted":
            return ""
        if self.kind == STOPPED_BY_RECIPE:
            return "`skip` or `rollback` for on_non_finite or on_loss_spike at $.recipe trains on without the batch."
        if self.shortage:
            return "Reduce micro_batch_size or seq_len, or raise the memory limit."
        if self.exit_code == -signal.SIGKILL:
            return "Unless you killed it, the kernel probably ran out of memory: reduce micro_batch_size or seq_len."
        if self.is_without_process:
            return "Look at the output of the nodes."
        return "The full output of each rank is in the run folder's logs/."


def write(folder: Path, failure: Failure) -> None:
    with replacing_own(folder / "failure.json") as part:
        part.write_bytes(redact_json(msgspec.json.encode(failure)))


def forget(folder: Path) -> None:
    """Remove the stored failure, so that a resumed run does not report an earlier one."""
    (folder / "failure.json").unlink(missing_ok=True)


def read(folder: Path) -> Failure | None:
    """Return the stored failure; None if nothing has failed."""
    try:
        return msgspec.json.decode((folder / "failure.json").read_bytes(), type=Failure)
    except FileNotFoundError:
        return None


def tail(path: Path) -> str:
    """Return the last `_LINES` lines of a log without blank lines and secrets; empty if the log cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = redact(file.read().decode("utf-8", "replace")).splitlines()
    except OSError:
        return ""
    return "\n".join([line.rstrip() for line in lines if line.strip()][-_LINES:])
