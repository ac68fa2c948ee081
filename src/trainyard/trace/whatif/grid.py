"""A grid of replays: the mean step with each change, and with combinations of changes, computed in advance for a page.

A lever is one change with several settings: `network` at once, twice and four times its speed. A grid point is a
setting of every lever; its replay is that of `what_if` with the changes of these settings, in order of the levers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal, NamedTuple

from trainyard.change import Change
from trainyard.errors import BadInput
from trainyard.ledger import Account
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.changes import (
    MEMORY,
    NETWORK,
    NO_LAUNCH_GAPS,
    NO_STRAGGLERS,
    PERFECT_OVERLAP,
    RANK_PREFIX,
    TYPICAL,
)
from trainyard.trace.whatif.replay import Recovery, Replay, Times
from trainyard.trace.whatif.what_if import book_mean

Extent = Literal["short", "full"]
"""`short`: a few points of a small trace, few of them with a ledger; `full`: every combination of settings with its
ledger, of a trace of any size."""
_MATMUL = "compute/matmul"


class _Limit(NamedTuple):
    """A short grid of traces of at most `rows` events over all ranks: it has `points`, of which the `ledgers` that
    recover the most time have a ledger. The time of a step costs 1 to 2 % of the analysis; a ledger 10 to 20 %, since
    all events are booked again."""

    rows: int
    points: int
    ledgers: int


_LIMITS = (_Limit(rows=60_000, points=10, ledgers=2), _Limit(rows=400_000, points=6, ledgers=0))


class Lever(NamedTuple):
    """A change with settings. `key`: its target; `speeds`: the factor of each setting, 1 for the measured step, which
    comes first; a lever without a factor has the settings off (1) and on (0). `value`: of its target when on, if that
    takes one. `unavailable`: why the trace does not support it, empty if it does. `includes`: the key of a lever whose
    change is a part of this one, so that they are not combined."""

    key: str
    speeds: tuple[int, ...]
    value: str = ""
    unavailable: str = ""
    includes: str = ""

    def change(self, setting: int) -> str:
        """The change of a setting as text, empty for the measured step."""
        if not setting:
            return ""
        if self.speeds[setting]:
            return f"{self.key}={self.speeds[setting]}x"
        return f"{self.key}={self.value}" if self.value else self.key


class GridPoint(NamedTuple):
    """The replayed mean step at `settings`, an index into the speeds of each lever. `wall_ns`: its length; `accounts`:
    its ledger, None if it was not booked."""

    settings: tuple[int, ...]
    changes: tuple[str, ...]
    wall_ns: int
    recovery: Recovery
    accounts: dict[Account, int] | None = None


class Grid(NamedTuple):
    """The replayed points of `levers`. `combinations`: how many the settings of the available levers have, without the
    measured step. `not_replayed`: why there are no points; empty if there are."""

    levers: tuple[Lever, ...]
    points: tuple[GridPoint, ...]
    combinations: int
    not_replayed: str = ""


# In this order, in which the changes of a point are applied: typical lengths first, so that factors apply to them.
LEVERS = (
    Lever(NO_STRAGGLERS, (1, 0)),
    Lever(NO_LAUNCH_GAPS, (1, 0)),
    Lever(PERFECT_OVERLAP, (1, 0)),
    Lever(NETWORK, (1, 2, 4)),
    Lever(MEMORY, (1, 2, 4)),
    Lever(_MATMUL, (1, 2, 4)),
)
_FIRST_POINTS: tuple[dict[str, int], ...] = (
    *({key: 2} for key in (NETWORK, MEMORY, _MATMUL)),
    {MEMORY: 1, _MATMUL: 1},
    {NO_STRAGGLERS: 1, PERFECT_OVERLAP: 1},
    {NETWORK: 1, MEMORY: 1, _MATMUL: 1},
)
"""The settings that a short grid has after the first setting of each lever; the others follow by the number of
changes."""


def list_levers(late_rank: int | None) -> tuple[Lever, ...]:
    """The levers of a trace. `late_rank`: the rank for which the others wait most, which has a lever of its own; None
    if there is no such rank."""
    if late_rank is None:
        return LEVERS
    late = Lever(f"{RANK_PREFIX}{late_rank}", (1, 0), value=TYPICAL)
    return (late, *(lever._replace(includes=late.key) if lever.key == NO_STRAGGLERS else lever for lever in LEVERS))


def count_events(measured: MeasuredTrace) -> int:
    """The number of events of all ranks, estimated from the first rank."""
    events = measured.ranks[0].events
    return (len(events.work) + len(events.host)) * len(measured.ranks)


def is_replayed(measured: MeasuredTrace, extent: Extent) -> bool:
    """Whether `replay_grid` replays the trace: a replay has all events in memory, so a `short` grid of a large trace
    has no points."""
    return extent == "full" or count_events(measured) <= _LIMITS[-1].rows


def replay_grid(
    measured: MeasuredTrace, extent: Extent, late_rank: int | None = None, replay: Replay | None = None
) -> Grid:
    """Replays a measured trace with the changes of each grid point, unless it is too large (`is_replayed`).

    `late_rank`: as in `list_levers`; `replay`: of `measured`, if it was built before.
    """
    wanted, rows = list_levers(late_rank), count_events(measured)
    if not is_replayed(measured, extent):
        return Grid(wanted, (), 0, f"The trace has about {rows:,} events; up to {_LIMITS[-1].rows:,} are replayed.")
    if not measured.mean.wall_ns:
        return Grid(wanted, (), 0, "The trace has no time to replay.")
    limit = next((limit for limit in _LIMITS if rows <= limit.rows), _LIMITS[-1])
    replay = replay or Replay(measured)
    levers, replayed = _replay_levers(replay, wanted)
    combinations = _list_settings(levers)
    point_count = len(combinations) if extent == "full" else limit.points + len(levers) - len(LEVERS)
    steps = (
        replayed.pop(settings, None) or _replay_step(replay, levers, settings)
        for settings in combinations[:point_count]
    )
    if extent == "full":
        points = [_with_ledger(replay, *step) for step in steps]
    else:
        shown = list(steps)
        most = sorted(range(len(shown)), key=lambda index: -shown[index][0].recovery.ns)[: limit.ledgers]
        points = [_with_ledger(replay, *step) if index in most else step[0] for index, step in enumerate(shown)]
    return Grid(levers, tuple(points), len(combinations))


def _replay_levers(
    replay: Replay, wanted: Sequence[Lever]
) -> tuple[tuple[Lever, ...], dict[tuple[int, ...], tuple[GridPoint, Times]]]:
    """The levers, unavailable if the trace does not support their change, and the replayed first setting of each."""
    unavailable: dict[str, str] = {}
    steps: dict[tuple[int, ...], tuple[GridPoint, Times]] = {}
    for index, lever in enumerate(wanted):
        settings = tuple(int(position == index) for position in range(len(wanted)))
        try:
            steps[settings] = _replay_step(replay, wanted, settings)
        except BadInput as error:
            unavailable[lever.key] = _reason(error)
    if NETWORK in unavailable:  # without transfers, nothing overlaps
        unavailable[PERFECT_OVERLAP] = unavailable[NETWORK]
    return tuple(lever._replace(unavailable=unavailable.get(lever.key, "")) for lever in wanted), steps


def _reason(error: BadInput) -> str:
    """Why the trace does not support a change, without the change's text."""
    reason = error.message.partition(": ")[2] or error.message
    return reason[:1].upper() + reason[1:]


def _list_settings(levers: Sequence[Lever]) -> list[tuple[int, ...]]:
    """All combinations of settings except the measured one: single levers, then those of `_FIRST_POINTS`, then by
    number of changes."""
    choices = [range(1 if lever.unavailable else len(lever.speeds)) for lever in levers]
    combinations = [settings for settings in product(*choices) if any(settings) and not _is_twice(levers, settings)]
    points = (*({lever.key: 1} for lever in levers), *_FIRST_POINTS)
    first = [tuple(point.get(lever.key, 0) for lever in levers) for point in points]
    preference = {settings: position for position, settings in enumerate(first)}
    return sorted(
        combinations,
        key=lambda settings: (preference.get(settings, len(first)), sum(map(bool, settings)), sum(settings), settings),
    )


def _is_twice(levers: Sequence[Lever], settings: tuple[int, ...]) -> bool:
    """Whether the settings have a lever together with one whose change is a part of its own."""
    on = {lever.key for lever, setting in zip(levers, settings) if setting}
    return any(lever.key in on and lever.includes in on for lever in levers)


def _replay_step(replay: Replay, levers: Sequence[Lever], settings: tuple[int, ...]) -> tuple[GridPoint, Times]:
    """The point of a combination of settings without its ledger, and its replayed times. Raises `BadInput` for a change
    that the trace does not support."""
    changes = tuple(lever.change(setting) for lever, setting in zip(levers, settings) if setting)
    times = replay.times([Change(text=change) for change in changes])
    recovery = replay.recovery(times)
    return GridPoint(settings, changes, replay.measured.mean.wall_ns - recovery.ns, recovery), times


def _with_ledger(replay: Replay, point: GridPoint, times: Times) -> GridPoint:
    """The point with its ledger. `times`: replayed with its changes."""
    return point._replace(accounts=book_mean(replay, times))
