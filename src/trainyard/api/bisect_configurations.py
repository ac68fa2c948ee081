"""`bisect_numerics`: which option, variable, interpreter or module makes a training differ?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.numerics.bisect.bisect_configuration import bisect_configuration
from trainyard.numerics.bisect.bisect_modules import bisect_modules
from trainyard.numerics.bisect.bisect_outputs import bisect_outputs
from trainyard.numerics.bisect.bisection_result import NumericsBisection
from trainyard.numerics.bisect.swap import SwapKind


def bisect_numerics(
    a: str | os.PathLike[str],
    command: Sequence[str],
    out: str | os.PathLike[str],
    *,
    variables: Mapping[str, tuple[str | None, str | None]] | None = None,
    swap: SwapKind | None = None,
    rerun: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> NumericsBisection:
    """Finds the smallest set of differences between two commands that makes the training of the second differ; with
    `swap`, the modules of the second that do, and the operations in them.

    `a`: the record of the right training, with its reference and replicas; its command is run again, with options,
    interpreter and variables of the other one in part. `command`: of the training in question. `variables`: environment
    variables with their values in A and B, None for one that is not set. `swap`: `eager` or `float64`; only `command`
    is run, with some modules as they are, and all others not compiled, or with each operation computed in float64 and
    rounded. With `outputs`, nothing is searched: `command` and that of A are recorded while inputs and outputs of
    modules, their gradients, and the gradients and weights of parameters are replaced by those of A, and each part
    that differs is a cause of its own. `out`: a folder for finished trials, which are not repeated. `rerun`: the
    command in the record may be run. `say`: called with the outcome of each trial.

    ```python
    bisection = api.bisect_numerics("records/good", ["python", "train.py", "--compile"], "bisection", rerun=True)
    print([cause.name for cause in bisection.causes])
    ```

    Raises `BadInput` without `rerun` or without a difference, `NotEnoughEvidence` if A is not reproducible or B does
    not differ.
    """
    if swap is not None and variables:
        raise BadInput(
            "variables are searched between two commands, and a swap is of modules.",
            "Set the variables of B in the environment, or leave the swap out.",
        )
    if swap in ("eager", "float64"):
        return bisect_modules(Path(a), command, Path(out), swap, say)
    if not rerun:
        raise BadInput(
            "the command in the record has to be run again.", "Allow it with --rerun, if you trust the record."
        )
    if swap == "outputs":
        return bisect_outputs(Path(a), command, Path(out), say)
    return bisect_configuration(Path(a), command, Path(out), variables or {}, say)
