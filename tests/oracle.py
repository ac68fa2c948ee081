"""The expected ledgers of a trace, computed independently of the package: reads the file with `json` and `decimal`, and
goes through every interval between two neighbouring endpoints, without arrays.

A `Piece` is a device event; `live` is the basis of busy time, unions, exposed communication and ownership.
"""

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

KINDS = ("compute", "comm", "copy")
"""By precedence."""
_OURS_COMM = re.compile(r"nccl|rccl", re.IGNORECASE)


class Piece(NamedTuple):
    """A device event, [start, stop) ns. `launch`: (start, number of its step) of its call, None without one."""

    start: int
    stop: int
    name: str
    cat: str
    stream: object
    launch: int | None


class Mark(NamedTuple):
    label: str
    start: int
    stop: int


class Trace(NamedTuple):
    """One rank's file: device events as the ledger orders them, the steps' marks, and those over device work."""

    pieces: list[Piece]
    marks: list[Mark]
    device_marks: list[Mark]

    @property
    def window(self) -> tuple[int, int]:
        return min(piece.start for piece in self.pieces), max(piece.stop for piece in self.pieces)


def read(path: Path) -> Trace:
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    document = json.loads(text, parse_float=Decimal)
    spans = [_Span(event, int(document.get("baseTimeNanoseconds", 0))) for event in document["traceEvents"]]
    spans = [span for span in spans if span.cat]
    calls: dict[int, list[_Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        if span.cat in ("cuda_runtime", "cuda_driver", "runtime"):
            calls[span.args.get("correlation", -1)].append(span)
    pieces = [
        Piece(span.start, span.stop, span.name, span.cat, span.args["stream"], _launch(calls, span))
        for span in spans
        if span.cat in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
    ]
    pieces.sort(key=lambda piece: (piece.start, -piece.stop))
    return Trace(pieces, _marks(spans, ("user_annotation", "operator")), _marks(spans, ("gpu_user_annotation",)))


class _Span:
    def __init__(self, event: dict, base: int) -> None:
        self.cat = str(event.get("cat") or "").lower() if event["ph"] == "X" else ""
        if self.cat:
            self.start = base + int(event["ts"] * 1000 // 1)
            self.stop = self.start + int(event["dur"] * 1000 // 1)
            self.name, self.args = str(event["name"]), event.get("args") or {}
            self.thread = (event["pid"], event["tid"])


def _launch(calls: dict[int, list[_Span]], span: _Span) -> int | None:
    """The start of the call that launched a span: of several with its correlation, the last launch, else the first."""
    candidates = calls.get(span.args["correlation"], [])
    launching = [call for call in candidates if "aunch" in call.name]
    return launching[-1].start if launching else candidates[0].start if candidates else None


def _marks(spans: Iterable[_Span], cats: tuple[str, ...]) -> list[Mark]:
    """The marks of the thread with the most of them; each label once, no nested marks."""
    annotations = [span for span in spans if span.cat in cats and span.name.startswith("ProfilerStep#")]
    threads = Counter(span.thread for span in annotations)
    marks: list[Mark] = []
    for span in sorted(annotations, key=lambda span: (span.start, -span.stop)):
        label = span.name.partition("#")[2]
        inside = bool(marks) and span.start < marks[-1].stop
        if threads[span.thread] == max(threads.values()) and not inside and label not in {mark.label for mark in marks}:
            marks.append(Mark(label, span.start, span.stop))
    return marks


def live(pieces: Iterable[tuple[int, int, str]], begin: int, end: int) -> Counter[frozenset[str]]:
    """ns of [begin, end) in which exactly these kinds are live; the empty set if none is."""
    changes: dict[int, Counter[str]] = defaultdict(Counter)
    for start, stop, kind in pieces:
        start, stop = max(start, begin), min(stop, end)
        if start < stop:
            changes[start][kind] += 1
            changes[stop][kind] -= 1
    edges = sorted({begin, end, *changes})
    now: Counter[str] = Counter()
    totals: Counter[frozenset[str]] = Counter()
    for here, there in pairwise(edges):
        now.update(changes.get(here, {}))
        totals[frozenset(kind for kind, open_now in now.items() if open_now)] += there - here
    return totals


class Breakdown(NamedTuple):
    """A stretch of one rank: ns in which any kind is live, in which each is, and which each owns by precedence."""

    busy: int
    unions: dict[str, int]
    owned: dict[str, int]


def breakdown(pieces: Iterable[tuple[int, int, str]], begin: int, end: int) -> Breakdown:
    totals = live(pieces, begin, end)
    unions = {kind: sum(ns for kinds, ns in totals.items() if kind in kinds) for kind in KINDS}
    owned = {
        kind: sum(ns for kinds, ns in totals.items() if kind in kinds and not kinds & set(KINDS[:index]))
        for index, kind in enumerate(KINDS)
    }
    return Breakdown(sum(ns for kinds, ns in totals.items() if kinds), unions, owned)


def ours(piece: Piece) -> str:
    """The kind of a device event in the ledger."""
    if piece.cat != "kernel" or piece.name.startswith("__amd_rocclr_"):
        return "copy"
    return "comm" if _OURS_COMM.search(piece.name) else "compute"


def of_kind(pieces: Iterable[Piece], kind: Callable[[Piece], str]) -> list[tuple[int, int, str]]:
    return [(piece.start, piece.stop, kind(piece)) for piece in pieces]


def parts(trace: Trace) -> list[tuple[str, int, int]]:
    """(label, begin, end) of each stretch of the window that is not empty: `before`, then the steps."""
    begin, end = trace.window
    last = [begin] * (len(trace.marks) + 1)
    seen: dict[object, int] = {}
    for piece in trace.pieces:
        step = _step(trace.marks, piece.launch) if piece.launch is not None else seen.get(piece.stream, 0)
        seen[piece.stream] = step
        if ours(piece) == "compute":
            last[step] = max(last[step], piece.stop)
    bounds = [begin, *accumulate(last[:-1], max), end]
    labels = ["before", *(mark.label for mark in trace.marks)]
    return [(label, a, b) for label, (a, b) in zip(labels, pairwise(bounds)) if b > a]


def _step(marks: Sequence[Mark], launch: int) -> int:
    """0 before the first mark, else 1 + the first mark that has not ended, or the last one."""
    if not marks or launch < marks[0].start:
        return 0
    return next((index for index, mark in enumerate(marks, 1) if launch < mark.stop), len(marks))


class Interval(NamedTuple):
    """An interval booked under `key`; among live ones, the lowest (kind, start, place) owns the instant."""

    start: int
    stop: int
    kind: int
    place: int
    key: object


def owners(
    intervals: Iterable[Interval], opening: int, begin: int, end: int
) -> tuple[Counter[object], Counter[object]]:
    """ns of [begin, end) that each key owns, and in which any interval of it is live. Intervals that began before the
    window count from its `opening`."""
    inside = [interval for interval in intervals if max(interval.start, begin) < min(interval.stop, end)]
    opens: dict[int, list[Interval]] = defaultdict(list)
    for interval in inside:
        opens[max(interval.start, begin)].append(interval)
    owned: Counter[object] = Counter()
    lives: Counter[object] = Counter()
    now: list[Interval] = []
    for here, there in pairwise(sorted({begin, end, *opens, *(min(interval.stop, end) for interval in inside)})):
        now = [interval for interval in now if interval.stop > here] + opens.get(here, [])
        if now:
            first = min(now, key=lambda interval: (interval.kind, max(interval.start, opening), interval.place))
            owned[first.key] += there - here
            lives.update(dict.fromkeys({interval.key for interval in now}, there - here))
    return owned, lives


def hta(trace: Trace) -> dict[str, int]:
    """Holistic Trace Analysis' figures in ns, by its rules."""
    marks = [*trace.marks, *trace.device_marks]
    pieces = trace.pieces
    if len(trace.marks) > 1:
        cut = max(mark.start for mark in marks)
        pieces = [piece for piece in pieces if piece.launch is not None and piece.launch < cut]
    rounded = [(-(-piece.start // 1000), piece.stop // 1000, _hta_kind(piece.name)) for piece in pieces]
    every = _stretches((start, stop) for start, stop, _ in rounded)
    by_kind = {
        kind: _stretches((start, stop) for start, stop, its in rounded if its == kind) for kind in ("compute", "comm")
    }
    whole = every[-1][1] - every[0][0]
    both = live([(*span, kind) for kind in by_kind for span in by_kind[kind]], every[0][0], every[-1][1])
    compute, comm = (sum(stop - start for start, stop in by_kind[kind]) for kind in by_kind)
    idle = whole - sum(stop - start for start, stop in every)
    us = {
        "kernel_time": whole,
        "idle_time": idle,
        "compute_time": compute,
        "non_compute_time": whole - compute - idle,
        "communication_time": comm,
        "exposed_comm_time": comm - both[frozenset(by_kind)],
    }
    return {name: 1000 * value for name, value in us.items()}


def _stretches(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of spans, sorted by start; an uncovered span that ends before it starts is kept separately."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans, key=lambda span: span[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _hta_kind(name: str) -> str:
    if re.match(r"nccl.*Kernel", name):
        return "comm"
    if name.startswith(("Memcpy", "Memset", "dma")):
        return "memory"
    return "none" if "Memcpy" in name or "Sync" in name else "compute"


def tracelens(trace: Trace) -> dict[str, int]:
    """TraceLens' figures in ns, by its rules, if every launch in the file has its flow event."""
    pieces = [piece for piece in trace.pieces if piece.launch is not None]
    begin, end = min(piece.start for piece in pieces), max(piece.stop for piece in pieces)
    figures = breakdown(of_kind(pieces, _lens_kind), begin, end)
    return {
        "computation_time": figures.unions["compute"],
        "exposed_comm_time": figures.owned["comm"],
        "exposed_memcpy_time": figures.owned["copy"],
        "busy_time": figures.busy,
        "idle_time": end - begin - figures.busy,
        "total_time": end - begin,
        "total_comm_time": figures.unions["comm"],
        "total_memcpy_time": figures.unions["copy"],
    }


def _lens_kind(piece: Piece) -> str:
    name = piece.name.lower()
    if piece.cat.endswith("memcpy") or name.startswith(("__amd_rocclr_copybuffer", "memory_copy_")):
        return "copy"
    return "comm" if any(sign in name for sign in ("nccl", "rccl", "cross_device_reduce")) else "compute"
