"""Each device interval to an account and a phase: the launching op decides before the kernel's name does."""

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
# What the optimizer's own arithmetic is made of; its matrix products (Muon, Shampoo) stay matmul.
_OF_THE_OPTIMIZER = ("elementwise", "reduction", "other", "embedding")
_GRAPH = re.compile(r"(cuda|cu|hip)GraphLaunch")
_MANY = 32
"""More than there are op classes, or phases."""


class Keys:
    """Numbers for (account, phase) pairs, in order of first use."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Account, int]] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def number(self, account: Account, phase: int) -> int:
        key = (str(account), phase)
        if key not in self._numbers:
            self._numbers[key] = len(self.pairs)
            self.pairs.append((account, phase))
        return self._numbers[key]

    def places(self) -> I32:
        """Where each number stands when accounts go by precedence, then phases."""
        order = sorted(range(len(self.pairs)), key=lambda number: (self.pairs[number][0].rank, self.pairs[number][1]))
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order))
        return places

    def kinds(self) -> I8:
        return np.array([_KINDS.index(account.kind) for account, _ in self.pairs], np.int8)


class Classified(NamedTuple):
    """For n intervals (device work, or a CPU's spans): times, key, module (name number or -1), name, and the
    host row that launched it (-1 none). `begins`: whether the work begins here (an op that other ops interrupt
    has several intervals and one beginning). `collectives`: interval -> what is known of it;
    `collective_phase`: of each of them, in order. A collective's key is -1 until `key_collectives` gives it one."""

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
    """Gives each collective the key of its group. The name of a group depends on `events.group_sizes`, which must be
    those of the whole job: call this once all ranks have been surveyed."""
    key = classified.key.copy()
    for (row, collective), phase in zip(classified.collectives.items(), classified.collective_phase.tolist()):
        account = Account("comm", collective.name, group_of(collective, events))
        key[row] = keys.number(account, phase)
    return classified._replace(key=key)


def classify_device(events: Events, context: Context, keys: Keys) -> Classified:
    """Device work, n rows in the order of `events.work`."""
    work = events.work
    launcher = np.where(work.call >= 0, work.call, work.op).astype(np.int32)
    known = launcher >= 0
    phase = np.full(len(work), _OTHER, np.int8)
    module = np.full(len(work), -1, np.int32)
    op_class = np.full(len(work), -1, np.int8)
    for column, of_host in ((phase, context.phase), (module, context.module), (op_class, context.op_class)):
        column[known] = of_host[launcher[known]]
    # One call launches a whole graph: what is around it says nothing of any one kernel.
    of_graph = _of_graphs(events, launcher)
    op_class[of_graph] = -1

    ident = ((work.name.astype(np.int64) * 4 + work.what) * _MANY + op_class + 1) * _MANY + phase
    _, first, inverse = np.unique(ident, return_index=True, return_inverse=True)
    when = phase[first].tolist()
    parts = zip(work.what[first].tolist(), work.name[first].tolist(), op_class[first].tolist(), when)
    accounts = [_account(what, events.names[name], decided, at) for what, name, decided, at in parts]
    communicates = np.array([account.kind == "comm" for account in accounts], bool)[inverse]
    # What the file itself calls a collective is one, whatever its name.
    communicates[list(work.collectives)] = True
    numbers = [-1 if one.kind == "comm" else keys.number(one, at) for one, at in zip(accounts, when)]
    key = np.array(numbers, np.int32)[inverse]
    collectives: dict[int, Collective] = {}
    for row in np.flatnonzero(communicates).tolist():
        found = work.collectives.get(row)
        if found is None and not of_graph[row]:
            found = _launching_collective(events, int(launcher[row]))
        collectives[row] = found or Collective(name=accounts[inverse[row]].what)
    key[communicates] = -1
    every = np.ones(len(work), bool)
    return Classified(work.start, work.stop, key, work.name, module, launcher, every, collectives, phase[communicates])


def _of_graphs(events: Events, launcher: I32) -> NDArray[np.bool_]:
    """Which rows a graph's launch started."""
    launches = np.array([_GRAPH.match(name) is not None for name in events.names], bool)
    inside = launcher >= 0
    inside[inside] = launches[events.host.name[launcher[inside]]]
    return inside


@lru_cache(maxsize=65536)
def by_kernel_name(name: str) -> Account | None:
    """What the first vendor that knows the kernel's name says it is."""
    accounts = (vendor.kernel_account(name) for vendor in _vendors())
    return next((account for account in accounts if account is not None), None)


@lru_cache(maxsize=1)
def _vendors() -> tuple[Vendor, ...]:
    return tuple(plugins.load_all("vendors").values())


def _account(what: int, name: str, decided: int, phase: int) -> Account:
    if what == MEMSET:
        return Account("copy", "memset")
    if what == COPY:
        return Account("copy", kernel_names.copy_of(name))
    by_name = by_kernel_name(name)
    if by_name is not None and by_name.kind != "compute":
        return by_name
    op_class = _CLASSES[decided] if decided >= 0 else by_name.what if by_name else "other"
    if phase == _OPTIMIZER and op_class in _OF_THE_OPTIMIZER:
        op_class = "optimizer"
    return Account("compute", op_class)


def _launching_collective(events: Events, row: int) -> Collective | None:
    """From the annotation (`nccl:all_to_all`) or op (`c10d::alltoall_base_`) around the launch."""
    host = events.host
    while row >= 0:
        if host.what[row] == NOTE and row in host.collectives:
            return host.collectives[row]
        if host.what[row] == OP:
            name = launched_by(events.names[host.name[row]])
            if name:
                return Collective(name=name)
        row = int(host.parent[row])
    return None


@lru_cache(maxsize=4096)
def launched_by(name: str) -> str | None:
    """The collective that a framework op launches, or None."""
    if not name.startswith(("c10d::", "_c10d_functional::", "symm_mem::")):
        return None
    found = kernel_names.collective_of(name.rstrip("_").replace("alltoall", "all_to_all"))
    return found if found != "other" else None
