"""Runs a job with the code of another folder, in a process of its own, and returns what was stored."""

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
"""Lines of what it said that are shown where it fails."""


def run_pair(folders: Sequence[Path], what: Sequence[str], store: Store, *, together: bool) -> list[Run]:
    """A run in each folder: one after the other, or all at once on one core, where what disturbs one disturbs all."""
    if not together:
        return [run_in(folder, what, store) for folder in folders]
    with _on_one_core(), ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(lambda folder: run_in(folder, what, store), folders))


@contextmanager
def _on_one_core() -> Iterator[None]:
    """What is started within, and its children, share one core."""
    if not hasattr(os, "sched_setaffinity"):
        raise EnvironmentFailed("This system cannot keep runs on one core.", "Let them take turns: without --together.")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def run_in(folder: Path, what: Sequence[str], store: Store) -> Run:
    """`what`: as for `trainyard run`: a job file, or a command of several words. Python finds what `folder` holds
    first: its `src`, if there is one, and itself. Raises `CommandFailed` with the last words of what failed."""
    words = [sys.executable, "-m", "trainyard.cli.main", "run", "--quiet", "--json", "--", *what]
    first = [str(place) for place in (folder / "src", folder) if place.is_dir()]
    path = os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = {**os.environ, "PYTHONPATH": path, "TRAINYARD_STORE": str(store.root)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n       ".join(done.stderr.strip().splitlines()[-_LAST:])
        raise CommandFailed(
            f"the run in {folder} ended with exit code {done.returncode}, and a crash is no verdict:\n       {last}"
        )
    return store.load(json.loads(done.stdout)["id"])
