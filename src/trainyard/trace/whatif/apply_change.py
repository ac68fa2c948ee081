"""Applies suppositions to a profile: changes the lengths, lags and dependencies of its ops."""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadInput
from trainyard.events import I64, NOTE, OP, Events
from trainyard.ledger import Account
from trainyard.machine import Device
from trainyard.stats.medians import lower_median
from trainyard.trace.flops.roofline import op_roofline
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.changes import (
    NETWORK,
    NO_LAUNCH_GAPS,
    NO_STRAGGLERS,
    OP_PREFIX,
    PERFECT_OVERLAP,
    Supposition,
)
from trainyard.trace.whatif.dependency_graph import Graph, Needs, replace_needs
from trainyard.trace.whatif.profile_ops import HOST, TRANSFER, WORK, Profile
from trainyard.trace.whatif.typical_lengths import typical_lengths

Mask = NDArray[np.bool_]


class Supposed:
    """The ops of `measured` with the suppositions applied so far: `graph`, with `length` and `lag` instead of its own.
    Work before the first mark is not part of a step and stays unchanged. `device`: the device of rooflines; by default
    each rank's own. Masks and columns have one element for each op of `ops`; `length` and `lag` are ns."""

    def __init__(self, profile: Profile, measured: MeasuredTrace, device: Device | None) -> None:
        """`device`: the data of the recorded device; None if it is unknown."""
        self.profile, self.measured, self.device = profile, measured, device
        self.ranks = tuple(measured.ranks)
        self.ops = ops = profile.ops
        self.graph: Graph = profile.graph
        self.length, self.lag = self.graph.length, self.graph.lag.copy()
        self._kind = np.array([*(account.kind for account in profile.accounts), ""])[ops.account]
        marked = np.array([*(bool(rank.events.marks) for rank in self.ranks), True])
        self._in_step = (ops.step >= 0) | ~marked[ops.rank_index]
        self._sends = (self._kind == "comm") & np.isin(ops.role, (WORK, TRANSFER)) & self._in_step

    def suppose(self, supposition: Supposition) -> None:
        """Applies one supposition. Raises `BadInput` if nothing in the traces matches it."""
        if supposition.target == NO_STRAGGLERS:
            self._remove_straggling()
        elif supposition.target == NO_LAUNCH_GAPS:
            self._remove_launch_gaps()
        elif supposition.target == PERFECT_OVERLAP:
            self._overlap_all()
        elif supposition.target == NETWORK:
            self._scale_lengths(supposition, self._sends, "no collective")
        elif supposition.target.startswith(OP_PREFIX):
            self._scale_lengths(
                supposition, self._op_mask(supposition.target.removeprefix(OP_PREFIX)), "no work of an op of that name"
            )
        else:
            booked = [_matches_account(supposition.target, account) for account in self.profile.accounts]
            known_accounts = ", ".join(sorted(str(account) for account in self.profile.accounts)[:40])
            lacks = f"no such work. Accounts in the traces: {known_accounts}"
            self._scale_lengths(supposition, np.array([*booked, False])[self.ops.account], lacks)

    def _scale_lengths(self, supposition: Supposition, rows: Mask, missing: str) -> None:
        """Changes the length of the ops `rows` by the supposition's share. Raises `BadInput` with the text `missing` if
        none of them lies in a step."""
        rows = rows & self._in_step & (self.length > 0)
        if not rows.any():
            raise BadInput(f"{supposition.text}: the traces show {missing}.")
        if supposition.share is None:
            self._set_lengths(self._lengths_at_roofline(supposition, rows))
            return
        numerator, denominator = supposition.share.numerator, supposition.share.denominator
        length = self.length.copy()
        length[rows] = [ns * numerator // denominator for ns in self.length[rows].tolist()]
        self._set_lengths(length)

    def _set_lengths(self, length: I64) -> None:
        """Sets the lengths. Ops keep at least 1 ns, so that their order with their neighbours does not change."""
        self.length = np.where(self.length > 0, np.maximum(length, 1), length)

    def _lengths_at_roofline(self, supposition: Supposition, rows: Mask) -> I64:
        """Lengths with ops at their roofline, if it is known: each op is scaled by reachable over measured time."""
        reachable_and_busy_ns: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for row in op_roofline(self.measured, self.device).rows:
            if row.reachable_ns is not None:
                total = reachable_and_busy_ns[row.op, row.account]
                total[0], total[1] = total[0] + min(row.reachable_ns, row.busy_ns), total[1] + row.busy_ns
        length, is_known = self.length.copy(), False
        for rank_index, rank in enumerate(self.ranks):
            rank_ops = np.flatnonzero(rows & (self.ops.rank_index == rank_index))
            interval = self.ops.row[rank_ops] if len(rank.events.work) else self.ops.unit[rank_ops]
            ops = rank.arithmetic.op[interval]
            names = [rank.events.names[name] if op >= 0 else "" for op, name in zip(ops, rank.events.host.name[ops])]
            for op_index, name in zip(rank_ops.tolist(), names):
                reachable_ns, busy_ns = reachable_and_busy_ns.get(
                    (name, str(self.profile.accounts[self.ops.account[op_index]])), (0, 0)
                )
                if busy_ns:
                    length[op_index], is_known = int(length[op_index]) * reachable_ns // busy_ns, True
        if not is_known:
            raise BadInput(
                f"{supposition.text}: the roofline of that op is unknown.", "Give a factor: 2x is twice as fast."
            )
        return length

    def _remove_straggling(self) -> None:
        """Gives every op its typical length on ranks that are not late; all ranks begin when the median one did."""
        is_counted = np.zeros(len(self.length), bool)
        for rank_index, rank in enumerate(self.ranks):
            full = {part.label for part in rank.parts if not part.partial}
            steps = [step for step, mark in enumerate(rank.events.marks) if mark.label in full]
            is_counted |= (self.ops.rank_index == rank_index) & np.isin(self.ops.step, steps)
        is_own_work = (self._kind != "comm") & (self.ops.rank_index >= 0)
        self._set_lengths(
            typical_lengths(self.ops, self.length, is_counted if is_counted.any() else self._in_step, is_own_work)
        )
        first_mark_ns = np.array(
            [rank.events.marks[0].start if rank.events.marks else rank.events.span[0] for rank in self.ranks]
        )
        has_no_need = np.ones(len(self.length), bool)
        has_no_need[self.graph.needs.op] = False
        self.lag[has_no_need] -= (first_mark_ns - lower_median(np.sort(first_mark_ns)))[
            self.ops.rank_index[has_no_need]
        ]

    def _remove_launch_gaps(self) -> None:
        """Removes host time, except waiting for data, and the delay between launch and start."""
        is_host = self.ops.role == HOST
        self._set_lengths(np.where(is_host & self._in_step & (self._kind == "launch_gap"), 0, self.length))
        need, op, weight = self.graph.needs
        is_launch = is_host[need] & ~is_host[op]
        self.graph = self.graph._replace(
            needs=Needs(need, op, np.where(is_launch & self._in_step[op], np.minimum(weight, 0), weight))
        )
        has_need = np.zeros(len(is_host), bool)
        has_need[op] = True
        self.lag[has_need & ~is_host & self._in_step] = 0

    def _overlap_all(self) -> None:
        """Lets nothing in a rank's step wait for its transfers, except the last computation, which waits for all."""
        ops, graph = self.ops, self.graph
        need, op, _ = graph.needs
        waits_for_transfer = self._sends[need] & ~self._sends[op] & (ops.rank_index[op] == ops.rank_index[need])
        waits_for_transfer &= np.isin(ops.role[op], (HOST, WORK))
        device = np.array([*(len(rank.events.work) > 0 for rank in self.ranks), False])[ops.rank_index]
        may_end_step = np.where(device, (ops.role == WORK) & (self._kind == "compute"), ops.role == HOST)
        last_op_of_step = {
            (int(ops.rank_index[op_index]), int(ops.step[op_index])): op_index
            for op_index in graph.order[may_end_step[graph.order]].tolist()
        }
        transfer_ops = np.flatnonzero(self._sends)
        last_ops = [
            last_op_of_step.get(which, -1)
            for which in zip(ops.rank_index[transfer_ops].tolist(), ops.step[transfer_ops].tolist())
        ]
        last_ops = np.array(last_ops, np.int64)
        is_needed = (
            (last_ops >= 0)
            & (ops.start[transfer_ops] < ops.start[last_ops])
            & (ops.stop[transfer_ops] <= ops.start[last_ops])
        )
        self.graph = replace_needs(
            graph,
            waits_for_transfer,
            Needs(transfer_ops[is_needed], last_ops[is_needed], np.zeros(int(is_needed.sum()), np.int64)),
        )

    def _op_mask(self, pattern: str) -> Mask:
        """The device work of ops with that name and of the ops inside them; on a CPU, those ops themselves."""
        matches_label = np.array([_matches_name(name, pattern) for name in self.profile.labels] or [False], bool)
        selected = np.zeros(len(self.length), bool)
        for rank_index, rank in enumerate(self.ranks):
            inside, launcher = _is_inside_named(rank.events, pattern), self.profile.launcher[rank_index]
            in_rank = self.ops.rank_index == rank_index
            if len(rank.events.work):
                in_rank &= self.ops.role == WORK
                selected[in_rank] = inside[launcher[self.ops.row[in_rank]]] | matches_label[self.ops.label[in_rank]]
            else:
                in_rank &= self.ops.role == HOST
                selected[in_rank] = inside[launcher[self.ops.unit[in_rank]]]
        return selected


def _matches_account(pattern: str, account: Account) -> bool:
    """Whether an account matches: `comm` covers all of its kind, `comm/all_gather` those of any group."""
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
