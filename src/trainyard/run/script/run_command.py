"""Runs somebody's own training command, watched from inside: the same record and the same ledger as a job's."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from trainyard import plugins
from trainyard.errors import BadInput, CommandFailed
from trainyard.job import SCRIPT, Job, Layout, Measure, Recipe
from trainyard.pdeathsig import die_with_parent
from trainyard.record import Run, Sample
from trainyard.redact import redact_command
from trainyard.run.local.harness import booked, failed, find_devices, measured
from trainyard.run.record import provenance
from trainyard.run.script.watch_steps import FOLDER, MEASURE
from trainyard.run.session import Session
from trainyard.store.run_folder import rank_files
from trainyard.store.store import new_id, now

INJECT = Path(__file__).with_name("inject")
_STDERR = 2
"""Data goes to stdout, and a script's own words are none."""


def execute(command: Sequence[str], measure: Measure, session: Session, *, tag: str = "") -> Run:
    """Runs `command` to its end, its output on stderr, and returns the stored run.

    Every Python that it starts is watched, whatever launches the ranks. `tag`: the run's name, however it ends, as long
    as there is one. Raises `BadInput` for a command that cannot be
    found or in which no step was seen, and `CommandFailed` after storing what was measured when it fails.
    """
    program = shutil.which(command[0])
    if program is None:
        raise BadInput(
            f"there is no command {command[0]!r}, and no job file of that name.",
            "A command is looked for on the PATH; examples/ holds some job files.",
        )
    store, vendors = session.store, plugins.load_all("vendors")
    seen = find_devices(vendors)
    words = redact_command(command)
    shown = shlex.join(words)
    script = next((Path(part).stem for part in words if part.endswith(".py")), Path(words[0]).name)
    job = Job(name=script, workload=SCRIPT, sizes={"command": shown}, recipe=Recipe(tokens_per_step=0), measure=measure)
    run = Run(id=new_id(), job=job, started=now(), provenance=provenance.gather(seen, vendors, {}))
    folder = store.begin(run, f"# {shown}\n".replace("\r", " "))
    session.say(f"run {run.id}: {shown}, in {folder}")
    try:
        ended = _run([program, *command[1:]], folder, measure)
    finally:
        if tag and rank_files(folder / "samples", ".jsonl"):
            store.tag(run.id, tag)
    known = _known(measured(run, folder, vendors))
    if not known.samples:
        store.delete(run.id)
        if ended:
            raise CommandFailed(f"{shown} ended with {_how(ended)} before its second step.", "Its own words are above.")
        raise BadInput(
            f"{shown} ended well, but no step was seen in it: no torch.optim optimizer stepped twice in a Python that "
            "has trainyard.",
            "Put `with trainyard.step():` around a step, and run it with the Python that has trainyard.",
        )
    if ended:
        why = f"{shown} ended with {_how(ended)}."
        store.finish(failed(known, why))
        raise CommandFailed(why, f"What was measured is kept as run {run.id}.")
    return booked(known, folder, session)


def _run(command: Sequence[str], folder: Path, measure: Measure) -> int:
    """Its exit code. An interrupt is the command's to answer; it is ended when it does not. Should this process be
    killed, it is asked to end (SIGTERM)."""
    path = os.pathsep.join(part for part in (str(INJECT), os.environ.get("PYTHONPATH", "")) if part)
    watched = {
        "PYTHONPATH": path,
        FOLDER: str(folder),
        MEASURE: f"{measure.warmup},{measure.steps},{measure.profiled}",
    }
    ends_with_us = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    environment = {**os.environ, **watched}
    # Between fork and exec: no other thread of ours holds a lock that it would need.
    with subprocess.Popen(command, stdout=_STDERR, env=environment, preexec_fn=ends_with_us) as process:  # noqa: PLW1509
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _known(run: Run) -> Run:
    """With the ranks that took steps, and the tokens of a step where the script says them."""
    ranks = {sample.rank for sample in run.samples}
    if not ranks:
        return run
    layout = Layout(dp_replicate=len(ranks))
    recipe = replace(run.job.recipe, tokens_per_step=_tokens(run.samples))
    return replace(run, job=replace(run.job, layout=layout, recipe=recipe))


def _tokens(samples: Sequence[Sample]) -> int:
    """Of the last step, over all ranks."""
    last = max(sample.step for sample in samples)
    return sum(sample.tokens for sample in samples if sample.step == last)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
