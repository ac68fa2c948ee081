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
from trainyard.trace.flops.op_costs import TIMES_ONLY
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.changes import MEMORY, NETWORK, NO_LAUNCH_GAPS, NO_STRAGGLERS, PERFECT_OVERLAP
from trainyard.trace.whatif.replay import Recovery, Replay, Times
from trainyard.trace.whatif.what_if import book_replay

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


_LIMITS = (_Limit(rows=60_000, points=10, ledgers=3), _Limit(rows=400_000, points=6, ledgers=0))


class Lever(NamedTuple):
    """A change with settings. `key`: its target; `speeds`: the factor of each setting, 1 for the measured step, which
    comes first; a lever without a factor has the settings off (1) and on (0). `unavailable`: why the trace does not
    support it, empty if it does."""

    key: str
    speeds: tuple[int, ...]
    unavailable: str = ""

    def change(self, setting: int) -> str:
        """The change of a setting as text, empty for the measured step."""
        if not setting:
            return ""
        return f"{self.key}={self.speeds[setting]}x" if self.speeds[setting] else self.key


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
_OVERLAP, _NETWORK = 2, 3
"""Indices into `LEVERS`."""
_FIRST_POINTS: tuple[dict[str, int], ...] = (
    *({lever.key: 1} for lever in LEVERS),
    *({key: 2} for key in (NETWORK, MEMORY, _MATMUL)),
    {MEMORY: 1, _MATMUL: 1},
    {NO_STRAGGLERS: 1, PERFECT_OVERLAP: 1},
    {NETWORK: 1, MEMORY: 1, _MATMUL: 1},
)
"""The settings that a short grid has first; the others follow by the number of changes."""


def replay_grid(measured: MeasuredTrace, extent: Extent) -> Grid:
    """Replays a measured trace with the changes of each grid point.

    Unless `extent` is `full`, nothing is replayed of traces with more events than the last of `_LIMITS`: a replay has
    all events in memory.
    """
    rows = _count_rows(measured)
    limit = next((limit for limit in _LIMITS if rows <= limit.rows), _Limit(rows, points=0, ledgers=0))
    if extent == "short" and not limit.points:
        return Grid(LEVERS, (), 0, f"The trace has about {rows:,} events; up to {_LIMITS[-1].rows:,} are replayed.")
    if not measured.mean.wall_ns:
        return Grid(LEVERS, (), 0, "The trace has no time to replay.")
    replay = Replay(measured)
    levers, replayed = _replay_levers(replay)
    combinations = _list_settings(levers)
    steps = (
        replayed.pop(settings, None) or _replay_step(replay, settings)
        for settings in (combinations if extent == "full" else combinations[: limit.points])
    )
    if extent == "full":
        points = [_with_ledger(replay, *step) for step in steps]
    else:
        shown = list(steps)
        most = sorted(range(len(shown)), key=lambda index: -shown[index][0].recovery.ns)[: limit.ledgers]
        points = [_with_ledger(replay, *step) if index in most else step[0] for index, step in enumerate(shown)]
    return Grid(levers, tuple(points), len(combinations))


def is_replayed(measured: MeasuredTrace, extent: Extent) -> bool:
    """Whether `replay_grid` replays the trace."""
    return bool(measured.mean.wall_ns) and (extent == "full" or _count_rows(measured) <= _LIMITS[-1].rows)


def _count_rows(measured: MeasuredTrace) -> int:
    """The number of events of all ranks, estimated from the first."""
    events = measured.ranks[0].events
    return (len(events.work) + len(events.host)) * len(measured.ranks)


def _replay_levers(replay: Replay) -> tuple[tuple[Lever, ...], dict[tuple[int, ...], tuple[GridPoint, Times]]]:
    """The levers, unavailable if the trace does not support their change, and the replayed first setting of each."""
    levers = list(LEVERS)
    steps: dict[tuple[int, ...], tuple[GridPoint, Times]] = {}
    for index, lever in enumerate(LEVERS):
        settings = tuple(int(position == index) for position in range(len(LEVERS)))
        try:
            steps[settings] = _replay_step(replay, settings)
        except BadInput as error:
            levers[index] = lever._replace(unavailable=_reason(error))
    if levers[_NETWORK].unavailable:  # without transfers, nothing overlaps
        levers[_OVERLAP] = levers[_OVERLAP]._replace(unavailable=levers[_NETWORK].unavailable)
    return tuple(levers), steps


def _reason(error: BadInput) -> str:
    """Why the trace does not support a change, without the change's text."""
    reason = error.message.partition(": ")[2] or error.message
    return reason[:1].upper() + reason[1:]


def _list_settings(levers: Sequence[Lever]) -> list[tuple[int, ...]]:
    """All combinations of settings except the measured one: those of `_FIRST_POINTS`, then by number of changes."""
    choices = [range(1 if lever.unavailable else len(lever.speeds)) for lever in levers]
    combinations = [settings for settings in product(*choices) if any(settings)]
    first = [tuple(point.get(lever.key, 0) for lever in levers) for point in _FIRST_POINTS]
    preference = {settings: position for position, settings in enumerate(first)}
    return sorted(
        combinations,
        key=lambda settings: (preference.get(settings, len(first)), sum(map(bool, settings)), sum(settings), settings),
    )


def _replay_step(replay: Replay, settings: tuple[int, ...]) -> tuple[GridPoint, Times]:
    """The point of a combination of settings without its ledger, and its replayed times. Raises `BadInput` for a change
    that the trace does not support."""
    changes = tuple(lever.change(setting) for lever, setting in zip(LEVERS, settings) if setting)
    times = replay.times([Change(text=change) for change in changes])
    recovery = replay.recovery(times)
    return GridPoint(settings, changes, replay.measured.mean.wall_ns - recovery.ns, recovery), times


def _with_ledger(replay: Replay, point: GridPoint, times: Times) -> GridPoint:
    """The point with its ledger. `times`: replayed with its changes."""
    return point._replace(accounts=book_replay(replay, times, TIMES_ONLY).mean.by_account())
