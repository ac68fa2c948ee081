"""Run a job with the code of another folder, in a separate process, and return the stored run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import BadFile, BadJob, CommandFailed, EnvironmentFailed
from trainyard.record import Run
from trainyard.run.revisions.worktree import revision
from trainyard.store.store import Store

_MAX_LINES = 6
"""Lines of a run's output that are shown if it fails."""
_OTHER_KEY = re.compile(r" at (?P<table>\$\S*): (?P<reason>unknown key '[^']+'|[^\n]* is not one of [^\n]*?)\.?$", re.M)
"""How trainyard reports a key, or a value, that a job file may not have."""
_OTHER_KEYS = (
    "`gate run --base-job FILE` passes the base its own job file; a bisection needs commits that read the same keys. "
    "Or compare a script, `-- python train.py`, which has no job file."
)


class RevisionRun(NamedTuple):
    """A run with the code in `folder`. `command`: a job file, or a command of several words."""

    folder: Path
    command: Sequence[str]


def run_pair(runs: Sequence[RevisionRun], store: Store, *, together: bool) -> list[Run]:
    """Run all `runs`, and return the stored runs in the same order. `store`: where they are stored.

    They run one after the other or, if `together`, at once on one core, so that noise affects all of them. Raises as
    `run_in`.
    """
    if not together:
        return [run_in(run.folder, run.command, store) for run in runs]
    with _on_one_core(), ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(lambda run: run_in(run.folder, run.command, store), runs))


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Pin this process, and processes that are started inside, to one core, and undo it at the end. Raises
    `EnvironmentFailed` if the system cannot pin."""
    if not hasattr(os, "sched_setaffinity"):
        raise EnvironmentFailed(
            "This system cannot pin runs to one core.", "Omit --together to run them one after the other."
        )
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def run_in(folder: Path, command: Sequence[str], store: Store) -> Run:
    """Run `command`, a job file or a command of several words as for `trainyard run`, with the code in `folder`.

    Python looks for modules in the folder's `src`, if there is one, and in the folder first. Returns the run, stored in
    `store`. Raises `CommandFailed` with the last lines of output if it fails, `BadJob` if the code reads job files with
    other keys, and `BadFile` if it stores runs in another form.
    """
    words = [sys.executable, "-m", "trainyard.cli.main", "run", "--quiet", "--json", "--", *command]
    first_folders = [str(path) for path in (folder / "src", folder) if path.is_dir()]
    path = os.pathsep.join([*first_folders, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = {**os.environ, "PYTHONPATH": path, "TRAINYARD_STORE": str(store.root)}
    result = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        _check_keys(folder, command, result)
        last_lines = "\n       ".join(result.stderr.strip().splitlines()[-_MAX_LINES:])
        raise CommandFailed(
            f"the run in {folder} ended with exit code {result.returncode}; a crash gives no verdict:\n"
            f"       {last_lines}"
        )
    run_id = json.loads(result.stdout)["id"]
    try:
        return store.load(run_id)
    except BadFile as error:
        raise BadFile(
            f"{_name_revision(folder)} stored run {run_id} in a form that this version of trainyard does not read: "
            f"{error.message}",
            "Compare revisions of trainyard that store runs in the same form.",
        ) from error


def _check_keys(folder: Path, command: Sequence[str], result: subprocess.CompletedProcess[str]) -> None:
    """Raise `BadJob` if the code in the folder refused a key of the job file; return if the failure has another cause.

    This version of trainyard has read the job file before: the revision contains a trainyard of its own, whose job
    files have other keys. `command`: the command that failed; `result`: its exit code and output.
    """
    refusal = _OTHER_KEY.search(result.stderr)
    if refusal is None or len(command) != 1:
        return
    hint = result.stderr[refusal.end() :].strip().partition("\n")[0]
    raise BadJob(
        f"{_name_revision(folder)} reads job files with other keys than this version of trainyard: it refuses "
        f"{command[0]} at {refusal['table']} ({refusal['reason']}). {hint}".rstrip(),
        _OTHER_KEYS,
    )


def _name_revision(folder: Path) -> str:
    return f"Revision {revision(folder, 'HEAD')[:10] or folder}"
