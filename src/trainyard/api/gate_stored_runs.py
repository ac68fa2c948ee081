"""`gate`: compare stored runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainyard.api.gate_sides import load_side, name_side
from trainyard.booked import Booked
from trainyard.compare.gate.changed_operations import ReadProfile
from trainyard.compare.gate.gate_result import GateRequest
from trainyard.compare.gate.gate_result import gate as judge_pairs
from trainyard.compare.gate.pairs import pair_runs
from trainyard.compare.gate.verdict import ALPHA, MARGIN, Rule
from trainyard.errors import BadFile
from trainyard.record import Run
from trainyard.report.gate.gate_report import GateReport, report_gate
from trainyard.store.store import Store
from trainyard.trace.measure import measure_files
from trainyard.trace.rank_results import all_booked


def ignore_message(text: str) -> None:
    """Ignores a message: the default of `say`."""


def gate(
    head: str | Sequence[str],
    *,
    base: str | Sequence[str],
    job: str = "",
    metrics: Sequence[str] = ("step_time",),
    margin: float = MARGIN,
    alpha: float = ALPHA,
    across: Sequence[str] = (),
    say: Callable[[str], None] = ignore_message,
) -> GateReport:
    """Tests whether stored runs of `head` are slower than those of `base`, and which account is responsible.

    `head`, `base`: one or more runs (id prefix, tag or folder), or a revision of the repository in the working
    directory, which stands for all its stored runs. `job`: for revisions, only the runs of this job. `metrics`: tested
    jointly. `margin`: the smallest slowdown that matters. `alpha`: the error rate of each of the two verdicts.
    `across`: kinds of difference between the runs to allow, such as `driver`. `say`: called with messages.

    ```python
    result = api.gate("HEAD", base="main")
    print(result.headline, result.exit_code)
    ```

    Raises `UnknownName` for a name that is neither a run nor a revision with runs, `BadInput` for runs that cannot be
    compared.
    """
    store = Store(say=say)
    bases, heads = ([names] if isinstance(names, str) else list(names) for names in (base, head))
    pairs = pair_runs(
        load_side(store, bases, job, or_before=True, say=say), load_side(store, heads, job, say=say), across
    )
    request = GateRequest(tuple(metrics), Rule(alpha=alpha, margin=margin))
    return report_gate(judge_pairs(name_side(bases), name_side(heads), pairs, request, profile_reader(store, say)))


def profile_reader(store: Store, say: Callable[[str], None]) -> ReadProfile:
    """A function that returns the booked ranks of a stored run: none if its traces are missing, or damaged, which is
    reported."""

    def read(run: Run) -> list[Booked]:
        """The booked events of a run's traces; none, with a message, if they cannot be read."""
        files = store.traces(store.find(run.id), run)
        try:
            return all_booked(measure_files(files, source=run.id, axis=run.job.trace_axis)) if files else []
        except BadFile as error:
            say(f"{error} Run {run.id} is judged without its traces.")
            return []

    return read
