"""Separates a file that was merged from several ranks' files into ranks.

Kineto writes one process per file: its host spans have the process id as pid, and its device work the device's number.
Tools that merge files keep the pids apart in different ways. In this order, ranks are recognised by

- the rank that the events' args state (TraceLens' TraceFusion writes `rank` and offsets pids and correlation ids),
- the rank in a process's name or label (`RANK 3 - GPU`, `Rank 3`),
- the text before a pid (`[TP01-DP00] 1234`, `rank3_pid1234`),
- processes that each launch device work, or, in a file without device work, that each run ops.

Device work belongs to the process that its own pid belongs to, else to the one that launched it.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadFile
from trainyard.events import CALL, I32, I64, OP
from trainyard.trace.readers.kineto.rows import Origins, Pid, Tables
from trainyard.trace.readers.tables import DeviceTable, HostTable, StreamWaits

_RANK_IN_TEXT = re.compile(r"(?<![a-z])rank[\s_#:=-]*(\d{1,9})(?!\d)", re.IGNORECASE)
_PID_AFTER_TEXT = re.compile(r"(?P<text>.*?)[\s_\-:./]*(?:pid[\s_\-:=]*)?-?\d*\Z", re.IGNORECASE | re.DOTALL)
_INTEGER = re.compile(r"\d{1,9}")
_CLOCK_SLACK_NS = 1_000_000
"""A launch may seem to begin this much after its work: the device's clock is converted to the host's."""
_MIN_LINKED = 0.5
"""A device pid's rows belong to a process that launched at least this fraction of them, if no other did."""
_MAX_COLLISIONS = 0.1
"""Largest fraction of rows whose correlation id occurs in several processes, if the ids were kept apart."""
_MIN_SHARE_OF_OPS = 0.05
"""A process counts as a rank of a file without device work if it runs this share of the ops of the busiest one."""
_Table = TypeVar("_Table", HostTable, DeviceTable)
Mask = NDArray[np.bool_]


class MergedRank(NamedTuple):
    """The rows of one rank of a merged file. `label`: how the file names it, empty if it does not."""

    rank: int
    label: str
    host: HostTable
    device: DeviceTable
    waits: StreamWaits


class Separation(NamedTuple):
    """The ranks of a merged file, and sentences on how they were recognised and what was left out."""

    ranks: tuple[MergedRank, ...]
    notes: tuple[str, ...]


class _Groups(NamedTuple):
    """Group of each row, -1 if unknown. `numbers`: rank of each group; `labels`: its name in the file; `how`: what the
    groups were recognised by, for a sentence."""

    host: I32
    device: I32
    numbers: tuple[int, ...]
    labels: tuple[str, ...]
    how: str


def separate_ranks(tables: Tables, path: Path) -> Separation | None:
    """The ranks of a merged file; None if the file is of one process. Raises `BadFile`, which names `path`, if
    processes cannot be separated."""
    pids = _Pids(tables)
    if len(pids.host_pids) + len(pids.device_pids) < 2:
        return None
    groups = _by_stated_ranks(tables, pids) or _by_pid_text(pids) or _by_launches(tables, pids)
    if groups is None:
        return None
    lost = int((groups.device < 0).sum())
    if lost > _MIN_LINKED * len(groups.device):
        raise BadFile(
            f"{path}: the file holds events of {len(groups.numbers)} ranks, and {lost:,} of its "
            f"{len(groups.device):,} device events cannot be assigned to one of them: their ids collide.",
            "Pass each rank's own file, or merge them with ids that are kept apart.",
        )
    device_group = groups.device
    wait_group = _groups_of_waits(tables, pids, groups)
    ranks = tuple(
        MergedRank(
            rank=rank,
            label=label,
            host=_select_rows(tables.host, groups.host == number),
            device=_select_rows(tables.device, device_group == number),
            waits=tables.waits.only(wait_group == number),
        )
        for number, (rank, label) in enumerate(zip(groups.numbers, groups.labels))
    )
    ranks = tuple(sorted((rank for rank in ranks if len(rank.host.start) or len(rank.device.start)), key=_rank_number))
    if len(ranks) < 2:
        return None
    left_out = int((groups.host < 0).sum() + (device_group < 0).sum())
    notes = [f"The file holds {len(ranks):,} ranks, recognised by {groups.how}; each is read as a rank of its own."]
    if left_out:
        notes.append(f"{left_out:,} events of processes that belong to none of these ranks were left out.")
    return Separation(ranks, tuple(notes))


def _rank_number(rank: MergedRank) -> int:
    return rank.rank


class _Pids:
    """The pids of a file's rows. `host_pid`, `device_pid`: index of each row's pid in `pids`; `host_pids`,
    `device_pids`: those that have rows."""

    def __init__(self, tables: Tables) -> None:
        """Numbers the distinct pids of threads and processes."""
        origins = tables.origins
        numbers: dict[Pid, int] = {}
        thread_pid = [numbers.setdefault(pid, len(numbers)) for pid in origins.thread_pids]
        process_pid = [numbers.setdefault(pid, len(numbers)) for pid, _ in origins.processes]
        self.pids = tuple(numbers)
        self.host_pid = np.array([*thread_pid, -1], np.int32)[tables.host.thread]
        self.device_pid = np.array([*process_pid, -1], np.int32)[origins.device_process]
        self.wait_pid = np.array([*process_pid, -1], np.int32)[origins.wait_process]
        self.host_pids = np.unique(self.host_pid).tolist()
        self.device_pids = np.unique(self.device_pid).tolist()

    def texts(self, origins: Origins) -> list[str]:
        """The names and labels of each pid, joined."""
        return [" ".join(origins.texts.get(pid, ())) for pid in self.pids]


def _by_stated_ranks(tables: Tables, pids: _Pids) -> _Groups | None:
    """Groups by the ranks in the events' args, else in the processes' names; None unless there are two or more."""
    origins = tables.origins
    stated: dict[Pid, list[int]] = {}
    for pid, rank in origins.processes:
        if rank >= 0:
            stated.setdefault(pid, []).append(rank)
    rank_of_pid = {pid: min(ranks) for pid, ranks in stated.items()}
    how = "the rank in their events' arguments"
    if len({rank for ranks in stated.values() for rank in ranks}) < 2:
        named = zip(pids.pids, pids.texts(origins))
        rank_of_pid = {pid: int(match[1]) for pid, text in named if (match := _RANK_IN_TEXT.search(text))}
        how = "the names of their processes"
    with_rows = {pids.pids[pid] for pid in (*pids.host_pids, *pids.device_pids)}
    ranks = sorted({rank for pid, rank in rank_of_pid.items() if pid in with_rows})
    if len(ranks) < 2:
        return None
    index = {rank: number for number, rank in enumerate(ranks)}
    group_of_pid = np.array([*(index.get(rank_of_pid.get(pid, -1), -1) for pid in pids.pids), -1], np.int32)
    host, device = group_of_pid[pids.host_pid], group_of_pid[pids.device_pid]
    # Ranks whose pids were not kept apart: the row itself states its rank.
    own = np.array([*(index.get(rank, -1) for _, rank in origins.processes), -1], np.int32)[origins.device_process]
    device = np.where(own >= 0, own, device)
    host, device = _propagate_groups(tables, pids, host, device, len(ranks))
    return _Groups(host, device, tuple(ranks), ("",) * len(ranks), how)


def _by_pid_text(pids: _Pids) -> _Groups | None:
    """Groups by the text before the pids' numbers; None unless there are two or more such texts."""
    text_of_pid = [
        match["text"] if isinstance(pid, str) and (match := _PID_AFTER_TEXT.match(pid)) else "" for pid in pids.pids
    ]
    with_rows = {*pids.host_pids, *pids.device_pids}
    texts = sorted({text_of_pid[pid] for pid in with_rows} - {""}, key=_integers)
    if len(texts) < 2:
        return None
    integers = [_integers(text) for text in texts]
    are_ranks = all(len(numbers) == 1 for numbers in integers) and len({*integers}) == len(texts)
    numbers = tuple(numbers[0] for numbers in integers) if are_ranks else tuple(range(len(texts)))
    group_of_pid = np.array([*(texts.index(text) if text in texts else -1 for text in text_of_pid), -1], np.int32)
    return _Groups(
        group_of_pid[pids.host_pid], group_of_pid[pids.device_pid], numbers, tuple(texts), "the text before their pids"
    )


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _INTEGER.findall(text)))


def _by_launches(tables: Tables, pids: _Pids) -> _Groups | None:
    """Groups by process: those that launch device work or, in a file without any, that run ops. None unless there are
    two or more."""
    if len(pids.host_pids) < 2:
        return None
    if not len(tables.device.start):
        op_counts = Counter(pids.host_pid[tables.host.kind == OP].tolist())
        least = _MIN_SHARE_OF_OPS * max(op_counts.values(), default=0)
        members = [pid for pid in pids.host_pids if op_counts[pid] > least]
    else:
        launching = Counter(pids.host_pid[(tables.host.kind == CALL) & (tables.host.correlation >= 0)].tolist())
        members = [pid for pid in pids.host_pids if launching[pid]]
    if len(members) < 2:
        return None
    group_of_pid = np.full(len(pids.pids) + 1, -1, np.int32)
    group_of_pid[members] = np.arange(len(members))
    host = group_of_pid[pids.host_pid]
    device = np.full(len(tables.device.start), -1, np.int32)
    if len(device):
        host, device = _propagate_groups(tables, pids, host, device, len(members))
        if (device >= 0).any():
            members = [pid for number, pid in enumerate(members) if (device == number).any()]
        if len(members) < 2:
            return None
        # By device, so that ranks of one host are numbered as launchers number them.
        first_device = [_first_device(tables, device, int(group_of_pid[pid])) for pid in members]
        members = [pid for _, pid in sorted(zip(first_device, members))]
        order = np.full(len(pids.pids) + 1, -1, np.int32)
        order[group_of_pid[members]] = np.arange(len(members))
        host, device = (np.where(group >= 0, order[group], -1).astype(np.int32) for group in (host, device))
    labels = tuple(f"process {pids.pids[pid]}" for pid in members)
    how = "the processes that launch device work" if len(device) else "the processes that run ops"
    return _Groups(host, device, tuple(range(len(members))), labels, how)


def _first_device(tables: Tables, device_group: I32, group: int) -> int:
    """The lowest device number of a group's rows; the largest number if it has none."""
    return int(tables.device.device[device_group == group].min(initial=2**31 - 1))


def _propagate_groups(tables: Tables, pids: _Pids, host: I32, device: I32, group_count: int) -> tuple[I32, I32]:
    """Assigns device rows without a group to the group that launched them, and host pids without one to that of the
    device work that they launched."""
    if (device < 0).any() and (host >= 0).any():
        device = _assign_by_launch(tables, pids, host, device, group_count)
    for pid in np.unique(pids.host_pid[host < 0]).tolist():
        rows = pids.host_pid == pid
        calls = np.flatnonzero(rows & (tables.host.kind == CALL) & (tables.host.correlation >= 0))
        launched = np.isin(tables.device.correlation, tables.host.correlation[calls]) & (device >= 0)
        if len(calls) and launched.any():
            counts = np.bincount(device[launched], minlength=group_count)
            if (counts > 0).sum() == 1:
                host = np.where(rows, counts.argmax(), host).astype(np.int32)
    return host, device


def _assign_by_launch(tables: Tables, pids: _Pids, host: I32, device: I32, group_count: int) -> I32:
    """The group of each device row: its own, else that of its launch. If correlation ids of several groups collide, as
    in files that were joined unchanged, all rows of a pid go to one group, or to none if that is not certain."""
    open_rows = np.flatnonzero(device < 0)
    is_launched = _launched_by_group(tables, host, open_rows, group_count)
    launchers = is_launched.sum(axis=0)
    collide = int((launchers > 1).sum()) > _MAX_COLLISIONS * max(1, int((launchers > 0).sum()))
    pid_of_row = pids.device_pid[open_rows]
    group_of_block = _pair_blocks(host, pid_of_row) if collide else {}
    result = device.copy()
    for pid in np.unique(pid_of_row).tolist():
        rows = np.flatnonzero(pid_of_row == pid)
        fractions = is_launched[:, rows].mean(axis=1)
        best = int(fractions.argmax())
        others = np.delete(fractions, best).max(initial=0.0)
        of_pid = np.full(len(rows), best if fractions[best] >= _MIN_LINKED > others else group_of_block.get(pid, -1))
        if not collide:
            by_row = np.where(launchers[rows] == 1, is_launched[:, rows].argmax(axis=0), -1)
            of_pid = np.where(by_row >= 0, by_row, of_pid)
        result[open_rows[rows]] = of_pid
    return result


def _launched_by_group(tables: Tables, host: I32, rows: NDArray[np.intp], group_count: int) -> Mask:
    """[g, r]: whether a call of group g has the correlation id of device row `rows[r]` and precedes it."""
    correlation, start = tables.device.correlation[rows], tables.device.start[rows]
    is_launched = np.zeros((group_count, len(rows)), bool)
    for group in range(group_count):
        calls = np.flatnonzero((host == group) & (tables.host.kind == CALL) & (tables.host.correlation >= 0))
        calls = calls[np.argsort(tables.host.correlation[calls], kind="stable")]
        if len(calls):
            idents = tables.host.correlation[calls]
            index = np.minimum(np.searchsorted(idents, correlation), len(calls) - 1)
            precedes = tables.host.start[calls[index]] <= start + _CLOCK_SLACK_NS
            is_launched[group] = (idents[index] == correlation) & precedes & (correlation >= 0)
    return is_launched


def _pair_blocks(host: I32, device_pid: I32) -> dict[int, int]:
    """Device pid -> group, by order in the file: files joined one after another have their host spans and their device
    work in the same order. Empty unless each has as many contiguous blocks."""
    host_blocks = _contiguous_blocks(host[host >= 0])
    device_blocks = _contiguous_blocks(device_pid)
    is_paired = len(host_blocks) == len(device_blocks) and len({*host_blocks}) == len(host_blocks)
    return dict(zip(device_blocks, host_blocks)) if is_paired and len({*device_blocks}) == len(device_blocks) else {}


def _contiguous_blocks(values: I32) -> list[int]:
    """The value of each run of equal values, in order."""
    return values[np.append(True, values[1:] != values[:-1])[: len(values)]].tolist()


def _groups_of_waits(tables: Tables, pids: _Pids, groups: _Groups) -> I32:
    """The group of each stream wait: that of the device work of its pid if all of it is of one group."""
    group_of_pid = np.full(len(pids.pids) + 1, -1, np.int32)
    for pid in np.unique(pids.wait_pid).tolist():
        present = np.unique(groups.device[pids.device_pid == pid])
        if len(present) == 1:
            group_of_pid[pid] = present[0]
    return group_of_pid[pids.wait_pid]


def _select_rows(table: _Table, selected: Mask) -> _Table:
    """The selected rows of a table, as copies."""
    rows: I64 = np.flatnonzero(selected)
    new_row = {int(row): index for index, row in enumerate(rows.tolist())} if table.collectives else {}
    collectives = {new_row[row]: value for row, value in table.collectives.items() if row in new_row}
    return table._make([*(column[rows] for column in table[:-1]), collectives])
