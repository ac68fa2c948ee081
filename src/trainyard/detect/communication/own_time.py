"""Whether a late rank is slower than the others, or only behind them.

Ranks run ahead of each other on the host. One that is behind arrives last at every collective, although it works as
fast as the others: the difference is from an earlier time. A rank that is slower has more work of its own in each step:
its device is busy for longer, or its host needs longer, apart from waiting for the device. The rule `straggler` uses
it for its confidence in the rank that it names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.booked import Booked
from trainyard.stats.student_t import quantile

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_OWN_KINDS = ("compute", "copy")
_ERROR_RATE = 0.05
"""Probability that the bound is above the true mean, over all ranks: the late one is chosen because it is late."""
_GUESSED_SPREAD, _GUESSED_STEPS = 0.1, 4
"""Spread of a rank's own time over steps as a fraction of it, and the steps that this guess counts as: a few steps do
not show their own spread."""
_MIN_KERNELS = 3
"""Kernels of one name in a step from which their median lengths are compared."""
_QUARTERS = 4
_EXPLAINED_FRACTION = 0.5
"""Fraction of the wait from which longer kernels are its cause."""
_WAIT_CAUSES = ("launch_gap/sync", "comm/")
_PEER_KINDS = ("comm", "bubble")
"""Kinds of the time in which a training thread without a device waits for its peers, besides `Booked.waits`."""


def explained_fraction(ranks: Sequence[Booked], late: int, wait_ns: int) -> float | None:
    """The fraction (0 to 1) of `wait_ns`, for which the other ranks wait in a step, that the own work of rank `late`
    explains: the ns by which its work exceeds the others' median, on its device or its host, whichever is more. The
    lower bound of the mean over steps at `_ERROR_RATE`. None if the rank or its steps are not among `ranks`."""
    fractions = []
    for own_ns in (_device_ns, _host_ns):
        by_rank = {rank.events.rank: own_ns(rank) for rank in ranks}
        late_ns = by_rank.pop(late, {})
        labels = [label for label in late_ns if all(label in other for other in by_rank.values())]
        if not labels or not by_rank:
            continue
        others = np.median([[other[label] for label in labels] for other in by_rank.values()], axis=0)
        excess: NDArray[np.float64] = np.array([late_ns[label] for label in labels]) - others
        fractions.append(_lower_bound(excess, float(np.mean(others)), len(ranks)) / max(1, wait_ns))
    return min(1.0, max(0.0, *fractions, 0.0)) if fractions else None


def _lower_bound(excess: NDArray[np.float64], own_ns: float, ranks: int) -> float:
    """The lower bound at `_ERROR_RATE` (Student's t) of the mean of `excess`, ns of each step. `own_ns`: the other
    ranks' own time of a step, from which the spread over steps is guessed; the guess counts as `_GUESSED_STEPS` steps.
    `ranks`: number of ranks, any of which may be the late one (Bonferroni)."""
    steps = len(excess)
    squares = float(((excess - excess.mean()) ** 2).sum()) + _GUESSED_STEPS * (_GUESSED_SPREAD * own_ns) ** 2
    freedom = steps - 1 + _GUESSED_STEPS
    return float(excess.mean()) - quantile(1 - _ERROR_RATE / ranks, freedom) * (squares / freedom / steps) ** 0.5


def doubt_of_kernels(ranks: Sequence[Booked], late: int, wait_ns: float) -> float:
    """The doubt (0 to 1) that the kernels of rank `late` (on a CPU: ops) are slower than the others', by the median
    length of each name: 1 unless they explain half of `wait_ns`, the others' wait in a step, and are longer in each
    step (without steps, in each quarter of the window). If equal ranks differ by chance, one is longer in all n groups
    with probability 0.5^n. Hundreds of kernels of a step are compared, but clocks may change from step to step."""
    by_rank = {rank.events.rank: _lengths_by_group(rank) for rank in ranks}
    late_groups = by_rank.pop(late, [])
    if not late_groups or any(len(groups) != len(late_groups) for groups in by_rank.values()) or not by_rank:
        return 1.0
    excess_ns = [
        _excess_ns(late_group, [groups[index] for groups in by_rank.values()])
        for index, late_group in enumerate(late_groups)
    ]
    steps = next(rank.steps for rank in ranks if rank.events.rank == late)
    if min(excess_ns) <= 0 or sum(excess_ns) < _EXPLAINED_FRACTION * wait_ns * steps:
        return 1.0
    return min(1.0, len(ranks) * 0.5 ** len(excess_ns))


_Lengths = dict[str, tuple[float, int]]
"""Name of a kernel -> (median length in ns, number)."""


def _excess_ns(late: _Lengths, others: Sequence[_Lengths]) -> float:
    """ns by which the late rank's kernels are longer than the others' of the same names: for each name, the difference
    of its median length to the median of the others' median lengths, times the number of the late rank's kernels. The
    arguments: name of a kernel -> (median length in ns, number of kernels), of the late rank and of each other rank."""
    total_ns = 0.0
    for name, (length_ns, count) in late.items():
        other_ns = [other[name][0] for other in others if name in other]
        if other_ns:
            total_ns += (length_ns - float(np.median(other_ns))) * count
    return total_ns


def _lengths_by_group(booked: Booked) -> list[_Lengths]:
    """The lengths of the compute kernels of each full step; of each quarter of the kernels of a single step."""
    is_own = booked.keys(lambda account, _: account.kind == "compute")
    rows = np.flatnonzero(np.append(is_own, False)[booked.key] & booked.full(booked.start) & booked.begins)
    if not len(rows):
        return []
    group = booked.step_of(booked.start[rows])
    if len(np.unique(group)) == 1:
        group = np.arange(len(rows)) * _QUARTERS // len(rows)
    return [_median_lengths(booked, rows[group == number]) for number in np.unique(group).tolist()]


def _median_lengths(booked: Booked, rows: NDArray[np.int64]) -> _Lengths:
    """The lengths of these intervals by name, for names with at least `_MIN_KERNELS`."""
    rows = rows[np.argsort(booked.name[rows], kind="stable")]
    names, first, counts = np.unique(booked.name[rows], return_index=True, return_counts=True)
    lengths = (booked.stop - booked.start)[rows]
    return {
        booked.events.names[name]: (float(np.median(lengths[begin : begin + count])), count)
        for name, begin, count in zip(names.tolist(), first.tolist(), counts.tolist())
        if count >= _MIN_KERNELS
    }


def _device_ns(booked: Booked) -> dict[str, float]:
    """Label of each full step -> ns of compute and copies, whether exposed or not."""
    is_own = booked.keys(lambda account, _: account.kind in _OWN_KINDS)
    rows = np.flatnonzero(np.append(is_own, False)[booked.key])
    return _sum_by_label(booked, booked.step_of(booked.start[rows]), booked.stop[rows] - booked.start[rows])


def _sum_by_label(booked: Booked, step: NDArray[np.int64], ns: NDArray[np.int64]) -> dict[str, float]:
    """Label of each full step -> sum of `ns`. `step`: index into `booked.parts` of each value, -1 for none."""
    totals = np.bincount(step[step >= 0], weights=ns[step >= 0], minlength=len(booked.parts)).tolist()
    return {
        part.label: total
        for part, total in zip(booked.parts, totals)
        if not part.partial or booked.steps == len(totals)
    }


def _host_ns(booked: Booked) -> dict[str, float]:
    """Label of each marked step -> ns from its start to the next one's, without calls that wait for the device or for
    other ranks. Empty without marks. Without a device, the time that is booked to communication counts as such a wait:
    the calls that DDP makes from C++ have no span of their own."""
    events, host = booked.events, booked.events.host
    if not events.marks:
        return {}
    starts = np.array([mark.start for mark in events.marks], np.int64)
    stops = np.append(starts[1:], events.marks[-1].stop)
    # Per host row. `causes[-1]` is the appended False: no cause. Of nested waits, the outermost counts.
    is_wait = np.array([*(text.startswith(_WAIT_CAUSES) for text in booked.causes), False], bool)[booked.cause]
    parent = host.parent
    outermost = np.flatnonzero(is_wait & ((parent < 0) | ~is_wait[parent]) & (host.thread == events.main))
    mark = np.searchsorted(starts, host.start[outermost], "right") - 1
    waited = np.zeros(len(starts))
    np.add.at(waited, mark[mark >= 0], (host.stop - host.start)[outermost][mark >= 0])
    full = {part.label for part in booked.parts if not part.partial} or {part.label for part in booked.parts}
    if not booked.on_device:
        # A wait may have a span and be booked to communication: the larger of both counts.
        is_peer_wait = booked.keys(lambda account, _: account.kind in _PEER_KINDS)
        rows = np.flatnonzero(np.append(is_peer_wait, False)[booked.key])
        begin = np.concatenate([booked.start[rows], booked.waits.start])
        mark = np.searchsorted(starts, begin, "right") - 1
        exposed = np.zeros(len(starts))
        np.add.at(exposed, mark[mark >= 0], np.concatenate([booked.owned[rows], booked.waits.ns])[mark >= 0])
        waited = np.maximum(waited, exposed)
    own = (stops - starts - waited).tolist()
    return {mark.label: ns for mark, ns in zip(events.marks, own) if mark.label in full}
