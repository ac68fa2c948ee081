"""Selects the ops of a profile by account or name, and computes their lengths at the roofline.

Here an op of a profile is a node of the dependency graph: a kernel, or a stretch of host time (`Ops` in
`profile_ops.py`). An op with a name is a framework op, such as `aten::mm`, that launched some of them. Masks have an
element for each op of the profile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, NOTE, OP, Events
from trainyard.ledger import Account
from trainyard.machine import Device
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.flops.roofline import op_roofline
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.profile_ops import HOST, WORK, Profile

Mask = NDArray[np.bool_]
MEMORY_BOUND = (
    "compute/norm",
    "compute/elementwise",
    "compute/reduction",
    "compute/embedding",
    "compute/softmax",
    "compute/optimizer",
    "copy/d2d",
    "copy/memset",
)
"""Accounts of work that the memory of a device bounds, whatever its shapes."""


def select_accounts(profile: Profile, pattern: str) -> Mask:
    """A mask of the ops booked to accounts that match `pattern`.

    A kind (`comm`) covers all of its accounts, `comm/all_gather` those of any process group; `*` matches any text.
    """
    return np.array([*(_matches_account(pattern, account) for account in profile.accounts), False], bool)[
        profile.ops.account
    ]


def select_memory_bound(profile: Profile) -> Mask:
    """A mask of the ops booked to the accounts `MEMORY_BOUND`."""
    return np.logical_or.reduce([select_accounts(profile, account) for account in MEMORY_BOUND])


def op_mask(profile: Profile, ranks: Sequence[RankTrace], pattern: str) -> Mask:
    """A mask of the device work of framework ops whose name matches `pattern` and of the ops inside them; on a CPU, of
    the stretches of these ops. Work whose own name matches is selected too.

    Columns of `profile.ops`: `row`, the interval of work that an op is; `unit`, the interval that a stretch of a CPU's
    host time is a piece of; `label`, the name, an index into `profile.labels`. `profile.launcher[rank_index]` has the
    host row that launched each interval, or on a CPU is the interval; -1 for none.
    """
    matches_label = np.array([_matches_name(name, pattern) for name in profile.labels] or [False], bool)
    selected = np.zeros(len(profile.ops.role), bool)
    for rank_index, rank in enumerate(ranks):
        inside, launcher = _is_inside_named(rank.events, pattern), profile.launcher[rank_index]
        in_rank = profile.ops.rank_index == rank_index
        if len(rank.events.work):
            in_rank &= profile.ops.role == WORK
            selected[in_rank] = inside[launcher[profile.ops.row[in_rank]]] | matches_label[profile.ops.label[in_rank]]
        else:
            in_rank &= profile.ops.role == HOST
            selected[in_rank] = inside[launcher[profile.ops.unit[in_rank]]]
    return selected


def roofline_lengths(
    measured: MeasuredTrace,
    profile: Profile,
    ranks: Sequence[RankTrace],
    rows: Mask,
    length: I64,
    device: Device | None,
) -> I64 | None:
    """Lengths in ns with the ops `rows` (a mask) at their roofline: each is scaled by reachable over measured time.

    `length`: ns of each op; `device`: the device of the roofline, None for the one that each rank's file names. Ops
    whose roofline is unknown keep their length; None if that is so for all of them.
    """
    # (framework op, account) -> [reachable ns, measured ns], summed over shapes and phases.
    reachable_and_busy_ns: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in op_roofline(measured, device).rows:
        if row.reachable_ns is not None:
            total = reachable_and_busy_ns[row.op, row.account]
            total[0], total[1] = total[0] + min(row.reachable_ns, row.busy_ns), total[1] + row.busy_ns
    lengths, is_known = length.copy(), False
    for rank_index, rank in enumerate(ranks):
        rank_ops = np.flatnonzero(rows & (profile.ops.rank_index == rank_index))
        interval = profile.ops.row[rank_ops] if len(rank.events.work) else profile.ops.unit[rank_ops]
        ops = rank.arithmetic.op[interval]  # host row of the framework op of each, -1 for none
        names = [rank.events.names[name] if op >= 0 else "" for op, name in zip(ops, rank.events.host.name[ops])]
        for op_index, name in zip(rank_ops.tolist(), names):
            reachable_ns, busy_ns = reachable_and_busy_ns.get(
                (name, str(profile.accounts[profile.ops.account[op_index]])), (0, 0)
            )
            if busy_ns:
                lengths[op_index], is_known = int(lengths[op_index]) * reachable_ns // busy_ns, True
    return lengths if is_known else None


def _matches_account(pattern: str, account: Account) -> bool:
    text = str(account)
    return any(fnmatchcase(known, pattern) for known in (account.kind, text.partition("@")[0], text))


def _matches_name(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _is_inside_named(events: Events, pattern: str) -> Mask:
    """Whether each host row is an op or annotation of that name or inside one; the last entry, for row -1, is False."""
    is_match = np.array([_matches_name(name, pattern) for name in events.names], bool)
    host = events.host
    inside = [*(np.isin(host.what, (OP, NOTE)) & is_match[host.name]).tolist(), False]
    for row, parent in enumerate(host.parent.tolist()):
        inside[row] = inside[row] or inside[parent]
    return np.array(inside, bool)
