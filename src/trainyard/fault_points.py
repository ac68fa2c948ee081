"""Points at which a test can kill this process: between the durable effects of a save, a write or a copy.

`TRAINYARD_FAULT_POINT=NAME:N` ends the process with SIGKILL when it arrives at the point NAME for the Nth time, counted
from 1 and in each process separately. For tests only; without the variable an arrival costs one look-up
in the environment.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

from trainyard.errors import BadInput, nearest

VARIABLE = "TRAINYARD_FAULT_POINT"
POINTS = {
    "checkpoint.part": "The folder of a checkpoint in progress exists.",
    "checkpoint.file.written": "A shard or the manifest is written, but not synchronised with the disk.",
    "checkpoint.file.synced": "A shard or the manifest is on the disk.",
    "checkpoint.sealed": "All files of a checkpoint and their folder are on the disk, under a hidden name.",
    "checkpoint.renamed": "The checkpoint has its name.",
    "checkpoint.retired": "An old checkpoint has a hidden name and is about to be removed.",
    "checkpoint.set_aside": "The reason why a checkpoint is refused is written, but the checkpoint is not moved.",
    "checkpoint.adopted": "A file of another run's checkpoint is linked or copied.",
    "run.sample": "A step's sample is written.",
    "run.begun": "A new run's folder is written, under a hidden name.",
    "store.part": "A file's new contents are written, but not synchronised with the disk.",
    "store.synced": "A file's new contents are on the disk, under a hidden name.",
    "store.renamed": "A file has its new contents.",
    "store.deleted": "A run's folder has a hidden name and is about to be removed.",
    "index.named": "A store's own id for a shared index is written, under a hidden name.",
    "index.written": "Rows of the index are written, but not committed.",
    "index.committed": "Rows of the index are committed.",
    "push.uploaded": "A file is at the remote, under a hidden name.",
    "push.renamed": "A file is at the remote.",
    "pull.fetched": "A file of a run has arrived, in a hidden folder.",
    "pull.synced": "All files of a run are on the disk, in a hidden folder.",
    "pull.renamed": "The run's folder has its name.",
}
_arrivals: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Kills this process if the environment selects this arrival at the point `name`, one of `POINTS`. Counts
    the arrival if the environment selects any. Raises `BadInput` for an invalid selection."""
    selected = os.environ.get(VARIABLE)
    if selected is None:
        return
    point, arrival = _parse_selection(selected)
    _arrivals[name] += 1
    if name == point and _arrivals[name] == arrival:
        os.kill(os.getpid(), signal.SIGKILL)


def _parse_selection(selected: str) -> tuple[str, int]:
    """Parses NAME:N into the fault point and the number of its arrival. Raises `BadInput`: with a misspelt name, a test
    would pass without testing anything."""
    point, _, arrival = selected.partition(":")
    if point not in POINTS:
        raise BadInput(f"{VARIABLE} is {selected!r}, but {point!r} is not a fault point.", nearest(point, POINTS))
    if not arrival.isdecimal() or int(arrival) < 1:
        raise BadInput(f"{VARIABLE} is {selected!r}.", "Use NAME:N with N counted from 1.")
    return point, int(arrival)
