"""Run a job with the code of another folder, in a separate process, and return the stored run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import CommandFailed, EnvironmentFailed
from trainyard.record import Run
from trainyard.store.store import Store

_LAST = 6
"""Number of lines of its output to show if it fails."""


def run_pair(folders: Sequence[Path], command: Sequence[str], store: Store, *, together: bool) -> list[Run]:
    """Run in each folder: one after the other, or all at once on one core, so that noise affects all of them."""
    if not together:
        return [run_in(folder, command, store) for folder in folders]
    with _on_one_core(), ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(lambda folder: run_in(folder, command, store), folders))


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Pin processes that are started inside, and their children, to one core."""
    if not hasattr(os, "sched_setaffinity"):
        raise EnvironmentFailed("This system cannot pin runs to one core.", "Omit --together to run them in turns.")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def run_in(folder: Path, command: Sequence[str], store: Store) -> Run:
    """Run `command`, a job file or a command of several words as for `trainyard run`, with the code in `folder`.

    Python looks for modules in the folder's `src`, if there is one, and in the folder first. Raises `CommandFailed`
    with the last lines of output if it fails."""
    words = [sys.executable, "-m", "trainyard.cli.main", "run", "--quiet", "--json", "--", *command]
    first = [str(path) for path in (folder / "src", folder) if path.is_dir()]
    path = os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = {**os.environ, "PYTHONPATH": path, "TRAINYARD_STORE": str(store.root)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n       ".join(done.stderr.strip().splitlines()[-_LAST:])
        raise CommandFailed(
            f"the run in {folder} ended with exit code {done.returncode}; a crash gives no verdict:\n       {last}"
        )
    return store.load(json.loads(done.stdout)["id"])
