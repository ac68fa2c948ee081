"""Which faults are made, and when: the file behind `trainyard run JOB.toml --chaos PLAN.toml`. No torch.

    [[fault]]
    kind = "kill_worker"
    rank = 1
    step = 12

A fault is made once in the whole life of a run, when `step` steps have ended, or at the first moment after that at
which it can be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from trainyard import words
from trainyard.errors import BadFile, BadInput, MissingFile, nearest
from trainyard.formats import toml
from trainyard.job import Job

FULL = Path("/dev/full")
_ENDS = {"worker_death", "agent_death", "hang", "bad_checkpoint"}
"""Found as these, it takes one of the job's restarts: to flip a byte takes killing a rank too."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`kind` as in words.INJECTIONS, after `step` steps (0: before the first), of the rank or node that it strikes.

    `amount`: of a delay, how long the rank sleeps before a step, in per cent of what a step took it.
    """

    kind: str
    step: int
    rank: int = -1
    node: int = -1
    amount: float = 0.0

    def __post_init__(self) -> None:
        words.check(self.kind, words.INJECTIONS, "fault to be made")
        strikes = words.INJECTIONS[self.kind].strikes
        for who in ("rank", "node"):
            if strikes == who and getattr(self, who) < 0:
                raise BadInput(f"{self.kind} strikes a {who}: {who} must be given.")
            if strikes != who and getattr(self, who) != -1:
                raise BadInput(f"{self.kind} strikes {_a(strikes)}: {who} = {getattr(self, who)} means nothing.")
        if self.step < 0:
            raise BadInput(f"step = {self.step} must not be negative.")
        if self.kind == "delay" and not 0 < self.amount < float("inf"):
            raise BadInput("delay needs an amount of more than 0: the sleep in per cent of a step.")
        if self.kind != "delay" and self.amount:
            raise BadInput(f"amount = {self.amount:g} means nothing to {self.kind}.")

    @property
    def blamed(self) -> str:
        """The word of words.FAULTS that it must be found as."""
        return words.INJECTIONS[self.kind].blamed

    @property
    def who(self) -> str:
        """`rank 1`, `node 0` or `the job`."""
        strikes = words.INJECTIONS[self.kind].strikes
        return "the job" if strikes == "job" else f"{strikes} {getattr(self, strikes)}"


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In a file, each fault is a `[[fault]]`."""

    fault: tuple[Fault, ...]

    def __post_init__(self) -> None:
        if not self.fault:
            raise BadInput("there is no fault in it.", "Add a [[fault]].")

    def check(self, job: Job) -> None:
        """Raises `BadInput` where a fault cannot be made in this job, or the job is not set to get over it."""
        for number, fault in enumerate(self.fault):
            _check(fault, job, f"{fault.kind} at $.fault[{number}]")
        ends = [fault.kind for fault in self.fault if fault.blamed in _ENDS]
        if len(ends) > job.recovery.restarts:
            raise BadInput(
                f"{', '.join(ends)}: each takes a restart, {len(ends)} in all, but the job has restarts = "
                f"{job.recovery.restarts} at $.recovery.",
                f"Use restarts = {len(ends)}, or fewer faults.",
            )

    @property
    def preempts(self) -> int:
        """How often the job is asked to leave."""
        return sum(fault.kind == "preempt" for fault in self.fault)


def _check(fault: Fault, job: Job, where: str) -> None:
    last, every = job.measure.in_all - 1, job.checkpoint.every
    if fault.rank >= job.layout.ranks:
        raise BadInput(f"{where}: rank {fault.rank} of {job.layout.ranks}.", f"The last is {job.layout.ranks - 1}.")
    if fault.node >= job.recovery.nodes:
        raise BadInput(
            f"{where}: node {fault.node} of nodes = {job.recovery.nodes} at $.recovery.",
            f"The last is {job.recovery.nodes - 1}.",
        )
    if fault.step > last:
        raise BadInput(f"{where}: step = {fault.step}, but after step {last + 1} the job is over.")
    if fault.kind == "preempt" and fault.step == last:
        raise BadInput(f"{where}: after step {last} only one is left: the job would be over before it could leave.")
    if fault.kind == "delay" and job.layout.ranks == 1:
        raise BadInput(f"{where}: a straggler is found by comparing ranks, but $.layout has 1 rank.", "Use at least 2.")
    if fault.kind in ("fill_disk", "flip_byte") and not every:
        raise BadInput(f"{where}: the job saves no checkpoint.", "Use [checkpoint] every = N.")
    if fault.kind == "flip_byte" and fault.step < every:
        raise BadInput(f"{where}: after step {fault.step} there is no checkpoint yet (every = {every}).")
    if fault.kind == "fill_disk" and fault.step // every * every + every > last + 1:
        raise BadInput(f"{where}: after step {fault.step} no save is due any more (every = {every}).")
    if fault.kind == "fill_disk" and not (sys.platform.startswith("linux") and FULL.exists()):
        raise BadInput(f"{where}: needs {FULL}, which this machine has not.")


def parse(text: str, where: str) -> FaultPlan:
    """Raises `BadInput` naming `where` and the path in the document."""
    try:
        document = toml.loads(text)
    except toml.DecodeError as error:
        raise BadInput(f"{where}: not TOML: {error}.") from error
    try:
        return msgspec.convert(document, FaultPlan)
    except msgspec.ValidationError as error:
        says, _, path = str(error).partition(" - at ")
        hint = ""
        if says.startswith("Object contains unknown field"):
            unknown = says.split("`")[1]
            says = f"unknown key {unknown!r}"
            hint = nearest(unknown, _fields(path))
        place = path.strip("`") or "$"
        raise BadInput(f"{where} at {place}: {says.rstrip('.')}.", hint) from error


def _fields(path: str) -> Iterable[str]:
    return Fault.__struct_fields__ if ".fault" in path else FaultPlan.__struct_fields__


def _a(strikes: str) -> str:
    return "the whole job" if strikes == "job" else f"a {strikes}"


def load(path: str | Path) -> FaultPlan:
    """A plan's file. Raises `BadFile` where it cannot be read, and as `parse`."""
    try:
        return parse(Path(path).read_text("utf-8"), str(path))
    except FileNotFoundError as error:
        raise MissingFile(f"{path}: there is no such file.", "Name a file of [[fault]] tables.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read as text: {error}.") from error
