"""Decides which events of unknown categories are device work, and describes those that are not read."""

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


class Resolved(NamedTuple):
    """Tables without rows of unknown kind. `notes`: sentences on unknown categories; `accelerator`: those of the
    categories left out that only an accelerator's trace has."""

    tables: Tables
    notes: tuple[str, ...]
    accelerator: tuple[str, ...]


def resolve_unknown_work(tables: Tables) -> Resolved:
    """Reads events of unknown categories as kernels if they name a stream or are on a device's process, and leaves the
    others out."""
    origins, device = tables.origins, tables.device
    label_of_process, number_of_process = _device_labels(origins)
    process = origins.device_process
    numbered = (device.device < 0) & (number_of_process[process] >= 0)
    device.device[numbered] = number_of_process[process][numbered]
    unknown = device.kind == UNKNOWN_WORK
    if not unknown.any():
        return Resolved(tables, (), ())
    is_work = unknown & ((origins.device_category % 2 == 1) | label_of_process[process])
    copies, memsets = (
        np.array([name.startswith(word) for name in tables.names], bool)[device.name] for word in ("Memcpy", "Memset")
    )
    device.kind[is_work] = np.where(copies, COPY, np.where(memsets, MEMSET, KERNEL))[is_work]
    left_out = unknown & ~is_work
    category = origins.device_category // 2
    length = device.stop - device.start
    read_as_work = _sums_by_category(category, length, is_work, origins.categories)
    lost = _sums_by_category(category, length, left_out, origins.categories)
    notes = []
    if read_as_work:
        notes.append(
            f"Unknown categories: {_describe(read_as_work)} ran on a device, by their stream or process; they are read "
            "as kernels."
        )
    if lost:
        notes.append(
            f"Unknown categories: {_describe(lost)} do not show that they ran on a device; they were left out."
        )
    accelerator = tuple(text for text in lost if names_accelerator(text))
    return Resolved(_drop_device_rows(tables, left_out), tuple(notes), accelerator)


def _device_labels(origins: Origins) -> tuple[Mask, I64]:
    """(Whether the names and labels of each process are a device's, the device's number, -1 if they lack one); the last
    element is that of rows without a process."""
    is_device, numbers = [], []
    for pid, _ in origins.processes:
        match = _DEVICE_LABEL.search(" ".join(origins.texts.get(pid, ())))
        is_device.append(match is not None)
        numbers.append(int(match[1]) if match and match[1] else -1)
    return np.array([*is_device, False], bool), np.array([*numbers, -1], np.int64)


def _sums_by_category(
    category: NDArray[np.int32], length: I64, rows: Mask, categories: tuple[str, ...]
) -> dict[str, tuple[int, int]]:
    """Category -> (events, total ns) of the selected rows, the most frequent first."""
    sums: dict[str, tuple[int, int]] = {}
    for number in np.unique(category[rows]).tolist():
        own = rows & (category == number)
        count, ns = sums.get(categories[number], (0, 0))
        sums[categories[number]] = (count + int(own.sum()), ns + int(length[own].sum()))
    return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def _describe(sums: dict[str, tuple[int, int]]) -> str:
    """`1,154 events (2.3 ms) of 'x', 3 events (1 us) without a category`."""
    parts = [
        f"{units.counted(count, 'event')} ({units.show_time(ns)}) "
        + (f"of {text[:_MAX_LETTERS]!r}" if text else "without a category")
        for text, (count, ns) in sums.items()
    ]
    return listed(parts, _MAX_NAMED)


def _drop_device_rows(tables: Tables, dropped: Mask) -> Tables:
    """The tables without some rows of device work."""
    if not dropped.any():
        return tables
    kept = np.flatnonzero(~dropped)
    new_row = {int(row): index for index, row in enumerate(kept.tolist())} if tables.device.collectives else {}
    collectives = {new_row[row]: value for row, value in tables.device.collectives.items() if row in new_row}
    origins = tables.origins._replace(
        device_process=tables.origins.device_process[kept], device_category=tables.origins.device_category[kept]
    )
    device = tables.device._make([*(column[kept] for column in tables.device[:-1]), collectives])
    return tables._replace(device=device, origins=origins)
