"""The Python stacks that were sampled during a profiled window, as a key of the Kineto file of the window.

The samples have the clock of `time.perf_counter_ns`. While recording, the sampled thread writes annotations into the
trace, each around a reading of that clock: from them a reader computes the offset to the trace's clock.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

STACKS_KEY = "trainyardStacks"
"""Key of the Kineto document under which a `RecordedStacks` is stored."""
CLOCK_MARK = "trainyard clock "
"""Prefix of the annotations around readings of the samples' clock; the rest of the name is an index of `clock_ns`."""
MODULE_PREFIX = "nn.Module: "
"""Prefix of the spans around modules' forward passes: PyTorch's in a profile with `with_stack=True`."""
MAX_SAMPLES, MAX_FRAMES = 100_000, 200_000
VERSION = 1

_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_IndexOrNone = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]


class RecordedStacks(msgspec.Struct, frozen=True, kw_only=True):
    """k samples of the stack of the training thread, as a tree of frames in which a frame's parent precedes it.

    `cpu_ns`: CPU time of the sampling thread; `wall_ns`: length of the sampled window. `clock_ns[i]`: the reading of
    the samples' clock in the annotation `CLOCK_MARK` i. `files`: (path, owner, a constant of `code_location`);
    `functions`: (index of the file, name); `frames`: (index of the parent frame or -1, index of the function, line).
    `gap_ns[i]`: time since the sample before, of the first sample its time; `frame[i]`: innermost frame of sample i.
    `problem`: why sampling ended early, empty if it did not.
    """

    version: int
    period_ns: _Nanoseconds
    cpu_ns: _Nanoseconds
    wall_ns: _Nanoseconds
    clock_ns: list[_Nanoseconds]
    files: list[tuple[str, _Index]]
    functions: list[tuple[_Index, str]]
    frames: list[tuple[_IndexOrNone, _Index, _Index]]
    gap_ns: list[_Nanoseconds]
    frame: list[_Index]
    problem: str = ""
