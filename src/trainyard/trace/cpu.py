"""A trace without device events: a CPU that trains. The training thread's spans take the kernels' place.

Compute is the training thread's ATen ops by self time; communication the `gloo:*` spans of whatever thread;
other framework code's self time is launch; the thread's bare time is python, unless it waits for data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I32, NOTE, OP, PYTHON, Collective, Events
from trainyard.ledger import Account
from trainyard.trace.classify import Classified, Keys
from trainyard.trace.collectives import group_of
from trainyard.trace.context import PHASES, Context
from trainyard.trace.nest import innermost

_CLASSES = list(words.OP_CLASSES)
_OPTIMIZER = PHASES.index("optimizer")
_OTHER = PHASES.index("other")


def classify_cpu(events: Events, context: Context, keys: Keys) -> Classified:
    """The training thread by innermost span, and the collectives of all threads."""
    host = events.host
    start, stop = events.window
    edges, owner = innermost(host.start, host.stop, host.parent, np.flatnonzero(host.thread == events.main))
    begin, end = np.concatenate([[start], edges]), np.concatenate([edges, [max([stop, *edges[-1:].tolist()])]])
    owner = np.concatenate([[-1], owner]).astype(np.int32)
    some = end > begin
    begin, end, owner = begin[some], end[some], owner[some]
    number_of: dict[int, int] = {}
    key = np.array([_key(events, context, keys, row, number_of) for row in owner.tolist()], np.int32)
    # Where nothing is open a row of the host table cannot name the stretch; the thread's first name does.
    name = np.where(owner >= 0, host.name[owner], -1)
    module = np.where(owner >= 0, context.module[owner], -1)

    spans = [row for row in host.collectives if host.what[row] == NOTE]
    when = owner[np.clip(np.searchsorted(begin, host.start[spans], "right") - 1, 0, None)] if len(owner) else owner
    collectives: dict[int, Collective] = {}
    span_keys: list[int] = []
    for place, (row, around) in enumerate(zip(spans, when.tolist())):
        found = host.collectives[row]
        collectives[len(begin) + place] = found
        phase = int(context.phase[around]) if around >= 0 else _OTHER
        span_keys.append(keys.number(Account("comm", found.name, group_of(found, events)), phase))
    return Classified(
        start=np.concatenate([begin, host.start[spans]]),
        stop=np.concatenate([end, host.stop[spans]]),
        key=np.concatenate([key, np.array(span_keys, np.int32)]),
        name=np.concatenate([name, host.name[spans]]).astype(np.int32),
        module=np.concatenate([module, context.module[when]]).astype(np.int32),
        launcher=np.concatenate([owner, spans]).astype(np.int32),
        begins=np.concatenate([_begins(owner), np.ones(len(spans), bool)]),
        collectives=collectives,
    )


def _begins(owner: I32) -> NDArray[np.bool_]:
    """The first stretch of each span, and every stretch with none open."""
    first = owner < 0
    first[np.unique(owner, return_index=True)[1]] = True
    return first


def _key(events: Events, context: Context, keys: Keys, row: int, number_of: dict[int, int]) -> int:
    """The key of a stretch whose innermost span is `row` (-1: none open)."""
    if row in number_of:
        return number_of[row]
    host = events.host
    phase = int(context.phase[row]) if row >= 0 else _OTHER
    name = events.names[host.name[row]] if row >= 0 else ""
    cause = context.causes[context.cause[row]] if row >= 0 and context.cause[row] >= 0 else ""
    if row >= 0 and host.what[row] == OP and name.startswith("aten::"):
        what = _CLASSES[context.op_class[row]] if context.op_class[row] >= 0 else "other"
        account = Account("compute", "optimizer" if phase == _OPTIMIZER else what)
    elif row >= 0 and host.what[row] == OP:
        account = Account("launch_gap", "launch")
    elif cause and (row < 0 or host.what[row] in (NOTE, PYTHON)):
        account = Account.parse(cause)
    else:
        account = Account("launch_gap", "python")
    number_of[row] = keys.number(account, phase)
    return number_of[row]
