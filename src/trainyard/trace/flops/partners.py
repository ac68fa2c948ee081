"""Pairs each op with its node in the backward pass, and each node with its op.

A node receives the gradient of the op's result, so its recorded arguments have the result's dims; the op's arguments
have the sizes that a node does not record. Both carry the op's sequence number, which the framework counts up with each
node that it creates. An op without a number (a library's function called below autograd) created the nodes whose
numbers lie between those of its neighbours on the thread.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from trainyard.events import I32, I64, OP, Events, HostSpans
from trainyard.trace.flops.op_costs import Formulas

_NODE = re.compile(r"(?P<stem>.*?)Backward\d*$|.*CppNode<.*")
_WITH_PARENT = ("aten::cudnn_convolution_backward_weight", "aten::cudnn_convolution_backward_input")
"""Ops of 2021 whose sizes are those of the op around them."""


def find_partners(events: Events, rows: I64, formulas: Formulas) -> I32:
    """For each host row the row of its other half, -1 if it has none or no formula reads it. `rows`: host rows of ops
    with recorded arguments."""
    host = events.host
    partner = np.full(len(host), -1, np.int32)
    numbers = np.unique(host.name[rows]).tolist()
    wanted = {number for number in numbers if formulas.reads_partner(events.names[number])}
    recorded = {shape for shape in np.unique(host.shape[rows]).tolist() if any(events.shapes[shape].values)}
    implied = [
        number
        for number in wanted
        if events.names[number].startswith("aten::")
        and events.names[number] != "aten::index"
        and not formulas.own.reads_partner(events.names[number])
    ]
    # ATen's formulas read a result only if the file lacks the values that determine it.
    reads = np.isin(host.name[rows], list(wanted)) & ~(
        np.isin(host.shape[rows], list(recorded)) & np.isin(host.name[rows], implied)
    )
    if not reads.any():
        return partner
    with_parent = rows[reads & np.isin(host.name[rows], _numbers_of(events, _WITH_PARENT))]
    partner[with_parent] = host.parent[with_parent]
    wanted = set(np.unique(host.name[rows[reads]]).tolist())
    nodes = [number for number in numbers if _NODE.match(events.names[number])]
    ops = [number for number in numbers if number not in nodes]
    for node in nodes:
        paired = [op for op in ops if (op in wanted or node in wanted) and _is_pair(events.names, op, node, formulas)]
        if paired:
            _pair_rows(host, rows[np.isin(host.name[rows], paired)], rows[host.name[rows] == node], partner)
    return partner


def _numbers_of(events: Events, names: Sequence[str]) -> list[int]:
    return [number for number, name in enumerate(events.names) if name in names]


def _is_pair(names: Sequence[str], op: int, node: int, formulas: Formulas) -> bool:
    """Whether the node is the op's backward pass by its name (`aten::native_layer_norm`, `NativeLayerNormBackward0`),
    or by a formula. `op`, `node`: indices into `names`."""
    stem = _folded_stem(names[node])
    return bool(stem and stem == _folded(names[op])) or formulas.pairs(names[op], names[node])


@lru_cache(maxsize=65536)
def _folded_stem(node: str) -> str:
    """The name of a node's op without underscores, in lower case: `NativeLayerNormBackward0` -> `nativelayernorm`."""
    match = _NODE.match(node)
    return _folded(match["stem"] or "") if match else ""


@lru_cache(maxsize=65536)
def _folded(op: str) -> str:
    return op.removeprefix("aten::").replace("_", "").lower()


def _pair_rows(host: HostSpans, ops: I64, nodes: I64, partner: I32) -> None:
    """Sets `partner` for the host rows `ops` and `nodes` that belong together: those with the same sequence number,
    else those that `_pair_by_neighbours` pairs."""
    numbered = ops[host.seq[ops] >= 0]
    seqs, first = np.unique(host.seq[numbered], return_index=True)
    position = np.searchsorted(seqs, host.seq[nodes])
    same = (position < len(seqs)) & (host.seq[nodes] >= 0)
    same[same] = seqs[position[same]] == host.seq[nodes[same]]
    matched, matched_ops = nodes[same], numbered[first[position[same]]]
    partner[matched], partner[matched_ops] = matched_ops, matched
    rest = nodes[~same & (host.seq[nodes] >= 0)]
    unnumbered = ops[host.seq[ops] < 0]
    for thread in np.unique(host.thread[unnumbered]).tolist():
        _pair_by_neighbours(host, unnumbered[host.thread[unnumbered] == thread], rest, partner)


def _pair_by_neighbours(host: HostSpans, ops: I64, nodes: I64, partner: I32) -> None:
    """Pairs ops without a sequence number, all on one thread: an op's node has a number from that of the last numbered
    op before it up to that of the next one after it. Several ops between the same two are paired in order if the file
    shows a node for each of them; else they stay without."""
    thread = host.thread[ops[0]]
    numbered = np.flatnonzero((host.thread == thread) & (host.seq >= 0) & (host.backward == 0) & (host.what == OP))
    if not len(numbered):
        return
    before = np.searchsorted(host.start[numbered], host.start[ops], "left") - 1
    after = np.searchsorted(host.start[numbered], host.stop[ops], "left")
    inside = (before >= 0) & (after < len(numbered))
    brackets: dict[tuple[int, int], list[int]] = defaultdict(list)
    seqs = host.seq[numbered].tolist()
    for op, low, high in zip(ops[inside].tolist(), before[inside].tolist(), after[inside].tolist()):
        brackets[seqs[low], seqs[high]].append(op)
    nodes = nodes[np.argsort(host.seq[nodes], kind="stable")]
    ordered = host.seq[nodes]
    for (low, high), between in brackets.items():
        candidates = nodes[np.searchsorted(ordered, low, "left") : np.searchsorted(ordered, high, "left")]
        if len(candidates) == len(between):
            partner[between], partner[candidates] = candidates, between
