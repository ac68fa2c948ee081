"""Classification of a trace without device events (training on a CPU): the training thread's spans replace kernels.

Compute is the self time of the training thread's ops, of custom ops that do their own work, and of kernels that
torch.compile generated; communication the `gloo:*` spans of any thread; ops inside a compilation are a part of it; the
self time of other framework code is launch; the thread's remaining time is python, or host if the file does not show
Python, unless its frames show more (waiting for data, a checkpoint, collection).

The training thread is cut into stretches, during each of which one host row (an index into the columns of `HostSpans`)
is the innermost open span; `host.what` is the kind of a span: OP, NOTE (an annotation), PYTHON (a frame). A key is the
number of an (account, phase) pair in `Keys`.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I32, I64, NOTE, OP, PYTHON, Collective, Events
from trainyard.ledger import Account
from trainyard.trace.classify.context import PHASES, Context
from trainyard.trace.classify.kernels import Classified, Keys, collective_of_op
from trainyard.trace.readers.nesting import nearest_ancestor, split_by_innermost
from trainyard.vendors.kernel_names import class_of_inductor

_CLASSES = list(words.OP_CLASSES)
_OPTIMIZER = PHASES.index("optimizer")
_OTHER = PHASES.index("other")
# Namespaces of ops that compute; others, such as autograd's and c10d's, call them.
_COMPUTE_NAMESPACES = ("aten::", "mkldnn::", "onednn::", "quantized::", "fbgemm::", "torchvision::")
_FRAMEWORK_NAMESPACES = (
    "autograd::", "torch::", "c10d::", "c10d_functional::", "_c10d_functional::", "_dtensor::", "symm_mem::", "prim::",
    "prims::", "inductor::", "profiler::", "rpc::",
)  # fmt: skip
"""Namespaces of PyTorch's own ops that call others; those of the remaining names belong to libraries and users."""

_SUBCLASS_SPAN = "PythonSubclass"
"""Torch's name of the span in which a tensor subclass handles an op."""


def classify_cpu(events: Events, context: Context, keys: Keys) -> Classified:
    """Classifies the training thread by innermost span, and the collectives of all threads.

    Returns intervals: first the stretches of the training thread in order of time, then the collectives in order of
    start. `launcher` is the innermost host row of a stretch (-1 for none), and the own row of a collective. Adds the
    keys of the stretches to `keys`, in place; those of the collectives stay -1 until all ranks are known.
    """
    host = events.host
    start, stop = events.window
    # `owner[i]`: the innermost host row from edge i on, -1 if no span is open.
    edges, owner = split_by_innermost(host.start, host.stop, host.parent, np.flatnonzero(host.thread == events.main))
    begin, end = np.concatenate([[start], edges]), np.concatenate([edges, [max([stop, *edges[-1:].tolist()])]])
    owner = np.concatenate([[-1], owner]).astype(np.int32)
    nonempty = end > begin
    begin, end, owner = begin[nonempty], end[nonempty], owner[nonempty]
    phase = np.where(owner >= 0, context.phase[owner], _OTHER)
    # A frame or annotation around the evaluation of a closure has the optimizer's phase, but not during the evaluation.
    phase[(phase == _OPTIMIZER) & context.evaluations.contains(begin, events.main)] = _OTHER
    no_call = Account("launch_gap", "python" if events.shows_python else "host")
    computing_names = _find_computing_names(events)
    # Spans that agree in all that a key depends on share it: each distinct combination is looked up once.
    is_computing = np.isin(host.name, list(computing_names))
    facts = host.what.astype(np.int64)
    for column, size in (
        (is_computing, 2),
        (context.cause + 1, len(context.causes) + 1),
        (context.op_class + 1, len(_CLASSES) + 1),
    ):
        facts = facts * size + column  # packed into one number
    combination = np.append(facts, -1)[owner] * len(PHASES) + phase  # the last of `facts` is that of row -1
    _, first, index = np.unique(combination, return_index=True, return_inverse=True)
    key_of_combination = [
        _key_of_span(events, context, keys, row, phase, no_call, computing_names)
        for row, phase in zip(owner[first].tolist(), phase[first].tolist())
    ]
    key = np.array(key_of_combination, np.int32)[index.reshape(-1)]
    name = np.where(owner >= 0, host.name[owner], -1)
    module = np.where(owner >= 0, context.module[owner], -1)

    spans = _find_collectives(events)
    # A collective has the phase and module of the op that launched it, else of the stretch in which it began.
    indices = np.searchsorted(begin, [host.start[row] for row, _, _ in spans], "right") - 1
    enclosing_spans = [int(owner[index]) if 0 <= index < len(owner) else -1 for index in indices.tolist()]
    launching_rows = [op if op >= 0 else enclosing_op for (_, _, op), enclosing_op in zip(spans, enclosing_spans)]
    rows = np.array([row for row, _, _ in spans], np.int64)
    # A sender's span opens when the sending call returns, by which time the message may have arrived.
    opening_rows = [op if op >= 0 and collective.name == "send_recv" else row for row, collective, op in spans]
    opened_ns = host.start[np.array(opening_rows, np.int64)]
    # The training thread's waits inside its own collective belong to that collective: booked twice, they could not
    # be a bubble.
    is_comm_key = np.array([account.kind == "comm" for account, _ in keys.pairs], bool)
    is_booked = ~(is_comm_key[key] & _is_inside(rows, events)[owner])
    begin, end, owner = begin[is_booked], end[is_booked], owner[is_booked]
    key, name, module = key[is_booked], name[is_booked], module[is_booked]
    collectives = {len(begin) + index: collective for index, (_, collective, _) in enumerate(spans)}
    return Classified(
        start=np.concatenate([begin, opened_ns]),
        stop=np.concatenate([end, host.stop[rows]]),
        key=np.concatenate([key, np.full(len(rows), -1, np.int32)]),
        name=np.concatenate([name, host.name[rows]]).astype(np.int32),
        module=np.concatenate([module, [int(context.module[at]) if at >= 0 else -1 for at in launching_rows]]).astype(
            np.int32
        ),
        launcher=np.concatenate([owner, rows]).astype(np.int32),
        begins=np.concatenate([_begins_call(owner, _find_forwarded(events)), np.ones(len(rows), bool)]),
        collectives=collectives,
        collective_phase=np.array([context.phase[at] if at >= 0 else _OTHER for at in launching_rows], np.int8),
    )


def _find_collectives(events: Events) -> list[tuple[int, Collective, int]]:
    """The collectives that gloo ran: (host row of its span, collective, host row of the op that launched it or -1) of
    each, by start.

    The file does not link spans to ops, but both have the same order. If there are as many of both and no pair
    conflicts, the op decides: gloo runs a reduce-scatter as an all-reduce, and its span is named after that.
    """
    host = events.host
    spans = sorted((row for row in host.collectives if host.what[row] == NOTE), key=lambda row: int(host.start[row]))
    # Functional collectives wrap the ops of c10d and would count twice.
    is_c10d = np.array([name.startswith("c10d::") for name in events.names], bool)
    rows = np.flatnonzero(is_c10d[host.name] & (host.what == OP)).tolist()
    ops = [(row, launched) for row in rows if (launched := collective_of_op(events.names[host.name[row]]))]
    collectives = [host.collectives[row] for row in spans]
    if len(ops) == len(spans) and all(_may_be_span_of(op, span.name) for (_, op), span in zip(ops, collectives)):
        # The name of the op's collective, and the group and size that the span states.
        return [
            (row, msgspec.structs.replace(span, name=name), op)
            for row, span, (op, name) in zip(spans, collectives, ops)
        ]
    return [(row, span, -1) for row, span in zip(spans, collectives)]


def _may_be_span_of(op: str, span: str) -> bool:
    """Whether gloo may run the collective `op` under the name `span`."""
    return op == span or (op, span) == ("reduce_scatter", "all_reduce")


def _is_inside(rows: I64, events: Events) -> NDArray[np.bool_]:
    """Whether each host row is one of `rows` or inside one; the additional last entry, for row -1, is False."""
    inside = np.zeros(len(events.host) + 1, bool)
    inside[rows] = True
    return inside | inside[np.append(nearest_ancestor(inside[:-1], events.host.parent), -1)]


def _begins_call(owner: I32, passed_on: I32) -> NDArray[np.bool_]:
    """Whether each stretch begins a call: the first stretch of each span, and every stretch without an open span.

    `owner`: innermost host row of each stretch, -1 for none; `passed_on`: host rows of ops that do not count as a call.
    """
    first = owner < 0
    first[np.unique(owner, return_index=True)[1]] = True
    return first & ~np.isin(owner, passed_on)


def _find_forwarded(events: Events) -> I32:
    """Host rows of ops that a tensor subclass forwarded to the same op on its inner tensor (DTensor: the local shard).

    The outer op, the subclass's span in it and the inner op are one call.
    """
    host = events.host
    enclosing_op = nearest_ancestor(host.what == OP, host.parent)
    is_subclass_span = np.array([name == _SUBCLASS_SPAN for name in events.names], bool)[host.name]
    inner = np.flatnonzero((host.what == OP) & (enclosing_op >= 0))
    inner = inner[is_subclass_span[enclosing_op[inner]]]
    outer = enclosing_op[enclosing_op[inner]]
    return np.unique(outer[(outer >= 0) & (host.name[outer] == host.name[inner])])


def _find_computing_names(events: Events) -> frozenset[int]:
    """The name numbers of ops that compute: those of compute libraries, kernels of torch.compile, and custom ops (of
    other namespaces than the framework's) that spend most of their time outside of the ops that they call."""
    host = events.host
    is_op = host.what == OP
    rows = np.flatnonzero(is_op)
    own_ns = np.zeros(len(host) + 1, np.int64)
    own_ns[rows] = host.stop[rows] - host.start[rows]
    enclosing_op = nearest_ancestor(is_op, host.parent)[rows]
    np.subtract.at(own_ns, enclosing_op, host.stop[rows] - host.start[rows])  # the additional last entry takes -1
    total_ns, total_own_ns = np.zeros((2, len(events.names)), np.int64)
    np.add.at(total_ns, host.name[rows], host.stop[rows] - host.start[rows])
    np.add.at(total_own_ns, host.name[rows], own_ns[rows])
    computing: set[int] = set()
    for number in np.unique(host.name[rows]).tolist():
        name = events.names[number]
        is_custom = "::" in name and not name.startswith(_FRAMEWORK_NAMESPACES)
        if (
            name.startswith(_COMPUTE_NAMESPACES)
            or class_of_inductor(name)
            or (is_custom and 2 * total_own_ns[number] > total_ns[number])
        ):
            computing.add(number)
    return frozenset(computing)


def _key_of_span(
    events: Events, context: Context, keys: Keys, row: int, phase: int, no_call: Account, computing: frozenset[int]
) -> int:
    """The key of stretches in a phase (index into words.PHASES) whose innermost span is host row `row` (-1: none).

    `no_call`: the account of time outside ops and calls; `computing`: the name numbers of ops that compute. Adds the
    key to `keys` if it is new.
    """
    if row < 0:
        return keys.number(no_call, _OTHER)
    host = events.host
    cause = context.causes[context.cause[row]] if context.cause[row] >= 0 else ""
    if host.what[row] == OP and cause == "launch_gap/compile":
        # The compiler runs ops on fake tensors, to find shapes and gradients: they compute nothing.
        account = Account.parse(cause)
    elif host.what[row] == OP and int(host.name[row]) in computing:
        op_class = _CLASSES[context.op_class[row]] if context.op_class[row] >= 0 else "other"
        account = Account("compute", "optimizer" if phase == _OPTIMIZER else op_class)
    elif host.what[row] == OP:
        account = Account("launch_gap", "launch")
    elif cause and host.what[row] in (NOTE, PYTHON):
        account = Account.parse(cause)
    else:
        account = no_call
    return keys.number(account, phase)
