"""`compare_numerics`: which tensor of a training is the first that rounding does not explain?"""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.numerics.compare.compare_records import compare_records
from trainyard.report.numerics.numerics_report import NumericsReport, report_numerics


def compare_numerics(a: str | os.PathLike[str], b: str | os.PathLike[str], *, exact: bool = False) -> NumericsReport:
    """Compares the recorded tensors of two trainings, operation by operation, in order of execution.

    `a`: the folder of a record with its float64 reference and jittered replicas, which show what rounding explains;
    `b`: the folder of a record, of which the plain run is compared. `exact`: both must be equal bit by bit.

    ```python
    report = api.compare_numerics("records/eager", "records/compiled")
    if report.first is not None:
        print(report.first.tensor.module, report.first.tensor.operation, report.first.tensor.location_b)
    ```

    Raises `BadInput` for records of different models, batches or steps, `BadFile` for one that cannot be read.
    """
    return report_numerics(compare_records(Path(a), Path(b), identical=exact))
