"""Status of a Slurm job: the output of `scontrol show job`, or that of `sacct`, as a `JobStatus` with its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.launch.launch_spec import LEFT
from trainyard.launch_request import LEFT_ON_REQUEST, JobState, JobStatus

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=(.*?)(?=\s[A-Za-z][\w/:]*=|\s*$)")
"""A field; its value, such as a path, may contain spaces."""
_STATES: Mapping[str, JobState] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "COMPLETED": "ended",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "PREEMPTED": "preempted",
}
"""Slurm's state -> ours; all other states are failures."""
_FAILURES = {
    "TIMEOUT": (
        "The job reached its time limit of {TimeLimit}.",
        "Raise --time-limit, or save checkpoints more often.",
    ),
    "NODE_FAIL": ("A node of the job failed: {NodeList}.", "`sinfo --list-reasons` lists nodes with faults."),
    "OUT_OF_MEMORY": ("A node ran out of memory.", "Reduce micro_batch_size, or request more memory."),
    "BOOT_FAIL": ("A node did not boot: {NodeList}.", "Start the job again, without that node."),
    "DEADLINE": ("The job did not end before its deadline.", ""),
    "FAILED": ("The job ended with exit code {ExitCode} (code:signal).", "`trainyard launch logs` prints its output."),
}
_WAITS = {
    "Resources": ("The job waits for free nodes.", ""),
    "Priority": ("The job waits behind jobs with a higher priority.", ""),
    "BeginTime": ("The job was requeued, and starts at {StartTime} at the earliest.", ""),
    "PartitionNodeLimit": (
        "The job needs {NumNodes} nodes, which is more than the partition {Partition} allows.",
        "Use fewer nodes or another --partition. `sinfo` lists the partitions.",
    ),
    "PartitionTimeLimit": (
        "The time limit {TimeLimit} is longer than the partition {Partition} allows.",
        "Lower --time-limit, or use another --partition.",
    ),
    "PartitionDown": ("The partition {Partition} is down.", "Use another --partition. `sinfo` lists the partitions."),
    "PartitionInactive": ("The partition {Partition} is inactive.", "Use another --partition."),
    "PartitionConfig": (
        "The partition {Partition} cannot run the job: {NumNodes} nodes, time limit {TimeLimit}.",
        "Use fewer nodes, a shorter --time-limit or another --partition. `sinfo` lists the partitions.",
    ),
    "ReqNodeNotAvail": ("The nodes of the job are not available.", "`sinfo --list-reasons` lists drained nodes."),
    "Nodes_required_for_job_are_DOWN": (
        "The nodes of the job are down, drained or reserved.",
        "`sinfo --list-reasons` lists drained nodes.",
    ),
    "BadConstraints": (
        "No node satisfies the job's constraints.",
        "Change --constraint. `sinfo -o %f` lists features.",
    ),
    "InvalidAccount": ("Slurm does not know the account {Account}.", "`sacctmgr show user $USER -s` lists yours."),
    "InvalidQOS": ("Slurm does not know the QOS {QOS}.", "`sacctmgr show qos` lists them."),
    "JobHeldUser": ("The job is held.", "`scontrol release JOB` releases it."),
    "JobHeldAdmin": ("An administrator holds the job.", "Ask the administrators of the cluster."),
    "launch_failed_requeued_held": (
        "The job could not be started on a node, and is held.",
        "`scontrol release JOB` starts it again; the administrators see the cause in the log of slurmd.",
    ),
    "QOSMaxJobsPerUserLimit": ("You have as many jobs as the QOS {QOS} allows.", ""),
    "AssocGrpCPULimit": ("The account {Account} has used its limit.", ""),
}
"""Beginning of Slurm's reason of a pending job -> our sentence, and the next step."""
_ORDER: Sequence[JobState] = ("failed", "running", "pending", "preempted", "cancelled", "ended")
"""Which state of several components or elements of a job is that of the whole job: the first of these."""


class SlurmJob(NamedTuple):
    """What Slurm reports on a job, a component of a heterogeneous job or an element of an array. `fields`: name ->
    value, as `scontrol show job` has them."""

    fields: Mapping[str, str]

    @property
    def state(self) -> JobState:
        """Our state of the job. A job that left on request has Slurm's state FAILED."""
        word = self.fields.get("JobState", "").split(" ")[0].rstrip("+")
        if word == "FAILED" and self.fields.get("ExitCode", "").startswith(f"{LEFT}:"):
            return "preempted"
        return _STATES.get(word, "failed")

    @property
    def reason(self) -> tuple[str, str]:
        """(why the job waits or why it failed, next step); both empty if it does not wait and has not failed."""
        fields = _Known(self.fields)
        if self.state == "failed":
            sentence, step = _FAILURES.get(self.fields.get("JobState", ""), ("Slurm reports the state {JobState}.", ""))
            return sentence.format_map(fields), step
        if self.state == "pending":
            word = self.fields.get("Reason", "None")
            if word in ("None", "(null)", ""):
                return "", ""
            known = next((_WAITS[start] for start in _WAITS if word.startswith(start)), None)
            sentence, step = known or ("Slurm's reason why the job waits: {Reason}.", "")
            return sentence.format_map(fields), step
        if self.state == "preempted":
            return LEFT_ON_REQUEST, ""
        return "", ""


class _Known(dict[str, str]):
    """Fields of a job for `str.format_map`; a missing one becomes a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def parse_jobs(text: str) -> list[SlurmJob]:
    """The jobs in the output of `scontrol show job ID --oneliner`: one per line. A later field of the same name is
    ignored, because text from outside, such as a comment, follows the fields that are used."""
    jobs: list[SlurmJob] = []
    for line in text.splitlines():
        fields: dict[str, str] = {}
        for name, value in _FIELD.findall(line):
            fields.setdefault(name, value)
        if fields.get("JobId", "").strip():
            jobs.append(SlurmJob(fields))
    return jobs


def parse_accounting(text: str) -> list[SlurmJob]:
    """The jobs in the output of `sacct --parsable2 --noheader --format=JobIDRaw,State,ExitCode,NodeList,Timelimit`."""
    jobs: list[SlurmJob] = []
    for line in text.splitlines():
        id, state, exit_code, nodes, limit = [*line.split("|"), "", "", "", "", ""][:5]
        if id:
            names = ("JobId", "JobState", "ExitCode", "NodeList", "TimeLimit")
            jobs.append(SlurmJob(dict(zip(names, (id, state.split(" ")[0], exit_code, nodes, limit), strict=True))))
    return jobs


def status_of(jobs: Sequence[SlurmJob]) -> JobStatus:
    """The status of a job from its components or elements, at least one."""
    job = min(jobs, key=lambda each: _ORDER.index(each.state))
    reason, next_step = job.reason
    node_lists = [each.fields.get("NodeList", "") for each in jobs]
    return JobStatus(
        state=job.state,
        reason=reason,
        next_step=next_step,
        nodes=tuple(name for text in node_lists for name in expand_hosts(text)),
        logs=log_files(jobs),
        restarts=max(int(each.fields.get("Restarts", "0") or 0) for each in jobs),
    )


def log_files(jobs: Sequence[SlurmJob]) -> tuple[str, ...]:
    """Paths of the existing log files in the folder of the job's output; empty if Slurm does not report it."""
    folders = {Path(output).parent for each in jobs if (output := each.fields.get("StdOut", "")).startswith("/")}
    return tuple(str(path) for folder in sorted(folders) for path in sorted(folder.glob("*.log")))


def expand_hosts(text: str) -> list[str]:
    """The host names in a list of Slurm: `n[1-3],m07` -> n1, n2, n3, m07. Empty for `(null)`; a list that cannot be
    parsed or names more than 100,000 hosts is returned as it is."""
    if not text or text in ("(null)", "None", "None assigned"):
        return []
    names: list[str] = []
    for prefix, numbers, suffix in re.findall(r"([^,\[\]]+)(?:\[([0-9,-]+)\])?([^,\[\]]*)", text):
        if not numbers:
            names.append(prefix + suffix)
            continue
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) - int(first) > 100_000:
                return [text]
            names += [f"{prefix}{n:0{len(first)}}{suffix}" for n in range(int(first), int(last or first) + 1)]
    return names
