"""Reduces a profiler's file on the node that recorded it, so that only its columns travel to the other nodes."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from trainyard.events import ClockOffset, Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.store.disk_space import writing
from trainyard.trace.choose_reader import read_file
from trainyard.trace.readers.columns import write_profile

_MAX_AGE_NS = 3600 * 10**9
"""A comparison of clocks counts for a recording that begins within an hour of it, both by the clock of the host."""


def reduce_trace(
    trace: Path,
    profile: Path,
    *,
    host_name: str = "",
    rank: int = -1,
    world_size: int = 0,
    clock_offset: ClockOffset | None = None,
    options: ReadOptions = AS_WRITTEN,
) -> None:
    """Read the profiler's file `trace` and write its reduced form to `profile`.

    `host_name`: the name of the host, in place of the file's; empty to keep that. `rank`, `world_size`: for a file of
    one rank that does not state them. `clock_offset`: of the host's clock; it is left out if the times in the file are
    not of that clock. Raises `BadFile`, and the errors of `disk_space.writing`.
    """
    ranks = [_completed(events, host_name, world_size, clock_offset) for events in read_file(trace, options)]
    if len(ranks) == 1 and ranks[0].rank < 0 and rank >= 0:
        ranks = [replace(ranks[0], rank=rank)]
    with writing(profile):
        profile.parent.mkdir(exist_ok=True)
        write_profile(profile, ranks)


def _completed(events: Events, host_name: str, world_size: int, clock_offset: ClockOffset | None) -> Events:
    """The events with facts that the file does not state, or that are known better."""
    is_same_clock = clock_offset is not None and abs(events.span[0] - clock_offset.at_ns) < _MAX_AGE_NS
    return replace(
        events,
        host_name=host_name or events.host_name,
        world=events.world or world_size,
        clock_offset=clock_offset if is_same_clock else events.clock_offset,
    )
