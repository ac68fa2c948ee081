"""`triage_numerics`: what is wrong in a recorded training?"""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.numerics.triage.triage_record import triage_record
from trainyard.numerics.triage.triage_result import Triage


def triage_numerics(record: str | os.PathLike[str], again: str | os.PathLike[str] | None = None) -> Triage:
    """Diagnoses a recorded training: the first tensor that is not finite, and where it came from; loss, gradient norms
    and batches of the steps; the modules whose gradients grow.

    `record`: a folder that `record_numerics` wrote. `again`: a second record of the same command; the operations are
    listed whose bits differ although their inputs do not, with the switch that makes them reproducible.

    ```python
    triage = api.triage_numerics("records/first", "records/second")
    if triage.nonfinite is not None:
        print(triage.nonfinite.tensor.module, triage.nonfinite.tensor.operation, triage.nonfinite.tensor.location)
    ```

    Raises `BadInput` for records of different steps or ranks, `BadFile` for one that cannot be read.
    """
    return triage_record(Path(record), None if again is None else Path(again))
