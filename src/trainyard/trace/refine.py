"""Split each collective at its last arrival: before it, straggler; from it on, comm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.events import I32, I64
from trainyard.ledger import Account
from trainyard.trace.align import Meeting
from trainyard.trace.classify import Classified, Keys


class Waits(NamedTuple):
    """A rank's waits: [start, stop) booked under key, caused by the rank at place `late`."""

    start: I64
    stop: I64
    key: I32
    late: I32


def split(
    classified: Sequence[Classified], keys: Sequence[Keys], found: Sequence[Meeting]
) -> tuple[list[Classified], list[Waits]]:
    """Of each rank, its intervals with collectives starting at the last arrival, and the waits before it."""
    starts = [one.start.copy() for one in classified]
    waits: list[list[tuple[int, int, int, int]]] = [[] for _ in classified]
    for meeting in found:
        arrivals = [(int(classified[place].start[row]), place) for place, row in meeting.members]
        last, late = max(arrivals)
        for place, row in meeting.members:
            one = classified[place]
            begin = int(one.start[row])
            if last > begin:
                account, phase = keys[place].pairs[one.key[row]]
                key = keys[place].number(Account("straggler", account.what, account.group), phase)
                waits[place].append((begin, last, key, late))
                starts[place][row] = last
    return (
        [one._replace(start=start) for one, start in zip(classified, starts)],
        [_columns(rows) for rows in waits],
    )


def _columns(rows: list[tuple[int, int, int, int]]) -> Waits:
    table = np.array(rows, np.int64).reshape(-1, 4)
    return Waits(table[:, 0], table[:, 1], table[:, 2].astype(np.int32), table[:, 3].astype(np.int32))
