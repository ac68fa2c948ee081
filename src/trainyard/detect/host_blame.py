"""Whom a stretch of host time is laid to, in words: the op or call, and the frame or module it stands in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from trainyard.booked import Booked
from trainyard.detect.finding_text import short, times
from trainyard.events import CALL, I32, I64, OP, PYTHON
from trainyard.ledger import Account

_MODULE = "nn.Module: "
_MARK = "ProfilerStep#"


def blamed(booked: Booked, host_rows: I64 | I32, ns: I64) -> Counter[str]:
    """ns by culprit, of stretches with the innermost host span of each (-1: nothing open)."""
    host, names = booked.events.host, booked.events.names
    sums = np.bincount(host_rows + 1, weights=ns, minlength=1)
    rows = np.flatnonzero(sums[1:])
    call, frame = _call(booked, rows), _frame(booked, rows)
    pair = host.name[call].astype(np.int64) * (len(names) + 1) + frame + 1
    unique, inverse = np.unique(pair, return_inverse=True)
    totals: Counter[str] = Counter({"Python": int(sums[0])} if sums[0] else {})
    for one, total in zip(unique.tolist(), np.bincount(inverse, weights=sums[1:][rows]).tolist()):
        name, module = divmod(one, len(names) + 1)
        totals[_worded(names[name], names[module - 1] if module else "")] += int(total)
    return totals


def _worded(name: str, frame: str) -> str:
    """`aten::item in train.py(52): log`."""
    if name.startswith(_MARK):
        return "Python"
    name, frame = name.removeprefix(_MODULE), frame.removeprefix(_MODULE)
    return short(name) if frame in ("", name) else f"{short(name)} in {short(frame)}"


def _call(booked: Booked, rows: I64) -> I64:
    """The outermost op or call around each row that explains idle time with the same cause."""
    host, cause = booked.events.host, booked.cause
    found, at, own = rows.copy(), rows.copy(), np.arange(len(rows))
    while len(own):
        at = host.parent[at]
        go = (at >= 0) & (cause[rows[own]] >= 0) & (cause[at] == cause[rows[own]])
        at, own = at[go], own[go]
        is_call = (host.what[at] == OP) | (host.what[at] == CALL)
        found[own[is_call]] = at[is_call]
    return found


def _frame(booked: Booked, rows: I64) -> I64:
    """The name of the innermost Python frame or module around each row, else of the module that its work is of."""
    host = booked.events.host
    is_frame = (host.what == PYTHON) | booked.names(lambda name: name.startswith(_MODULE))[host.name]
    found = booked.host_module[rows].astype(np.int64)
    at, own = rows.copy(), np.arange(len(rows))
    while len(own):
        here = is_frame[at]
        found[own[here]] = host.name[at[here]]
        at, own = host.parent[at[~here]], own[~here]
        at, own = at[at >= 0], own[at >= 0]
    return found


def calls(booked: Booked, account: Account) -> I64:
    """The host rows in full steps that say the host was about this account's business; what such a call does inside
    is no other call."""
    host = booked.events.host
    wanted = np.array([text == str(account) for text in booked.causes] + [False], bool)
    rows = np.flatnonzero(wanted[booked.cause])
    parent = host.parent[rows]
    return rows[((parent < 0) | ~wanted[booked.cause[parent]]) & booked.full(host.start[rows])]


def told(events: Sequence[Booked], rows: Sequence[I64]) -> str:
    """`12 times a step: cudaMalloc in model.py(3): forward 12`: host rows counted, with the commonest culprits."""
    ones = [blamed(rank, own, np.ones(len(own), np.int64)) for rank, own in zip(events, rows)]
    steps = sum(rank.steps for rank in events)
    total: Counter[str] = sum(ones, Counter())
    named = ", ".join(f"{name} {-(-count // max(1, steps))}" for name, count in total.most_common(2))
    return f"{times(events, map(len, rows))} a step: {named}" if named else "no call in the file"


def dearest(events: list[Counter[str]], steps: int, most: int = 2) -> list[tuple[str, int]]:
    """The culprits of all ranks, dearest first, with ns a step of each."""
    total: Counter[str] = Counter()
    for one in events:
        total.update(one)
    return [(name, ns // max(1, steps)) for name, ns in total.most_common(most)]
