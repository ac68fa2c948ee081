"""The Python stacks that trainyard sampled during the window of a Kineto file, on the clock of the file.

The file holds annotations around readings of the samples' clock. Each bounds the offset between the two clocks: the
reading lies between the annotation's start and stop. The offset is the middle of the range that all annotations allow,
and its error half the length of that range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from trainyard import units
from trainyard.code_location import (
    MAX_FUNCTION_LENGTH,
    MAX_PATH_LENGTH,
    SYSTEM,
    CodeLocation,
    StackLocation,
    is_nameless,
)
from trainyard.events import I32, I64, NOTE, StackSamples
from trainyard.recorded_stacks import CLOCK_MARK, MAX_FRAMES, MAX_SAMPLES, STACKS_KEY, VERSION, RecordedStacks
from trainyard.redact import redact
from trainyard.trace.readers.tables import HostTable

_MAX_ERROR_NS = 1_000_000
"""Error of the clock with which a sample can be assigned to an interval, if it is more than the period of sampling."""


class Stacks(NamedTuple):
    """The samples of a file, None if it has none that can be used, and sentences on them for the user."""

    samples: StackSamples | None
    notes: tuple[str, ...] = ()


def read_stacks(raw: bytes | None, host: HostTable, names: Sequence[str]) -> Stacks:
    """The samples in the header field `raw` (None: the file has none). `host`: the spans, with the file's times;
    `names`: their names. Samples in a damaged or unknown format are left out, with a note."""
    if raw is None:
        return Stacks(None)
    try:
        recorded = msgspec.json.decode(raw, type=RecordedStacks)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _left_out(f"they are not in trainyard's format ({str(error)[:120]})")
    if problem := _find_problem(recorded):
        return _left_out(problem)
    if not recorded.frame:
        return _left_out(recorded.problem or "the window has none")
    fit = _fit_clock(recorded.clock_ns, host, names)
    if fit is None:
        return _left_out("the file has no annotation that relates their clock to its own")
    offset_ns, error_ns = fit
    if error_ns > max(_MAX_ERROR_NS, recorded.period_ns):
        return _left_out(
            f"their clock is known to {units.show_time(error_ns)} only, and they were taken every "
            f"{units.show_time(recorded.period_ns)}"
        )
    locations, location = _locate(recorded)
    samples = StackSamples(
        time=np.cumsum(np.array(recorded.gap_ns, np.int64)) + offset_ns,
        location=location,
        locations=locations,
        period_ns=recorded.period_ns,
        error_ns=error_ns,
    )
    cost = units.show_share(recorded.cpu_ns, max(1, recorded.wall_ns))
    problem = f" Sampling ended early: {redact(recorded.problem[:200])}." if recorded.problem else ""
    return Stacks(
        samples,
        (
            f"{units.counted(len(samples.time), 'stack')} of the training thread were sampled, one every "
            f"{units.show_time(recorded.period_ns)}; the sampling thread used {cost} of a core "
            f"({units.show_time(recorded.cpu_ns)} of CPU time), and its clock is known to "
            f"{units.show_time(error_ns)}.{problem}",
        ),
    )


def _left_out(reason: str) -> Stacks:
    return Stacks(None, (f"The sampled stacks were left out: {redact(reason)}.",))


def _find_problem(recorded: RecordedStacks) -> str:
    """Why the tables of the stacks do not refer to each other; empty if they do."""
    if recorded.version != VERSION:
        return f"{STACKS_KEY} has version {recorded.version}, and this version of trainyard reads version {VERSION}"
    tables = (recorded.files, recorded.functions, recorded.frames, recorded.clock_ns)
    count = len(recorded.frame)
    if count != len(recorded.gap_ns):
        return f"there are {count:,} samples and {len(recorded.gap_ns):,} times"
    if count > MAX_SAMPLES or max(map(len, tables)) > MAX_FRAMES:
        return f"there are more than {MAX_SAMPLES:,} samples or {MAX_FRAMES:,} frames"
    if sum(recorded.gap_ns) >= 2**62:
        return "their times are not in nanoseconds"
    columns: tuple[tuple[str, Iterable[int], int], ...] = (
        ("owner", (owner for _, owner in recorded.files), SYSTEM + 1),
        ("file", (file for file, _ in recorded.functions), len(recorded.files)),
        ("function", (function for _, function, _ in recorded.frames), len(recorded.functions)),
        ("frame", recorded.frame, len(recorded.frames)),
    )
    for name, values, count in columns:
        if max(values, default=-1) >= count:
            return f"a {name} index is not below {count:,}"
    if any(parent >= index for index, (parent, _, _) in enumerate(recorded.frames)):
        return "a frame precedes its parent"
    return ""


def _fit_clock(clock_ns: Sequence[int], host: HostTable, names: Sequence[str]) -> tuple[int, int] | None:
    """(ns to add to the samples' clock, its error in ns); None without annotations. If the annotations allow no common
    offset, as if the clocks drifted, it is the median of theirs, and the error covers all of them."""
    reading_of_name = {
        index: int(text)
        for index, name in enumerate(names)
        if name.startswith(CLOCK_MARK) and (text := name[len(CLOCK_MARK) :]).isdecimal() and len(text) < 10
    }
    is_mark = np.zeros(max(1, len(names)), bool)
    is_mark[list(reading_of_name)] = True
    rows = np.flatnonzero(is_mark[host.name] & (host.kind == NOTE)) if len(host.name) else np.empty(0, np.int64)
    reading = np.array([reading_of_name[name] for name in host.name[rows].tolist()], np.int64)
    rows, reading = rows[reading < len(clock_ns)], reading[reading < len(clock_ns)]
    if not len(rows):
        return None
    read_ns = np.array(clock_ns, np.int64)[reading]
    lowest, highest = host.start[rows] - read_ns, host.stop[rows] - read_ns
    low, high = int(lowest.max()), int(highest.min())
    if low <= high:
        return (low + high) // 2, (high - low + 1) // 2
    offset = int(np.median((lowest + highest) // 2))
    return offset, int(max(highest.max() - offset, offset - lowest.min()))


def _locate(recorded: RecordedStacks) -> tuple[tuple[StackLocation, ...], I32]:
    """(Distinct locations, index of the location of each sample). The location of a stack is its innermost frame of the
    user, else of a library, else its innermost frame."""
    # Index of the innermost frame of each owner up to each frame, -1 for none.
    innermost: list[tuple[int, int, int]] = []
    for index, (parent, function, _) in enumerate(recorded.frames):
        known = innermost[parent] if parent >= 0 else (-1, -1, -1)
        owner = recorded.files[recorded.functions[function][0]][1]
        user, library, system = (index if own == owner else last for own, last in enumerate(known))
        innermost.append((user, library, system))
    number: dict[StackLocation, int] = {}
    location_of_frame = np.full(len(recorded.frames), -1, np.int32)
    frames: I64 = np.array(recorded.frame, np.int64)
    for frame in np.unique(frames).tolist():
        user, library, system = innermost[frame]
        at = next(index for index in (user, library, system) if index >= 0)
        callee = _location_of(recorded, library) if 0 <= user < library else None
        stack = StackLocation(_location_of(recorded, at), callee)
        location_of_frame[frame] = number.setdefault(stack, len(number))
    return tuple(number), location_of_frame[frames]


def _location_of(recorded: RecordedStacks, frame: int) -> CodeLocation:
    """The location of a frame. A comprehension or lambda has the name of the function around it in the same file."""
    parent, function, line = recorded.frames[frame]
    file, name = recorded.functions[function]
    while is_nameless(name) and parent >= 0 and recorded.functions[recorded.frames[parent][1]][0] == file:
        parent, function, _ = recorded.frames[parent]
        name = recorded.functions[function][1]
    path = redact(recorded.files[file][0][-MAX_PATH_LENGTH:])
    return CodeLocation(path, line, redact(name[:MAX_FUNCTION_LENGTH]))
