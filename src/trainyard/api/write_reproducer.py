"""`reproduce_numerics`: a script that shows the first difference of two trainings alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.numerics.reproduce.reproduce_difference import Reproducer, reproduce_difference


def reproduce_numerics(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    script: str | os.PathLike[str],
    *,
    rerun: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> Reproducer:
    """Writes a script that shows the first difference of two records without the trainings, and runs it.

    `a`, `b`: the folders of records, as for `compare_numerics`. `script`: a new Python file, which needs only torch.
    `rerun`: the commands in the records may be run again, which capturing the operations and their inputs takes; they
    are run in the present directory. `say`: called with each command.

    ```python
    reproducer = api.reproduce_numerics("records/good", "records/wrong", "reproducer.py", rerun=True)
    print(reproducer.shows_fault, reproducer.error_a, reproducer.error_b, reproducer.limit)
    ```

    Raises `BadInput` without `rerun` or for a script that exists, `NotEnoughEvidence` if there is no difference that
    operations show, `CommandFailed` if a command fails.
    """
    path = Path(script)
    if not rerun:
        raise BadInput(
            "the commands in the records have to be run again to capture the operations and their inputs.",
            "Allow it with --rerun, if you trust the records.",
        )
    if path.suffix != ".py" or path.exists():
        raise BadInput(
            f"{path} {'exists' if path.exists() else 'is not a Python file'}.", "Pass a new file that ends in .py."
        )
    return reproduce_difference(Path(a), Path(b), path, say)
