"""Events that contradict each other or the way devices work: duplicates, overlaps, impossible times.

Duplicates are removed. Everything else is read as written, and notes describe it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard import units
from trainyard.events import CALL, DRAWN, I32, I64, KERNEL
from trainyard.trace.readers.tables import DeviceTable, HostTable

_SLACK_NS = 2_000
"""Stamps in whole microseconds are off by up to 1 us at either end."""
_HOUR_NS = 3_600_000_000_000
_SHORTEST_KERNEL_NS = 100
"""No kernel takes less than some hundred ns: the median kernel is longer if stamps are in the unit that is assumed."""
_MIN_KERNELS_FOR_UNIT = 20
_KERNEL_LAUNCH = re.compile(r"(cuda|cu|hip)\w*LaunchKernel")
_MAX_NAME_LETTERS = 60
_Table = TypeVar("_Table", HostTable, DeviceTable)
Mask = NDArray[np.bool_]


def drop_duplicates(table: _Table) -> tuple[_Table, int]:
    """Returns the table without rows that repeat another one in every column, and the number of rows removed. The table
    is sorted by start. Rows that take no time and have no id may be equal without being the same event, and stay."""
    # Whether each row has the start and stop of the row before it; equal rows are neighbours in these groups.
    is_tied = np.append(False, (table.start[1:] == table.start[:-1]) & (table.stop[1:] == table.stop[:-1]))
    if not is_tied.any():
        return table, 0
    rows = np.flatnonzero(is_tied | np.append(is_tied[1:], False))
    rows = rows[(table.stop[rows] > table.start[rows]) | (table.correlation[rows] >= 0) | (table.external[rows] >= 0)]
    columns = [column[rows].astype(np.int64) for column in table[:-1]]
    order = np.lexsort(columns)
    is_repeat = np.ones(max(0, len(rows) - 1), bool)  # of the row before it in `order`
    for column in columns:
        is_repeat &= column[order][1:] == column[order][:-1]
    # lexsort is stable: the first of equal rows stays.
    dropped = rows[order][1:][is_repeat]
    if not len(dropped):
        return table, 0
    kept = np.delete(np.arange(len(table.start)), dropped)
    new_row = {int(row): index for index, row in enumerate(kept.tolist())} if table.collectives else {}
    collectives = {new_row[row]: value for row, value in table.collectives.items() if row in new_row}
    return table._make([*(column[kept] for column in table[:-1]), collectives]), len(dropped)


def describe_irregularities(
    host: HostTable,
    device: DeviceTable,
    launch: I32,
    names: Sequence[str],
    duplicates: tuple[int, int],
    is_whole_process: bool,
) -> list[str]:
    """Sentences on irregular events, with their numbers. `launch`: the host row that launched each device row, -1 if
    unknown; `duplicates`: host spans and device events that were removed; `is_whole_process`: the tables
    hold all calls and all work of a process, and lanes are streams, which run their kernels in order."""
    notes: list[str] = []
    counted = [units.counted(count, noun) for count, noun in zip(duplicates, ("host span", "device event")) if count]
    if counted:
        notes.append(f"Duplicates: {' and '.join(counted)} repeat another event in every field; each counts once.")
    if is_whole_process:
        notes.extend(_describe_overlaps(device))
        notes.extend(_describe_missing_kernels(host, device, names))
    notes.extend(_describe_latency(host, device, launch, names))
    notes.extend(_describe_lengths(host, device, names))
    return notes


def _describe_overlaps(device: DeviceTable) -> list[str]:
    """A sentence if kernels on one stream overlap."""
    rows = np.flatnonzero(device.kind == KERNEL)
    # By device and stream; the sort is stable, so that each stream's kernels stay in order of start.
    rows = rows[np.lexsort((device.lane[rows], device.device[rows]))] if len(rows) else rows
    start, stop = device.start[rows], device.stop[rows]
    is_first = np.append(True, (np.diff(device.lane[rows]) != 0) | (np.diff(device.device[rows]) != 0))[: len(rows)]
    if not (start[1:] < stop[:-1])[~is_first[1:]].any():
        return []
    until = _latest_stop_before(stop, is_first)
    overlaps = ~is_first & (start + _SLACK_NS < until)
    if not overlaps.any():
        return []
    ns = int((np.minimum(stop, until) - start)[overlaps].sum())
    return [
        f"Overlaps: {units.counted(int(overlaps.sum()), 'kernel')} begin before an earlier kernel on the same stream "
        f"has ended ({units.show_time(ns)} in all). A stream runs its kernels in order, except for programmatic "
        "dependent launches and graph branches; the files of several devices may have been mixed."
    ]


def _latest_stop_before(stop: I64, is_first: Mask) -> I64:
    """For each row the latest stop of the rows before it in its group. `is_first`: whether a group begins at the row;
    the value of such a row has no meaning."""
    order = np.argsort(stop, kind="stable")
    position = np.empty(len(stop), np.int64)
    position[order] = np.arange(len(stop))
    # A running maximum of (group number, position of the stop among all stops in ascending order), coded as one
    # integer: the group's number in the high digits restarts the maximum, and the remainder is the position.
    latest = np.maximum.accumulate(np.cumsum(is_first) * len(stop) + position) % len(stop)
    return np.append(stop[:1], stop[order[latest[:-1]]])


def _describe_latency(host: HostTable, device: DeviceTable, launch: I32, names: Sequence[str]) -> list[str]:
    """A sentence if work begins before the call that launched it."""
    rows = np.flatnonzero(launch >= 0)
    early_ns = host.start[launch[rows]] - device.start[rows]
    is_early = early_ns > _SLACK_NS
    if not is_early.any():
        return []
    worst = int(early_ns.argmax())
    return [
        f"Negative latency: {units.counted(int(is_early.sum()), 'device event')} of {len(rows):,} begin before the "
        f"call that launched them, by up to {units.show_time(int(early_ns[worst]))} "
        f"({_shorten(names[int(device.name[rows[worst]])])}). The clocks of host and device disagree, or launches are "
        "linked to other work."
    ]


def _describe_missing_kernels(host: HostTable, device: DeviceTable, names: Sequence[str]) -> list[str]:
    """A sentence if launches have no kernel in the file although later ones have: then the profiler lost events."""
    is_launch_name = np.array([_KERNEL_LAUNCH.match(name) is not None for name in names], bool)
    if not is_launch_name.any() or not len(device.start):
        return []
    launches = np.flatnonzero(is_launch_name[host.name] & (host.kind == CALL) & (host.correlation >= 0))
    launches = launches[~_is_in_capture(host, launches, names)]
    has_kernel = np.isin(host.correlation[launches], device.correlation)
    if has_kernel.all() or not has_kernel.any():
        return []
    # The recording may end before the last kernels have run.
    until = int(np.flatnonzero(has_kernel)[-1])
    missing = int((~has_kernel[:until]).sum())
    if not missing:
        return []
    return [
        f"Missing kernels: {units.counted(missing, 'launch', 'launches')} of {until + 1:,} have no kernel in the file "
        "although later ones have. The profiler lost events, so that idle time is overstated."
    ]


def _is_in_capture(host: HostTable, rows: NDArray[np.intp], names: Sequence[str]) -> Mask:
    """Whether each host row lies in a stream capture: its launches become a graph's nodes and run no kernel."""
    edges = [np.array([word in name for name in names], bool)[host.name] for word in ("BeginCapture", "EndCapture")]
    opened, closed = (np.searchsorted(host.start[is_edge], host.start[rows], "right") for is_edge in edges)
    return opened > closed


def _describe_lengths(host: HostTable, device: DeviceTable, names: Sequence[str]) -> list[str]:
    """Sentences on device events without duration, events of an hour or more, and kernels that are too short."""
    notes: list[str] = []
    is_work = device.kind != DRAWN
    length = device.stop - device.start
    without = int((is_work & (length == 0)).sum())
    if without:
        is_rounded = not (device.start % 1000).any() and not (length % 1000).any()
        reason = " Stamps are in whole microseconds, so that shorter events have none." if is_rounded else ""
        notes.append(
            f"No duration: {units.counted(without, 'device event')} of {int(is_work.sum()):,} last 0 ns.{reason}"
        )
    for table, noun in ((device, "device event"), (host, "host span")):
        lasting = table.stop - table.start
        long = lasting >= _HOUR_NS
        if long.any():
            longest = int(lasting.argmax())
            notes.append(
                f"Duration: {units.counted(int(long.sum()), noun)} last an hour or more, the longest "
                f"{units.show_time(int(lasting[longest]))} ({_shorten(names[int(table.name[longest])])})."
            )
    kernels = length[(device.kind == KERNEL) & (length > 0)]
    if len(kernels) >= _MIN_KERNELS_FOR_UNIT and (median := int(np.median(kernels))) < _SHORTEST_KERNEL_NS:
        notes.append(
            f"Unit: the median of {len(kernels):,} kernels lasts {units.show_time(median)}, which no device reaches. "
            "Stamps are read as microseconds; are they in another unit, such as milliseconds?"
        )
    return notes


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LETTERS else f"{name[: _MAX_NAME_LETTERS - 1]}…"
