"""The critical path of a trace as plain data, and its tables."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard import units
from trainyard.events import I64
from trainyard.report.view.trace_results import warnings_of
from trainyard.report.view.view import Column, Table
from trainyard.trace.whatif.critical_path import DELAY, LATENCY, StepPath, find_critical_path
from trainyard.trace.whatif.profile_ops import ARRIVAL, HOST, MEETING, TRANSFER
from trainyard.trace.whatif.replay import Replay

Resource = Literal["device", "host", "communication", "latency", "unexplained"]

_RESOURCES: tuple[Resource, ...] = ("device", "host", "communication", "latency", "unexplained")
_DEVICE, _HOST, _COMMUNICATION, _LATENCY, _UNEXPLAINED = range(len(_RESOURCES))
_MOST_OPS = 40
_ROWS_ON_SCREEN = 8


class PathShare(msgspec.Struct, frozen=True, kw_only=True):
    """Time on the critical path with one account (`label`: its text; empty for latency and unexplained delays) on one
    resource. `ns`: over all steps."""

    resource: Resource
    account: str
    label: str
    ns: int


class PathOp(msgspec.Struct, frozen=True, kw_only=True):
    """Time on the critical path in the ops of one name on one rank. `ns`: over all steps; `count`: number of launches
    and device intervals, over all steps; a host op is named by the launch that follows it."""

    name: str
    rank: int
    resource: Resource
    ns: int
    count: int


class RankTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the critical path on one rank, over all steps."""

    rank: int
    ns: int


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """The chain of dependent ops that determines when the last step ends. `total_ns`: the sum of the `steps` steps; the
    shares add up to it. `ops`: the 40 longest; `ranks`: the ranks that the path crosses, by time; `one_clock`: the
    ranks share a clock, otherwise the path is that of the rank with the longest steps."""

    schema: Literal["trainyard/critical-path/1"] = "trainyard/critical-path/1"
    steps: int
    total_ns: int
    shares: tuple[PathShare, ...]
    ops: tuple[PathOp, ...]
    ranks: tuple[RankTime, ...]
    one_clock: bool
    warnings: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """The tables for a notebook."""
        from trainyard.report.render.html_tables import tables_html

        return tables_html(headline(self), tables(self, full=True))


class LabelledPath(NamedTuple):
    """A critical path with columns by segment. `resource`: an index into the resources; `account`: an index into the
    accounts of the profile, -1 for latency, unexplained delays and ops without one; `has_op`: an op runs."""

    path: StepPath
    resource: I64
    account: I64
    has_op: NDArray[np.bool_]

    def key(self, segment: int) -> tuple[Resource, str]:
        """The (resource, account) of the share that a segment belongs to."""
        account = int(self.account[segment])
        return _RESOURCES[int(self.resource[segment])], str(self.path.profile.accounts[account]) if account >= 0 else ""


def label_segments(path: StepPath) -> LabelledPath:
    """The resource and the account of each segment of a critical path."""
    resource = _resources(path)
    has_op = (path.segments.op >= 0) & (resource != _UNEXPLAINED) & (resource != _LATENCY)
    return LabelledPath(path, resource, np.where(has_op, by_segment(path.profile.ops.account, path), -1), has_op)


def critical_path_of(replay: Replay) -> CriticalPath:
    """The result of `trace critical-path` for a measured trace."""
    return summarise_path(replay, label_segments(find_critical_path(replay)))


def summarise_path(replay: Replay, labelled: LabelledPath) -> CriticalPath:
    """The result of `trace critical-path` from the path of the replay."""
    path, resource, account, has_op = labelled
    ns = path.segments.stop - path.segments.start
    rank_index = by_segment(path.profile.ops.rank_index, path)
    rank_numbers = [rank.events.rank for rank in replay.ranks]
    return CriticalPath(
        steps=path.steps,
        total_ns=path.total_ns,
        shares=_shares(path, resource, account, ns),
        ops=_longest_ops(path, resource, np.flatnonzero(has_op), ns, rank_numbers),
        ranks=_times_of_ranks(rank_index, ns, rank_numbers),
        one_clock=replay.aligned or len(replay.ranks) == 1,
        warnings=warnings_of(replay.measured),
    )


def headline(result: CriticalPath) -> str:
    """`Critical path of 3 steps (79.4 ms each): 71.0 % on the device, 22.0 % on the host, ...`, the largest first."""
    total_by_resource = dict.fromkeys(_RESOURCES, 0)
    for share in result.shares:
        total_by_resource[share.resource] += share.ns
    texts = {
        "device": "on the device",
        "host": "on the host",
        "communication": "in communication",
        "latency": "in launch latency",
        "unexplained": "in delays that no recorded dependency explains",
    }
    ordered = sorted(total_by_resource.items(), key=lambda item: -item[1])
    parts = [f"{units.show_share(ns, result.total_ns)} {texts[resource]}" for resource, ns in ordered if ns]
    step_ns = result.total_ns // max(1, result.steps)
    steps = f"{units.counted(result.steps, 'step')} ({units.show_time(step_ns)} each)"
    return f"Critical path of {steps}: {', '.join(parts)}."


def tables(result: CriticalPath, full: bool = False) -> tuple[Table, ...]:
    """By account, by op and, if the path crosses several ranks, by rank; in ms per step. Unless `full`, each table
    shows the longest rows. A title also heads the first column in the terminal and in a notebook."""
    most = None if full else _ROWS_ON_SCREEN
    per_step = 1e6 * max(1, result.steps)
    by_account = Table(
        title="Account on the path",
        notes=(
            "In ms per step. Host time of a rank with a device has the account of the idle time that it causes.",
            *(
                ()
                if result.one_clock
                else ("The clocks of the ranks are not aligned: this is the path of the rank with the longest steps.",)
            ),
        ),
        columns=(
            Column(title="Account"),
            Column(title="Resource"),
            Column(title="time", digits=3),
            Column(title="share %", digits=1),
        ),
        rows=tuple(
            (label, resource, ns / per_step, _percent(ns, result)) for label, resource, ns in _fold(result, full)
        ),
    )
    by_op = Table(
        title="Op on the path",
        notes=("In ms per step. A host op is named by the launch that follows it.",),
        columns=(
            Column(title="Op"),
            Column(title="Resource"),
            Column(title="rank", digits=0),
            Column(title="calls", digits=1),
            Column(title="time", digits=3),
        ),
        rows=tuple(
            (op.name or "no launch follows", op.resource, op.rank, op.count / max(1, result.steps), op.ns / per_step)
            for op in result.ops[:most]
        ),
    )
    by_rank = Table(
        title="Rank",
        notes=("In ms per step.",),
        columns=(Column(title="Rank", digits=0), Column(title="time", digits=3), Column(title="share %", digits=1)),
        rows=tuple((item.rank, item.ns / per_step, _percent(item.ns, result)) for item in result.ranks[:most]),
    )
    return (by_account, by_op, by_rank) if len(result.ranks) > 1 else (by_account, by_op)


def _fold(result: CriticalPath, full: bool) -> list[tuple[str, str, int]]:
    """(label, resource, ns) of the rows by account; unless `full`, those after the eighth and those below 0.1 % are one
    row."""
    rows = [(share.label or share.resource.capitalize(), share.resource, share.ns) for share in result.shares]
    large = [row for row in rows[:_ROWS_ON_SCREEN] if 1000 * row[2] >= result.total_ns]
    if full or len(rows) <= len(large) + 1:
        return rows
    rest = rows[len(large) :]
    return [*large, (f"{len(rest)} more", "", sum(ns for _, _, ns in rest))]


def _percent(ns: int, result: CriticalPath) -> float:
    return 100 * ns / result.total_ns if result.total_ns else 0.0


def _resources(path: StepPath) -> I64:
    """The index in `_RESOURCES` of each segment."""
    segments, ops = path.segments, path.profile.ops
    role = by_segment(ops.role, path)
    is_communication_account = np.array([account.kind == "comm" for account in path.profile.accounts] + [False])
    is_communication = np.isin(role, (ARRIVAL, MEETING, TRANSFER))
    is_communication |= is_communication_account[by_segment(ops.account, path)]
    running = np.where(role == HOST, _HOST, np.where(is_communication, _COMMUNICATION, _DEVICE))
    resource = np.where(segments.state == LATENCY, _LATENCY, running)
    return np.where((segments.state == DELAY) | (segments.op < 0), _UNEXPLAINED, resource)


def by_segment(column: I64, path: StepPath) -> I64:
    """The value of each segment's op in a column of `Ops`; -1 for segments without an op."""
    return np.append(column, -1)[path.segments.op]


def _shares(path: StepPath, resource: I64, account: I64, ns: I64) -> tuple[PathShare, ...]:
    """Sums by resource and account, the longest first. The columns are by segment; `account`: an index in the profile's
    table, -1 none."""
    pairs, group = np.unique(np.stack([resource, account]), axis=1, return_inverse=True)
    sums = np.bincount(group.reshape(-1), weights=ns, minlength=pairs.shape[1]).astype(np.int64)
    shares: list[PathShare] = []
    for (resource_number, account_number), total_ns in zip(pairs.T.tolist(), sums.tolist()):
        known = path.profile.accounts[account_number] if account_number >= 0 else None
        shares.append(
            PathShare(
                resource=_RESOURCES[resource_number],
                account=str(known) if known else "",
                label=known.label if known else "",
                ns=total_ns,
            )
        )
    return tuple(sorted(shares, key=lambda share: (-share.ns, share.resource, share.account)))


def _longest_ops(path: StepPath, resource: I64, rows: I64, ns: I64, rank_numbers: list[int]) -> tuple[PathOp, ...]:
    """Sums by label, rank and resource of the segments `rows` (indices into the path), the longest first. `count` is
    the number of launches and intervals, each of which may have several segments."""
    ops, op = path.profile.ops, path.segments.op[rows]
    columns = np.stack([ops.label[op], ops.rank_index[op], resource[rows]])
    groups, group = np.unique(columns, axis=1, return_inverse=True)
    sums = np.bincount(group.reshape(-1), weights=ns[rows], minlength=groups.shape[1]).astype(np.int64)
    unit = np.where(ops.unit[op] >= 0, ops.unit[op], -2 - op)  # an op without a unit counts as one
    counts = np.bincount(np.unique(np.stack([group.reshape(-1), unit]), axis=1)[0], minlength=groups.shape[1])
    longest = np.argsort(-sums, kind="stable")[:_MOST_OPS]
    return tuple(
        PathOp(
            name=path.profile.labels[label] if label >= 0 else "",
            rank=rank_numbers[rank_index] if rank_index >= 0 else -1,
            resource=_RESOURCES[resource_number],
            ns=int(sums[index]),
            count=int(counts[index]),
        )
        for index, (label, rank_index, resource_number) in zip(longest.tolist(), groups.T[longest].tolist())
    )


def _times_of_ranks(rank_index: I64, ns: I64, rank_numbers: list[int]) -> tuple[RankTime, ...]:
    """The time of the path on each rank that it crosses, the longest first. `rank_index`: by segment, -1 none."""
    sums = np.bincount(rank_index[rank_index >= 0], weights=ns[rank_index >= 0], minlength=len(rank_numbers))
    times = [RankTime(rank=rank, ns=int(total_ns)) for rank, total_ns in zip(rank_numbers, sums) if total_ns]
    return tuple(sorted(times, key=lambda item: (-item.ns, item.rank)))
