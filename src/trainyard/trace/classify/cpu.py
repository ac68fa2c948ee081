"""A trace without device events: a CPU that trains. The training thread's spans take the kernels' place.

Compute is the training thread's ops and the kernels torch.compile made, by self time; communication the `gloo:*`
spans of whatever thread; other framework code's self time is launch; the thread's bare time is python, unless its
frames say more (waiting for data, a checkpoint, collecting garbage).
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I32, I64, NOTE, OP, PYTHON, Collective, Events
from trainyard.ledger import Account
from trainyard.trace.classify.context import PHASES, Context
from trainyard.trace.classify.kernels import Classified, Keys, launched_by
from trainyard.trace.readers.nesting import innermost, nearest
from trainyard.vendors.kernel_names import class_of_inductor

_CLASSES = list(words.OP_CLASSES)
_OPTIMIZER = PHASES.index("optimizer")
_OTHER = PHASES.index("other")
# Ops that compute; others, as autograd's and c10d's, call such.
_COMPUTES = ("aten::", "mkldnn::", "onednn::", "quantized::", "fbgemm::", "torchvision::")

_SUBCLASS = "PythonSubclass"
"""What torch calls the span in which a tensor subclass answers an op."""


def classify_cpu(events: Events, context: Context, keys: Keys) -> Classified:
    """The training thread by innermost span, and the collectives of all threads."""
    host = events.host
    start, stop = events.window
    edges, owner = innermost(host.start, host.stop, host.parent, np.flatnonzero(host.thread == events.main))
    begin, end = np.concatenate([[start], edges]), np.concatenate([edges, [max([stop, *edges[-1:].tolist()])]])
    owner = np.concatenate([[-1], owner]).astype(np.int32)
    some = end > begin
    begin, end, owner = begin[some], end[some], owner[some]
    rows, place = np.unique(owner, return_inverse=True)
    key = np.array([_key(events, context, keys, row) for row in rows.tolist()], np.int32)[place]
    name = np.where(owner >= 0, host.name[owner], -1)
    module = np.where(owner >= 0, context.module[owner], -1)

    spans = _collectives(events)
    places = np.searchsorted(begin, [host.start[row] for row, _, _ in spans], "right") - 1
    within = [int(owner[place]) if 0 <= place < len(owner) else -1 for place in places.tolist()]
    around = [op if op >= 0 else here for (_, _, op), here in zip(spans, within)]
    rows = np.array([row for row, _, _ in spans], np.int64)
    # A message may have arrived when its sender's span opens, which is when the call that sends it returns.
    called = [op if op >= 0 and found.name == "send_recv" else row for row, found, op in spans]
    opened = host.start[np.array(called, np.int64)]
    # What the thread waits inside a span of its own is that span's: booked twice, no part of it could be a bubble.
    waits = np.array([account.kind == "comm" for account, _ in keys.pairs], bool)
    kept = ~(waits[key] & _within(rows, events)[owner])
    begin, end, owner = begin[kept], end[kept], owner[kept]
    key, name, module = key[kept], name[kept], module[kept]
    collectives = {len(begin) + place: found for place, (_, found, _) in enumerate(spans)}
    return Classified(
        start=np.concatenate([begin, opened]),
        stop=np.concatenate([end, host.stop[rows]]),
        key=np.concatenate([key, np.full(len(rows), -1, np.int32)]),
        name=np.concatenate([name, host.name[rows]]).astype(np.int32),
        module=np.concatenate([module, [int(context.module[at]) if at >= 0 else -1 for at in around]]).astype(np.int32),
        launcher=np.concatenate([owner, rows]).astype(np.int32),
        begins=np.concatenate([_begins(owner, _passed_on(events)), np.ones(len(rows), bool)]),
        collectives=collectives,
        collective_phase=np.array([context.phase[at] if at >= 0 else _OTHER for at in around], np.int8),
    )


def _collectives(events: Events) -> list[tuple[int, Collective, int]]:
    """(row, what it is, row of the op that launched it or -1) of each gloo span, by start.

    Nothing in the file links a span to its op, but they come in one order. Where their numbers agree and no two
    contradict each other the op decides: gloo does a reduce-scatter by an all-reduce, and the span says only that.
    """
    host = events.host
    spans = sorted((row for row in host.collectives if host.what[row] == NOTE), key=lambda row: int(host.start[row]))
    names = ((int(row), events.names[host.name[row]]) for row in np.flatnonzero(host.what == OP))
    # Functional collectives wrap these and would count twice.
    ops = [(row, launched) for row, name in names if name.startswith("c10d::") and (launched := launched_by(name))]
    said = [host.collectives[row] for row in spans]
    if len(ops) == len(spans) and all(_agree(op, span.name) for (_, op), span in zip(ops, said)):
        return [(row, msgspec.structs.replace(span, name=name), op) for row, span, (op, name) in zip(spans, said, ops)]
    return [(row, span, -1) for row, span in zip(spans, said)]


def _agree(op: str, span: str) -> bool:
    return op == span or (op, span) == ("reduce_scatter", "all_reduce")


def _within(rows: I64, events: Events) -> NDArray[np.bool_]:
    """Of each host row whether it is one of `rows` or stands inside one; one more for -1."""
    of = np.zeros(len(events.host) + 1, bool)
    of[rows] = True
    return of | of[np.append(nearest(of[:-1], events.host.parent), -1)]


def _begins(owner: I32, passed_on: I32) -> NDArray[np.bool_]:
    """The first stretch of each span that counts as a call of its own, and every stretch with none open."""
    first = owner < 0
    first[np.unique(owner, return_index=True)[1]] = True
    return first & ~np.isin(owner, passed_on)


def _passed_on(events: Events) -> I32:
    """Ops that a tensor subclass answered with the same op on what it holds (DTensor: on the local part): one call."""
    host = events.host
    around = nearest(host.what == OP, host.parent)
    answers = np.array([name == _SUBCLASS for name in events.names], bool)[host.name]
    inner = np.flatnonzero((host.what == OP) & (around >= 0))
    inner = inner[answers[around[inner]]]
    outer = around[around[inner]]
    return np.unique(outer[(outer >= 0) & (host.name[outer] == host.name[inner])])


def _key(events: Events, context: Context, keys: Keys, row: int) -> int:
    """The key of the stretches whose innermost span is `row` (-1: none open)."""
    if row < 0:
        return keys.number(Account("launch_gap", "python"), _OTHER)
    host, phase = events.host, int(context.phase[row])
    name = events.names[host.name[row]]
    if host.what[row] == OP and (name.startswith(_COMPUTES) or class_of_inductor(name)):
        what = _CLASSES[context.op_class[row]] if context.op_class[row] >= 0 else "other"
        account = Account("compute", "optimizer" if phase == _OPTIMIZER else what)
    elif host.what[row] == OP:
        account = Account("launch_gap", "launch")
    elif context.cause[row] >= 0 and host.what[row] in (NOTE, PYTHON):
        account = Account.parse(context.causes[context.cause[row]])
    else:
        account = Account("launch_gap", "python")
    return keys.number(account, phase)
