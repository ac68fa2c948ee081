"""What the tables hold: their columns in order, each with its unit.

Stamps and lengths are integer ns, stamps on the ranks' common clock where they have one. What is unknown is missing
(NULL in SQL), not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TableSchema(NamedTuple):
    """What a row is, and column -> what stands in it."""

    row: str
    columns: Mapping[str, str]


_WHERE = {
    "rank": "number of the rank",
    "step": "label of the part of the window in which the row begins; missing outside of all",
}
_TIMES = {"start_ns": "stamp of its start, ns", "stop_ns": "stamp of its end, ns"}
_OWNED = {"owned_ns": "what of it the ledger books here, ns"}
_ACCOUNT = {
    "account": "where it is booked: kind, and what and process group where the kind has them",
    "kind": "the account's kind",
    "phase": "phase of the step",
}
_LATE = {"late_rank": "number of the rank that it waits for"}
_BEGAN = {"began_ns": "stamp of its start, ns; of a collective, before the last member came"}
_ARRIVED = {**_TIMES, "start_ns": "stamp of its start, ns; of a collective, when the last member came, where known"}

TABLES: Mapping[str, TableSchema] = {
    "steps": TableSchema(
        "a rank's part of its window: a step, or what lies outside the marks (partial)",
        {
            "rank": _WHERE["rank"],
            "step": "label of the part",
            **_TIMES,
            "wall_ns": "its length, ns",
            "partial": "whether it is no full step",
        },
    ),
    "ledger": TableSchema(
        "an account and phase of one rank's step; ns adds up to wall_ns",
        {
            "rank": "number of the rank; missing in a mean",
            "step": "label of the part; missing in a mean",
            "partial": "whether it is no full step",
            "wall_ns": "length of the step, ns",
            "account": _ACCOUNT["account"],
            "kind": _ACCOUNT["kind"],
            "what": "what of the kind, where it has several",
            "process_group": "mesh axis or group of a collective",
            "phase": _ACCOUNT["phase"],
            "ns": "what is booked, ns",
            "hidden_ns": "ns in which it ran and an account before it owned the time",
            "count": "intervals booked",
            "flops": "FLOPs they did",
            "bytes": "bytes they moved",
            "how": "how the entry is known",
        },
    ),
    "work": TableSchema(
        "a device interval (on a CPU: a stretch of the training thread, or a collective), as it was booked",
        {
            **_WHERE,
            **_BEGAN,
            **_ARRIVED,
            **_OWNED,
            "name": "name of the kernel, copy or op",
            **_ACCOUNT,
            "stream": "device and stream; missing on a CPU",
            "thread": "number of the host thread that launched it",
            "launch_ns": "stamp of its launch, ns",
            "op": "innermost op around the launch",
            "module": "innermost module around the launch",
            "flops": "FLOPs it did",
            "bytes": "bytes it moved",
            "begins": "whether the work begins here, and does not go on after an interruption",
        },
    ),
    "verdicts": TableSchema(
        "a stretch of the window and who owns it; they tile it, and add up to the ledger",
        {
            **_WHERE,
            **_TIMES,
            "ns": "its length, ns",
            **_ACCOUNT,
            "name": "name of the work that owns it; missing for waits and idle time",
            **_LATE,
        },
    ),
    "idle": TableSchema(
        "a stretch in which the device did nothing, and what the host was in meanwhile",
        {
            **_WHERE,
            **_TIMES,
            **_OWNED,
            **_ACCOUNT,
            "host": "innermost span open on the thread that was to launch the next work",
            "next": "name of the work that comes next",
        },
    ),
    "waits": TableSchema(
        "a wait in a collective or transfer for a rank that came late",
        {**_WHERE, **_TIMES, **_OWNED, **_ACCOUNT, **_LATE},
    ),
    "collectives": TableSchema(
        "a collective or transfer, with its group, number and size",
        {
            **_WHERE,
            **_BEGAN,
            **_ARRIVED,
            **_OWNED,
            "name": "name of its kernel or span",
            **_ACCOUNT,
            "collective": "which collective",
            "process_group": "mesh axis or group",
            "members": "how many ranks take part",
            "seq": "its number in the group",
            "bytes": "bytes of the larger of input and output on this rank",
            "peer": "number of the rank at the other end of a transfer",
        },
    ),
    "host": TableSchema(
        "a span of a host thread",
        {
            **_WHERE,
            "row": "its number on the rank",
            "parent": "row of the span around it",
            **_TIMES,
            "name": "name of the op, call, note or Python frame",
            "thread": "number of its thread",
            "what": "op, call, note or python",
            "phase": "phase of the step",
            "module": "innermost module around it",
            "cause": "account of device idle time that it explains",
            "shape": "what an op was given: shapes, types and values",
            "seq": "autograd sequence number",
        },
    ),
}
