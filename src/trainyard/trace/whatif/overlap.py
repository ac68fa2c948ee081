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
    # (rank index, step) -> the last op in topological order that may end that step.
    last_op_of_step = {
        (int(ops.rank_index[op_index]), int(ops.step[op_index])): op_index
        for op_index in graph.order[may_end_step[graph.order]].tolist()
    }
    transfer_ops = np.flatnonzero(transfers)
    # For each transfer, the last op of its step, -1 for none. It needs the transfer only if it came after it as
    # measured.
    last_ops = np.array(
        [
            last_op_of_step.get(rank_and_step, -1)
            for rank_and_step in zip(ops.rank_index[transfer_ops].tolist(), ops.step[transfer_ops].tolist())
        ],
        np.int64,
    )
    is_needed = (
        (last_ops >= 0)
        & (ops.start[transfer_ops] < ops.start[last_ops])
        & (ops.stop[transfer_ops] <= ops.start[last_ops])
    )
    zeros = np.zeros(int(is_needed.sum()), np.int64)
    return replace_needs(graph, waits, Needs(transfer_ops[is_needed], last_ops[is_needed], zeros))
