"""`parity`: are losses and gradient norms of a layout those of one process?"""

from __future__ import annotations

import os
from collections.abc import Callable

from trainyard import job_file
from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.numerics.parity import STEPS, Parity, ParityMix, compare
from trainyard.numerics.parity_mixes import MIXES
from trainyard.numerics.parity_trial import trial
from trainyard.numerics.rounding_tolerance import tolerance_rule
from trainyard.report.view.parity_results import ParityResults


def _ignore(_: Parity) -> None:
    """Report nothing."""


def parity(
    job: str | os.PathLike[str] | Job | None = None,
    *,
    only: str = "",
    steps: int = STEPS,
    progress: Callable[[Parity], None] = _ignore,
) -> ParityResults:
    """Compares losses and gradient norms of parallel layouts with those of one process, on this machine's cores.

    `job`: a job file or a `trainyard.Job`, whose own layout is compared; if None, every parallelism, precision and
    recomputation, alone and combined, on small models. `only`: of those, the mixes whose names contain this text.
    `steps`: number of steps to train. `progress`: is called with each result. One process trains the job several times,
    since tolerances follow from replicas whose sums are jittered by one unit in the last place.

        table = api.parity(only="FSDP2", progress=print)
        assert not table.different

    Raises `BadInput` if no mix has such a name. A job that cannot be trained has the verdict `refused`.
    """
    mixes = MIXES
    if job is not None:
        read = job if isinstance(job, Job) else job_file.load(os.fspath(job))
        mixes = (ParityMix(read.name, read),)
    mixes = tuple(mix for mix in mixes if only in mix.name)
    if not mixes:
        raise BadInput(f"no mix has {only!r} in its name.", "Omit --only to see all names.")
    results: list[Parity] = []
    for result in compare(mixes, trial, steps):
        results.append(result)
        progress(result)
    return ParityResults(steps=steps, tolerance=tolerance_rule(steps), results=tuple(results))
