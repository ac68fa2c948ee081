"""The ns that a rank's ledgers book, with the host span that each belongs to.

Work belongs to the span that launched it, a wait in a collective to the one that launched the collective, idle time to
the innermost span of the thread that launches the next work; queueing belongs to that work's launch. On a CPU, an op's
self time belongs to the op itself. A host row is an index into the columns of `HostSpans`; an interval is a row of
`RankTrace.classified`; a stretch is a period in which one of them, or a wait or idle time, owns the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I8, I32, I64, OP
from trainyard.ledger import Account
from trainyard.operation_tree import IDLE, KERNEL
from trainyard.trace.align.steps import Mask, in_parts
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.intervals import cut_at_bounds
from trainyard.trace.booking.owners import find_owners
from trainyard.trace.classify.context import PHASES
from trainyard.trace.rank_results import convert_rank
from trainyard.trace.readers.nesting import split_by_innermost

OWN = -1
"""Leaf kind of time that belongs to the span itself, such as an op on a CPU."""
_OTHER = PHASES.index("other")


class OwnedTime(NamedTuple):
    """k rows, whose `ns` add up to the selected parts. `host`: host row, -1 for none; `phase`: index into words.PHASES;
    `leaf_kind`: KERNEL or IDLE of `operation_tree`, or OWN; `leaf`: an index into `leaves`; `ns`: exposed time;
    `calls`: number of calls of the leaf."""

    host: I32
    phase: I8
    leaf_kind: I8
    leaf: I32
    ns: I64
    calls: I64
    leaves: tuple[str, ...]


class _Stretches(NamedTuple):
    """Stretches that tile the counted parts. `key`: account and phase, -1 for unexplained; `interval`: the interval
    that owns the time, -1 for waits and idle time; `host`: the host row that it belongs to, -1 for none so far."""

    begin: I64
    end: I64
    key: I32
    interval: I32
    host: I32
    phase: I8


def find_owned_time(rank: RankTrace, is_counted: Mask) -> OwnedTime:
    """Finds the host span that each instant of some parts belongs to. `is_counted`: mask over `rank.parts`."""
    accounts = [account for account, _ in rank.keys.pairs]
    on_device = len(rank.events.work) > 0
    stretches = _find_stretches(rank, is_counted)
    names = len(rank.events.names)
    # Leaves: the names of the file, the account of each key, unexplained time (key -1).
    leaves = (*rank.events.names, *(account.label for account in accounts), Account("unexplained").label)
    leaf = names + np.where(stretches.key >= 0, stretches.key, len(accounts))
    leaf_kind = np.full(len(leaf), IDLE, np.int8)
    is_comm = np.array([account.kind == "comm" for account in accounts] + [False], bool)
    is_kernel = (stretches.interval >= 0) & (is_comm[stretches.key] | on_device)
    leaf_kind[is_kernel] = KERNEL
    leaf[is_kernel] = rank.classified.name[stretches.interval[is_kernel]]
    if not on_device:
        is_op = (stretches.host >= 0) & (rank.events.host.what[stretches.host] == OP)
        leaf_kind[~is_kernel & (stretches.interval >= 0) & is_op] = OWN
    # Kernels and collectives that begin in a counted part are calls, including those that own no time.
    rows = np.flatnonzero(
        rank.classified.begins
        & in_parts(rank.parts, is_counted, rank.classified.start)
        & (is_comm[rank.classified.key] | on_device)
    )
    return OwnedTime(
        host=np.concatenate([stretches.host, _launching_rows(rank, rows)]),
        phase=np.concatenate([stretches.phase, _phases(rank)[rank.classified.key[rows]]]),
        leaf_kind=np.concatenate([leaf_kind, np.full(len(rows), KERNEL, np.int8)]),
        leaf=np.concatenate([leaf, rank.classified.name[rows]]).astype(np.int32),
        ns=np.concatenate([stretches.end - stretches.begin, np.zeros(len(rows), np.int64)]),
        calls=np.repeat(np.array([0, 1]), [len(leaf), len(rows)]),
        leaves=leaves,
    )


def _find_stretches(rank: RankTrace, is_counted: Mask) -> _Stretches:
    """The stretches of the counted parts, each with the host row that it belongs to."""
    owners = find_owners(rank)
    counted = in_parts(rank.parts, is_counted, owners.start)
    begin, end, key, interval = owners.start[counted], owners.stop[counted], owners.key[counted], owners.work[counted]
    phases = _phases(rank)
    host = np.full(len(begin), -1, np.int32)
    host[interval >= 0] = _launching_rows(rank, interval[interval >= 0])
    is_gap = (interval < 0) & (key >= 0)
    gaps = _Stretches(begin[is_gap], end[is_gap], key[is_gap], interval[is_gap], host[is_gap], phases[key[is_gap]])
    others = _Stretches(
        begin[~is_gap], end[~is_gap], key[~is_gap], interval[~is_gap], host[~is_gap], phases[key[~is_gap]]
    )
    gaps = _place_gaps(rank, gaps)
    return _Stretches(
        begin=np.concatenate([others.begin, gaps.begin]),
        end=np.concatenate([others.end, gaps.end]),
        key=np.concatenate([others.key, gaps.key]),
        interval=np.concatenate([others.interval, gaps.interval]),
        host=np.concatenate([others.host, gaps.host]),
        phase=np.concatenate([others.phase, gaps.phase]),
    )


def _place_gaps(rank: RankTrace, gaps: _Stretches) -> _Stretches:
    """The waits and idle time `gaps`, cut where the innermost host span changes, with their host rows.

    Gaps that are not idle time are waits; they belong to the span that launched the collective that follows them.
    """
    begin, end, key, host, phase = gaps.begin, gaps.end, gaps.key, gaps.host.copy(), gaps.phase
    is_idle = np.zeros(len(begin), bool)
    if len(rank.events.work):
        # The rank numbers of waits, which are not used here, may be any.
        idle = convert_rank(rank, np.zeros(int(rank.waits.late.max(initial=0)) + 1, np.int32)).idle
        stretch, begin, end = cut_at_bounds(begin, end, np.unique(np.concatenate([idle.start, idle.stop])))
        key, host, phase = key[stretch], host[stretch], phase[stretch].copy()
        piece = np.searchsorted(idle.start, begin, "right") - 1
        is_idle = (piece >= 0) & (begin < np.append(idle.stop, 0)[piece])
        piece = piece[is_idle]
        host[is_idle], phase[is_idle] = _hosts_of_idle_time(
            rank, key[is_idle], phase[is_idle], idle.host[piece], idle.next[piece]
        )
    waits = np.flatnonzero(~is_idle)
    collectives = np.array(sorted(rank.classified.collectives), np.int64)
    if len(collectives) and len(waits):
        collectives = collectives[np.argsort(rank.classified.start[collectives], kind="stable")]
        following = np.searchsorted(rank.classified.start[collectives], end[waits], "left")
        host[waits] = _launching_rows(rank, collectives[np.minimum(following, len(collectives) - 1)])
    return _Stretches(begin, end, key, np.full(len(begin), -1, np.int32), host, phase)


def _hosts_of_idle_time(rank: RankTrace, key: I32, phase: I8, innermost: I32, following: I32) -> tuple[I32, I8]:
    """(host row, phase) of each stretch of idle time; the arguments have an element for each.

    `key`: index into `rank.keys.pairs`, the account and phase as booked, -1 for unexplained time; `phase`: as booked,
    an index into `PHASES`; `innermost`: row of the innermost host span of the launching thread, -1 for none;
    `following`: row of the device work that ends the idle time. Idle time of the accounts `words.LAUNCHED_GAPS` comes
    after the launch of that work, so it belongs to the launch; the other, to the innermost span.
    """
    is_queued = np.array([account.what in words.LAUNCHED_GAPS for account, _ in rank.keys.pairs] + [False], bool)[key]
    launcher = rank.classified.launcher[following]
    is_queued |= (innermost < 0) & (launcher >= 0)
    host = np.where(is_queued, launcher, innermost).astype(np.int32)
    return host, np.where(host >= 0, rank.context.phase[host], phase).astype(np.int8)


def _phases(rank: RankTrace) -> I8:
    """The phase of each key; the additional last element is that of unexplained time, key -1."""
    return np.array([*(phase for _, phase in rank.keys.pairs), _OTHER], np.int8)


def _launching_rows(rank: RankTrace, intervals: NDArray[np.integer]) -> I32:
    """The host row that launched each interval, -1 for none; a CPU's collective, which runs on a thread of its own,
    belongs to the innermost span of the training thread at its start."""
    host = rank.events.host
    rows = rank.classified.launcher[intervals]
    if len(rank.events.work) or not rank.classified.collectives:
        return rows
    edges, owner = split_by_innermost(
        host.start, host.stop, host.parent, np.flatnonzero(host.thread == rank.events.main)
    )
    position = np.searchsorted(edges, rank.classified.start[intervals], "right") - 1
    innermost = np.append(owner, -1)[position]
    is_foreign = (rows >= 0) & (host.thread[rows] != rank.events.main)
    return np.where(is_foreign, np.where(position >= 0, innermost, -1), rows).astype(np.int32)
