"""Roofline of the ops of a step: how far each is below the device's limits, and how much time that costs.

An op cannot be faster than its FLOPs at the device's peak and its bytes at the memory's bandwidth (Williams, Waterman,
Patterson 2009). If the machine file has a measured rate (`Device.achieved`, for 16-bit formats), it replaces the peak.
Matrix products, convolutions and attention are compared with the peak of their inputs' format; all other arithmetic,
which does not use matrix units, with the device's lowest peak.

An interval is a kernel of a device or a stretch of a CPU op: a row of `Classified`. A key is the number of its account
and phase in `rank.keys.pairs`. An interval owns the time that a ledger books to it; overlapped time belongs to another.
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
from trainyard.trace.flops.attribution import HEAVY_CLASSES
from trainyard.trace.flops.op_costs import Formulas
from trainyard.trace.flops.operands import Cost, OpArguments
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.readers.nesting import nearest_ancestor

# cuBLAS and cuDNN name their TF32 kernels by the tensor core instruction of shape 16x8x8.
_TF32_KERNEL = re.compile(r"tf32|s1688gemm|s1688fprop|s1688dgrad|s1688wgrad", re.I)
_FLOAT8_KERNEL = re.compile(r"e4m3|e5m2|fp8|float8|nvjet_q", re.I)
_QUANTISED = ("bfloat16", "float16", "float32")
"""Formats of tensors that a layer may quantise to float8 for its products."""
_FEWER_PRODUCTS = re.compile(r"winograd|(?<!c)fft(?!n)", re.I)
"""Kernels of convolutions that take fewer multiplications than a direct one: by Winograd's algorithm, or transforms."""
RECORD_SHAPES = "torch.profiler's record_shapes=True"
"""How shapes are recorded in a profile of the user's own."""
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
    missing: str = ""
    """Why the FLOPs or bytes are not known, a key of words.MISSING_COSTS; empty if both are."""


class Roofline(NamedTuple):
    """Rows by decreasing loss, then those without one by ns. `known_ns` of `compute_ns` are in ops whose FLOPs and
    bytes are known. `notes`: missing data and the reason. `assumptions`: what formulas of these rows assume, each
    once. `unmatched`: the patterns of each of the user's formulas that matches no op of the trace."""

    rows: tuple[OpRow, ...]
    device: str
    known_ns: int
    compute_ns: int
    notes: tuple[str, ...]
    assumptions: tuple[str, ...] = ()
    unmatched: tuple[tuple[str, ...], ...] = ()


class _RooflineKey(NamedTuple):
    """The identity of a row: calls that agree in all fields are added up. `shape`: the op's operands as text; `device`:
    its name as in the file; `cost`: of one call, None if unknown; `missing`: why it is unknown, a key of
    words.MISSING_COSTS."""

    op: str
    shape: str
    account: Account
    phase: str
    device: str
    cost: Cost | None
    missing: str

    @property
    def on_matrix_units(self) -> bool:
        """Whether the peak of the matrix units bounds the arithmetic: as the formula states, else by op class."""
        if self.cost and self.cost.on_matrix_units is not None:
            return self.cost.on_matrix_units
        return self.account.what in HEAVY_CLASSES


class _RooflineTotals:
    """Totals over ranks and steps: number of calls, ns owned, ns run, and the names of the kernels."""

    def __init__(self) -> None:
        self.count = self.ns = self.busy_ns = 0
        self.kernels: set[str] = set()


def op_roofline(measured: MeasuredTrace, device: Device | None = None, way_to_record: str = RECORD_SHAPES) -> Roofline:
    """Compares all compute ops in full steps of all ranks with the limits of their device.

    `device`: the device to compare with; None for the one named in each rank's file, if a machine file describes it.
    `way_to_record`: how the user records shapes. Figures are per step and rank.
    """
    totals_by_key: dict[_RooflineKey, _RooflineTotals] = {}
    steps = 0
    device_names: set[str] = set()
    has_shapes = False
    op_names: set[str] = set()
    for rank in measured.ranks:
        steps += sum(not part.partial for part in rank.parts) or len(rank.parts)
        device_names.add(rank.events.device)
        has_shapes = has_shapes or bool(rank.events.shapes)
        _add_rank(rank, totals_by_key, measured.formulas)
        op_names |= _op_names(rank) if measured.formulas.entries else set()
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
        notes.append(f"The files contain no shapes: record with {way_to_record}.")
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
        assumptions=tuple(sorted({key.cost.assumes for key in totals_by_key if key.cost and key.cost.assumes})),
        unmatched=tuple(measured.formulas.own.unmatched(op_names)),
    )


def least_times(rank: RankTrace, formulas: Formulas) -> I64:
    """For each interval of `rank.classified`, the minimum time in ns of the op's call that it is the only interval of;
    -1 if it is unknown, or the call has several intervals.

    `formulas`: those that gave the costs. The device is the one named in the rank's file.
    """
    least = np.full(len(rank.classified.start), -1, np.int64)
    device = machine.find_device(rank.events.device)
    *columns, first = _identify_intervals(rank)
    op = rank.arithmetic.op
    intervals_of_op = np.bincount(op[op >= 0], minlength=len(rank.events.host) + 1)
    rows = np.flatnonzero((op >= 0) & first & (intervals_of_op[op] == 1))
    if device is None or not len(rows):
        return least
    identities, group = np.unique(np.stack(columns)[:, rows], axis=1, return_inverse=True)
    rows = rows[np.argsort(group.reshape(-1), kind="stable")]
    missing = _MissingCosts(frozenset(), frozenset(), formulas)
    for identity, own in zip(identities.T.tolist(), np.split(rows, np.cumsum(np.bincount(group.reshape(-1)))[:-1])):
        key, total = _roofline_key(rank, missing, *identity), _RooflineTotals()
        total.count = len(own)
        total.busy_ns = int((rank.classified.stop[own] - rank.classified.start[own]).sum())
        total.kernels = {rank.events.names[name] for name in np.unique(rank.classified.name[own]).tolist()}
        call_ns = _bound_of(key, total, device)[2]
        least[own] = -1 if call_ns is None else call_ns
    return least


def _op_names(rank: RankTrace) -> set[str]:
    """The names of all ops of a rank."""
    host = rank.events.host
    return {rank.events.names[name] for name in np.unique(host.name[host.what == OP]).tolist()}


def _add_rank(rank: RankTrace, totals_by_key: dict[_RooflineKey, _RooflineTotals], formulas: Formulas) -> None:
    """Adds a rank's compute in full steps to `totals_by_key`, in place.

    A call of an op counts in the step in which its first interval starts, if that begins a call; other work counts by
    interval. `formulas`: those that gave the costs.
    """
    classified, events = rank.classified, rank.events
    op = rank.arithmetic.op
    *columns, first = _identify_intervals(rank)
    is_compute_key = np.array([account.kind == "compute" for account, _ in rank.keys.pairs], bool)
    rows = np.flatnonzero(is_compute_key[classified.key] & in_full(rank.parts, classified.start))
    counts_as_call = np.where(op >= 0, first, classified.begins)
    # `identities`: [4, k], each distinct (name, shape, cost, key); `group`: the index of that of each of `rows`.
    identities, group = np.unique(np.stack(columns)[:, rows], axis=1, return_inverse=True)
    group = group.reshape(-1)
    host = events.host
    ops = set(np.unique(host.name[host.what == OP]).tolist())
    with_arguments = set(np.unique(host.name[host.shape >= 0]).tolist())
    missing = _MissingCosts(frozenset(ops), frozenset(with_arguments), formulas)
    keys = [_roofline_key(rank, missing, *identity) for identity in identities.T.tolist()]
    totals = np.zeros((3, len(keys)), np.int64)
    for total, column in zip(totals, (rank.owned, classified.stop - classified.start, counts_as_call)):
        np.add.at(total, group, column[rows])
    for row_key, (ns, busy_ns, count) in zip(keys, totals.T.tolist()):
        total = totals_by_key.setdefault(row_key, _RooflineTotals())
        total.ns, total.busy_ns, total.count = total.ns + ns, total.busy_ns + busy_ns, total.count + count
    # Each distinct pair of a row and the name number of a kernel.
    for key_index, kernel in np.unique(np.stack([group, classified.name[rows]]), axis=1).T.tolist():
        totals_by_key[keys[key_index]].kernels.add(events.names[kernel])


def _identify_intervals(rank: RankTrace) -> tuple[I64, I64, I64, I64, NDArray[np.bool_]]:
    """Identifies the op of each interval: five columns with an element for each interval of `rank.classified`.

    (Name number of its op, else of the innermost op around the launch, else its own; index of the op's arguments in
    `events.shapes`, and of its cost, both -1 if its cost is unknown; key of the op's first interval, which represents
    the op; whether it is the op's first interval and begins a call.)
    """
    classified, host, work = rank.classified, rank.events.host, rank.arithmetic
    name, key = classified.name.astype(np.int64), classified.key.astype(np.int64)
    shape, cost = np.full((2, len(name)), -1, np.int64)
    is_first = np.zeros(len(name), bool)
    launched = np.flatnonzero(classified.launcher >= 0)
    launcher = classified.launcher[launched]
    op_row = np.where(host.what[launcher] == OP, launcher, nearest_ancestor(host.what == OP, host.parent)[launcher])
    name[launched] = np.where(op_row >= 0, host.name[op_row], name[launched])
    with_op = np.flatnonzero(work.op >= 0)
    op = work.op[with_op]
    name[with_op] = host.name[op]
    cost[with_op] = work.cost[op]
    shape[with_op] = np.where(work.cost[op] >= 0, host.shape[op], -1)
    # `begins`: the position in `with_op` of each distinct op's first interval.
    _, begins, group = np.unique(op, return_index=True, return_inverse=True)
    key[with_op] = key[with_op[begins]][group.reshape(-1)]
    is_first[with_op[begins]] = classified.begins[with_op[begins]]
    return name, shape, cost, key, is_first


class _MissingCosts(NamedTuple):
    """What a rank's file shows of ops without a cost: the name numbers of all ops and of those with recorded arguments,
    and the formulas that were applied."""

    ops: frozenset[int]
    with_arguments: frozenset[int]
    formulas: Formulas

    def reason(self, name: int, text: str, cost: Cost | None) -> str:
        """Why a cost is missing, a key of words.MISSING_COSTS; empty if it is complete. `name`: the op's name number,
        `text`: its name."""
        if cost and cost.flops is not None and cost.bytes is not None:
            return ""
        if name not in self.ops:
            return "no_op"
        if not self.formulas.covers(text):
            return "no_formula"
        return "missing_values" if name in self.with_arguments else "no_arguments"


def _roofline_key(rank: RankTrace, missing: _MissingCosts, name: int, shape: int, cost: int, key: int) -> _RooflineKey:
    """The key of calls with these indices into `events.names`, `events.shapes` and `arithmetic.costs` (both -1 for an
    unknown cost), and `keys.pairs`."""
    call_cost = rank.arithmetic.costs[cost] if cost >= 0 else None
    events = rank.events
    account, phase = rank.keys.pairs[key]
    operands = events.shapes[shape] if shape >= 0 else None
    return _RooflineKey(
        op=events.names[name],
        shape=OpArguments(operands).text() if operands else "",
        account=account,
        phase=PHASES[phase],
        device=events.device,
        cost=call_cost,
        missing=missing.reason(name, events.names[name], call_cost),
    )


def _op_row(key: _RooflineKey, total: _RooflineTotals, steps: int, device: Device | None) -> OpRow:
    """The row of a key: its totals divided by `steps`, and its minimum time on `device` if cost and device are known.

    `total`: over all steps and ranks; `steps`: number of steps of all ranks; `device`: None if no machine file
    describes it.
    """
    cost, busy_ns = key.cost, total.busy_ns
    flops = _total_flops(key, total)
    moved_bytes = None if cost is None or cost.bytes is None else cost.bytes * total.count
    dtype, bound, least_call_ns = _bound_of(key, total, device)
    reachable_ns = None if least_call_ns is None else least_call_ns * total.count // steps
    ns = total.ns // steps
    return OpRow(
        op=key.op,
        shape=key.shape,
        account=str(key.account),
        phase=key.phase,
        dtype=dtype,
        count=total.count / steps,
        ns=ns,
        busy_ns=busy_ns // steps,
        flops=None if flops is None else flops // steps,
        bytes=None if moved_bytes is None else moved_bytes // steps,
        at_most=cost is not None and cost.at_most,
        # Rates are per second.
        flops_rate=flops / busy_ns * 1e9 if flops and busy_ns else None,
        bytes_rate=moved_bytes / busy_ns * 1e9 if moved_bytes and busy_ns else None,
        intensity=flops / moved_bytes if flops and moved_bytes else None,
        bound=bound,
        reachable_ns=reachable_ns,
        loss_ns=None if reachable_ns is None else max(0, ns - reachable_ns),
        missing=key.missing,
    )


def _total_flops(key: _RooflineKey, total: _RooflineTotals) -> int | None:
    """FLOPs of all calls, None if unknown."""
    return None if key.cost is None or key.cost.flops is None else key.cost.flops * total.count


def _bound_of(
    key: _RooflineKey, total: _RooflineTotals, device: Device | None
) -> tuple[str, Literal["compute", "memory", "unknown"], int | None]:
    """(format whose peak applies, bound, minimum ns of one call, None if unknown) of the calls of a key."""
    dtype = _peak_format(key, _total_flops(key, total), total, device)
    if key.account.what == "conv" and any(_FEWER_PRODUCTS.search(name) for name in total.kernels):
        return dtype, "unknown", None
    return dtype, *_min_call_time(key, dtype, device)


def _peak_format(key: _RooflineKey, flops: int | None, total: _RooflineTotals, device: Device | None) -> str:
    """The format whose peak applies: a key of words.DTYPES, empty if unknown. It is that of the inputs.

    A layer that quantises its inputs (Transformer Engine) shows float8 by its kernels' names only.
    float32 may run in TF32, which the op does not show: it does if a kernel's name contains it, or if the op was faster
    than the float32 peak allows. `flops`: of all calls, None if unknown.
    """
    word = key.cost.format.word if key.cost else ""
    if device is None or not key.on_matrix_units:
        return word
    if word in _QUANTISED and "float8" in device.peak and any(_FLOAT8_KERNEL.search(name) for name in total.kernels):
        return "float8"
    if word != "float32" or not {word, "tf32"} <= set(device.peak):
        return word
    faster = bool(flops) and flops * 1e9 > device.peak[word].value * total.busy_ns
    return "tf32" if faster or any(_TF32_KERNEL.search(name) for name in total.kernels) else word


def _min_call_time(
    key: _RooflineKey, dtype: str, device: Device | None
) -> tuple[Literal["compute", "memory", "unknown"], int | None]:
    """(bound, minimum ns) of one call; ("unknown", None) unless the device and the complete cost are known.

    `dtype`: the format whose peak applies to matrix products, convolutions and attention.
    """
    cost = key.cost
    if device is None or not device.peak or cost is None or cost.flops is None or cost.bytes is None or cost.at_most:
        return "unknown", None
    peak = dtype if key.on_matrix_units else min(device.peak, key=lambda word: device.peak[word].value)
    if peak not in device.peak:
        return "unknown", None
    work = Operation(op=key.account.what, phase=key.phase, count=1, flops=cost.flops, bytes=cost.bytes, dtype=peak)
    best = roofline(device, work)
    computes = cost.flops / device.peak[peak].value > cost.bytes / device.bandwidth.value
    # `expect` uses the rate that was measured on the device, which exists for 16-bit formats; `low` the peak.
    return "compute" if computes else "memory", best.expect if words.DTYPES[peak] == _HALF else best.low
