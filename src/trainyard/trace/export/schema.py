"""The schema of the tables that `trace_tables` builds: their columns in order, each with its unit.

Timestamps and durations are integer ns; timestamps are on the ranks' common clock if there is one. Unknown values are
missing (NULL in SQL), not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trainyard import words


class TableSchema(NamedTuple):
    """A table: `row` describes its rows, `columns` maps each column to its description."""

    row: str
    columns: Mapping[str, str]


_WHERE = {
    "rank": "rank number",
    "step": "label of the part of the window in which the row begins; missing outside of all parts",
}
_TIMES = {"start_ns": "start timestamp, ns", "stop_ns": "end timestamp, ns"}
_OWNED = {"owned_ns": "time of it that the ledger books under this account, ns"}
_ACCOUNT = {
    "account": "account: kind, and what and process group if the kind has them",
    "kind": "the account's kind",
    "phase": "phase of the step",
}
_LATE = {"late_rank": "number of the rank that it waits for"}
_BEGAN = {"began_ns": "start timestamp, ns; a collective's own start, before the last member arrived"}
_ARRIVED = {**_TIMES, "start_ns": "start timestamp, ns; for a collective the arrival of the last member, if known"}

TABLES: Mapping[str, TableSchema] = {
    "steps": TableSchema(
        "a part of a rank's window: a step, or other time (partial)",
        {
            "rank": _WHERE["rank"],
            "step": "label of the part",
            **_TIMES,
            "wall_ns": "duration, ns",
            "partial": "whether it is not a full step",
            "kind": f"one of {', '.join(words.PARTS)}",
        },
    ),
    "ledger": TableSchema(
        "an account and phase of one rank's step; ns adds up to wall_ns",
        {
            "rank": "rank number; missing in a mean",
            "step": "label of the part; missing in a mean",
            "partial": "whether it is not a full step",
            "wall_ns": "duration of the step, ns",
            "account": _ACCOUNT["account"],
            "kind": _ACCOUNT["kind"],
            "what": "subdivision of the kind, if it has any",
            "process_group": "mesh axis or group of a collective",
            "phase": _ACCOUNT["phase"],
            "ns": "booked time, ns",
            "hidden_ns": "time in which it ran while an account with precedence owned the step (overlapped), ns",
            "count": "number of intervals",
            "flops": "FLOPs of the intervals",
            "bytes": "bytes moved by the intervals",
            "how": "how the entry is known",
        },
    ),
    "work": TableSchema(
        "a device interval (on a CPU: a stretch of the training thread, or a collective), as booked",
        {
            **_WHERE,
            **_BEGAN,
            **_ARRIVED,
            **_OWNED,
            "name": "name of the kernel, copy or op",
            **_ACCOUNT,
            "stream": "device and stream; missing on a CPU",
            "thread": "number of the host thread that launched it",
            "launch_ns": "launch timestamp, ns",
            "op": "innermost op around the launch",
            "module": "innermost module around the launch",
            "flops": "FLOPs",
            "bytes": "bytes moved",
            "begins": "whether the work begins here, rather than resuming after an interruption",
        },
    ),
    "verdicts": TableSchema(
        "a stretch of the window and its owner; the stretches tile the window and add up to the ledger",
        {
            **_WHERE,
            **_TIMES,
            "ns": "duration, ns",
            **_ACCOUNT,
            "name": "name of the work that owns it; missing for waits and idle time",
            **_LATE,
        },
    ),
    "idle": TableSchema(
        "a stretch in which the device was idle, and what the host did meanwhile",
        {
            **_WHERE,
            **_TIMES,
            **_OWNED,
            **_ACCOUNT,
            "host": "innermost span open on the thread that was to launch the next work",
            "next": "name of the next work",
        },
    ),
    "waits": TableSchema(
        "a wait in a collective or transfer for a late rank",
        {**_WHERE, **_TIMES, **_OWNED, **_ACCOUNT, **_LATE},
    ),
    "collectives": TableSchema(
        "a collective or transfer, with its group, sequence number and size",
        {
            **_WHERE,
            **_BEGAN,
            **_ARRIVED,
            **_OWNED,
            "name": "name of its kernel or span",
            **_ACCOUNT,
            "collective": "kind of collective",
            "process_group": "mesh axis or group",
            "members": "number of ranks in it",
            "seq": "sequence number in the group",
            "bytes": "bytes of the larger of input and output on this rank",
            "peer": "number of the rank at the other end of a transfer",
        },
    ),
    "host": TableSchema(
        "a span of a host thread",
        {
            **_WHERE,
            "row": "row number on the rank",
            "parent": "row of the enclosing span",
            **_TIMES,
            "name": "name of the op, call, note or Python frame",
            "thread": "thread number",
            "what": "op, call, note or python",
            "phase": "phase of the step",
            "module": "innermost module around it",
            "cause": "account of the device idle time that it explains",
            "shape": "formats and shapes of an op's tensor arguments",
            "seq": "autograd sequence number",
        },
    ),
}
