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
from trainyard.trace.whatif.changes import NETWORK, NO_LAUNCH_GAPS, NO_STRAGGLERS, OF_OP, PERFECT_OVERLAP, Supposition
from trainyard.trace.whatif.dependency_graph import Graph, Needs, rewired
from trainyard.trace.whatif.profile_ops import HOST, TRANSFER, WORK, Profile
from trainyard.trace.whatif.typical_lengths import typical

Mask = NDArray[np.bool_]


class Supposed:
    """The ops of `measured` with the suppositions applied so far: `graph`, with `length` and `lag` instead of its own.
    Work before the first mark is not part of a step and stays unchanged. `device`: the device of rooflines; by default
    each rank's own."""

    def __init__(self, profile: Profile, measured: MeasuredTrace, device: Device | None) -> None:
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
            self._no_stragglers()
        elif supposition.target == NO_LAUNCH_GAPS:
            self._no_launch_gaps()
        elif supposition.target == PERFECT_OVERLAP:
            self._overlap_all()
        elif supposition.target == NETWORK:
            self._scale(supposition, self._sends, "no collective")
        elif supposition.target.startswith(OF_OP):
            self._scale(
                supposition, self._op_mask(supposition.target.removeprefix(OF_OP)), "no work of an op of that name"
            )
        else:
            booked = [_covers(supposition.target, account) for account in self.profile.accounts]
            known = ", ".join(sorted(str(account) for account in self.profile.accounts)[:40])
            lacks = f"no such work. Accounts in the traces: {known}"
            self._scale(supposition, np.array([*booked, False])[self.ops.account], lacks)

    def _scale(self, supposition: Supposition, rows: Mask, lacks: str) -> None:
        rows = rows & self._in_step & (self.length > 0)
        if not rows.any():
            raise BadInput(f"{supposition.text}: the traces show {lacks}.")
        if supposition.share is None:
            self._keep(self._at_roofline(supposition, rows))
            return
        up, down = supposition.share.numerator, supposition.share.denominator
        length = self.length.copy()
        length[rows] = [ns * up // down for ns in self.length[rows].tolist()]
        self._keep(length)

    def _keep(self, length: I64) -> None:
        """Sets the lengths. Ops keep at least 1 ns, so that their order with their neighbours does not change."""
        self.length = np.where(self.length > 0, np.maximum(length, 1), length)

    def _at_roofline(self, supposition: Supposition, rows: Mask) -> I64:
        """Lengths with ops at their roofline, if it is known: each op is scaled by reachable over measured time."""
        busy: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for row in op_roofline(self.measured, self.device).rows:
            if row.reachable_ns is not None:
                total = busy[row.op, row.account]
                total[0], total[1] = total[0] + min(row.reachable_ns, row.busy_ns), total[1] + row.busy_ns
        length, known = self.length.copy(), False
        for rank_index, rank in enumerate(self.ranks):
            own = np.flatnonzero(rows & (self.ops.rank_index == rank_index))
            interval = self.ops.row[own] if len(rank.events.work) else self.ops.unit[own]
            ops = rank.arithmetic.op[interval]
            names = [rank.events.names[name] if op >= 0 else "" for op, name in zip(ops, rank.events.host.name[ops])]
            for number, name in zip(own.tolist(), names):
                least, took = busy.get((name, str(self.profile.accounts[self.ops.account[number]])), (0, 0))
                if took:
                    length[number], known = int(length[number]) * least // took, True
        if not known:
            raise BadInput(
                f"{supposition.text}: the roofline of that op is unknown.", "Give a factor: 2x is twice as fast."
            )
        return length

    def _no_stragglers(self) -> None:
        """Gives every op its typical length on ranks that are not late; all ranks begin when the median one did."""
        counted = np.zeros(len(self.length), bool)
        for rank_index, rank in enumerate(self.ranks):
            full = {part.label for part in rank.parts if not part.partial}
            steps = [number for number, mark in enumerate(rank.events.marks) if mark.label in full]
            counted |= (self.ops.rank_index == rank_index) & np.isin(self.ops.step, steps)
        own = (self._kind != "comm") & (self.ops.rank_index >= 0)
        self._keep(typical(self.ops, self.length, counted if counted.any() else self._in_step, own))
        began = np.array(
            [rank.events.marks[0].start if rank.events.marks else rank.events.span[0] for rank in self.ranks]
        )
        first = np.ones(len(self.length), bool)
        first[self.graph.needs.op] = False
        self.lag[first] -= (began - lower_median(np.sort(began)))[self.ops.rank_index[first]]

    def _no_launch_gaps(self) -> None:
        """Removes host time, except waiting for data, and the delay between launch and start."""
        host = self.ops.role == HOST
        self._keep(np.where(host & self._in_step & (self._kind == "launch_gap"), 0, self.length))
        need, op, weight = self.graph.needs
        launches = host[need] & ~host[op]
        self.graph = self.graph._replace(
            needs=Needs(need, op, np.where(launches & self._in_step[op], np.minimum(weight, 0), weight))
        )
        waits = np.zeros(len(host), bool)
        waits[op] = True
        self.lag[waits & ~host & self._in_step] = 0

    def _overlap_all(self) -> None:
        """Lets nothing in a rank's step wait for its transfers, except the last computation, which waits for all."""
        ops, graph = self.ops, self.graph
        need, op, _ = graph.needs
        waits = self._sends[need] & ~self._sends[op] & (ops.rank_index[op] == ops.rank_index[need])
        waits &= np.isin(ops.role[op], (HOST, WORK))
        device = np.array([*(len(rank.events.work) > 0 for rank in self.ranks), False])[ops.rank_index]
        ends = np.where(device, (ops.role == WORK) & (self._kind == "compute"), ops.role == HOST)
        last = {
            (int(ops.rank_index[number]), int(ops.step[number])): number
            for number in graph.order[ends[graph.order]].tolist()
        }
        sent = np.flatnonzero(self._sends)
        after = [last.get(which, -1) for which in zip(ops.rank_index[sent].tolist(), ops.step[sent].tolist())]
        after = np.array(after, np.int64)
        kept = (after >= 0) & (ops.start[sent] < ops.start[after]) & (ops.stop[sent] <= ops.start[after])
        self.graph = rewired(graph, waits, Needs(sent[kept], after[kept], np.zeros(int(kept.sum()), np.int64)))

    def _op_mask(self, pattern: str) -> Mask:
        """The device work of ops with that name and of the ops inside them; on a CPU, those ops themselves."""
        named = np.array([_named(name, pattern) for name in self.profile.labels] or [False], bool)
        selected = np.zeros(len(self.length), bool)
        for rank_index, rank in enumerate(self.ranks):
            inside, launcher = _inside(rank.events, pattern), self.profile.launcher[rank_index]
            own = self.ops.rank_index == rank_index
            if len(rank.events.work):
                own &= self.ops.role == WORK
                selected[own] = inside[launcher[self.ops.row[own]]] | named[self.ops.label[own]]
            else:
                own &= self.ops.role == HOST
                selected[own] = inside[launcher[self.ops.unit[own]]]
        return selected


def _covers(pattern: str, account: Account) -> bool:
    """Whether an account matches: `comm` covers all of its kind, `comm/all_gather` those of any group."""
    text = str(account)
    return any(fnmatchcase(known, pattern) for known in (account.kind, text.partition("@")[0], text))


def _named(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _inside(events: Events, pattern: str) -> Mask:
    """Whether each host row is an op or annotation of that name or inside one; the last entry, for row -1, is False."""
    named = np.array([_named(name, pattern) for name in events.names], bool)
    host = events.host
    inside = [*(np.isin(host.what, (OP, NOTE)) & named[host.name]).tolist(), False]
    for row, parent in enumerate(host.parent.tolist()):
        inside[row] = inside[row] or inside[parent]
    return np.array(inside, bool)
