"""One step of a Kineto trace, small enough to keep: the last one, without what no ledger is made of."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trainyard import units
from trainyard.errors import BadInput
from trainyard.ledger import Entry
from trainyard.trace.measure import measure, read

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")
HEAD = (
    "schemaVersion", "deviceProperties", "cuda_runtime_version", "cuda_driver_version", "cupti_version",
    "hip_runtime_version", "hip_driver_version", "distributedInfo", "displayTimeUnit", "baseTimeNanoseconds",
)  # fmt: skip
"""What is kept of the file's own facts: no host, no path."""
ARGS = (
    "correlation", "External id", "device", "stream", "Sequence number", "Fwd thread id", "Collective name",
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Group size", "Seq", "Sequence",
    "In msg nelems", "Out msg nelems", "dtype",
)  # fmt: skip
"""What is kept of an event's arguments."""
SHAPES = ("Input Dims", "Input type")
"""Kept of annotations too: the size of a gloo collective."""

_Event = dict[str, Any]
_encode = msgspec.json.Encoder(decimal_format="number").encode


class Trimmed(NamedTuple):
    """`data`: gzipped Kineto JSON. `same`: whether its step's ledger is that of the untrimmed trace, entry by
    entry, but for FLOPs and bytes."""

    data: bytes
    same: bool


def trim(path: Path, limit: int) -> Trimmed:
    """The last step of a rank's trace in at most `limit` bytes. Raises `BadInput` where that is impossible.

    Where it does not fit, the framework's ops go: kernels are then told by their names alone.
    """
    trace, step = _load(path), _last_step(path)
    events = _slim(trace, step.start)
    for without in ((), ("cpu_op",)):
        kept = [event for event in events if event.get("cat") not in without]
        data = gzip.compress(_encode({**_head(trace), "traceEvents": kept}), mtime=0)
        if len(data) <= limit:
            return Trimmed(data, _booked(data) == step.ledger)
    raise BadInput(f"one step of {path.name} takes {len(data):,} bytes, but {limit:,} are left for it.")


class _Step(NamedTuple):
    """When a step begins (absolute ns), and its wall time and entries."""

    start: int
    ledger: tuple[int, tuple[Entry, ...]]


def _last_step(path: Path) -> _Step:
    rank = measure(read([path])).ranks[0]
    last = rank.ledgers[-1]
    # Shapes are not kept, so the trimmed trace has no FLOPs and bytes.
    entries = tuple(msgspec.structs.replace(entry, flops=None, bytes=None) for entry in last.entries)
    return _Step(rank.parts[-1].start, (last.wall_ns, entries))


def _booked(data: bytes) -> tuple[int, tuple[Entry, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trimmed.json.gz"
        path.write_bytes(data)
        return _last_step(path).ledger


def _load(path: Path) -> _Event:
    """Stamps stay decimal: a float cannot hold every one of them."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")
    return json.loads(text, parse_float=Decimal, parse_constant=lambda _: None)


def _head(trace: _Event) -> _Event:
    head = {name: trace[name] for name in HEAD if name in trace}
    if devices := head.get("deviceProperties"):
        head["deviceProperties"] = [{k: v for k, v in device.items() if k != "uuid"} for device in devices]
    return head


def _slim(trace: _Event, cut: int) -> list[_Event]:
    """Events of the step that begins at `cut`.

    The kernel that ends the step before stays, so that the step follows something and is a full one; and so does
    the host's part from the first launch of all this on.
    """
    base = int(trace.get("baseTimeNanoseconds", 0))

    def start(event: _Event) -> int:
        return base + units.ns_from_us(str(event["ts"]))

    def stop(event: _Event) -> int:
        return start(event) + units.ns_from_us(str(event.get("dur", 0)))

    spans = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    device = [event for event in spans if event.get("cat") in DEVICE and stop(event) >= cut]
    launched = {correlation for event in device if (correlation := _correlation(event)) is not None}
    host = [event for event in spans if event.get("cat") in HOST]
    begin = _first_launch(host, launched, start, cut)
    kept = [_bare(event) for event in (*device, *(event for event in host if stop(event) > begin))]
    threads = {(event["pid"], event["tid"]) for event in kept}
    labels = [
        event
        for event in trace["traceEvents"]
        if event.get("name") == "thread_name" and (event.get("pid"), event.get("tid")) in threads
    ]
    return [*labels, *kept]


def _first_launch(host: list[_Event], launched: set[Any], start: Callable[[_Event], int], cut: int) -> int:
    calls = (event for event in host if "correlation" in event.get("args", ()) and _correlation(event) in launched)
    return min((start(event) for event in calls), default=cut)


def _correlation(event: _Event) -> Any:
    return event.get("args", {}).get("correlation")


def _bare(event: _Event) -> _Event:
    known: Mapping[str, Any] = event.get("args", {})
    names = (*ARGS, *SHAPES) if event.get("cat") == "user_annotation" else ARGS
    args = {name: known[name] for name in names if name in known}
    return {name: event[name] for name in ("ph", "cat", "name", "pid", "tid", "ts", "dur") if name in event} | (
        {"args": args} if args else {}
    )
