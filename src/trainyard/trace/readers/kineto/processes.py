"""Separates a file that was merged from several ranks' files into ranks.

Kineto writes one process per file: its host spans have the process id as pid, and its device work the device's number.
Tools that merge files keep the pids apart in different ways. In this order, ranks are recognised by

- the rank that the events' args state (TraceLens' TraceFusion writes `rank` and offsets pids and correlation ids),
- the rank in a process's name or label (`RANK 3 - GPU`, `Rank 3`),
- the text before a pid (`[TP01-DP00] 1234`, `rank3_pid1234`),
- processes that each launch device work, or, in a file without device work, that each run ops.

Device work belongs to the process that its own pid belongs to, else to the one that launched it.

The functions below assign rows of the tables to groups, numbered from 0; each group becomes one rank. `reader.py` calls
`separate_ranks` for every file.
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
    """The ranks of a merged file, ascending, and sentences on how they were recognised and which events were left
    out."""

    ranks: tuple[MergedRank, ...]
    notes: tuple[str, ...]


class _Groups(NamedTuple):
    """An assignment of rows to groups. `host`, `device`: group of each row of the host and the device table, -1 if
    unknown; `ranks`, `labels`: rank and name in the file (empty if it has none) of each group; `evidence`: the property
    by which the groups were recognised, to complete "recognised by"."""

    host: I32
    device: I32
    ranks: tuple[int, ...]
    labels: tuple[str, ...]
    evidence: str


def separate_ranks(tables: Tables, path: Path) -> Separation | None:
    """Separates the rows of a merged file by rank; None if the file is of one process. Ranks without any row are left
    out. Raises `BadFile`, which names `path`, if most device work cannot be assigned to a process."""
    pids = _Pids(tables)
    if len(pids.host_pids) + len(pids.device_pids) < 2:
        return None
    groups = (
        _group_by_stated_rank(tables, pids) or _group_by_pid_text(pids) or _group_by_launching_process(tables, pids)
    )
    if groups is None:
        return None
    unassigned = int((groups.device < 0).sum())
    if unassigned > _MIN_LINKED * len(groups.device):
        raise BadFile(
            f"{path}: the file holds events of {len(groups.ranks)} ranks, and {unassigned:,} of its "
            f"{len(groups.device):,} device events cannot be assigned to one of them: their ids collide.",
            "Pass each rank's own file, or merge them with ids that are kept apart.",
        )
    device_group = groups.device
    wait_group = _assign_waits(tables, pids, groups)
    ranks = tuple(
        MergedRank(
            rank=rank,
            label=label,
            host=_select_rows(tables.host, groups.host == group),
            device=_select_rows(tables.device, device_group == group),
            waits=tables.waits.only(wait_group == group),
        )
        for group, (rank, label) in enumerate(zip(groups.ranks, groups.labels))
    )
    ranks = tuple(sorted((rank for rank in ranks if len(rank.host.start) or len(rank.device.start)), key=_rank_number))
    if len(ranks) < 2:
        return None
    left_out = int((groups.host < 0).sum() + (device_group < 0).sum())
    notes = [
        f"The file holds {len(ranks):,} ranks, recognised by {groups.evidence}; each is read as a rank of its own."
    ]
    if left_out:
        notes.append(f"{left_out:,} events of processes that belong to none of these ranks were left out.")
    return Separation(ranks, tuple(notes))


def _rank_number(rank: MergedRank) -> int:
    return rank.rank


class _Pids:
    """The pids of a file's rows. `pids`: the distinct ones; `host_pid`, `device_pid`, `wait_pid`: position in `pids` of
    the pid of each row of the three tables, -1 if it has none; `host_pids`, `device_pids`: the distinct values of these
    arrays."""

    def __init__(self, tables: Tables) -> None:
        """Numbers the distinct pids of threads and processes."""
        # Each array of a thread's or process's pid ends with -1, which the index -1 (unknown) selects.
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
        """The names and labels that the file's metadata gives each pid, joined by spaces."""
        return [" ".join(origins.texts.get(pid, ())) for pid in self.pids]


def _group_by_stated_rank(tables: Tables, pids: _Pids) -> _Groups | None:
    """Groups rows by the ranks in the events' args, else in the processes' names; None unless there are two or more."""
    origins = tables.origins
    stated_ranks: dict[Pid, list[int]] = {}
    for pid, rank in origins.processes:
        if rank >= 0:
            stated_ranks.setdefault(pid, []).append(rank)
    rank_of_pid = {pid: min(ranks) for pid, ranks in stated_ranks.items()}
    evidence = "the rank in their events' arguments"
    if len({rank for ranks in stated_ranks.values() for rank in ranks}) < 2:
        named = zip(pids.pids, pids.texts(origins))
        rank_of_pid = {pid: int(match[1]) for pid, text in named if (match := _RANK_IN_TEXT.search(text))}
        evidence = "the names of their processes"
    pids_with_rows = {pids.pids[index] for index in (*pids.host_pids, *pids.device_pids)}
    ranks = sorted({rank for pid, rank in rank_of_pid.items() if pid in pids_with_rows})
    if len(ranks) < 2:
        return None
    group_of_rank = {rank: group for group, rank in enumerate(ranks)}
    # The last element, -1, is the group of rows without a pid.
    group_of_pid = np.array([*(group_of_rank.get(rank_of_pid.get(pid, -1), -1) for pid in pids.pids), -1], np.int32)
    host, device = group_of_pid[pids.host_pid], group_of_pid[pids.device_pid]
    # A row that states its rank itself belongs to it, also if several ranks share a pid.
    group_of_process = np.array([*(group_of_rank.get(rank, -1) for _, rank in origins.processes), -1], np.int32)
    own_group = group_of_process[origins.device_process]
    device = np.where(own_group >= 0, own_group, device)
    host, device = _propagate_groups(tables, pids, host, device, len(ranks))
    return _Groups(host, device, tuple(ranks), ("",) * len(ranks), evidence)


def _group_by_pid_text(pids: _Pids) -> _Groups | None:
    """Groups rows by the text before the number in their pid (`[TP01-DP00]` of `[TP01-DP00] 1234`); None unless there
    are two or more such texts. The integer in each text is the rank if each has exactly one and all differ."""
    text_of_pid = [
        match["text"] if isinstance(pid, str) and (match := _PID_AFTER_TEXT.match(pid)) else "" for pid in pids.pids
    ]
    pids_with_rows = {*pids.host_pids, *pids.device_pids}
    texts = sorted({text_of_pid[pid] for pid in pids_with_rows} - {""}, key=_find_integers)
    if len(texts) < 2:
        return None
    integers = [_find_integers(text) for text in texts]
    are_ranks = all(len(numbers) == 1 for numbers in integers) and len({*integers}) == len(texts)
    ranks = tuple(numbers[0] for numbers in integers) if are_ranks else tuple(range(len(texts)))
    group_of_pid = np.array([*(texts.index(text) if text in texts else -1 for text in text_of_pid), -1], np.int32)
    return _Groups(
        host=group_of_pid[pids.host_pid],
        device=group_of_pid[pids.device_pid],
        ranks=ranks,
        labels=tuple(texts),
        evidence="the text before their pids",
    )


def _find_integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _INTEGER.findall(text)))


def _group_by_launching_process(tables: Tables, pids: _Pids) -> _Groups | None:
    """Groups rows by process: those that launch device work or, in a file without any, that run ops. None unless there
    are two or more. Ranks are numbered from 0, in a file with device work by their lowest device."""
    if len(pids.host_pids) < 2:
        return None
    # `members`: positions in `pids.pids` of the processes that become groups.
    if not len(tables.device.start):
        op_counts = Counter(pids.host_pid[tables.host.kind == OP].tolist())
        least_ops = _MIN_SHARE_OF_OPS * max(op_counts.values(), default=0)
        members = [pid for pid in pids.host_pids if op_counts[pid] > least_ops]
    else:
        is_launch = (tables.host.kind == CALL) & (tables.host.correlation >= 0)
        launch_counts = Counter(pids.host_pid[is_launch].tolist())
        members = [pid for pid in pids.host_pids if launch_counts[pid]]
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
        new_group = np.full(len(pids.pids) + 1, -1, np.int32)
        new_group[group_of_pid[members]] = np.arange(len(members))
        host, device = (np.where(group >= 0, new_group[group], -1).astype(np.int32) for group in (host, device))
    labels = tuple(f"process {pids.pids[pid]}" for pid in members)
    evidence = "the processes that launch device work" if len(device) else "the processes that run ops"
    return _Groups(host, device, tuple(range(len(members))), labels, evidence)


def _first_device(tables: Tables, device_group: I32, group: int) -> int:
    """The lowest device number of a group's device rows; the largest 32-bit number if it has none. `device_group`:
    group of each device row."""
    return int(tables.device.device[device_group == group].min(initial=2**31 - 1))


def _propagate_groups(tables: Tables, pids: _Pids, host: I32, device: I32, group_count: int) -> tuple[I32, I32]:
    """Assigns device rows without a group to the group that launched them, then all host rows of a pid without one to
    the group of the device work that the pid launched, if that is a single group.

    `host`, `device`: group of each row, -1 if unknown; returns new arrays, or the same if nothing changes.
    """
    if (device < 0).any() and (host >= 0).any():
        device = _assign_by_launch(tables, pids, host, device, group_count)
    for pid in np.unique(pids.host_pid[host < 0]).tolist():
        has_pid = pids.host_pid == pid
        calls = np.flatnonzero(has_pid & (tables.host.kind == CALL) & (tables.host.correlation >= 0))
        is_launched = np.isin(tables.device.correlation, tables.host.correlation[calls]) & (device >= 0)
        if len(calls) and is_launched.any():
            launches_by_group = np.bincount(device[is_launched], minlength=group_count)
            if (launches_by_group > 0).sum() == 1:
                host = np.where(has_pid, launches_by_group.argmax(), host).astype(np.int32)
    return host, device


def _assign_by_launch(tables: Tables, pids: _Pids, host: I32, device: I32, group_count: int) -> I32:
    """Group of each device row, in a new array: its group in `device`, else that of its launch, -1 if unknown. `host`:
    group of each host row.

    If correlation ids of several groups collide, as in files that were joined unchanged, all rows of a pid go to the
    group that launched most of them, or to the group at the same position in the file, or to none.
    """
    open_rows = np.flatnonzero(device < 0)
    # [group, position in open_rows]
    is_launched = _match_launches(tables, host, open_rows, group_count)
    launcher_count = is_launched.sum(axis=0)
    collide = int((launcher_count > 1).sum()) > _MAX_COLLISIONS * max(1, int((launcher_count > 0).sum()))
    pid_of_open_row = pids.device_pid[open_rows]
    group_of_block = _pair_blocks(host, pid_of_open_row) if collide else {}
    result = device.copy()
    for pid in np.unique(pid_of_open_row).tolist():
        rows = np.flatnonzero(pid_of_open_row == pid)  # positions in open_rows
        fraction_of_group = is_launched[:, rows].mean(axis=1)
        best = int(fraction_of_group.argmax())
        second_fraction = np.delete(fraction_of_group, best).max(initial=0.0)
        is_certain = fraction_of_group[best] >= _MIN_LINKED > second_fraction
        group = np.full(len(rows), best if is_certain else group_of_block.get(pid, -1))
        if not collide:
            only_launcher = np.where(launcher_count[rows] == 1, is_launched[:, rows].argmax(axis=0), -1)
            group = np.where(only_launcher >= 0, only_launcher, group)
        result[open_rows[rows]] = group
    return result


def _match_launches(tables: Tables, host: I32, rows: NDArray[np.intp], group_count: int) -> Mask:
    """[g, r]: whether a driver call of group g has the correlation id of device row `rows[r]` and precedes it. `host`:
    group of each host row."""
    correlation, start = tables.device.correlation[rows], tables.device.start[rows]
    is_launched = np.zeros((group_count, len(rows)), bool)
    for group in range(group_count):
        calls = np.flatnonzero((host == group) & (tables.host.kind == CALL) & (tables.host.correlation >= 0))
        calls = calls[np.argsort(tables.host.correlation[calls], kind="stable")]
        if len(calls):
            idents = tables.host.correlation[calls]  # ascending
            index = np.minimum(np.searchsorted(idents, correlation), len(calls) - 1)
            precedes = tables.host.start[calls[index]] <= start + _CLOCK_SLACK_NS
            is_launched[group] = (idents[index] == correlation) & precedes & (correlation >= 0)
    return is_launched


def _pair_blocks(host: I32, device_pid: I32) -> dict[int, int]:
    """Device pid (position in `_Pids.pids`) -> group, by order in the file: files joined one after another have their
    host spans and their device work in the same order. `host`: group of each host row, -1 for none; `device_pid`: pid
    of each device row. Empty unless groups and pids form equally many contiguous blocks, each value one block."""
    host_blocks = _contiguous_blocks(host[host >= 0])
    device_blocks = _contiguous_blocks(device_pid)
    is_paired = len(host_blocks) == len(device_blocks) and len({*host_blocks}) == len(host_blocks)
    return dict(zip(device_blocks, host_blocks)) if is_paired and len({*device_blocks}) == len(device_blocks) else {}


def _contiguous_blocks(values: I32) -> list[int]:
    """The value of each run of equal consecutive values, in order."""
    return values[np.append(True, values[1:] != values[:-1])[: len(values)]].tolist()


def _assign_waits(tables: Tables, pids: _Pids, groups: _Groups) -> I32:
    """Group of each stream wait: that of the device work of its pid if all of it is of one group, else -1."""
    group_of_pid = np.full(len(pids.pids) + 1, -1, np.int32)
    for pid in np.unique(pids.wait_pid).tolist():
        present = np.unique(groups.device[pids.device_pid == pid])
        if len(present) == 1:
            group_of_pid[pid] = present[0]
    return group_of_pid[pids.wait_pid]


def _select_rows(table: _Table, is_selected: Mask) -> _Table:
    """Copies the selected rows of a table; its collectives get their new row numbers."""
    rows: I64 = np.flatnonzero(is_selected)
    new_row = {int(row): index for index, row in enumerate(rows.tolist())} if table.collectives else {}
    collectives = {new_row[row]: value for row, value in table.collectives.items() if row in new_row}
    return table._make([*(column[rows] for column in table[:-1]), collectives])
