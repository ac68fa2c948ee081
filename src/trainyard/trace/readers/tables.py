"""The tables that every reader fills from a profiler's file, in the file's order.

`assemble.assemble` turns them into `events.Events`. Each table has one numpy array per column, all of the same length;
times are integer ns. The columns `name`, `lane`, `awaited_lane` and `shape` hold positions in the sequences `names`,
`lanes` and `shapes` of `FileFacts`. A lane is a device stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I8, I32, I64, Collective, OperandShape

_NO_COLLECTIVES: Mapping[int, Collective] = {}


HOST_DTYPES = (np.int64, np.int64, np.int32, np.int32, np.int8, np.int64, np.int64, np.int64, np.int8, np.int32)
DEVICE_DTYPES = (np.int64, np.int64, np.int32, np.int32, np.int32, np.int8, np.int64, np.int64, np.int64, np.int8)
WAIT_DTYPES = (np.int64, np.int32, np.int32, np.int32)
"""Dtypes of the columns of the tables below."""


class HostTable(NamedTuple):
    """m host spans: ops, driver calls, annotations and Python frames.

    `name`: position in `FileFacts.names`; `thread`: number of the thread, in order of appearance; `kind`: `events.OP`,
    `CALL`, `NOTE` or `PYTHON`; `correlation`: id that a driver call shares with the device work it launched;
    `external`: id that an op shares with the device work it launched; `seq`: autograd sequence number; `shape`:
    position in `FileFacts.shapes` (each of the last four -1 if absent); `backward`: 1 if the autograd engine ran the op
    for a forward thread, else 0; `collectives`: row -> the collective that the span describes.
    """

    start: I64
    stop: I64
    name: I32
    thread: I32
    kind: I8
    correlation: I64
    external: I64
    seq: I64
    backward: I8
    shape: I32
    collectives: Mapping[int, Collective] = _NO_COLLECTIVES


class DeviceTable(NamedTuple):
    """n device intervals: kernels, copies, memsets, and annotations drawn over them.

    `name`: position in `FileFacts.names`; `lane`: position of the stream's label in `FileFacts.lanes`; `device`: the
    device's number; `kind`: `events.KERNEL`, `COPY`, `MEMSET` or `DRAWN`; `correlation`, `external`: ids of the driver
    call and of the op that launched the work (see `HostTable`); `bytes`: size of a copy or memset; `occupancy`:
    estimated achieved occupancy in percent; -1 if unknown; `collectives`: row -> the collective that the kernel runs.
    """

    start: I64
    stop: I64
    name: I32
    lane: I32
    device: I32
    kind: I8
    correlation: I64
    external: I64
    bytes: I64
    occupancy: I8
    collectives: Mapping[int, Collective] = _NO_COLLECTIVES


class StreamWaits(NamedTuple):
    """k driver calls, each of which made the stream `lane` of `device` wait for an event on the stream `awaited_lane`
    of the same device. `lane`, `awaited_lane`: positions in `FileFacts.lanes`; `device`: -1 if unknown; `correlation`:
    the call's id, as in `HostTable`."""

    correlation: I64
    device: I32
    lane: I32
    awaited_lane: I32

    def on_device(self, device: int) -> StreamWaits:
        """The waits on the device and those whose device is unknown."""
        return self.only((self.device == device) | (self.device < 0))

    def only(self, rows: NDArray[np.bool_]) -> StreamWaits:
        """The waits for which `rows`, a mask over them, is true."""
        return StreamWaits(
            correlation=self.correlation[rows],
            device=self.device[rows],
            lane=self.lane[rows],
            awaited_lane=self.awaited_lane[rows],
        )


class FileFacts(NamedTuple):
    """A file's metadata, and the texts that the tables' columns refer to by position.

    `source`: the file's name, for messages; `names`, `lanes`, `shapes`: texts of names, labels of streams, and operands
    of ops; `rank` is -1 and `world` (number of ranks of the job) 0 if the file does not state them; `device_names`:
    device number -> device name; `backend`: communication library, empty if not stated; `group_sizes`: number of ranks
    of each process group; `notes`: messages for the user; `cut_short`: whether the file is truncated.
    """

    source: str
    names: Sequence[str]
    lanes: Sequence[str]
    shapes: Sequence[OperandShape] = ()
    rank: int = -1
    world: int = 0
    device_names: Mapping[int, str] = {}
    host_name: str = ""
    backend: str = ""
    group_sizes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    cut_short: bool = False
