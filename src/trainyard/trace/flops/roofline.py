"""Roofline of the ops of a step: how far each is below the device's limits, and how much time that costs.

An op cannot be faster than its FLOPs at the device's peak and its bytes at the memory's bandwidth (Williams, Waterman,
Patterson 2009). If the machine file has a measured rate (`Device.achieved`, for 16-bit formats), it replaces the peak.
Matrix products, convolutions and attention are compared with the peak of their inputs' format; all other arithmetic,
which does not use matrix units, with the device's lowest peak.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import machine, words
from trainyard.cost import Operation, roofline
from trainyard.events import I64, OP
from trainyard.ledger import Account
from trainyard.machine import Device
from trainyard.trace.align.steps import in_full
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.classify.context import PHASES
from trainyard.trace.flops.attribution import HEAVY_CLASSES, cost_of
from trainyard.trace.flops.operands import Cost, OpArguments
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.readers.nesting import nearest_ancestor

_TF32_KERNEL = re.compile(r"tf32|s1688gemm|s1688fprop|s1688dgrad|s1688wgrad", re.I)
_HALF = words.DTYPES["bfloat16"]


class OpRow(NamedTuple):
    """One op with one set of shapes, per step and rank. Unknown values are None.

    `shape`: formats and dims of its tensors; `dtype`: the format whose peak applies ("" unknown). `ns`: the part of the
    step that its work owns; `busy_ns`: how long it ran, overlapped or not, which the rates refer to. `at_most`: the
    FLOPs are an upper bound. `reachable_ns`: its minimum time on this device; `loss_ns`: `ns` in excess of that.
    """

    op: str
    shape: str
    account: str
    phase: str
    dtype: str
    count: float
    ns: int
    busy_ns: int
    flops: int | None
    bytes: int | None
    at_most: bool
    flops_rate: float | None
    bytes_rate: float | None
    intensity: float | None
    bound: Literal["compute", "memory", "unknown"]
    reachable_ns: int | None
    loss_ns: int | None


class Roofline(NamedTuple):
    """Rows by decreasing loss, then those without one by ns. `known_ns` of `compute_ns` are in ops whose FLOPs and
    bytes are known. `notes`: missing data and the reason."""

    rows: tuple[OpRow, ...]
    device: str
    known_ns: int
    compute_ns: int
    notes: tuple[str, ...]


class _RooflineKey(NamedTuple):
    """What calls have in common that form a row: op, operands as text, account, phase, the device's name as in the
    file, and the cost of one call, None if unknown."""

    op: str
    shape: str
    account: Account
    phase: str
    device: str
    cost: Cost | None


class _RooflineTotals:
    """Totals over ranks and steps: number of calls, ns owned, ns run, and the names of the kernels."""

    def __init__(self) -> None:
        self.count = self.ns = self.busy_ns = 0
        self.kernels: set[str] = set()


def op_roofline(measured: MeasuredTrace, device: Device | None = None) -> Roofline:
    """The roofline of all compute ops in full steps of all ranks. `device`: the device to compare with; by default the
    one named in each rank's file."""
    totals_by_key: dict[_RooflineKey, _RooflineTotals] = {}
    steps = 0
    device_names: set[str] = set()
    has_shapes = False
    for rank in measured.ranks:
        steps += sum(not part.partial for part in rank.parts) or len(rank.parts)
        device_names.add(rank.events.device)
        has_shapes = has_shapes or bool(rank.events.shapes)
        _add_rank(rank, totals_by_key)
    devices = {name: device or machine.find_device(name) for name in device_names}
    rows = sorted(
        (_op_row(key, total, max(1, steps), devices[key.device]) for key, total in totals_by_key.items()),
        key=lambda row: (-(row.loss_ns if row.loss_ns is not None else -1), -row.ns, row.op, row.shape),
    )
    notes = [
        f"No machine file describes {name or 'the device, which the trace does not name'}: only rates are shown."
        for name, specification in sorted(devices.items())
        if specification is None
    ]
    if not has_shapes:
        notes.append("The files contain no shapes: record with torch.profiler's record_shapes=True.")
    if any(row.at_most for row in rows):
        notes.append("FLOPs of packed sequences and grouped products are upper bounds: only their totals are recorded.")
    faster_rows = sum(1 for row in rows if row.reachable_ns is not None and row.busy_ns < row.reachable_ns)
    if faster_rows:
        notes.append(
            f"{faster_rows:,} of {len(rows):,} rows ran faster than the roofline: their data was in the "
            "device's cache, or the peaks in the machine file are too low."
        )
    return Roofline(
        rows=tuple(rows),
        device=", ".join(
            sorted({specification.name if specification else name for name, specification in devices.items()})
        ),
        known_ns=sum(row.ns for row in rows if row.flops is not None and row.bytes is not None),
        compute_ns=sum(row.ns for row in rows),
        notes=tuple(notes),
    )


def _add_rank(rank: RankTrace, totals_by_key: dict[_RooflineKey, _RooflineTotals]) -> None:
    """Adds a rank's full steps to `totals_by_key`. An op counts in the step in which its first interval starts, if that
    begins a call; other work counts by interval."""
    classified, events = rank.classified, rank.events
    op = rank.arithmetic.op
    name, shape, key, first = _identify_intervals(rank)
    is_compute_key = np.array([account.kind == "compute" for account, _ in rank.keys.pairs], bool)
    rows = np.flatnonzero(is_compute_key[classified.key] & in_full(rank.parts, classified.start))
    counts_as_call = np.where(op >= 0, first, classified.begins)
    identities, group = np.unique(np.stack([name, shape, key])[:, rows], axis=1, return_inverse=True)
    group = group.reshape(-1)
    keys = [_roofline_key(rank, *ident) for ident in identities.T.tolist()]
    totals = np.zeros((3, len(keys)), np.int64)
    for total, column in zip(totals, (rank.owned, classified.stop - classified.start, counts_as_call)):
        np.add.at(total, group, column[rows])
    for ident, (ns, busy_ns, count) in zip(keys, totals.T.tolist()):
        total = totals_by_key.setdefault(ident, _RooflineTotals())
        total.ns, total.busy_ns, total.count = total.ns + ns, total.busy_ns + busy_ns, total.count + count
    for ident, kernel in np.unique(np.stack([group, classified.name[rows]]), axis=1).T.tolist():
        totals_by_key[keys[ident]].kernels.add(events.names[kernel])


def _identify_intervals(rank: RankTrace) -> tuple[I64, I64, I64, NDArray[np.bool_]]:
    """For each interval: the name of its op (else of the innermost op around the launch, else its own), that op's shape
    (-1 if it has no cost), the key of its op, and whether it is its op's first interval."""
    classified, host, work = rank.classified, rank.events.host, rank.arithmetic
    name, key = classified.name.astype(np.int64), classified.key.astype(np.int64)
    shape = np.full(len(name), -1, np.int64)
    is_first = np.zeros(len(name), bool)
    launched = np.flatnonzero(classified.launcher >= 0)
    launcher = classified.launcher[launched]
    op_row = np.where(host.what[launcher] == OP, launcher, nearest_ancestor(host.what == OP, host.parent)[launcher])
    name[launched] = np.where(op_row >= 0, host.name[op_row], name[launched])
    with_op = np.flatnonzero(work.op >= 0)
    op = work.op[with_op]
    name[with_op] = host.name[op]
    shape[with_op] = np.where(work.costed[op], host.shape[op], -1)
    _, begins, group = np.unique(op, return_index=True, return_inverse=True)
    key[with_op] = key[with_op[begins]][group.reshape(-1)]
    is_first[with_op[begins]] = classified.begins[with_op[begins]]
    return name, shape, key, is_first


def _roofline_key(rank: RankTrace, name: int, shape: int, key: int) -> _RooflineKey:
    """The key of calls with these indices into `events.names`, `events.shapes` (-1: unknown cost) and `keys.pairs`."""
    events = rank.events
    account, phase = rank.keys.pairs[key]
    operands = events.shapes[shape] if shape >= 0 else None
    return _RooflineKey(
        op=events.names[name],
        shape=OpArguments(operands).text() if operands else "",
        account=account,
        phase=PHASES[phase],
        device=events.device,
        cost=cost_of(events.names[name], operands) if operands else None,
    )


def _op_row(key: _RooflineKey, total: _RooflineTotals, steps: int, device: Device | None) -> OpRow:
    """The row of a key: its totals divided by `steps`, and its minimum time on `device` if both are known."""
    cost, busy = key.cost, total.busy_ns
    flops = None if cost is None or cost.flops is None else cost.flops * total.count
    moved = None if cost is None or cost.bytes is None else cost.bytes * total.count
    dtype = _peak_format(key, flops, total, device)
    bound, least_call_ns = _min_call_time(key, dtype, device)
    reachable = None if least_call_ns is None else least_call_ns * total.count // steps
    ns = total.ns // steps
    return OpRow(
        op=key.op,
        shape=key.shape,
        account=str(key.account),
        phase=key.phase,
        dtype=dtype,
        count=total.count / steps,
        ns=ns,
        busy_ns=busy // steps,
        flops=None if flops is None else flops // steps,
        bytes=None if moved is None else moved // steps,
        at_most=cost is not None and cost.at_most,
        flops_rate=flops / busy * 1e9 if flops and busy else None,
        bytes_rate=moved / busy * 1e9 if moved and busy else None,
        intensity=flops / moved if flops and moved else None,
        bound=bound,
        reachable_ns=reachable,
        loss_ns=None if reachable is None else max(0, ns - reachable),
    )


def _peak_format(key: _RooflineKey, flops: int | None, total: _RooflineTotals, device: Device | None) -> str:
    """The inputs' format. float32 may run in TF32, which the op does not show: it does if a kernel's name contains it,
    or if the op was faster than the float32 peak allows."""
    word = key.cost.format.word if key.cost else ""
    if (
        word != "float32"
        or device is None
        or key.account.what not in HEAVY_CLASSES
        or not {word, "tf32"} <= set(device.peak)
    ):
        return word
    faster = bool(flops) and flops * 1e9 > device.peak[word].value * total.busy_ns
    return "tf32" if faster or any(_TF32_KERNEL.search(name) for name in total.kernels) else word


def _min_call_time(
    key: _RooflineKey, dtype: str, device: Device | None
) -> tuple[Literal["compute", "memory", "unknown"], int | None]:
    """(bound, minimum ns) of one call, if the device and the complete cost are known."""
    cost = key.cost
    if device is None or not device.peak or cost is None or cost.flops is None or cost.bytes is None or cost.at_most:
        return "unknown", None
    peak = dtype if key.account.what in HEAVY_CLASSES else min(device.peak, key=lambda word: device.peak[word].value)
    if peak not in device.peak:
        return "unknown", None
    work = Operation(op=key.account.what, phase=key.phase, count=1, flops=cost.flops, bytes=cost.bytes, dtype=peak)
    best = roofline(device, work)
    computes = cost.flops / device.peak[peak].value > cost.bytes / device.bandwidth.value
    return "compute" if computes else "memory", best.expect if words.DTYPES[peak] == _HALF else best.low
