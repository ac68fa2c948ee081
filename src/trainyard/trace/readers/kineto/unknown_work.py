"""Decides which events of unknown categories are device work, and describes those that are not read.

The category (`cat`) of a Kineto event states its type (`kernel`, `cpu_op`). Profilers of new devices write categories
that `categories.py` does not list; the scanners store their events as device rows of the kind `UNKNOWN_WORK`, and this
module, which `reader.py` calls after the scan, gives those rows a known kind or drops them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import units
from trainyard.events import COPY, I64, KERNEL, MEMSET
from trainyard.trace.readers.kineto.categories import UNKNOWN_WORK, names_accelerator
from trainyard.trace.readers.kineto.rows import Origins, Tables
from trainyard.units import listed

_DEVICE_LABEL = re.compile(r"\b(?:GPU|XPU|NPU|MTIA|HPU|TPU|MLU|GCU|DCU|IPU|PPU|MUSA)S?\b\s*(\d{1,5})?", re.IGNORECASE)
_MAX_NAMED = 4
"""Categories that a note names."""
_MAX_LETTERS = 40
Mask = NDArray[np.bool_]


class ResolvedTables(NamedTuple):
    """Tables without rows of unknown kind. `notes`: sentences on unknown categories; `accelerator_categories`: the
    categories that were left out although only the trace of an accelerator has them."""

    tables: Tables
    notes: tuple[str, ...]
    accelerator_categories: tuple[str, ...]


def resolve_unknown_work(tables: Tables) -> ResolvedTables:
    """Reads events of unknown categories as kernels, copies or memsets if they name a stream or belong to a process
    that is labelled as a device, and leaves the others out.

    Side effects: writes the kind of these rows, and the device number of rows that lack one but whose process is
    labelled with it (`GPU 3`), into the columns of `tables.device`.
    """
    origins, device = tables.origins, tables.device
    is_device_process, device_number_of_process = _find_device_processes(origins)
    process = origins.device_process  # of each device row; -1 selects the last element of the two arrays above
    device_number = device_number_of_process[process]
    gets_number = (device.device < 0) & (device_number >= 0)
    device.device[gets_number] = device_number[gets_number]
    is_unknown = device.kind == UNKNOWN_WORK
    if not is_unknown.any():
        return ResolvedTables(tables, notes=(), accelerator_categories=())
    # `device_category` is twice the category's index, plus 1 if the event names a stream (see `Origins`).
    names_stream = origins.device_category % 2 == 1
    is_work = is_unknown & (names_stream | is_device_process[process])
    is_copy, is_memset = (
        np.array([name.startswith(word) for name in tables.names], bool)[device.name] for word in ("Memcpy", "Memset")
    )
    device.kind[is_work] = np.where(is_copy, COPY, np.where(is_memset, MEMSET, KERNEL))[is_work]
    is_left_out = is_unknown & ~is_work
    category = origins.device_category // 2
    duration_ns = device.stop - device.start
    work_sums = _sum_by_category(category, duration_ns, is_work, origins.categories)
    left_out_sums = _sum_by_category(category, duration_ns, is_left_out, origins.categories)
    notes = []
    if work_sums:
        notes.append(
            f"Unknown categories: {_describe(work_sums)} ran on a device, by their stream or process; they are read "
            "as kernels."
        )
    if left_out_sums:
        notes.append(
            f"Unknown categories: {_describe(left_out_sums)} do not show that they ran on a device; they were left out."
        )
    accelerator_categories = tuple(text for text in left_out_sums if names_accelerator(text))
    return ResolvedTables(_drop_device_rows(tables, is_left_out), tuple(notes), accelerator_categories)


def _find_device_processes(origins: Origins) -> tuple[Mask, I64]:
    """Two arrays over `origins.processes`, and one last element for rows without a process (index -1): whether the
    names and labels of the process are those of a device, and the device's number, -1 if they lack one."""
    is_device, numbers = [], []
    for pid, _rank in origins.processes:
        match = _DEVICE_LABEL.search(" ".join(origins.texts.get(pid, ())))
        is_device.append(match is not None)
        numbers.append(int(match[1]) if match and match[1] else -1)
    return np.array([*is_device, False], bool), np.array([*numbers, -1], np.int64)


def _sum_by_category(
    category: NDArray[np.int32], duration_ns: I64, is_selected: Mask, categories: tuple[str, ...]
) -> dict[str, tuple[int, int]]:
    """Category -> (number of events, total ns) over the selected device rows, the most frequent category first.
    `category`: position in `categories` of each row."""
    sums: dict[str, tuple[int, int]] = {}
    for index in np.unique(category[is_selected]).tolist():
        is_own = is_selected & (category == index)
        count, ns = sums.get(categories[index], (0, 0))  # a text may occur twice in `categories`
        sums[categories[index]] = (count + int(is_own.sum()), ns + int(duration_ns[is_own].sum()))
    return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def _describe(sums: dict[str, tuple[int, int]]) -> str:
    """Formats the sums of `_sum_by_category`: `1,154 events (2.3 ms) of 'x', 3 events (1.0 µs) without a category`."""
    parts = [
        f"{units.counted(count, 'event')} ({units.show_time(ns)}) "
        + (f"of {text[:_MAX_LETTERS]!r}" if text else "without a category")
        for text, (count, ns) in sums.items()
    ]
    return listed(parts, _MAX_NAMED)


def _drop_device_rows(tables: Tables, is_dropped: Mask) -> Tables:
    """Removes device rows, by a mask over them, from all columns; the collectives get their new row numbers."""
    if not is_dropped.any():
        return tables
    kept_rows = np.flatnonzero(~is_dropped)
    new_row = {int(row): index for index, row in enumerate(kept_rows.tolist())} if tables.device.collectives else {}
    collectives = {new_row[row]: value for row, value in tables.device.collectives.items() if row in new_row}
    origins = tables.origins._replace(
        device_process=tables.origins.device_process[kept_rows],
        device_category=tables.origins.device_category[kept_rows],
    )
    # The last field of the table is `collectives`; all others are columns.
    device = tables.device._make([*(column[kept_rows] for column in tables.device[:-1]), collectives])
    return tables._replace(device=device, origins=origins)
