"""`triage_numerics`: what is wrong in a stored run or a recorded training?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from trainyard.api.gate_stored_runs import ignore_message
from trainyard.api.record_tensors import record_numerics
from trainyard.errors import BadInput
from trainyard.formats.regular_files import is_regular
from trainyard.numerics.triage.triage_record import triage_record
from trainyard.numerics.triage.triage_result import Triage
from trainyard.numerics.triage.triage_run import triage_run
from trainyard.store.store import Store


def triage_numerics(
    record: str | os.PathLike[str],
    again: str | os.PathLike[str] | None = None,
    *,
    replay: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = ignore_message,
) -> Triage:
    """Diagnoses a stored run or a recorded training: spikes; the first tensor that is not finite, and where it came
    from; loss, gradient norms and batches of the steps; the modules whose gradients grow.

    `record`: a folder that `record_numerics` wrote, or a stored run (id prefix, tag or folder), of which only the
    losses are known: their spikes and the first that is not finite are listed, and `replay` is the command that records
    the steps around them. `again`: a second record of the same command; the operations are listed whose bits differ
    although their inputs do not, with the switch that makes them reproducible. `replay`: a new folder, in
    which the steps around the first fault of a stored run are recorded twice, from the start of its job; the records
    are diagnosed. Nothing is recorded if no fault is found. `say`: receives messages on damaged runs and records.

    ```python
    triage = api.triage_numerics("records/first", "records/second")
    if triage.nonfinite is not None:
        print(triage.nonfinite.tensor.module, triage.nonfinite.tensor.operation, triage.nonfinite.tensor.location)
    ```

    Raises `BadInput` for records of different steps or ranks, `BadFile` for one that cannot be read, `UnknownName` for
    a name that is neither, `NotEnoughEvidence` for a run with too few losses.
    """
    folder = Path(record)
    if not folder.is_dir() or is_regular(folder / "run.json"):
        store = Store(say=say)
        folder = store.find(str(record))
        if again is not None:
            raise BadInput(
                f"{record} is a stored run, which has no tensors to compare with {again}.",
                "Record the steps in question twice with `trainyard numerics record`, and pass both folders.",
            )
        of_run = triage_run(store.load(str(record)), folder)
        return of_run if replay is None else _replayed(of_run, Path(replay), say)
    if replay is not None:
        raise BadInput(f"{record} is a record, and only stored runs are replayed.", "Leave out --replay.")
    return triage_record(Path(record), None if again is None else Path(again))


def _replayed(of_run: Triage, out: Path, say: Callable[[str], None]) -> Triage:
    """The diagnosis of two records of the steps around the first fault of a run, in new folders in `out`."""
    if not of_run.exit_code:
        return of_run
    if not of_run.replay:
        raise BadInput(
            f"{of_run.folder} is a run of a script, which cannot be replayed from its record.",
            "Record the script with `trainyard numerics record -- COMMAND`, and pass the folder.",
        )
    job, steps = of_run.replay[-1], of_run.replay[of_run.replay.index("--steps") + 1]
    folders = out / "first", out / "again"
    for folder in folders:
        record_numerics([job], folder, steps=steps, replicas=0, say=say)
    return replace(
        triage_record(*folders),
        spikes=of_run.spikes,
        nonfinite_loss_step=of_run.nonfinite_loss_step,
        is_replayed=True,
    )
