"""Locates the change of an account: the framework operations, with shapes, whose kernels make up its time.

Kernels are matched by the operation that launched them, not by name: a new release of a library may rename all of them.
A booked profile is a trace whose time was assigned to the accounts of the step ledger: one row per interval of work,
with the ns that are booked to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from trainyard.booked import Booked
from trainyard.compare.gate.changed_accounts import MIN_PAIRS, ChangedAccounts, find_changed_accounts
from trainyard.compare.gate.pairs import Pair
from trainyard.events import I32, OP, OperandShape
from trainyard.record import Run

ReadProfile = Callable[[Run], Sequence[Booked]]
"""A stored run -> the booked profiles of its ranks, read from its traces; empty if they were deleted."""
_MAX_ACCOUNTS = 2
"""Accounts that are examined."""
_MAX_PAIRS = 8
"""Pairs whose traces are read again."""


def find_changed_operations(
    pairs: Sequence[Pair], changed: ChangedAccounts, profile: ReadProfile
) -> dict[str, ChangedAccounts]:
    """Account -> the change of each of its operations, for the accounts that caused the slowdown. Empty if too few
    pairs have traces."""
    accounts = [row.account for row in changed.culprits[:_MAX_ACCOUNTS]]
    if not accounts:
        return {}
    # For each pair, (base, head): account -> operation -> ns per step.
    operations_of_pairs = [
        tuple(_average_operations(profile(run), accounts) for run in pair) for pair in pairs[-_MAX_PAIRS:]
    ]
    complete = [(base, head) for base, head in operations_of_pairs if base and head]
    if len(complete) < MIN_PAIRS:
        return {}
    return {
        account: find_changed_accounts([(base[account], head[account]) for base, head in complete], changed.alpha)
        for account in accounts
        if all(side[account] for pair in complete for side in pair)
    }


def _average_operations(ranks: Sequence[Booked], accounts: Iterable[str]) -> dict[str, dict[str, float]]:
    """Account -> operation with shapes -> ns per step, the mean over ranks; empty without ranks."""
    if not ranks:
        return {}
    return {account: _average_ranks([sum_operations(rank, account) for rank in ranks]) for account in accounts}


def _average_ranks(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Name -> mean over ranks; a rank without the name counts as 0."""
    names = {name for rank in ranks for name in rank}
    return {name: sum(rank.get(name, 0.0) for rank in ranks) / len(ranks) for name in names}


def sum_operations(rank: Booked, account: str) -> dict[str, float]:
    """Operation with its shapes -> ns per full step that its work has in the account."""
    is_account_key = rank.keys(lambda key, _: str(key) == account)  # for each (account, phase) of the profile
    rows = np.flatnonzero(is_account_key[rank.key] & rank.full(rank.start))  # intervals of the account, in full steps
    ops = _find_operations(rank, rank.launcher[rows])  # of each of `rows`, a row of the host table
    ns_by_operation: dict[str, float] = {}
    for op in np.unique(ops).tolist():
        name = _name_operation(rank, op)
        ns_by_operation[name] = ns_by_operation.get(name, 0.0) + float(rank.owned[rows[ops == op]].sum()) / rank.steps
    return ns_by_operation


def _find_operations(rank: Booked, rows: I32) -> I32:
    """For each host row, the row of the framework operation that it is or is nested in; -1 for none."""
    host, rows = rank.events.host, rows.copy()
    # Rows that are not operations move to the row that contains them, until all are operations or -1.
    while len(non_ops := np.flatnonzero((rows >= 0) & (host.what[np.maximum(rows, 0)] != OP))):
        rows[non_ops] = host.parent[rows[non_ops]]
    return rows


def _name_operation(rank: Booked, row: int) -> str:
    """Name and input shapes of the framework op at `row` of the host table; `no operation` for a negative row."""
    if row < 0:
        return "no operation"
    host = rank.events.host
    shape = int(host.shape[row])
    name = rank.events.names[host.name[row]]
    return name if shape < 0 else f"{name} {_show_sizes(rank.events.shapes[shape])}".rstrip()


def _show_sizes(shape: OperandShape) -> str:
    """`[8, 128] x [128, 384]`: the sizes of the tensors."""
    return " x ".join(str(list(dims)) for dims in shape.dims if dims)
