"""Assigns each device interval an account and a phase: by the launching op first, then by the kernel's name.

A key is the number of an (account, phase) pair. `work.call` and `work.op` are the host rows of the call that launched
each row of device work and of the op around it, -1 if not recorded. A launcher is the host row (index into the columns
of `HostSpans`) of the call or op that launched an interval; its phase, module and op class (`Context`) apply to the
interval. An op class is a kind of computation such as `matmul` (words.OP_CLASSES).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import plugins, words
from trainyard.events import COPY, I8, I32, I64, MEMSET, NOTE, OP, Collective, Events
from trainyard.ledger import Account
from trainyard.plugins import Vendor
from trainyard.trace.classify.context import PHASES, Context
from trainyard.trace.readers.collectives import group_of
from trainyard.vendors import kernel_names

_KINDS = list(words.KINDS)
_CLASSES = list(words.OP_CLASSES)
_OTHER = PHASES.index("other")
_OPTIMIZER = PHASES.index("optimizer")
# Op classes that count as `optimizer` in the optimizer phase; its matrix products (Muon, Shampoo) stay matmul.
_OPTIMIZER_CLASSES = ("elementwise", "reduction", "other", "embedding")
GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")
_ID_BASE = 32
"""Larger than the number of op classes and of phases."""


class Keys:
    """Numbers for (account, phase) pairs, in order of first use. `pairs[number]`: the account and the phase as an index
    into words.PHASES."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Account, int]] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def number(self, account: Account, phase: int) -> int:
        """The number of a pair; a new one if it was not used yet. `phase`: index into words.PHASES."""
        key = (str(account), phase)
        if key not in self._numbers:
            self._numbers[key] = len(self.pairs)
            self.pairs.append((account, phase))
        return self._numbers[key]

    def precedence(self) -> I32:
        """The position of each number if pairs are sorted by the account's precedence, then by phase."""
        # `Account.rank` is a sort key: kind, subdivision, group, in the order of words.KINDS.
        order = sorted(range(len(self.pairs)), key=lambda number: (self.pairs[number][0].rank, self.pairs[number][1]))
        position = np.empty(len(order), np.int32)
        position[order] = np.arange(len(order))
        return position

    def kinds(self) -> I8:
        return np.array([_KINDS.index(account.kind) for account, _ in self.pairs], np.int8)


class Classified(NamedTuple):
    """n intervals (device work, or a CPU's spans): times, key, name, module (name number or -1), and the host row that
    launched each (-1 none). `begins`: whether the work begins here (an op that other ops interrupt has several
    intervals and one beginning). `collectives`: interval -> collective; `collective_phase`: their phases, in the same
    order. A collective's key is -1 until `key_collectives` sets it."""

    start: I64
    stop: I64
    key: I32
    name: I32
    module: I32
    launcher: I32
    begins: NDArray[np.bool_]
    collectives: dict[int, Collective]
    collective_phase: I8


def key_collectives(events: Events, keys: Keys, classified: Classified) -> Classified:
    """Sets the keys of collectives, and adds them to `keys` in place. Returns `classified` with a new column `key`.

    The name of a process group depends on `events.group_sizes`, which must be those of the whole job: call this after
    all ranks have been surveyed.
    """
    key = classified.key.copy()
    for (row, collective), phase in zip(classified.collectives.items(), classified.collective_phase.tolist()):
        account = Account("comm", collective.name, group_of(collective, events))
        key[row] = keys.number(account, phase)
    return classified._replace(key=key)


def classify_device(events: Events, context: Context, keys: Keys) -> Classified:
    """Classifies device work: n rows in the order of `events.work`.

    `context`: phase, module and op class of each host row. Adds the keys of work other than collectives to `keys`, in
    place; collectives keep -1 until `key_collectives`.
    """
    work = events.work
    launcher = np.where(work.call >= 0, work.call, work.op).astype(np.int32)
    has_launcher = launcher >= 0
    phase = np.full(len(work), _OTHER, np.int8)
    module = np.full(len(work), -1, np.int32)
    op_class = np.full(len(work), -1, np.int8)
    for column, of_host in ((phase, context.phase), (module, context.module), (op_class, context.op_class)):
        column[has_launcher] = of_host[launcher[has_launcher]]
    # One call launches a whole CUDA graph: the spans around it do not apply to single kernels.
    in_graph = _is_in_graph(events, launcher)
    op_class[in_graph] = -1

    # Rows that agree in name, kind (4 values of `what`), op class and phase have the same account, which is determined
    # once: the four are packed into one integer, op class + 1 so that it is not negative.
    identity = ((work.name.astype(np.int64) * 4 + work.what) * _ID_BASE + op_class + 1) * _ID_BASE + phase
    _, first, inverse = np.unique(identity, return_index=True, return_inverse=True)
    phases = phase[first].tolist()
    facts = zip(work.what[first].tolist(), work.name[first].tolist(), op_class[first].tolist(), phases)
    accounts = [
        _account_of(kind, events.names[name], class_index, phase_index)
        for kind, name, class_index, phase_index in facts
    ]
    is_collective = np.array([account.kind == "comm" for account in accounts], bool)[inverse]
    # Work that the file marks as a collective is one, whatever its name.
    is_collective[list(work.collectives)] = True
    numbers = [
        -1 if account.kind == "comm" else keys.number(account, phase_index)
        for account, phase_index in zip(accounts, phases)
    ]
    key = np.array(numbers, np.int32)[inverse]
    collectives: dict[int, Collective] = {}
    for row in np.flatnonzero(is_collective).tolist():
        collective = work.collectives.get(row)
        if collective is None and not in_graph[row]:
            collective = _launching_collective(events, int(launcher[row]))
        collectives[row] = collective or Collective(name=accounts[inverse[row]].what)
    key[is_collective] = -1
    all_begin = np.ones(len(work), bool)
    return Classified(
        start=work.start,
        stop=work.stop,
        key=key,
        name=work.name,
        module=module,
        launcher=launcher,
        begins=all_begin,
        collectives=collectives,
        collective_phase=phase[is_collective],
    )


def _is_in_graph(events: Events, launcher: I32) -> NDArray[np.bool_]:
    """Whether each row of the device work was started by the launch of a CUDA graph. `launcher`: host rows, -1 none."""
    launches = np.array([GRAPH_LAUNCH.match(name) is not None for name in events.names], bool)
    inside = launcher >= 0
    inside[inside] = launches[events.host.name[launcher[inside]]]
    return inside


@lru_cache(maxsize=65536)
def account_by_kernel_name(name: str) -> Account | None:
    """The account of a kernel by its name, from the first vendor plugin that knows it."""
    accounts = (vendor.kernel_account(name) for vendor in _vendors())
    return next((account for account in accounts if account is not None), None)


@lru_cache(maxsize=1)
def _vendors() -> tuple[Vendor, ...]:
    return tuple(plugins.load_all("vendors").values())


def _account_of(kind: int, name: str, class_index: int, phase: int) -> Account:
    """The account of a device interval called `name`.

    `kind`: KERNEL, COPY or MEMSET; `class_index`: the launching op's class (index into words.OP_CLASSES, -1 if the op
    does not decide); `phase`: index into words.PHASES. A communication library's kernel is always communication.
    """
    if kind == MEMSET:
        return Account("copy", "memset")
    if kind == COPY:
        return Account("copy", kernel_names.copy_of(name))
    by_name = account_by_kernel_name(name)
    if by_name is not None and by_name.kind != "compute":
        return by_name
    op_class = _CLASSES[class_index] if class_index >= 0 else by_name.what if by_name else "other"
    if phase == _OPTIMIZER and op_class in _OPTIMIZER_CLASSES:
        op_class = "optimizer"
    return Account("compute", op_class)


def _launching_collective(events: Events, row: int) -> Collective | None:
    """The collective named by the annotation (`nccl:all_to_all`) or op (`c10d::alltoall_base_`) around a launch.

    `row`: the host row of the launch. Its ancestors are searched outwards; None if none of them names a collective.
    """
    host = events.host
    while row >= 0:
        if host.what[row] == NOTE and row in host.collectives:
            return host.collectives[row]
        if host.what[row] == OP:
            name = collective_of_op(events.names[host.name[row]])
            if name:
                return Collective(name=name)
        row = int(host.parent[row])
    return None


@lru_cache(maxsize=4096)
def collective_of_op(name: str) -> str | None:
    """The name of the collective that a framework op called `name` launches (`all_gather`), or None."""
    if not name.startswith(("c10d::", "_c10d_functional::", "symm_mem::")):
        return None
    collective = kernel_names.collective_of(name.rstrip("_").replace("alltoall", "all_to_all"))
    return collective if collective != "other" else None
