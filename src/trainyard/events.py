"""One rank's profile as numpy columns: device work, host spans, marks. Times are integer ns.

Shapes: n device intervals in `DeviceWork`, m host spans in `HostSpans`. `call`, `op`, `parent` are row numbers in
`HostSpans`, -1 where the file has none. Rows of both tables are sorted by start, ties longest first, so that
a parent stands before its children.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]

KERNEL, COPY, MEMSET, DRAWN = range(4)
"""Values of `DeviceWork.what`; a reader's rows may also be annotations drawn over device work, which are no work."""
OP, CALL, NOTE, PYTHON = range(4)
"""Values of `HostSpans.what`: a framework op, a driver call, an annotation, a Python frame."""


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of one collective: `ranks` are its members, `seq` its number in the group (-1: unsaid).

    `size`: bytes of the larger of its input and output on this rank, 0 where unsaid. `peer`: the rank at the other
    end of a point-to-point transfer, -1 where unsaid or there is none; `receives`: this rank is the receiving end.
    """

    name: str
    group: str = ""
    group_name: str = ""
    ranks: tuple[int, ...] = ()
    members: int = 0
    seq: int = -1
    size: int = 0
    peer: int = -1
    receives: bool = False


class OperandShape(msgspec.Struct, frozen=True, kw_only=True):
    """What an op was given, argument by argument: `dims` of a tensor (empty for a scalar or a non-tensor), its `types`
    as the file words them, and `values` of the scalars as text, empty where unsaid."""

    dims: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


class DeviceWork(msgspec.Struct, frozen=True, kw_only=True):
    """Device intervals (n rows). `bytes`: what a copy or memset moved; `occupancy`: estimated achieved occupancy of a
    kernel in percent; `awaits`: the stream that this row's stream was told to wait for right before; each -1 where
    unsaid."""

    start: I64
    stop: I64
    name: I32
    stream: I32
    what: I8
    call: I32
    op: I32
    bytes: I64
    occupancy: I8
    awaits: I32
    collectives: dict[int, Collective] = {}

    def __len__(self) -> int:
        return len(self.start)


class HostSpans(msgspec.Struct, frozen=True, kw_only=True):
    """Host spans (m rows). `seq`: autograd sequence number, -1 where none; `backward`: under the autograd engine
    on behalf of a forward thread; `shape`: row of `Events.shapes`, -1 where the file has none."""

    start: I64
    stop: I64
    name: I32
    thread: I32
    what: I8
    parent: I32
    seq: I64
    backward: I8
    shape: I32
    collectives: dict[int, Collective] = {}

    def __len__(self) -> int:
        return len(self.start)


class StepMark(msgspec.Struct, frozen=True, kw_only=True):
    """A step's annotation on the host: `ProfilerStep#4` has label `4`."""

    label: str
    start: int
    stop: int


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's profile. `names[i]` is the text of name i, `streams[i]` of stream i. `span` is what the profiler
    recorded, (start, stop). `device_marks`: steps as the file draws them over device work. `main` is the training
    thread's number in `host.thread`. `world`: ranks of the job, 0 where unsaid; `devices`: how many the host has by
    the file's word; `group_sizes`: of the process groups it names; `axis`: the mesh axis that all ranks form, where
    the job's layout has one only; `notes`: what to tell the user; `cut_short`: the file ends before it should.
    """

    source: str
    names: tuple[str, ...]
    streams: tuple[str, ...] = ()
    shapes: tuple[OperandShape, ...] = ()
    work: DeviceWork
    host: HostSpans
    marks: tuple[StepMark, ...]
    device_marks: tuple[StepMark, ...] = ()
    span: tuple[int, int]
    main: int = 0
    rank: int = 0
    world: int = 0
    device: str = ""
    device_index: int = -1
    devices: int = 0
    host_name: str = ""
    backend: str = ""
    group_sizes: tuple[int, ...] = ()
    axis: str = ""
    notes: tuple[str, ...] = ()
    cut_short: bool = False

    @property
    def window(self) -> tuple[int, int]:
        """From the first device event's start to the last one's end; without any, the marks', else the span."""
        if len(self.work):
            return int(self.work.start.min()), int(self.work.stop.max())
        if self.marks:
            return self.marks[0].start, max(mark.stop for mark in self.marks)
        return self.span
