"""Read a stored run's traces again."""

from __future__ import annotations

from trainyard.booked import Booked
from trainyard.cli.support.output import say
from trainyard.errors import BadFile
from trainyard.record import Run
from trainyard.store.store import Store
from trainyard.trace.measure import measure_files
from trainyard.trace.rank_results import all_booked


def profile(run: Run) -> list[Booked]:
    """The booked ranks of a run; none if its traces are missing, or damaged, which is reported."""
    store = Store(say=say)
    files = store.traces(store.find(run.id), run)
    try:
        return all_booked(measure_files(files, source=run.id, axis=run.job.layout.only_axis)) if files else []
    except BadFile as error:
        say(f"{error} Run {run.id} is judged without its traces.")
        return []
