"""`compare_numerics`: which tensor of a training is the first that rounding does not explain?"""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.errors import BadFile, BadInput, MissingFile
from trainyard.formats.regular_files import open_regular
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.compare.comparison_result import RecordComparison
from trainyard.numerics.reproduce.script_title import script_subject, script_subjects
from trainyard.report.numerics.numerics_report import NumericsReport, report_numerics

_MOST_SCRIPT_BYTES = 1 << 20
"""Longest reproducer; those that hold captured values have them in files of their own."""


def compare_numerics(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    exact: bool = False,
    reproducer: str | os.PathLike[str] | None = None,
) -> NumericsReport:
    """Compares the recorded tensors of two trainings, operation by operation, in order of execution.

    `a`: the folder of a record with its float64 reference and jittered replicas, which show what rounding explains;
    `b`: the folder of a record, of which the plain run is compared. `exact`: both must be equal bit by bit.
    `reproducer`: the script of `reproduce_numerics`, whose text becomes part of the report.

    ```python
    report = api.compare_numerics("records/eager", "records/compiled")
    if report.first is not None:
        print(report.first.tensor.module, report.first.tensor.operation, report.first.tensor.location_b)
    ```

    Raises `BadInput` for records of different models, batches or steps, or a script of other records, `BadFile` for one
    that cannot be read.
    """
    script = "" if reproducer is None else _read_script(Path(reproducer))
    comparison = compare_records(Path(a), Path(b), identical=exact)
    if reproducer is not None:
        _check_script(Path(reproducer), script, comparison)
    return report_numerics(comparison, script)


def _check_script(path: Path, script: str, comparison: RecordComparison) -> None:
    """Raises `BadInput` unless a script shows the first difference of a comparison."""
    first = comparison.first
    if comparison.verdict == "cannot tell":
        return
    if first is None:
        raise BadInput(f"the records do not differ: {path} belongs to others.", "Leave --reproducer out.")
    if not any(subject in script for subject in script_subjects(first)):
        raise BadInput(
            f"{path} is not of these records, which differ first at {script_subject(first)}.",
            "Write their script with `trainyard numerics reproduce A B --out SCRIPT.py`.",
        )


def _read_script(path: Path) -> str:
    """The text of a script. Raises `MissingFile` or `BadFile`."""
    if not path.exists():
        raise MissingFile(f"there is no {path}.", "Write it with `trainyard numerics reproduce A B --out SCRIPT.py`.")
    with open_regular(path) as file:
        data = file.read(_MOST_SCRIPT_BYTES + 1)
    if len(data) > _MOST_SCRIPT_BYTES:
        raise BadFile(f"{path} has more than {_MOST_SCRIPT_BYTES:,} bytes.", "Pass the script of a reproducer.")
    return data.decode("utf-8", "replace")
