"""Perfect overlap: nothing in a step waits for its transfers, except the last computation.

Ops are the nodes of the dependency graph (`dependency_graph.py`), a need is an op that another op waits for. Masks have
an element for each op.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.whatif.dependency_graph import Graph, Needs, replace_needs
from trainyard.trace.whatif.profile_ops import HOST, WORK, Profile


def overlap_transfers(
    graph: Graph, profile: Profile, ranks: Sequence[RankTrace], transfers: NDArray[np.bool_], is_comm: NDArray[np.bool_]
) -> Graph:
    """Removes the edges on which a rank's step waits for the ops `transfers`, and lets its last computation wait.

    `transfers`: mask of the communication to overlap; `is_comm`: mask of all communication, which keeps its order with
    the transfers. Returns the changed graph. On a CPU the last computation is the last op of the training thread.
    """
    ops, (need, op, _) = profile.ops, graph.needs  # for each edge: the op that is waited for, and the one that waits
    is_compute = np.array([*(account.kind == "compute" for account in profile.accounts), False], bool)[ops.account]
    waits = transfers[need] & ~is_comm[op] & (ops.rank_index[op] == ops.rank_index[need])
    waits &= np.isin(ops.role[op], (HOST, WORK))
    on_device = np.array([*(len(rank.events.work) > 0 for rank in ranks), False])[ops.rank_index]
    may_end_step = np.where(on_device, (ops.role == WORK) & is_compute, ops.role == HOST)
    # The last op in topological order that may end each (rank, step), -1 for none: a later assignment replaces others.
    step_count = int(ops.step.max(initial=0)) + 2  # steps begin at `NOWHERE`, -1
    rank_and_step = ops.rank_index * step_count + ops.step + 1
    last_op_of_step = np.full(len(ranks) * step_count, -1, np.int64)
    ending_ops = graph.order[may_end_step[graph.order]]
    last_op_of_step[rank_and_step[ending_ops]] = ending_ops
    transfer_ops = np.flatnonzero(transfers)
    # A step's last op needs a transfer only if it came after it as measured.
    last_ops = last_op_of_step[rank_and_step[transfer_ops]]
    is_needed = (
        (last_ops >= 0)
        & (ops.start[transfer_ops] < ops.start[last_ops])
        & (ops.stop[transfer_ops] <= ops.start[last_ops])
    )
    zeros = np.zeros(int(is_needed.sum()), np.int64)
    return replace_needs(graph, waits, Needs(transfer_ops[is_needed], last_ops[is_needed], zeros))
