"""Attribution of host time to code: the op or call, and the Python frame or module around it.

A host row is a row of `events.host`: a span of an op, a call of the driver, a Python frame or an annotation, with the
row of its parent. `booked.cause` gives for each host row the account (index into `booked.causes`, -1 for none) that
idle time of the device in this span is booked to. A culprit is the text that names the code of a span.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from trainyard.booked import Booked
from trainyard.detect.finding_text import count_per_step, shorten
from trainyard.events import CALL, I32, I64, OP, PYTHON
from trainyard.ledger import Account
from trainyard.recorded_stacks import MODULE_PREFIX
from trainyard.step_marks import INFERRED_MARK

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.


def time_by_culprit(booked: Booked, host_rows: I64 | I32, ns: I64) -> Counter[str]:
    """Culprit (text) -> ns of the intervals in its code. Interval i takes `ns[i]`, and `host_rows[i]` is the innermost
    host span open during it (-1 if none is open)."""
    host, names = booked.events.host, booked.events.names
    ns_by_row = np.bincount(host_rows + 1, weights=ns, minlength=1)
    rows = np.flatnonzero(ns_by_row[1:])
    call_rows, frame_names = _outermost_calls(booked, rows), _innermost_frames(booked, rows)
    # A number for each (name of the call, name of the frame or -1): call * (names + 1) + frame + 1.
    pair = host.name[call_rows].astype(np.int64) * (len(names) + 1) + frame_names + 1
    unique, inverse = np.unique(pair, return_inverse=True)
    outside_calls = "Python" if booked.events.shows_python else "host code"
    totals: Counter[str] = Counter({outside_calls: int(ns_by_row[0])} if ns_by_row[0] else {})
    for pair_id, total in zip(unique.tolist(), np.bincount(inverse, weights=ns_by_row[1:][rows]).tolist()):
        name, module = divmod(pair_id, len(names) + 1)
        frame = names[module - 1] if module else ""
        is_mark = names[name].startswith((booked.events.mark, INFERRED_MARK))
        totals["Python" if is_mark else _describe(names[name], frame)] += int(total)
    return totals


def main_culprit(booked: Booked, host_rows: I64 | I32, ns: I64) -> str:
    """The culprit that covers the largest part of an interval, including the time in its callees.

    The interval consists of pieces: piece i takes `ns[i]`, and `host_rows[i]` is the innermost host span open during it
    (-1 if none is open). Spans with the same names around them count together. From the outermost span, the search
    descends into the callee with the most time, as long as that covers at least half of the interval. Outside spans,
    and directly in a mark, it descends into the span with the most time unless the time without a span is longer.
    """
    row = _main_row(booked, host_rows, ns)
    return next(iter(time_by_culprit(booked, np.array([row], np.int64), np.ones(1, np.int64))))


def _main_row(booked: Booked, host_rows: I64 | I32, ns: I64) -> int:
    """A host row of the code that `main_culprit` names, -1 for none. The arguments are those of `main_culprit`."""
    host, total_ns = booked.events.host, int(ns.sum())
    spans, parent, covered = _covered_by_span(booked, host_rows, ns)
    is_mark = booked.names(lambda name: name.startswith((booked.events.mark, INFERRED_MARK)))
    row, callees, in_caller = -1, np.flatnonzero(parent < 0), total_ns
    is_transparent = True  # outside spans, or in a mark
    while len(callees):
        names, which = np.unique(host.name[spans[callees]], return_inverse=True)
        by_name = np.bincount(which, weights=covered[callees])
        most_ns = by_name.max()
        outside_ns = in_caller - by_name.sum()
        if most_ns <= outside_ns if is_transparent else 2 * most_ns < total_ns:
            break
        name = int(by_name.argmax())
        same = callees[which == name]
        row, in_caller, is_transparent = int(spans[same[0]]), int(most_ns), bool(is_mark[names[name]])
        callees = np.flatnonzero(np.isin(parent, same))
    return row


def _covered_by_span(booked: Booked, host_rows: I64 | I32, ns: I64) -> tuple[I64, I64, I64]:
    """(host row, position of the enclosing span here or -1, covered ns) of each span that is open during an interval,
    by host row. The arguments are those of `main_culprit`."""
    host = booked.events.host
    levels = [np.unique(host_rows[host_rows >= 0]).astype(np.int64)]
    while len(levels[-1]):
        above = host.parent[levels[-1]]
        levels.append(np.unique(above[above >= 0]).astype(np.int64))
    spans = np.unique(np.concatenate(levels))
    above = host.parent[spans]
    parent = np.where(above >= 0, np.searchsorted(spans, above), -1)
    covered = np.zeros(len(spans), np.int64)
    position, counted = np.searchsorted(spans, host_rows[host_rows >= 0]), ns[host_rows >= 0]
    while len(position):
        np.add.at(covered, position, counted)
        position = parent[position]
        position, counted = position[position >= 0], counted[position >= 0]
    return spans, parent, covered


def _describe(name: str, frame: str) -> str:
    """A culprit as text: `aten::item in train.py(52): log`."""
    name, frame = name.removeprefix(MODULE_PREFIX), frame.removeprefix(MODULE_PREFIX)
    return shorten(name) if frame in ("", name) else f"{shorten(name)} in {shorten(frame)}"


def _outermost_calls(booked: Booked, rows: I64) -> I64:
    """For each of the host rows `rows`, the host row of the outermost op or call around it that has the same cause of
    idle time; the row itself if there is none."""
    host, cause = booked.events.host, booked.cause
    # `positions`: positions in `rows` whose chain of parents is still followed; `ancestor`: the host row reached there.
    outermost, ancestor, positions = rows.copy(), rows.copy(), np.arange(len(rows))
    while len(positions):
        ancestor = host.parent[ancestor]
        continues = (ancestor >= 0) & (cause[rows[positions]] >= 0) & (cause[ancestor] == cause[rows[positions]])
        ancestor, positions = ancestor[continues], positions[continues]
        is_call = (host.what[ancestor] == OP) | (host.what[ancestor] == CALL)
        outermost[positions[is_call]] = ancestor[is_call]
    return outermost


def _innermost_frames(booked: Booked, rows: I64) -> I64:
    """For each of the host rows `rows`, the index in `events.names` of the innermost Python frame or module around it,
    else of the module it ran for; -1 for none."""
    host = booked.events.host
    is_frame = (host.what == PYTHON) | booked.names(lambda name: name.startswith(MODULE_PREFIX))[host.name]
    name_numbers = booked.host_module[rows].astype(np.int64)
    # `positions`: positions in `rows` without a frame so far; `ancestor`: the host row reached from there.
    ancestor, positions = rows.copy(), np.arange(len(rows))
    while len(positions):
        at_frame = is_frame[ancestor]
        name_numbers[positions[at_frame]] = host.name[ancestor[at_frame]]
        ancestor, positions = host.parent[ancestor[~at_frame]], positions[~at_frame]
        ancestor, positions = ancestor[ancestor >= 0], positions[ancestor >= 0]
    return name_numbers


def idle_causing_calls(booked: Booked, account: Account) -> I64:
    """Host rows in full steps whose cause of idle time is `account`. Of nested calls with this cause, the outermost."""
    host = booked.events.host
    # Over `causes`; the last element, False, is selected by the index -1 (no cause).
    is_account = np.array([text == str(account) for text in booked.causes] + [False], bool)
    rows = np.flatnonzero(is_account[booked.cause])
    parent = host.parent[rows]
    return rows[((parent < 0) | ~is_account[booked.cause[parent]]) & booked.full(host.start[rows])]


def describe_calls(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> str:
    """The number of calls per step and the two most frequent culprits: `12 per step: cudaMalloc in model.py(3): forward
    12`. `rows_by_rank`: the host rows of the calls of each rank."""
    calls_by_rank = [
        time_by_culprit(rank, rows, np.ones(len(rows), np.int64)) for rank, rows in zip(ranks, rows_by_rank)
    ]
    steps = sum(rank.steps for rank in ranks)
    counts: Counter[str] = sum(calls_by_rank, Counter())
    named = ", ".join(f"{name} {-(-count // max(1, steps))}" for name, count in counts.most_common(2))
    return f"{count_per_step(ranks, map(len, rows_by_rank))} per step: {named}" if named else "no call in the file"


def top_culprits(ns_by_rank: list[Counter[str]], steps: int, limit: int = 2) -> list[tuple[str, int]]:
    """The `limit` culprits that cost most over all ranks, as (culprit, ns per step of a rank). `ns_by_rank`: culprit to
    ns, of each rank; `steps`: number of full steps of all ranks together."""
    total_ns: Counter[str] = Counter()
    for counter in ns_by_rank:
        total_ns.update(counter)
    return [(name, ns // max(1, steps)) for name, ns in total_ns.most_common(limit)]
