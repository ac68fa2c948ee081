"""One rank's profile as numpy columns: device work, host spans, marks. Times are integer ns.

Shapes: n device intervals in `DeviceWork`, m host spans in `HostSpans`. `call`, `op`, `parent` are row numbers in
`HostSpans`, -1 if the file has none; `name` is an index into `Events.names`, `stream` one into `Events.streams`; keys
of a table's `collectives` are its own row numbers. Rows of both tables are sorted by start, ties longest first, so that
a parent precedes its children.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.code_location import StackLocation
from trainyard.recorded_stacks import MODULE_PREFIX
from trainyard.step_marks import STEP_MARK

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]

KERNEL, COPY, MEMSET, DRAWN = range(4)
"""Values of `DeviceWork.what`. DRAWN: an annotation that the file draws over device work; it is not work."""
OP, CALL, NOTE, PYTHON = range(4)
"""Values of `HostSpans.what`: a framework op, a driver call, an annotation, a Python frame."""
_TORCH_PREFIXES = (
    "aten::", "autograd::", "c10d::", "torch::", MODULE_PREFIX, "ProfilerStep#", "Optimizer.", "enumerate(",
)  # fmt: skip

TRAINING_KINDS = ("step", "warmup")
"""Kinds of `StepMark` that are training steps."""


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One collective as recorded in the file. `ranks`: its members; `seq`: its number in the group, -1 if not recorded.

    `size`: bytes of the larger of its input and output on this rank, 0 if not recorded. `peer`: the other rank of a
    point-to-point transfer, -1 if there is none or it is not recorded; `receives`: whether this rank receives. `sent`:
    bytes that this rank sends to each of `ranks` in an all-to-all; empty for other collectives and if the shares are
    not recorded.
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
    sent: tuple[int, ...] = ()


class OperandShape(msgspec.Struct, frozen=True, kw_only=True):
    """An op's arguments, one element each: `dims` of a tensor (empty for a scalar or a non-tensor), `types` in the
    file's own words, `values` of scalars as text (empty if not recorded). `lists`: the dims of each tensor of an
    argument that is a list of tensors, empty for other arguments; () if no such dims are recorded."""

    dims: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    lists: tuple[tuple[tuple[int, ...], ...], ...] = ()


class DeviceWork(msgspec.Struct, frozen=True, kw_only=True):
    """Device intervals (n rows). `bytes`: size of a copy or memset; `occupancy`: estimated achieved occupancy of a
    kernel in percent; `awaits`: the stream whose event this row's stream waited for right before. Each is -1 if not
    recorded."""

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
    """Host spans (m rows). `seq`: autograd sequence number, -1 if none; `backward`: run by the autograd engine on
    behalf of a forward thread; `shape`: index into `Events.shapes`, -1 if not recorded."""

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
    """A step on the host, or other work between steps: `ProfilerStep#4` has label `4`. `kind`: a key of words.PARTS."""

    label: str
    start: int
    stop: int
    kind: str = "step"

    @property
    def is_training(self) -> bool:
        """Whether it is a training step, during warm-up or not."""
        return self.kind in TRAINING_KINDS


class InferredSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that the file does not mark. `source`: a key of words.STEP_SOURCES, empty if no evidence is regular enough;
    `confidence`: from 0 to 1; `evidence`: a sentence; `on_device`: the marks are times of device work, not of launches.
    """

    source: str
    confidence: float
    evidence: str
    on_device: bool = False


class StackSamples(msgspec.Struct, frozen=True, kw_only=True):
    """k samples of the Python stack of the training thread, sorted by time. `time`: ns on the file's clock, which is
    known to `error_ns`; `location`: index into `locations`; `period_ns`: the usual time between two samples."""

    time: I64
    location: I32
    locations: tuple[StackLocation, ...]
    period_ns: int
    error_ns: int


class MemoryEvents(msgspec.Struct, frozen=True, kw_only=True):
    """k allocations and frees that the profiler recorded, sorted by time (ns). `size`: bytes, negative for a free;
    `address`: -1 if not recorded; `total`, `reserved`: bytes allocated and reserved on the device afterwards, -1 if not
    recorded; `device`: its number, -1 for the host; `thread`: as in `HostSpans`."""

    time: I64
    size: I64
    address: I64
    total: I64
    reserved: I64
    device: I32
    thread: I32

    def __len__(self) -> int:
        return len(self.time)

    def only(self, rows: NDArray[np.bool_ | np.int64]) -> MemoryEvents:
        """The events of `rows`, a mask over them or their numbers."""
        return MemoryEvents(**{name: getattr(self, name)[rows] for name in self.__struct_fields__})


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A measured comparison of clocks: the clock of rank `reference` minus this rank's clock is from `low_ns` to
    `high_ns`, at the time `at_ns` of this rank's clock."""

    reference: int
    low_ns: int
    high_ns: int
    at_ns: int


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's profile. `names[i]` is the text of name i, `streams[i]` that of stream i. `span`: (start, stop) of the
    recording. `mark`: prefix of the names of step annotations; `inferred`: how the marks were inferred, None if they
    are the file's own; `device_marks`: step annotations that the file draws over device work. `main`: the training
    thread's number in `host.thread`. `world`: number of ranks of the job, 0 if not recorded; `devices`: number of
    devices of the host, as recorded; `group_sizes`: sizes of the recorded process groups; `axis`: the mesh axis that
    all ranks form, if the job's layout has a single one; `notes`: messages for the user; `cut_short`: the file is
    truncated; `stacks`: sampled Python stacks, `memory`: allocations, each None if the file has none; `clock_offset`:
    None unless the clock was compared with another rank's.
    """

    source: str
    names: tuple[str, ...]
    streams: tuple[str, ...] = ()
    shapes: tuple[OperandShape, ...] = ()
    work: DeviceWork
    host: HostSpans
    marks: tuple[StepMark, ...]
    mark: str = STEP_MARK
    inferred: InferredSteps | None = None
    device_marks: tuple[StepMark, ...] = ()
    span: tuple[int, int]
    main: int = 0
    rank: int = 0
    world: int = 0
    device: str = ""
    device_index: int = -1
    devices: int = 0
    host_name: str = ""
    python: bool = False
    """Whether the file states that the program runs in a Python interpreter."""
    backend: str = ""
    group_sizes: tuple[int, ...] = ()
    axis: str = ""
    notes: tuple[str, ...] = ()
    cut_short: bool = False
    stacks: StackSamples | None = None
    memory: MemoryEvents | None = None
    clock_offset: ClockOffset | None = None

    @property
    def shows_torch(self) -> bool:
        """Whether the file has ops or annotations of PyTorch."""
        return any(name.startswith(_TORCH_PREFIXES) for name in self.names)

    @property
    def shows_python(self) -> bool:
        """Whether the file shows that the host runs Python: it states so, has frames, or shows PyTorch."""
        has_frames = bool((self.host.what == PYTHON).any()) or any(".py" in name for name in self.names)
        return self.python or has_frames or self.shows_torch

    @property
    def window(self) -> tuple[int, int]:
        """(start, stop) of all device work; of the file's step marks if there is none; else `span`."""
        if len(self.work):
            return int(self.work.start.min()), int(self.work.stop.max())
        if self.marks and not self.inferred:
            return self.marks[0].start, max(mark.stop for mark in self.marks)
        return self.span
