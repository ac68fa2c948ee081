"""Reasons to distrust the times of a run: a loaded machine, throttled devices, steps that vary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import units, words
from trainyard.machine_load import load_warning, throttle_warning
from trainyard.record import Run
from trainyard.store.run_summary import step_walls

_MAX_SPREAD = 0.25
"""Range of the middle 80 % of the timed steps, relative to their median, above which the steps vary too much."""
_MIN_STEPS = 5
_MAX_SHARES = 8
"""Nodes whose missing ranks are listed."""
_MIN_SHOWN_CORES = 0.05
"""Fewer cores would be printed as 0.0."""


def measurement_warnings(run: Run) -> list[str]:
    """A sentence for each reason to distrust the run's times."""
    provenance = run.provenance
    reasons = (
        load_warning(provenance.load),
        throttle_warning(provenance.clocks),
        _clock_warning(run),
        _spread_warning(run),
    )
    return [*missing_ranks_warnings(run), *run.part_notes, *(reason for reason in reasons if reason)]


def _clock_warning(run: Run) -> str:
    """A sentence if different clocks timed the measured steps, which are not comparable then; else empty."""
    if len(run.step_clocks) < 2:
        return ""
    counts = [
        f"{sum(sample.clock == clock for sample in run.measured())} by {words.STEP_CLOCKS[clock].label}"
        for clock in run.step_clocks
    ]
    return f"Different clocks timed the measured steps of the ranks: {', '.join(counts)}."


def missing_ranks_warnings(run: Run) -> list[str]:
    """A sentence that lists the ranks of the job that the run lacks, by node; an empty list if it has all of them."""
    missing = [share for share in run.nodes if share.missing]
    if not missing:
        return []
    total, absent = sum(len(share.ranks) for share in run.nodes), len(run.missing_ranks)
    absence = "1 of {0:,} ranks is" if absent == 1 else f"{absent:,} of {{0:,}} ranks are"
    remedy = "`trainyard runs join RUN PART...` adds parts of further nodes."
    if 0 in run.missing_ranks:
        remedy = f"The node of rank 0 stores the run of all ranks that it collects; otherwise {remedy}"
    shares = [f"{units.show_ranges(share.ranks)} on {share.node or 'an unknown node'}" for share in missing]
    return [
        f"{absence.format(total)} missing: {units.listed(shares, _MAX_SHARES, between='; ')}. The figures are of the "
        f"other ranks. {remedy}"
    ]


def loaded_runs_caveats(base: Sequence[Run], head: Sequence[Run]) -> list[str]:
    """A sentence on the runs of a comparison that were made on a loaded or throttled machine; an empty list if none
    were.

    `base`, `head`: the runs of both sides.
    """
    # [runs of base, runs of head] with a warning.
    loaded = [[run for run in side if load_warning(run.provenance.load)] for side in (base, head)]
    throttled = [[run for run in side if throttle_warning(run.provenance.clocks)] for side in (base, head)]
    base_runs = units.counted(len(base), "run")
    causes = [
        f"{cause} in {len(of_base)} of {base_runs} of base and {len(of_head)} of {len(head)} of head"
        for cause, (of_base, of_head) in (("the machine was loaded", loaded), ("devices were throttled", throttled))
        if of_base or of_head
    ]
    if not causes:
        return []
    runs = [run for side in loaded for run in side]
    loads = [load for run in runs if (load := run.provenance.load) and load.other_cores >= _MIN_SHOWN_CORES]
    most = max(loads, key=lambda load: load.other_cores, default=None)
    amount = f" (other processes used up to {most.other_cores:.1f} of {most.cores} cores)" if most else ""
    sentence = "; ".join(causes) + amount
    return [f"{sentence[0].upper()}{sentence[1:]}. An idle machine needs fewer pairs."]


def _spread_warning(run: Run) -> str:
    """A sentence on timed steps that vary by more than `_MAX_SPREAD`; empty if they do not, or are too few."""
    walls_ns = step_walls(run.measured())
    if len(walls_ns) < _MIN_STEPS:
        return ""
    low_ns, middle_ns, high_ns = np.percentile(walls_ns, (10, 50, 90))
    if high_ns - low_ns <= _MAX_SPREAD * middle_ns:
        return ""
    low, middle, high = (units.show_time(round(ns)) for ns in (low_ns, middle_ns, high_ns))
    return f"The timed steps vary: the middle 80 % of them took {low} to {high}, with a median of {middle}."
