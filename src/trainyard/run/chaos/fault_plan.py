"""Fault plans: the file of `trainyard run chaos PLAN.toml JOB.toml`. No torch.

    [[fault]]
    kind = "kill_worker"
    rank = 1
    step = 12

A fault is injected once per run, over all its attempts: after `step` steps, or as soon after that as possible.
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
_RESTART_KINDS = {"worker_death", "agent_death", "hang", "bad_checkpoint"}
"""Kinds of incidents that use up one of the job's restarts. Flipping a byte includes killing a rank."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault: `kind` (words.ALL_INJECTIONS), injected after `step` steps (0: before the first) into a rank or node.

    `amount`: for a delay, how long the rank sleeps before each step, in percent of its recent step time.
    """

    kind: str
    step: int
    rank: int = -1
    node: int = -1
    amount: float = 0.0

    def __post_init__(self) -> None:
        """Raise `BadInput` for an unknown kind, and for a target, step or amount that the kind does not take."""
        words.check(self.kind, words.ALL_INJECTIONS, "fault to inject")
        strikes = words.ALL_INJECTIONS[self.kind].strikes
        for target in ("rank", "node"):
            if strikes == target and getattr(self, target) < 0:
                raise BadInput(f"{self.kind} needs a {target}: it strikes one {target}.")
            if strikes != target and getattr(self, target) != -1:
                raise BadInput(
                    f"{self.kind} takes no {target} = {getattr(self, target)}: it strikes {_with_article(strikes)}."
                )
        if self.step < 0:
            raise BadInput(f"step = {self.step} must not be negative.")
        if self.kind == "delay" and not 0 < self.amount < float("inf"):
            raise BadInput("delay needs an amount of more than 0: the sleep in percent of a step.")
        if self.kind != "delay" and self.amount:
            raise BadInput(f"{self.kind} takes no amount = {self.amount:g}: only delay does.")

    @property
    def blamed(self) -> str:
        """The kind of incident (words.FAULTS) that should be reported for it. The supervisor runs on node 0."""
        if self.kind == "kill_node" and self.node == 0:
            return "supervisor_death"
        return words.ALL_INJECTIONS[self.kind].blamed

    @property
    def who(self) -> str:
        """The target: `rank 1`, `node 0` or `the job`."""
        strikes = words.ALL_INJECTIONS[self.kind].strikes
        return "the job" if strikes == "job" else f"{strikes} {getattr(self, strikes)}"


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The faults of an experiment; in a file, each one is a `[[fault]]` table."""

    fault: tuple[Fault, ...]

    def __post_init__(self) -> None:
        if not self.fault:
            raise BadInput("the plan has no faults.", "Add a [[fault]] table.")

    def check(self, job: Job) -> None:
        """Raise `BadInput` if a fault cannot be injected into this job, or the job has too few restarts for it."""
        for number, fault in enumerate(self.fault):
            _check(fault, job, f"{fault.kind} at $.fault[{number}]")
        restart_kinds = [fault.kind for fault in self.fault if fault.blamed in _RESTART_KINDS]
        if len(restart_kinds) > job.recovery.max_restarts:
            raise BadInput(
                f"{', '.join(restart_kinds)}: each takes a restart, {len(restart_kinds)} in total, but the job has "
                f"max_restarts = {job.recovery.max_restarts} at $.recovery.",
                f"Set max_restarts = {len(restart_kinds)}, or plan fewer faults.",
            )

    @property
    def preempts(self) -> int:
        """Number of pre-emptions."""
        return sum(fault.kind == "preempt" for fault in self.fault)


def _check(fault: Fault, job: Job, where: str) -> None:
    """Raise `BadInput` if the fault cannot be injected into `job`, for example because its rank, node or step does not
    exist, or the job does not save the checkpoint that the fault damages. `where`: the fault's kind and its path in the
    plan, for messages."""
    if fault.kind in words.NODE_INJECTIONS:
        raise BadInput(
            f"{where}: needs nodes with processes of their own.", "Use `trainyard run chaos-nodes`, which draws a plan."
        )
    last_step, checkpoint_interval = job.measure.in_all - 1, job.checkpoint.interval
    if fault.rank >= job.layout.ranks:
        raise BadInput(
            f"{where}: there is no rank {fault.rank}; the job has {job.layout.ranks}.",
            f"The last rank is {job.layout.ranks - 1}.",
        )
    if fault.node >= job.recovery.nodes:
        raise BadInput(
            f"{where}: there is no node {fault.node}; nodes = {job.recovery.nodes} at $.recovery.",
            f"The last node is {job.recovery.nodes - 1}.",
        )
    if fault.step > last_step:
        raise BadInput(f"{where}: step = {fault.step}, but the job ends after step {last_step + 1}.")
    if fault.kind == "preempt" and fault.step == last_step:
        raise BadInput(
            f"{where}: only one step is left after step {last_step}; the job would end before it could leave."
        )
    if fault.kind == "delay" and job.layout.ranks == 1:
        raise BadInput(
            f"{where}: stragglers are detected by comparing ranks, but $.layout has 1 rank.", "Use at least 2 ranks."
        )
    if fault.kind in ("fill_disk", "flip_byte") and not checkpoint_interval:
        raise BadInput(f"{where}: the job saves no checkpoints.", "Set [checkpoint] interval = N.")
    if fault.kind == "flip_byte" and fault.step < checkpoint_interval:
        raise BadInput(
            f"{where}: after step {fault.step} there is no checkpoint yet (interval = {checkpoint_interval})."
        )
    # The next checkpoint after the fault is due after a multiple of the interval.
    if (
        fault.kind == "fill_disk"
        and fault.step // checkpoint_interval * checkpoint_interval + checkpoint_interval > last_step + 1
    ):
        raise BadInput(f"{where}: no checkpoint is due after step {fault.step} (interval = {checkpoint_interval}).")
    if fault.kind == "fill_disk" and not (sys.platform.startswith("linux") and FULL.exists()):
        raise BadInput(f"{where}: needs {FULL}, which this machine does not have.")


def parse(text: str, where: str) -> FaultPlan:
    """Parse the text of a fault plan. `where`: the name of its file, for messages. Raises `BadInput` with the path of
    the invalid key in the document, and a similar known key as a hint."""
    try:
        document = toml.loads(text)
    except toml.DecodeError as error:
        raise BadInput(f"{where}: not TOML: {error}.") from error
    try:
        return msgspec.convert(document, FaultPlan)
    except msgspec.ValidationError as error:
        # msgspec's messages: "<reason> - at `$.fault[0].kind`"; the key of an unknown field is in backticks.
        message, _, path = str(error).partition(" - at ")
        hint = ""
        if message.startswith("Object contains unknown field"):
            unknown = message.split("`")[1]
            message = f"unknown key {unknown!r}"
            hint = nearest(unknown, _fields(path))
        location = path.strip("`") or "$"
        raise BadInput(f"{where} at {location}: {message.rstrip('.')}.", hint) from error


def _fields(path: str) -> Iterable[str]:
    return Fault.__struct_fields__ if ".fault" in path else FaultPlan.__struct_fields__


def _with_article(strikes: str) -> str:
    return "the whole job" if strikes == "job" else f"a {strikes}"


def load(path: str | Path) -> FaultPlan:
    """Read a fault plan from a file. Raises `BadFile` if it cannot be read, and the errors of `parse`."""
    try:
        return parse(Path(path).read_text("utf-8"), str(path))
    except FileNotFoundError as error:
        raise MissingFile(f"{path}: no such file.", "Pass a TOML file with [[fault]] tables.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read as text: {error}.") from error
