"""Applies suppositions to a profile: changes the lengths, lags and dependencies of its ops.

A supposition is a change as the user writes it (`compute/norm=2x`, see `changes.py`). Ops are the nodes of the
dependency graph of `dependency_graph.py`: op `op` starts `lag` ns after its last need (an op that it depends on) has
stopped, and takes `length` ns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.change import Change, RowChange
from trainyard.errors import BadInput, near
from trainyard.events import I64, OP
from trainyard.machine import Device
from trainyard.stats.medians import lower_median
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.change_rows import change_rows
from trainyard.trace.whatif.changes import (
    MEMORY,
    NETWORK,
    NO_LAUNCH_GAPS,
    NO_STRAGGLERS,
    NO_SYNCS,
    OP_PREFIX,
    OVERLAP,
    PERFECT_OVERLAP,
    RANK_PREFIX,
    ROOFLINE,
    Supposition,
    parse,
)
from trainyard.trace.whatif.dependency_graph import Graph, Needs, replace_needs
from trainyard.trace.whatif.overlap import overlap_transfers
from trainyard.trace.whatif.profile_ops import HOST, TRANSFER, WORK, Profile
from trainyard.trace.whatif.select_ops import op_mask, roofline_lengths, select_accounts, select_memory_bound
from trainyard.trace.whatif.typical_lengths import typical_lengths

Mask = NDArray[np.bool_]


class Supposed:
    """The ops of `measured` with the suppositions applied so far: `graph`, with `length` and `lag` instead of its own.

    Work before the first mark is not part of a step and stays unchanged. Masks and columns have one element for each op
    of `ops`; `length` and `lag` are ns. `in_step`: ops that suppositions may change; `is_comm`: ops of communication.
    """

    def __init__(self, profile: Profile, measured: MeasuredTrace, ranks: tuple[RankTrace, ...]) -> None:
        """`ranks`: those of `measured`, loaded."""
        self.profile, self.measured, self.ranks = profile, measured, ranks
        self.ops = ops = profile.ops
        self.graph: Graph = profile.graph
        self.length, self.lag = self.graph.length, self.graph.lag.copy()
        # The last element is for meetings, whose rank index is -1. Without marks the whole window is one step.
        has_marks = np.array([*(bool(rank.events.marks) for rank in ranks), True])
        self.in_step = (ops.step >= 0) | ~has_marks[ops.rank_index]
        self.is_comm = self._is_kind("comm")
        self._sends = self.is_comm & np.isin(ops.role, (WORK, TRANSFER)) & self.in_step

    def apply(self, change: Change, device: Device | None = None) -> None:
        """Applies one change. `device`: the device of rooflines; None for the one that each rank's file names. Raises
        `BadInput` if nothing in the traces matches it."""
        if isinstance(change, RowChange):
            self.length, self.lag = change_rows(change, self.profile, self.ranks, self.length, self.lag, self.in_step)
        else:
            self.suppose(parse(change.text), device)

    def suppose(self, supposition: Supposition, device: Device | None = None) -> None:
        """Applies one supposition to `graph`, `length` and `lag`. `device` and errors as in `apply`."""
        target = supposition.target
        if target == NO_STRAGGLERS or target.startswith(RANK_PREFIX):
            self._remove_straggling(supposition)
        elif target == NO_LAUNCH_GAPS:
            self._remove_launch_gaps()
        elif target == NO_SYNCS:
            self._remove_syncs(supposition)
        elif target == PERFECT_OVERLAP:
            self.graph = overlap_transfers(self.graph, self.profile, self.ranks, self._sends, self.is_comm)
        elif target == NETWORK:
            self._scale_lengths(supposition, self._check(supposition, self._sends, "no collective"))
        elif target == MEMORY:
            rows = select_memory_bound(self.profile)
            self._scale_lengths(supposition, self._check(supposition, rows, "no memory-bound work"))
        elif target.startswith(OP_PREFIX):
            name = target.removeprefix(OP_PREFIX)
            rows = op_mask(self.profile, self.ranks, name)
            next_step = "" if rows.any() else near(name, _op_names(self.ranks))
            next_step = next_step or "`trainyard trace --full` lists ops."
            rows = self._check(supposition, rows, "no work of an op of that name", next_step)
            self._change_op(supposition, rows, device)
        else:
            self._change_account(supposition)

    def _is_kind(self, kind: str) -> Mask:
        """The ops booked to accounts of this kind."""
        return np.array([*(account.kind == kind for account in self.profile.accounts), False], bool)[self.ops.account]

    def _check(self, supposition: Supposition, rows: Mask, missing: str, next_step: str = "") -> Mask:
        """The ops `rows` (a mask) that lie in a step and take time. Raises `BadInput` with `next_step` if there are
        none; `missing`: the object of its sentence."""
        rows = rows & self.in_step & (self.length > 0)
        if not rows.any():
            raise BadInput(f"{supposition.text}: the traces show {missing}.", next_step)
        return rows

    def _change_account(self, supposition: Supposition) -> None:
        """Changes the length of the work booked to the accounts of a supposition (`compute/norm=2x`) or, if its value
        is `OVERLAP`, lets compute overlap their transfers. Raises `BadInput` if the steps have no such work."""
        known_accounts = ", ".join(sorted(str(account) for account in self.profile.accounts)[:40])
        is_selected = select_accounts(self.profile, supposition.target)
        rows = self._check(supposition, is_selected, f"no such work. Accounts in the traces: {known_accounts}")
        if supposition.value == OVERLAP:
            self.graph = overlap_transfers(self.graph, self.profile, self.ranks, rows & self._sends, self.is_comm)
        else:
            self._scale_lengths(supposition, rows)

    def _change_op(self, supposition: Supposition, rows: Mask, device: Device | None) -> None:
        """Changes the length of the ops `rows` (a mask) by a factor or to their roofline. `device`: as in `apply`.
        Raises `BadInput` if the roofline is unknown."""
        if supposition.value != ROOFLINE:
            self._scale_lengths(supposition, rows)
            return
        lengths = roofline_lengths(self.measured, self.profile, self.ranks, rows, self.length, device)
        if lengths is None:
            raise BadInput(
                f"{supposition.text}: the roofline of that op is unknown. It needs the op's shapes, and a machine file "
                "of the device that the trace names.",
                "Give a factor: 2x is twice as fast.",
            )
        self._set_lengths(lengths)

    def _scale_lengths(self, supposition: Supposition, rows: Mask) -> None:
        """Multiplies the length of the ops `rows` (a mask) by the share of the time that remains, rounded down."""
        remaining, total = supposition.share.as_integer_ratio()
        length, measured_ns = self.length.copy(), self.length[rows]
        if int(measured_ns.max(initial=0)) * remaining <= np.iinfo(np.int64).max:
            length[rows] = measured_ns * remaining // total
        else:
            length[rows] = [ns * remaining // total for ns in measured_ns.tolist()]
        self._set_lengths(length)

    def _set_lengths(self, length: I64) -> None:
        """Sets the lengths. Ops keep at least 1 ns, so that their order with their neighbours does not change."""
        self.length = np.where(self.length > 0, np.maximum(length, 1), length)

    def _remove_straggling(self, supposition: Supposition) -> None:
        """Gives every op its typical length on ranks that are not late, and lets all ranks begin when the median one
        did.

        For `rank:7=typical`, only the ops of rank 7 get their typical length on the others, and only its beginning
        moves, if it was later. Raises `BadInput` for ranks that cannot be compared.
        """
        late = self._late_rank_index(supposition)
        is_counted = np.zeros(len(self.length), bool)  # ops in full steps
        for rank_index, rank in enumerate(self.ranks):
            full = {part.label for part in rank.parts if not part.partial}
            steps = [step for step, mark in enumerate(rank.events.marks) if mark.label in full]
            is_counted |= (self.ops.rank_index == rank_index) & np.isin(self.ops.step, steps)
        is_own_work = ~self.is_comm & (self.ops.rank_index >= 0)
        counted = is_counted if is_counted.any() else self.in_step
        self._set_lengths(typical_lengths(self.ops, self.length, counted, is_own_work, late))
        first_mark_ns = np.array(
            [rank.events.marks[0].start if rank.events.marks else rank.events.span[0] for rank in self.ranks]
        )
        others = np.delete(first_mark_ns, late) if late is not None else first_mark_ns
        # By how much each rank begins later than the median one: it is subtracted from the lag of ops without needs.
        lead_ns = first_mark_ns - lower_median(np.sort(others))
        if late is not None:
            lead_ns = np.where(np.arange(len(lead_ns)) == late, np.maximum(lead_ns, 0), 0)
        has_no_need = np.ones(len(self.length), bool)
        has_no_need[self.graph.needs.op] = False
        self.lag[has_no_need] -= lead_ns[self.ops.rank_index[has_no_need]]

    def _late_rank_index(self, supposition: Supposition) -> int | None:
        """The index of the rank of a `rank:` supposition, None for `no-stragglers`, which concerns all ranks. Raises
        `BadInput` for a rank that is not in the traces, or for ranks without a common clock."""
        if len(self.ranks) < 2 or self.measured.alignment.aligned == "no":
            raise BadInput(
                f"{supposition.text} compares ranks that share a clock. {self.measured.alignment.why}",
                "Pass the traces of all ranks of one run.",
            )
        if supposition.target == NO_STRAGGLERS:
            return None
        numbers = [rank.events.rank for rank in self.ranks]
        if supposition.rank not in numbers:
            shown = ", ".join(map(str, numbers[:16])) + (", ..." if len(numbers) > 16 else "")
            raise BadInput(f"{supposition.text}: the traces are of ranks {shown}.")
        return numbers.index(supposition.rank)

    def _remove_launch_gaps(self) -> None:
        """Removes host time in `launch_gap` accounts (so not waiting for data), and the delay between launch and start.

        A launch is an edge from a host op to another op. Its weight is the latency of launches, which becomes 0; a
        negative weight, for work that began before the host op stopped, is kept.
        """
        is_host = self.ops.role == HOST
        self._set_lengths(np.where(is_host & self.in_step & self._is_kind("launch_gap"), 0, self.length))
        need, op, weight = self.graph.needs
        is_launch = is_host[need] & ~is_host[op]
        self.graph = self.graph._replace(
            needs=Needs(need, op, np.where(is_launch & self.in_step[op], np.minimum(weight, 0), weight))
        )
        has_need = np.zeros(len(is_host), bool)
        has_need[op] = True
        self.lag[has_need & ~is_host & self.in_step] = 0

    def _remove_syncs(self, supposition: Supposition) -> None:
        """Lets the host of a rank with a device not wait for it, and removes its time in synchronising calls. Raises
        `BadInput` if the host never waits."""
        ops, (need, op, _) = self.ops, self.graph.needs
        has_device = np.array([*(len(rank.events.work) > 0 for rank in self.ranks), False])
        waits = (ops.role[op] == HOST) & (ops.role[need] != HOST) & has_device[ops.rank_index[op]] & self.in_step[op]
        # Host ops of the synchronising calls themselves.
        is_call = (ops.role == HOST) & select_accounts(self.profile, "launch_gap/sync") & has_device[ops.rank_index]
        if not waits.any() and not is_call.any():
            raise BadInput(f"{supposition.text}: in the traces no host waits for its device.")
        none = np.empty(0, np.int64)
        self.graph = replace_needs(self.graph, waits, Needs(none, none, none))
        self._set_lengths(np.where(is_call & self.in_step, 0, self.length))


def _op_names(ranks: Sequence[RankTrace]) -> set[str]:
    """The names of the framework ops of all ranks."""
    return {
        rank.events.names[name]
        for rank in ranks
        for name in np.unique(rank.events.host.name[rank.events.host.what == OP]).tolist()
    }
