"""The context of each host span: its phase, module and op class, and why the host was busy.

Device work takes its context from the span that launched it (`classify/kernels.py`), idle time from the host's activity
(`booking/idle.py`). A host row is an index into the columns of `HostSpans`; parents have lower rows than their
children. `host.what` is the kind of a span: OP, NOTE (an annotation), PYTHON (a frame) or a driver call;
`host.backward` is 1 for ops that the autograd engine runs. A name number is an index into `Events.names`. Numbered ops
are those with an autograd sequence number (`seq` >= 0). A cause is the account of idle time under a span, such as
`launch_gap/sync`.

Recomputed work (activation checkpointing) is found inside the backward pass. A framework gives an op a sequence number
if gradients are recorded. The backward pass records none, so numbered ops inside one of its nodes are a forward pass
that is recomputed there. Two cases are similar but are not recomputation:

- `Function.apply` has a sequence number whether gradients are recorded or not, and a node may be computed with one
  (a redistribution whose gradient is another redistribution). The ops that follow in the node decide: it is recomputed
  if recorded work or an engine pass follows, else it is the node's own work.
- Gradients of gradients: the node's own work is recorded up to its end, which after recomputation it is not.
"""

from __future__ import annotations

import re
from array import array
from ctypes import CDLL, byref
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I8, I32, NOTE, OP, PYTHON, Events, HostSpans
from trainyard.recorded_stacks import CLOCK_MARK, MODULE_PREFIX
from trainyard.step_marks import INFERRED_MARK, STEP_MARK
from trainyard.trace.classify.closures import Evaluations, find_evaluations, rows_of_evaluations
from trainyard.trace.classify.first_use import mark_first_use
from trainyard.trace.classify.host_causes import host_cause
from trainyard.trace.classify.ops import class_of
from trainyard.trace.classify.passes import ENGINE_PREFIX, OPTIMIZER_STEP, Passes, find_passes, rows_before_update
from trainyard.trace.readers.gather import PHASE, SAMPLED, SYSTEM
from trainyard.trace.readers.kineto.native import NameFacts, library
from trainyard.trace.readers.nesting import iterate_rows, nearest_ancestor

PHASES = list(words.PHASES)
_FORWARD, _BACKWARD, _RECOMPUTE, _OPTIMIZER, _OTHER = (
    PHASES.index(name) for name in ("forward", "backward", "recompute", "optimizer", "other")
)
_CLASSES = [*words.OP_CLASSES]
# Annotations that frameworks write for their own use: they are not modules of the user.
_FRAMEWORK_ANNOTATIONS = (
    STEP_MARK, INFERRED_MARK, "gloo:", "nccl:", "mpi:", "enumerate(DataLoader)", "record_param_comms", "Python GC",
    PHASE, SAMPLED, SYSTEM, CLOCK_MARK,
)  # fmt: skip
_DYNAMO_SUFFIX = "(dynamo_timed)"
_COMPILED_FUNCTION = "CompiledFunction"
"""torch.compile's autograd function: it represents the compiled ops; gradients are not computed with it."""


class Context(NamedTuple):
    """For each of m host rows: phase (index into words.PHASES), module (name number, -1 none), op class (index into
    words.OP_CLASSES, -1 undecided) and cause (index into `causes`, -1 none), each inherited from enclosing spans.
    `evaluations`: of closures inside `Optimizer.step`; work in them has the phase that it would have outside. `passes`:
    the rows that show forward passes, backward passes and optimizer steps."""

    phase: I8
    module: I32
    op_class: I8
    cause: I8
    causes: tuple[str, ...]
    evaluations: Evaluations
    passes: Passes


def build_context(events: Events) -> Context:
    """Determines the phase, module, op class and cause of each host row."""
    host = events.host
    names = events.names
    causes = tuple(sorted({cause for name in names if (cause := host_cause(name))}))
    facts_by_name = [_name_facts(name, causes, events.mark) for name in names]
    knows_autograd = bool((host.seq >= 0).any())
    # The compiled version, if it was built, and the Python version give the same result.
    inherit = _inherit if library() is None else _inherit_fast
    passes = find_passes(host, names)
    evaluations = find_evaluations(host, names, passes)
    # Ops between the backward pass and the optimizer step lose their sequence number, since they are not forward work.
    seq = np.where(rows_before_update(host, passes), -1, host.seq)
    phase, module, op_class, cause = inherit(
        replace(host, seq=seq),
        facts_by_name,
        knows_autograd=knows_autograd,
        recomputed=_is_recomputed(host, names),
        evaluated=rows_of_evaluations(host, evaluations),
    )
    phase[phase < 0] = _OTHER
    cause, all_causes = mark_first_use(events, cause, causes)
    return Context(
        phase=phase,
        module=module,
        op_class=op_class,
        cause=cause,
        causes=all_causes,
        evaluations=evaluations,
        passes=passes,
    )


_FRAME_LINE = re.compile(r"\(\d+\): ")
"""The line number in a Python frame, `path(line): function`. The path of a script may lack the ending .py."""
_NameFacts = tuple[int, bool, bool, int, int]
"""(phase set by an annotation of this name, is autograd engine, is module, op class, cause), as from `_name_facts`."""
_Inherited = tuple[I8, I32, I8, I8]
"""(phase, module, op class, cause) of each host row, as in `Context`."""


def _inherit(
    host: HostSpans,
    by_name: list[_NameFacts],
    knows_autograd: bool,
    recomputed: NDArray[np.bool_],
    evaluated: NDArray[np.bool_],
) -> _Inherited:
    """Derives phase, module, op class and cause of each host row from its name and its parent, in order of start.

    `by_name`: facts of each name number; `knows_autograd`: the file has sequence numbers; `recomputed`: whether each
    row begins recomputed work; `evaluated`: whether it begins in the evaluation of a closure, so that it does not
    inherit the optimizer's phase. A row without its own value inherits that of its parent. A backward op takes the
    module of the forward op with its sequence number. Returns (phase, module, op class, cause), -1 for none.
    """
    n = len(host)
    phase, op_class, cause = (array("b", [-1]) * n for _ in range(3))
    module = array("i", [-1]) * n
    module_of_seq: dict[int, int] = {}  # sequence number of a forward op -> its module's name number
    rows = iterate_rows(host.name, host.what, host.parent, host.seq, host.backward, recomputed, evaluated)
    for row, (name, span_kind, parent, seq, backward, is_recomputed, is_evaluated) in enumerate(rows):
        annotation_phase, engine, is_module, own_class, own_cause = by_name[name]
        parent_phase = phase[parent] if parent >= 0 else -1
        if is_evaluated and parent_phase == _OPTIMIZER:
            parent_phase = -1
        if annotation_phase >= 0 and span_kind == NOTE:
            phase[row] = annotation_phase
        elif span_kind == OP and (engine or backward):
            phase[row] = _BACKWARD
        elif span_kind == OP and parent_phase in (-1, _OTHER) and (seq >= 0 or not knows_autograd):
            phase[row] = parent_phase if parent_phase == _OTHER else _FORWARD
        elif parent_phase == _BACKWARD and is_recomputed:
            phase[row] = _RECOMPUTE
        else:
            phase[row] = parent_phase
        own_module = name if is_module and span_kind in (NOTE, PYTHON) else -1
        module[row] = own_module if own_module >= 0 else module[parent] if parent >= 0 else -1
        if span_kind == OP and seq >= 0:
            if phase[row] == _FORWARD:
                module_of_seq[seq] = module[row]
            elif backward and module_of_seq.get(seq, -1) >= 0:
                module[row] = module_of_seq[seq]
        op_class[row] = own_class if own_class >= 0 and span_kind == OP else op_class[parent] if parent >= 0 else -1
        cause[row] = own_cause if own_cause >= 0 else cause[parent] if parent >= 0 else -1
    return np.array(phase, np.int8), np.array(module, np.int32), np.array(op_class, np.int8), np.array(cause, np.int8)


def _inherit_fast(
    host: HostSpans,
    by_name: list[_NameFacts],
    knows_autograd: bool,
    recomputed: NDArray[np.bool_],
    evaluated: NDArray[np.bool_],
) -> _Inherited:
    """As `_inherit`, with the same arguments and result, by the compiled `native/nest.c`. Raises `MemoryError`."""
    n = len(host)
    phase, module = np.empty(n, np.int8), np.empty(n, np.int32)
    op_class, cause = np.empty(n, np.int8), np.empty(n, np.int8)
    columns = [
        np.ascontiguousarray(column)
        for column in (
            host.name, host.what, host.parent, host.seq, host.backward,
            recomputed.view(np.int8), evaluated.view(np.int8),
        )
    ]  # fmt: skip
    facts = np.array(by_name, np.int8).reshape(-1, 5).T.copy()  # [5, names]: a row for each field of _NameFacts
    done = cast(CDLL, library()).inherit(
        n, *(column.ctypes.data for column in columns), byref(NameFacts(*(row.ctypes.data for row in facts))),
        bytes([_FORWARD, _BACKWARD, _RECOMPUTE, _OPTIMIZER, _OTHER]), knows_autograd,
        *(column.ctypes.data for column in (phase, module, op_class, cause)),
    )  # fmt: skip
    if not done:
        raise MemoryError
    return phase, module, op_class, cause


@lru_cache(maxsize=65536)
def _name_facts(name: str, causes: tuple[str, ...], mark: str) -> _NameFacts:
    """What a span's name alone shows: (phase that an annotation of this name sets, is autograd engine, is module, op
    class, cause), each an index as in `Context`, -1 for none.

    `causes`: the causes of the trace, in order; `mark`: prefix of the annotations around steps, which are not modules.
    """
    annotation_phase = -1
    if name.startswith(OPTIMIZER_STEP):
        annotation_phase = _OPTIMIZER
    elif name.startswith(("Optimizer.zero_grad#", "enumerate(DataLoader)")):
        annotation_phase = _OTHER
    if name.startswith(PHASE):  # readers write it for ranges that are named as passes
        phase_name = name.removeprefix(PHASE)
        annotation_phase = PHASES.index(phase_name) if phase_name in PHASES else -1
    op_class = class_of(name)
    cause = host_cause(name)
    return (
        annotation_phase,
        name.startswith(ENGINE_PREFIX),
        name.startswith(MODULE_PREFIX)
        or not (
            name.startswith((*_FRAMEWORK_ANNOTATIONS, mark, "<"))
            or _FRAME_LINE.search(name)
            or name.endswith(_DYNAMO_SUFFIX)
        ),
        _CLASSES.index(op_class) if op_class else -1,
        causes.index(cause) if cause else -1,
    )


def _is_recomputed(host: HostSpans, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Whether each of m host rows begins recomputed work, if its enclosing spans belong to the backward pass.

    The rules are those of the module's description. Ops are grouped by the op around them (`around`) and judged in
    order of start: whether recorded work or an engine pass follows in the same group decides for `Function.apply`.
    """
    recomputed = np.zeros(len(host), bool)
    engine = np.array([name.startswith(ENGINE_PREFIX) for name in names], bool)[host.name]
    op = host.what == OP
    node = op & (engine | (host.backward > 0))  # ops of the backward pass
    numbered = op & (host.seq >= 0) & ~node
    if not engine.any():  # readers of other frameworks' files number recomputed ops only
        return numbered
    around = nearest_ancestor(op, host.parent)  # host row of the innermost op around each row, -1 for none
    rows = np.flatnonzero(op & (around >= 0))
    rows = rows[~numbered[around[rows]]]  # ops inside numbered work inherit its phase
    if not len(rows):
        return recomputed
    # Group the ops by the op around them, in order of start. `first`: the position in `rows` of each group's first op.
    rows = rows[np.argsort(around[rows], kind="stable")]
    first = np.flatnonzero(np.diff(around[rows], prepend=-1))
    group = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))

    # Masks over `rows`: an op has a namespace (`aten::mm`) or is compiled; the name of a `Function.apply` has neither.
    dispatched = np.array(["::" in name for name in names], bool)[host.name[rows]]
    compiled = np.array([name == _COMPILED_FUNCTION for name in names], bool)[host.name[rows]]
    recorded = numbered[rows] & (dispatched | compiled)
    applied = numbered[rows] & ~recorded
    evaluates = engine[rows]
    last = np.append(first[1:], len(rows)) - 1
    # By group: gradients of gradients, if the last op of a node is recorded and no engine pass is in the group.
    of_gradients = recorded[last] & ~compiled[last] & node[around[rows[last]]]
    of_gradients &= ~np.logical_or.reduceat(evaluates, first)
    recomputed[rows] = recorded | (
        applied & _is_next_wanted(recorded | evaluates, applied | node[rows] & ~evaluates, group)
    )
    recomputed[rows] &= ~of_gradients[group]
    return recomputed


def _is_next_wanted(
    is_wanted: NDArray[np.bool_], is_silent: NDArray[np.bool_], group: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """For each index, whether the next index that is not `is_silent` is `is_wanted` and in the same group.

    `group`: a number for each index; indices of one group are consecutive.
    """
    n = len(is_wanted)
    # `next_index[i]`: i itself unless silent; a running minimum from the end gives the next one that is not silent.
    next_index = np.where(is_silent, n, np.arange(n))
    next_not_silent = np.append(np.minimum.accumulate(next_index[::-1])[::-1][1:], n)
    return np.append(is_wanted, False)[next_not_silent] & (np.append(group, -1)[next_not_silent] == group)
