"""The lines of the user's code in which the host spent the time of a finding.

A file shows them in one of two ways. Sampled stacks (`trainyard run --stacks`) estimate the shares: each sample counts
for the time between it and its neighbours. Recorded frames (`with_stack=True`) show them exactly: the location of an
interval is the innermost frame of the user around the span that the host was in, or, for a thread without frames such
as autograd's, the frame that the training thread was in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.code_location import (
    LIBRARY,
    SYSTEM,
    USER,
    CodeLocation,
    StackLocation,
    is_nameless,
    parse_frame,
    show_path,
)
from trainyard.events import I32, I64, PYTHON, StackSamples
from trainyard.finding import CodeShare
from trainyard.recorded_stacks import MODULE_PREFIX

MAIN_SHARE = 0.5
"""Share of a finding's time from which its sentence names the function."""
_MIN_SHARE = 0.05
_MIN_SAMPLES = 5
"""Samples of a finding from which its sentence names a function: of three with one value, half may have another."""
_MAX_SHARES = 3
_MAX_MODULE_DEPTH = 64
_Key = TypeVar("_Key")


class HostTime(NamedTuple):
    """k intervals, sorted by start, in which the host did something. `ns`: the time of each that counts; `host`: the
    innermost host row, -1 for none."""

    start: I64
    stop: I64
    ns: I64
    host: I32


class _Part(NamedTuple):
    """Time at a location of code in ns, in the forward pass of a module (empty: none), and the number of samples there
    (0: recorded exactly)."""

    stack: StackLocation
    module: str
    ns: float
    samples: int


class _Frames(NamedTuple):
    """The frames of a trace with recorded stacks. `owner[i]`: owner of the frame with name number i, -1 if that is not
    the name of a frame; `main_rows`: the rows of the training thread's frames, by start."""

    owner: I64
    main_rows: I64


_frames_cache: WeakKeyDictionary[Booked, _Frames] = WeakKeyDictionary()


def idle_time(booked: Booked, rows: I64) -> HostTime:
    """The idle intervals `rows` of a rank, without those in which the host had launched the next work already."""
    idle = booked.idle
    is_host = booked.keys(lambda account, _: account.what not in words.LAUNCHED_GAPS)
    rows = rows[is_host[idle.key[rows]]] if len(rows) else rows
    return HostTime(idle.start[rows], idle.stop[rows], idle.ns[rows], idle.host[rows])


def cpu_time(booked: Booked, rows: I64) -> HostTime:
    """The intervals `rows` of the training thread of a rank without a device; none of a rank with one, whose intervals
    are not the host's."""
    rows = rows[:0] if booked.on_device else np.sort(rows)
    return HostTime(booked.start[rows], booked.stop[rows], booked.owned[rows], booked.launcher[rows])


def code_shares(
    ranks: Sequence[Booked], times: Sequence[HostTime], total_ns: int | None = None
) -> tuple[CodeShare, ...]:
    """The functions in which most of the time was spent, the largest share first, at most three. `times`: of each rank;
    `total_ns`: the time of which the shares are, by default that of `times`. Empty if the files show no stacks. A
    function's line and module are those with most of its time."""
    parts_of_function: dict[tuple[str, str], list[_Part]] = {}
    for rank, time in zip(ranks, times):
        for part in _locate(rank, time):
            location = part.stack.location
            parts_of_function.setdefault((location.file, location.function), []).append(part)
    total_ns = total_ns or sum(int(time.ns.sum()) for time in times)
    steps = max(1, sum(rank.steps for rank in ranks))
    shares = [_share_of(parts, total_ns, steps) for parts in parts_of_function.values()]
    shares.sort(key=lambda share: -share.share)
    return tuple(share for share in shares[:_MAX_SHARES] if share.share >= _MIN_SHARE)


def _share_of(parts: Sequence[_Part], total_ns: int, steps: int) -> CodeShare:
    """The share of the `parts` of a function in `total_ns` ns, over `steps` steps."""
    ns = sum(part.ns for part in parts)
    callee = _largest(parts, lambda part: part.stack.callee and (part.stack.callee.file, part.stack.callee.function))
    in_callee = [part for part in parts if callee and part.stack.callee and part.stack.callee.function == callee[1]]
    return CodeShare(
        location=_largest(parts, lambda part: part.stack.location),
        share=min(1.0, round(ns / max(1, total_ns), 4)),
        ns=int(ns) // steps,
        samples=sum(part.samples for part in parts),
        callee=_largest(in_callee, lambda part: part.stack.callee) if in_callee else None,
        module=_largest(parts, lambda part: part.module),
    )


def _largest(parts: Sequence[_Part], key: Callable[[_Part], _Key]) -> _Key:
    """The value of `key` with most of the time of `parts`, of which there is at least one."""
    ns_of_value: dict[_Key, float] = {}
    for part in parts:
        ns_of_value[key(part)] = ns_of_value.get(key(part), 0) + part.ns
    return max(ns_of_value, key=lambda value: ns_of_value[value])


def describe_code(shares: Sequence[CodeShare]) -> str:
    """The locations as evidence: `code: train.py:31 (augment) 97 %, train.py:40 (main) 2 % (41 samples)`; empty without
    any."""
    if not shares:
        return ""
    samples = sum(share.samples for share in shares)
    text = ", ".join(
        f"{share.location} {units.show_share(round(share.share * 1000), 1000, 0)}"
        f"{f', most often in {share.callee}' if share.callee else ''}"
        f"{f', most often in module {show_path(share.module)}' if share.module else ''}"
        for share in shares
    )
    return f"code: {text}" + (f" ({units.counted(samples, 'sample')})" if samples else "")


def main_code(shares: Sequence[CodeShare]) -> CodeShare | None:
    """The function with most of a finding's time; None if none has, or if the samples are too few to state it."""
    if not shares or shares[0].share < MAIN_SHARE:
        return None
    return shares[0] if not shares[0].samples or sum(share.samples for share in shares) >= _MIN_SAMPLES else None


def describe_main_code(shares: Sequence[CodeShare]) -> str:
    """The end of a finding's sentence if one function has most of its time: `, 97 % of it in train.py:31 (augment)`;
    else empty."""
    main = main_code(shares)
    return f", {units.show_share(round(main.share * 1000), 1000, 0)} of it in {main.location}" if main else ""


def _locate(booked: Booked, time: HostTime) -> list[_Part]:
    """The time spent at each location and in each module."""
    if booked.events.stacks is not None:
        return _locate_by_samples(booked, booked.events.stacks, time)
    return _locate_by_frames(booked, time)


def _locate_by_samples(booked: Booked, stacks: StackSamples, time: HostTime) -> list[_Part]:
    """The time spent at each location, in proportion to the samples in the intervals. A sample counts for half of the
    time to the samples before and after it; empty if no sample is in an interval."""
    edges = np.empty(len(stacks.time) + 1)
    edges[1:-1] = (stacks.time[1:] + stacks.time[:-1]) / 2
    edges[0], edges[-1] = stacks.time[0] - stacks.period_ns / 2, stacks.time[-1] + stacks.period_ns / 2
    interval = np.searchsorted(time.start, stacks.time, "right") - 1
    inside = np.flatnonzero((interval >= 0) & (stacks.time < np.append(time.stop, 0)[interval]))
    weight = np.diff(edges)[inside] + 1
    scale = float(time.ns.sum()) / max(1.0, float(weight.sum()))
    pairs = np.stack([stacks.location[inside].astype(np.int64), time.host[interval[inside]].astype(np.int64)])
    distinct, index, count = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    ns = np.bincount(index.reshape(-1), weights=weight * scale, minlength=distinct.shape[1])
    return [
        _Part(stacks.locations[location], _module_path(booked, row), spent_ns, samples)
        for (location, row), spent_ns, samples in zip(distinct.T.tolist(), ns.tolist(), count.tolist())
    ]


def _locate_by_frames(booked: Booked, time: HostTime) -> list[_Part]:
    """The time in ns at each location, from recorded frames: of each interval of `time`, the user's innermost frame
    around its host span, the library frame that this one was in, and the module. Empty if the trace has no frames.
    `booked`: a rank's profile with its time booked to accounts."""
    frames = _frames(booked)
    if not len(frames.main_rows) or not len(time.start):
        return []
    name = booked.events.host.name
    frame, library_frame = _user_frame_or_fallback(booked, frames, time.host)
    # Without a frame of the user around the span, use the frame that the training thread was in.
    is_other = (frame < 0) | (frames.owner[name[frame]] != USER)
    main_frame, main_library_frame = _user_frame_or_fallback(
        booked, frames, _main_row_at(booked, frames, time.start[is_other])
    )
    library_frame[is_other] = np.where(main_frame >= 0, main_library_frame, library_frame[is_other])
    frame[is_other] = np.where(main_frame >= 0, main_frame, frame[is_other])
    ns_of: dict[tuple[int, int, int], int] = {}
    for row, below, span, ns in zip(frame.tolist(), library_frame.tolist(), time.host.tolist(), time.ns.tolist()):
        ns_of[row, below, span] = ns_of.get((row, below, span), 0) + ns
    parts = []
    for (row, below, span), ns in ns_of.items():
        location = _location(booked, row)
        if location is not None:
            parts.append(
                _Part(StackLocation(location, _location(booked, below)), _module_path(booked, span), ns, samples=0)
            )
    return parts


def _location(booked: Booked, row: int) -> CodeLocation | None:
    """The location of a host row that is a frame; None for -1."""
    frame = parse_frame(booked.events.names[booked.events.host.name[row]]) if row >= 0 else None
    return frame.location if frame else None


def _frames(booked: Booked) -> _Frames:
    """The frames of a rank's trace. Comprehensions and lambdas count for the function around them."""
    if booked not in _frames_cache:
        events = booked.events
        rows = np.flatnonzero((events.host.what == PYTHON) & (events.host.thread == events.main))
        owner = np.full(len(events.names), -1, np.int64)
        for number in np.unique(events.host.name[events.host.what == PYTHON]).tolist():
            frame = parse_frame(events.names[number])
            if frame is not None:
                owner[number] = SYSTEM if is_nameless(frame.location.function) else frame.owner
        _frames_cache[booked] = _Frames(owner, rows)
    return _frames_cache[booked]


def _user_frame_or_fallback(booked: Booked, frames: _Frames, rows: I32 | I64) -> tuple[I64, I64]:
    """For each host row (-1: none) the row of the innermost frame of the user around it (of a library if the user has
    none, else of the interpreter; -1 without a frame), and that of the innermost frame of a library below the user's,
    -1 for none."""
    host = booked.events.host
    distinct, inverse = np.unique(rows, return_inverse=True)
    best = np.full((SYSTEM + 1, len(distinct)), -1, np.int64)
    ancestor, position = distinct[distinct >= 0].astype(np.int64), np.flatnonzero(distinct >= 0)
    while len(position):
        owner = frames.owner[host.name[ancestor]]
        for kind in (USER, LIBRARY, SYSTEM):
            is_first = (owner == kind) & (host.what[ancestor] == PYTHON) & (best[kind, position] < 0)
            best[kind, position[is_first]] = ancestor[is_first]
        ancestor = host.parent[ancestor].astype(np.int64)
        continues = (ancestor >= 0) & (best[USER, position] < 0)
        ancestor, position = ancestor[continues], position[continues]
    chosen = np.where(best[USER] >= 0, best[USER], np.where(best[LIBRARY] >= 0, best[LIBRARY], best[SYSTEM]))
    callee = np.where(best[USER] >= 0, best[LIBRARY], -1)
    return chosen[inverse.reshape(-1)], callee[inverse.reshape(-1)]


def _main_row_at(booked: Booked, frames: _Frames, time: I64) -> I64:
    """The training thread's innermost frame at each time (ns), as a host row; -1 for none."""
    host = booked.events.host
    index = np.searchsorted(host.start[frames.main_rows], time, "right") - 1
    row = np.where(index >= 0, frames.main_rows[np.maximum(index, 0)], -1)
    position = np.flatnonzero(row >= 0)
    while len(position):
        position = position[host.stop[row[position]] <= time[position]]
        row[position] = host.parent[row[position]]
        position = position[row[position] >= 0]
    return row


def _module_path(booked: Booked, row: int) -> str:
    """The path of the innermost module around a host row (-1: none): `Model.blocks.3.mlp` if the annotations give the
    path, else the modules from the outermost on: `Model_0/Block_3/Mlp_3`. Empty without any."""
    host, names = booked.events.host, booked.events.names
    path: list[str] = []
    while row >= 0 and len(path) < _MAX_MODULE_DEPTH:
        name = names[host.name[row]].removeprefix(MODULE_PREFIX)
        if name != names[host.name[row]] and not (path and path[-1].startswith(f"{name}.")):
            path.append(name)
        row = int(host.parent[row])
    return "/".join(reversed(path))
