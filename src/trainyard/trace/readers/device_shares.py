"""Divides the device work of one process's file among devices: one rank per device that it keeps busy."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard import units
from trainyard.events import I64, KERNEL, DeviceWork, HostSpans
from trainyard.trace.readers.tables import DeviceTable, FileFacts
from trainyard.units import listed

_MIN_SHARE_OF_BUSIEST = 0.05
"""A process uses a device briefly if its kernels there take less than this share of those on its busiest device."""
_Rows = TypeVar("_Rows", HostSpans, DeviceWork)


class DeviceShare(NamedTuple):
    """The device work that becomes one `Events`.

    `rows`: of the device table; `device`: its number, -1 if unknown; `rank`, `world`: its rank and the job's number of
    ranks; `is_whole`: it is all of the file's work; `has_several_devices`: the rows are of several devices;
    `per_process`: number of devices of each process of the job, which are numbered as ranks; `index`: position of this
    device among them; `notes`: sentences on other devices.
    """

    rows: NDArray[np.intp]
    device: int
    rank: int
    world: int
    is_whole: bool
    has_several_devices: bool
    per_process: int
    index: int
    notes: tuple[str, ...]


def share_out_devices(facts: FileFacts, device: DeviceTable, has_launches: bool) -> list[DeviceShare]:
    """Divides the file's work among devices. `has_launches`: whether the file has the calls that launched it.

    Kineto writes one file per process, and `facts.rank` is the rank of the process. A process that keeps several
    devices busy (DataParallel, a model over several devices) gives one `Events` for each, numbered as ranks: device i
    of n of rank r is rank r * n + i. A device that it uses briefly counts as the work of the busiest. A file without
    launches that states rank 0 and has as many devices as the job has ranks was merged: its devices are the ranks.
    """
    numbers, kernel_ns, counts = _device_use(device)
    busiest = int(kernel_ns.argmax()) if len(numbers) else -1
    is_main = kernel_ns >= _MIN_SHARE_OF_BUSIEST * max(int(kernel_ns.max(initial=0)), 1)
    everything = np.arange(len(device.start))
    count = int(is_main.sum())
    if count < 2:
        others = [
            f"{units.counted(int(counts[index]), 'event')} on device {numbers[index]}"
            for index in range(len(numbers))
            if index != busiest
        ]
        notes = (
            (f"The process also ran {listed(others, 4)}; they count as work of device {numbers[busiest]}.",)
            if others
            else ()
        )
        number = int(numbers[busiest]) if len(numbers) else -1
        return [
            DeviceShare(
                rows=everything,
                device=number,
                rank=facts.rank,
                world=facts.world,
                is_whole=True,
                has_several_devices=bool(others),
                per_process=1,
                index=0,
                notes=notes,
            )
        ]
    main = numbers[is_main].tolist()
    first_rank, world = _ranks_of_devices(facts, count, has_launches)
    shares = []
    for index, number in enumerate(main):
        # Brief work on other devices, and work whose device the file does not name, goes with the busiest.
        rows = device.device == number
        if number == numbers[busiest]:
            rows |= ~np.isin(device.device, main)
        rank = number if facts.rank < 0 else first_rank + index
        note = _note_on_devices(facts, main, first_rank, world) if not index else ()
        several = bool((device.device[rows] != number).any())
        shares.append(
            DeviceShare(
                rows=np.flatnonzero(rows),
                device=number,
                rank=rank,
                world=world,
                is_whole=False,
                has_several_devices=several,
                per_process=count,
                index=index,
                notes=note,
            )
        )
    return shares


def _device_use(device: DeviceTable) -> tuple[I64, I64, I64]:
    """(number, ns in kernels, or in all events if none has kernels, number of events) of each device of the table whose
    number is known."""
    length = device.stop - device.start
    in_kernels = np.where(device.kind == KERNEL, length, 0)
    if not in_kernels.any():
        in_kernels = length
    known = device.device >= 0
    if known.all() and len(device.device) and (device.device == device.device[0]).all():
        return device.device[:1].astype(np.int64), np.array([int(in_kernels.sum())]), np.array([len(device.device)])
    numbers, index = np.unique(device.device[known], return_inverse=True)
    kernel_ns, counts = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    np.add.at(kernel_ns, index, in_kernels[known])
    np.add.at(counts, index, 1)
    return numbers.astype(np.int64), kernel_ns, counts


def _ranks_of_devices(facts: FileFacts, count: int, has_launches: bool) -> tuple[int, int]:
    """(Rank of a process's first device, ranks of the job) if each of its `count` devices is a rank."""
    if facts.rank == 0 and facts.world == count and not has_launches:
        return 0, count
    return facts.rank * count, facts.world * count


def _note_on_devices(facts: FileFacts, devices: list[int], first_rank: int, world: int) -> tuple[str, ...]:
    """The sentence on a file whose devices are reported as ranks."""
    if facts.rank < 0:
        return ("The file holds several devices; each is treated as a separate rank.",)
    named = listed(devices, 8)
    return (
        f"The file states rank {facts.rank} of {facts.world}, and holds work of {len(devices)} devices ({named}). Each "
        f"device is reported as a rank: rank {first_rank} is device {devices[0]}, rank {first_rank + len(devices) - 1} "
        f"device {devices[-1]}, of {world}. Host spans are those of the process and count for each.",
    )


def number_devices_as_ranks(table: _Rows, share: DeviceShare) -> _Rows:
    """Replaces the ranks in the table's collectives, which are numbers of processes, by those of the same device of
    each process: device i of the n of process r is rank r * n + i."""
    count, index = share.per_process, share.index
    collectives = {
        row: msgspec.structs.replace(
            collective,
            ranks=tuple(rank * count + index for rank in collective.ranks),
            peer=collective.peer * count + index if collective.peer >= 0 else -1,
        )
        for row, collective in table.collectives.items()
    }
    return msgspec.structs.replace(table, collectives=collectives)
