"""Attribution of host time to code: the op or call, and the Python frame or module around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from trainyard.booked import Booked
from trainyard.detect.finding_text import count_per_step, shorten
from trainyard.events import CALL, I32, I64, OP, PYTHON
from trainyard.ledger import Account

_MODULE = "nn.Module: "
_MARK = "ProfilerStep#"


def time_by_culprit(booked: Booked, host_rows: I64 | I32, ns: I64) -> Counter[str]:
    """ns by culprit. Interval i takes `ns[i]` and has the innermost host span `host_rows[i]` (-1: no span open)."""
    host, names = booked.events.host, booked.events.names
    sums = np.bincount(host_rows + 1, weights=ns, minlength=1)
    rows = np.flatnonzero(sums[1:])
    call, frame = _call(booked, rows), _frame(booked, rows)
    pair = host.name[call].astype(np.int64) * (len(names) + 1) + frame + 1
    unique, inverse = np.unique(pair, return_inverse=True)
    totals: Counter[str] = Counter({"Python": int(sums[0])} if sums[0] else {})
    for pair_id, total in zip(unique.tolist(), np.bincount(inverse, weights=sums[1:][rows]).tolist()):
        name, module = divmod(pair_id, len(names) + 1)
        totals[_describe(names[name], names[module - 1] if module else "")] += int(total)
    return totals


def _describe(name: str, frame: str) -> str:
    """A culprit as text: `aten::item in train.py(52): log`."""
    if name.startswith(_MARK):
        return "Python"
    name, frame = name.removeprefix(_MODULE), frame.removeprefix(_MODULE)
    return shorten(name) if frame in ("", name) else f"{shorten(name)} in {shorten(frame)}"


def _call(booked: Booked, rows: I64) -> I64:
    """The outermost op or call around each row that has the same cause of idle time."""
    host, cause = booked.events.host, booked.cause
    outermost, at, own = rows.copy(), rows.copy(), np.arange(len(rows))
    while len(own):
        at = host.parent[at]
        go = (at >= 0) & (cause[rows[own]] >= 0) & (cause[at] == cause[rows[own]])
        at, own = at[go], own[go]
        is_call = (host.what[at] == OP) | (host.what[at] == CALL)
        outermost[own[is_call]] = at[is_call]
    return outermost


def _frame(booked: Booked, rows: I64) -> I64:
    """The name number of the innermost Python frame or module around each row, else of the module it ran for."""
    host = booked.events.host
    is_frame = (host.what == PYTHON) | booked.names(lambda name: name.startswith(_MODULE))[host.name]
    names = booked.host_module[rows].astype(np.int64)
    at, own = rows.copy(), np.arange(len(rows))
    while len(own):
        here = is_frame[at]
        names[own[here]] = host.name[at[here]]
        at, own = host.parent[at[~here]], own[~here]
        at, own = at[at >= 0], own[at >= 0]
    return names


def calls(booked: Booked, account: Account) -> I64:
    """Host rows in full steps whose cause of idle time is this account. Nested calls count once."""
    host = booked.events.host
    wanted = np.array([text == str(account) for text in booked.causes] + [False], bool)
    rows = np.flatnonzero(wanted[booked.cause])
    parent = host.parent[rows]
    return rows[((parent < 0) | ~wanted[booked.cause[parent]]) & booked.full(host.start[rows])]


def describe_calls(events: Sequence[Booked], rows: Sequence[I64]) -> str:
    """The number of host rows per step and the two most frequent culprits:
    `12 a step: cudaMalloc in model.py(3): forward 12`."""
    by_rank = [time_by_culprit(rank, own, np.ones(len(own), np.int64)) for rank, own in zip(events, rows)]
    steps = sum(rank.steps for rank in events)
    total: Counter[str] = sum(by_rank, Counter())
    named = ", ".join(f"{name} {-(-count // max(1, steps))}" for name, count in total.most_common(2))
    return f"{count_per_step(events, map(len, rows))} a step: {named}" if named else "no call in the file"


def top_culprits(events: list[Counter[str]], steps: int, most: int = 2) -> list[tuple[str, int]]:
    """The culprits that cost most over all ranks, with ns a step of each."""
    total: Counter[str] = Counter()
    for counter in events:
        total.update(counter)
    return [(name, ns // max(1, steps)) for name, ns in total.most_common(most)]
