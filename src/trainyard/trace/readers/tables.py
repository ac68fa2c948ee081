"""The tables that every reader fills from a profiler's file, in the file's order."""

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
    """m host spans. `name`, `thread` and `shape` are indices; `correlation` and `external` are -1 if absent;
    `kind`, `seq`, `backward` and `shape` as in `events.HostSpans`."""

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
    """n device intervals. `lane`: index of the stream's label; `device`: the device's number, -1 if unknown."""

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
    """k calls that made the stream `lane` of `device` wait for the stream `on`. `correlation`: the call's id."""

    correlation: I64
    device: I32
    lane: I32
    on: I32

    def on_device(self, device: int) -> StreamWaits:
        """The waits on the device and those whose device is unknown."""
        return self.only((self.device == device) | (self.device < 0))

    def only(self, rows: NDArray[np.bool_]) -> StreamWaits:
        """The selected waits."""
        return StreamWaits(
            correlation=self.correlation[rows], device=self.device[rows], lane=self.lane[rows], on=self.on[rows]
        )


class FileFacts(NamedTuple):
    """A file's metadata. `rank` is -1 and `world` 0 if the file does not state them; `lanes`: the streams' labels;
    `device_names`: device number -> device name."""

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
