"""Builds the section "What if" of a page: replays the grid, and arranges its points for the page and for a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainyard.finding import Finding
from trainyard.ledger import Account
from trainyard.report.view.price_text import show_interval
from trainyard.report.view.view import Column, Table
from trainyard.report.view.waterfall import SMALL
from trainyard.report.view.what_if_section import WhatIfDevice, WhatIfLever, WhatIfPoint, WhatIfSection
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.assumptions import ALL_REPLAYS, assumption
from trainyard.trace.whatif.changes import (
    MEMORY,
    NETWORK,
    NO_LAUNCH_GAPS,
    NO_STRAGGLERS,
    PERFECT_OVERLAP,
    RANK_PREFIX,
    parse,
)
from trainyard.trace.whatif.grid import Extent, Grid, GridPoint, Lever, is_replayed, replay_grid
from trainyard.trace.whatif.replay import Replay


class _Device(NamedTuple):
    label: str
    speeds: dict[str, int]


_MATMUL = "compute/matmul"
_LABELS = {
    NETWORK: "Network bandwidth",
    MEMORY: "Memory bandwidth",
    _MATMUL: "Matmul speed",
    NO_STRAGGLERS: "All ranks equally fast",
    PERFECT_OVERLAP: "Communication overlapped",
    NO_LAUNCH_GAPS: "No launch gaps",
}
"""The label of each lever of every trace, in the order of the page."""
_DEVICES = (
    _Device("2x HBM bandwidth", {MEMORY: 2}),
    _Device("2x matmul", {_MATMUL: 2}),
    _Device("2x HBM and matmul", {MEMORY: 2, _MATMUL: 2}),
    _Device("2x network", {NETWORK: 2}),
    _Device("2x everything", {MEMORY: 2, _MATMUL: 2, NETWORK: 2}),
)


def shared_replay(measured: MeasuredTrace, extent: Extent = "short") -> Replay | None:
    """A replay for the prices of findings and for the section; None if the section has no points, so that the graph of
    a large trace is not kept."""
    return Replay(measured) if measured.mean.wall_ns and is_replayed(measured, extent) else None


def what_if_section(
    measured: MeasuredTrace,
    extent: Extent = "short",
    source: str = "PATH",
    findings: Sequence[Finding] = (),
    replay: Replay | None = None,
) -> WhatIfSection:
    """Replays a measured trace for the section. `source`: the trace in the commands that the section shows: the id of a
    stored run, or `PATH`; `findings`: of the trace: the rank that one of them names as late has a switch, with which
    the step is shorter by the price of that finding; `replay`: of `measured`, if it was built before."""
    return section_of_grid(replay_grid(measured, extent, _late_rank(findings), replay), measured, source)


def _late_rank(findings: Sequence[Finding]) -> int | None:
    """The rank that the change of a finding makes as fast as the others; None if there is no such finding."""
    changes = [finding.change.text for finding in findings if finding.change is not None]
    return next((parse(text).rank for text in changes if text.startswith(RANK_PREFIX)), None)


def section_of_grid(grid: Grid, measured: MeasuredTrace, source: str = "PATH") -> WhatIfSection:
    """The section of a replayed grid. `measured`: the trace that was replayed; `source`: as in `what_if_section`."""
    measured_ns = measured.mean.by_account()
    accounts = _list_accounts(measured_ns, measured.mean.wall_ns, grid.points)
    order = sorted(range(len(grid.levers)), key=lambda index: _position(grid.levers[index]))
    return WhatIfSection(
        levers=tuple(_describe_lever(grid.levers[index]) for index in order),
        devices=_list_devices([grid.levers[index] for index in order]),
        points=tuple(
            WhatIfPoint(
                settings=tuple(point.settings[index] for index in order),
                changes=point.changes,
                wall_ns=point.wall_ns,
                recovered_ns=point.recovery.ns,
                interval_ns=point.recovery.interval_ns,
                ns=None if point.accounts is None else _fold(point.accounts, accounts),
            )
            for point in grid.points
        ),
        accounts=(
            *((str(account), account.label, account.colour) for account in accounts),
            ("", "Smaller accounts", "#a9adb5"),
        ),
        wall_ns=measured.mean.wall_ns,
        ns=_fold(measured_ns, accounts),
        order=tuple(lever.key for lever in grid.levers),
        steps=max((point.recovery.steps for point in grid.points), default=0),
        combinations=grid.combinations,
        command=f"trainyard trace what-if {source}",
        full_command=f"trainyard trace {source} --page FILE --what-if",
        not_replayed=grid.not_replayed,
        assumes=ALL_REPLAYS,
    )


def what_if_table(section: WhatIfSection) -> Table:
    """The replayed points as a table, for pages without scripts: the mean step of each, in ms."""
    return Table(
        title="Changes",
        notes=(
            section.not_replayed or f"Mean step in ms; measured: {section.wall_ns / 1e6:.3f} ms.",
            *(f"{lever.label}: {lever.unavailable or lever.assumes}" for lever in section.levers),
            section.assumes,
            f"`{section.command} --change CHANGE` predicts other changes.",
        ),
        columns=(
            Column(title="Changes"),
            Column(title="Step", digits=3),
            Column(title="Recovered", digits=3),
            Column(title="Interval", prose=True),
        ),
        rows=tuple(
            (
                ", ".join(point.changes),
                point.wall_ns / 1e6,
                point.recovered_ns / 1e6,
                show_interval(point.interval_ns) if point.interval_ns else "cannot tell: one step",
            )
            for point in section.points
        ),
    )


def _position(lever: Lever) -> int:
    """The position of a lever on the page: that of a single rank is next to that of all ranks."""
    return list(_LABELS).index(lever.key if lever.key in _LABELS else NO_STRAGGLERS)


def _describe_lever(lever: Lever) -> WhatIfLever:
    return WhatIfLever(
        key=lever.key,
        label=_LABELS.get(lever.key) or f"Rank {lever.key.removeprefix(RANK_PREFIX)} as fast as the others",
        speeds=lever.speeds,
        value=lever.value,
        assumes=assumption(lever.change(1)),
        unavailable=lever.unavailable,
        includes=lever.includes,
    )


def _list_devices(levers: list[Lever]) -> tuple[WhatIfDevice, ...]:
    """The hypothetical devices whose levers the trace supports. `levers`: in the order of the page."""
    unavailable = {lever.key for lever in levers if lever.unavailable}
    return tuple(
        WhatIfDevice(
            label=device.label,
            settings=tuple(lever.speeds.index(device.speeds.get(lever.key, 1)) for lever in levers),
        )
        for device in _DEVICES
        if not unavailable & device.speeds.keys()
    )


def _list_accounts(measured_ns: dict[Account, int], wall_ns: int, points: tuple[GridPoint, ...]) -> tuple[Account, ...]:
    """The accounts with at least the fraction `SMALL` of the step, measured or in a point, in order of precedence."""
    steps = [(measured_ns, wall_ns), *((point.accounts, point.wall_ns) for point in points if point.accounts)]
    large = {account for by_account, ns in steps for account, own_ns in by_account.items() if own_ns >= SMALL * ns}
    return tuple(sorted(large, key=lambda account: account.rank))


def _fold(by_account: dict[Account, int], accounts: tuple[Account, ...]) -> tuple[int, ...]:
    """ns in each of `accounts`, then the sum of all others."""
    shown = [by_account.get(account, 0) for account in accounts]
    return (*shown, sum(by_account.values()) - sum(shown))
