"""Run a user's own training command, instrumented from inside, with the same record and ledger as a job."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from trainyard import plugins
from trainyard.errors import BadInput, CommandFailed
from trainyard.inject.run_watched import run_watched
from trainyard.job import SCRIPT, Job, Measure
from trainyard.launch.supervisor.event_log import EventLogWriter
from trainyard.launch.supervisor.resource_exhaustion import kills, memory_group
from trainyard.machine_load import present_load_warning
from trainyard.memory_cgroups import memory_groups, memory_limit_bytes
from trainyard.recipe import Recipe
from trainyard.record import Run
from trainyard.redact import redact_command
from trainyard.run.folder_lock import lock_folder
from trainyard.run.local.host_devices import find_devices
from trainyard.run.parts import network
from trainyard.run.parts.collect import check_location
from trainyard.run.parts.end_node import NodeRun, end_node
from trainyard.run.parts.node_part import read_node
from trainyard.run.parts.part import FILE as PART_FILE
from trainyard.run.record import provenance
from trainyard.run.record.finish_run import add_load, book_traces, mark_failed, read_measurements
from trainyard.run.record.load_meter import LoadMeter, present_load
from trainyard.run.script.script_layout import with_layout
from trainyard.run.script.watch_steps import COLLECTOR, FOLDER, MEASURE
from trainyard.run.session import Session
from trainyard.store.run_folder import rank_files
from trainyard.store.store import new_id, now
from trainyard.units import counted, show_size

_REPLACEMENTS = {"torchrun": "`python -m torch.distributed.run` is the same, with the Python that has torch."}
"""Advice for commands of a Python environment whose folder of programs may not be on the PATH."""


def execute(command: Sequence[str], measure: Measure, session: Session) -> Run:
    """Run `command` to its end, with its output on stderr, and return the stored run.

    `command`: the program and its arguments; `measure`: how many steps are discarded, timed and profiled; `session`:
    where runs are stored and reported. Watches every Python process that it starts, whatever launches the ranks. The
    session's tag is set however the command ends if any step was seen. Raises `BadInput` if the command cannot be found
    or no step was seen in it, and `CommandFailed` if it fails, after storing the measurements.
    """
    program = shutil.which(command[0])
    if program is None:
        raise BadInput(
            f"there is no command or job file {command[0]!r}.",
            _REPLACEMENTS.get(command[0], "Commands are looked up on the PATH; examples/ has job files."),
        )
    check_location(session.collect)
    store, vendors = session.store, plugins.load_all("vendors")
    devices = find_devices(vendors)
    words = redact_command(command)
    shown_command = shlex.join(words)
    script = next((Path(part).stem for part in words if part.endswith(".py")), Path(words[0]).name)
    job = Job(
        name=script,
        workload=SCRIPT,
        sizes={"command": shown_command},
        recipe=Recipe(tokens_per_step=0),
        measure=measure,
    )
    run = Run(id=new_id(), job=job, started=now(), provenance=provenance.gather(devices, vendors, {}))
    folder = store.begin(run, f"# {shown_command}\n".replace("\r", " "))
    load = present_load_warning(present_load())
    session.say(f"run {run.id}: {shown_command}, in {folder}")
    if load:
        session.say(load)
    with lock_folder(folder):
        return _run_to_end([program, *command[1:]], shown_command, run, folder, session)


def _run_to_end(command: Sequence[str], shown_command: str, run: Run, folder: Path, session: Session) -> Run:
    """Run `command` and return the stored run, whose `folder` exists. `shown_command`: the command without secrets.
    Raises the errors of `execute`."""
    store, vendors = session.store, plugins.load_all("vendors")
    load_meter = LoadMeter()
    receiver = network.Receiver()
    try:
        memory_kills = _memory_kills()
        exit_code = _run(command, folder, run.job.measure, receiver.collector)
        ending = f"{shown_command} ended with {_exit_status(exit_code)}{_shortage(_memory_kills() - memory_kills)}"
        if exit_code:
            EventLogWriter(folder, "command").fault("command_death", ending)
        measured_run = add_load(read_measurements(run, folder, vendors), load_meter)
        part, records = read_node(folder, measured_run)
        measured_run = with_layout(measured_run, part.world_size if part else 0)
        if not measured_run.samples:
            store.delete(run.id)
            raise _no_step(shown_command, ending if exit_code else "")
        failure = f"{ending}." if exit_code else ""
        if part is not None:
            return _end_node(NodeRun(measured_run, part, records, folder, failure), session, receiver)
    finally:
        receiver.close()
        if session.tag and rank_files(folder / "samples", ".jsonl") and _takes_tag(folder):
            store.tag(run.id, session.tag)
    if failure:
        store.finish(mark_failed(measured_run, failure))
        raise CommandFailed(failure, f"The measurements so far are stored as run {run.id}.")
    return book_traces(measured_run, folder, session)


def _no_step(shown_command: str, failure: str) -> CommandFailed | BadInput:
    """The error for a command in which no step was seen. `failure`: how it failed; empty if it succeeded."""
    if failure:
        return CommandFailed(f"{failure} before its second step.", "Its output is above.")
    return BadInput(
        f"{shown_command} succeeded, but no step was seen: no torch.optim optimizer stepped twice in a Python that "
        "has trainyard installed.",
        "Run it with a Python that has trainyard, and mark each step with `with trainyard.step():` if needed.",
    )


def _takes_tag(folder: Path) -> bool:
    """Whether the run in the folder gets the session's tag. On a store that several nodes share, only the part of the
    node with rank 0 does."""
    return (folder / "samples" / "rank0.jsonl").exists() or not (folder / PART_FILE).exists()


def _end_node(node: NodeRun, session: Session, receiver: network.Receiver) -> Run:
    """End a run of several nodes on this one; return the joined run, or this node's part if another node joins.

    Raises `CommandFailed` if the command failed, after storing and collecting the measurements.
    """
    ended = end_node(node, session, receiver)
    if node.failure:
        raise CommandFailed(node.failure, f"The measurements so far are stored as run {ended.id}.")
    return ended


def _run(command: Sequence[str], folder: Path, measure: Measure, collector: str = "") -> int:
    """Run the command to its end; return its exit code, negative for a signal.

    Every Python that it starts is watched: our sitecustomize reads the run's folder and the numbers of steps from
    variables, and the `collector` of parts of other nodes.
    """
    watch_variables = {
        FOLDER: str(folder),
        COLLECTOR: collector,
        MEASURE: (
            f"{measure.warmup},{measure.steps},{measure.profiled},{measure.stacks:d},{measure.shapes:d},"
            f"{measure.memory:d}"
        ),
    }
    return run_watched(command, watch_variables)


def _memory_kills() -> int:
    """Number of processes that the kernel has killed for memory in this process's cgroup, which the command shares; 0
    if unknown."""
    group = memory_group(os.getpid())
    return max(0, kills(group)) if group else 0


def _shortage(memory_kills: int) -> str:
    """The part of a sentence on a command during which the kernel killed `memory_kills` processes of its cgroup for
    memory; empty if it killed none."""
    if memory_kills < 1:
        return ""
    limit_bytes = memory_limit_bytes(memory_groups())
    limit = f" (limited to {show_size(limit_bytes)})" if limit_bytes else ""
    return f", after the kernel killed {counted(memory_kills, 'process', 'processes')} of its cgroup{limit} for memory"


def _exit_status(code: int) -> str:
    """`exit code 3`, or the name of the signal that ended the command (a negative code)."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
