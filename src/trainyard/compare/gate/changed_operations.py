"""Where in an account a change is: the framework's operations that its time was spent for, with their shapes.

Kernels are matched by what launched them, not by name: a library's new release renames all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from trainyard.booked import Booked
from trainyard.compare.gate.changed_accounts import FEWEST, ChangedAccounts, why
from trainyard.compare.gate.pairs import Pair
from trainyard.events import I32, OP, OperandShape
from trainyard.record import Run

Profile = Callable[[Run], Sequence[Booked]]
"""A stored run's ranks as its traces show them; none where they are gone."""
_MOST = 2
"""Accounts that are looked into, and ..."""
_PAIRS = 8
"""... pairs whose traces are read again for it."""


def addresses(pairs: Sequence[Pair], found: ChangedAccounts, profile: Profile) -> dict[str, ChangedAccounts]:
    """Account -> what moved in it, of the accounts that did it. Empty where too few pairs have traces."""
    wanted = [one.account for one in found.named[:_MOST]]
    if not wanted:
        return {}
    read = [tuple(_of_run(profile(run), wanted) for run in pair) for pair in pairs[-_PAIRS:]]
    whole = [(base, head) for base, head in read if base and head]
    if len(whole) < FEWEST:
        return {}
    return {
        account: why([(base[account], head[account]) for base, head in whole], found.alpha)
        for account in wanted
        if all(side[account] for pair in whole for side in pair)
    }


def _of_run(ranks: Sequence[Booked], accounts: Iterable[str]) -> dict[str, dict[str, float]]:
    """Account -> operation -> ns a step, the mean over ranks."""
    if not ranks:
        return {}
    return {account: _mean([of_rank(rank, account) for rank in ranks]) for account in accounts}


def _mean(some: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for one in some for name in one}
    return {name: sum(one.get(name, 0.0) for one in some) / len(some) for name in names}


def of_rank(rank: Booked, account: str) -> dict[str, float]:
    """Operation with its shapes -> ns that its work owns of the account, a full step."""
    rows = np.flatnonzero(rank.keys(lambda one, _: str(one) == account)[rank.key] & rank.full(rank.start))
    ops = _operations(rank, rank.launcher[rows])
    found: dict[str, float] = {}
    for place in np.unique(ops).tolist():
        name = _named(rank, place)
        found[name] = found.get(name, 0.0) + float(rank.owned[rows[ops == place]].sum()) / rank.steps
    return found


def _operations(rank: Booked, rows: I32) -> I32:
    """Of host rows the framework's operation that each is or stands under; -1 where there is none."""
    host, rows = rank.events.host, rows.copy()
    while len(up := np.flatnonzero((rows >= 0) & (host.what[np.maximum(rows, 0)] != OP))):
        rows[up] = host.parent[rows[up]]
    return rows


def _named(rank: Booked, place: int) -> str:
    if place < 0:
        return "no operation"
    host = rank.events.host
    shape = int(host.shape[place])
    name = rank.events.names[host.name[place]]
    return name if shape < 0 else f"{name} {_sizes(rank.events.shapes[shape])}".rstrip()


def _sizes(shape: OperandShape) -> str:
    """`[8, 128] x [128, 384]`: of the tensors alone."""
    return " x ".join(str(list(dims)) for dims in shape.dims if dims)
