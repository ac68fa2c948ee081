"""Checks of a finding's claims on the raw events. Nothing here comes from the rules that are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from validation.unseen.raw import F64, Trace

TOLERANCE = 1.03
"""Factor by which a claim may exceed its bound: printed numbers are rounded."""
_UNIT_MS = {"s": 1e3, "ms": 1.0, "µs": 1e-3, "ns": 1e-6}
_DURATION = r"([\d,]+(?:\.\d+)?) (s|ms|µs|ns)\b"


class Check(NamedTuple):
    """A claim with the value that the raw events give; `agrees`: None if the events cannot show it."""

    claim: str
    value: str
    agrees: bool | None


def check_steps(analysis: dict[str, Any], ranks: Sequence[Trace]) -> Iterator[Check]:
    """The number of steps and, in a marked file without parts that are left out, the mean step time."""
    steps, left_out = analysis["steps"]["steps"], analysis["steps"]["left_out"]
    warm_up = sum(part["kind"] == "warmup" for part in left_out)
    claim = f"{steps} steps" + (f" and {warm_up} of warm-up" if warm_up else "")
    yield Check(claim, str(ranks[0].steps), steps + warm_up == ranks[0].steps)
    if ranks[0].marked and not left_out:
        wall_ms = float(
            next(figure["value"] for figure in analysis["figures"] if figure["label"] == "step time").replace(",", "")
        )
        own_ms = float(np.mean([rank.wall / rank.steps for rank in ranks])) / 1e3
        yield Check(f"step time {wall_ms:,.1f} ms", f"{own_ms:,.1f} ms", abs(wall_ms - own_ms) <= 0.01 * own_ms + 0.05)


def check_finding(finding: dict[str, Any], ranks: Sequence[Trace]) -> Iterator[Check]:
    """All checks of a finding: the share of the step, the bound of its cost, its counts, ranks and names."""
    cost_ms = finding["cost_ns"] / 1e6
    if stated := re.search(rf"each {_DURATION} step \((\d+) %\)", finding["summary"]):
        share = 100 * cost_ms / _ms(stated[1], stated[2])
        yield Check(f"{stated[3]} % of the step", f"{share:.1f} %", abs(share - int(stated[3])) <= 0.6)
    rule = finding["rule"]
    key = "exposed" if rule.startswith("exposed_") else rule
    if bound := _BOUNDS.get(key):
        meaning, bound_ms = bound(finding, ranks)
        yield Check(f"costs {cost_ms:.2f} ms", f"at most {bound_ms:.2f} ms: {meaning}", cost_ms <= TOLERANCE * bound_ms)
    yield from _COUNTS.get(key, _no_counts)(finding, ranks)
    yield from _check_names(finding, ranks)


def _ms(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * _UNIT_MS[unit]


def _per_step_ms(ranks: Sequence[Trace], us: Sequence[float]) -> float:
    """The largest over ranks of `us`, µs of each rank, in ms per step."""
    return max(value / rank.steps for value, rank in zip(us, ranks)) / 1e3


def _no_counts(finding: dict[str, Any], ranks: Sequence[Trace]) -> Iterator[Check]:
    yield from ()


def _loader(finding: dict[str, Any], ranks: Sequence[Trace]) -> tuple[str, float]:
    return "time in the loader's next batch", _per_step_ms(
        ranks, [rank.union(rank.pick("enumerate(DataLoader)")) for rank in ranks]
    )


def _without_ops(finding: dict[str, Any], ranks: Sequence[Trace]) -> tuple[str, float]:
    """Time outside the own time of ATen's ops, collectives, the loader and compilation."""
    idle: list[float] = []
    for rank in ranks:
        explained = rank.pick("enumerate(DataLoader)") | np.array([name == "dynamo" for name in rank.names], bool)
        ops = rank.pick("aten::") & ~rank.inside(explained)
        idle.append(rank.wall - rank.union(explained | rank.pick("gloo:")) - float(rank.own[ops].sum()))
    return "time outside ops", _per_step_ms(ranks, idle)


def _compilation(finding: dict[str, Any], ranks: Sequence[Trace]) -> tuple[str, float]:
    return "time in dynamo", _per_step_ms(ranks, [rank.union(rank.pick("dynamo", "entire_frame")) for rank in ranks])


def _optimizer_gaps(finding: dict[str, Any], ranks: Sequence[Trace]) -> tuple[str, float]:
    """Time of the optimizer's steps outside their ops."""
    idle: list[float] = []
    for rank in ranks:
        step = rank.pick("Optimizer.step#")
        idle.append(rank.union(step) - rank.union(rank.inside(step) & rank.pick("aten::")))
    return "time of the optimizer's step outside ops", _per_step_ms(ranks, idle)


def _all_ops(finding: dict[str, Any], ranks: Sequence[Trace]) -> tuple[str, float]:
    return "time in ops", _per_step_ms(ranks, [rank.union(rank.pick("aten::")) for rank in ranks])


def _values(rank: Trace) -> Any:
    return rank.pick(
        "aten::item", "aten::nonzero", "<built-in method tolist of Tensor", "<built-in method item of Tensor"
    )


def _reads(finding: dict[str, Any], ranks: Sequence[Trace]) -> tuple[str, float]:
    return "time in reads of values", _per_step_ms(ranks, [rank.union(_values(rank)) for rank in ranks])


def _arrivals(ranks: Sequence[Trace]) -> tuple[F64, F64]:
    """Start and stop in µs of each collective on each rank, [collective, rank], matched by order."""
    spans = [(rank.start[rank.pick("gloo:")], rank.stop[rank.pick("gloo:")]) for rank in ranks]
    count = min(len(start) for start, _ in spans)
    return tuple(np.stack([span[side][-count:] for span in spans], axis=1) for side in (0, 1))  # type: ignore[return-value]


def _waits(finding: dict[str, Any], ranks: Sequence[Trace]) -> tuple[str, float]:
    """The waiting of a rank for the last one to arrive, mean over the ranks that wait, per step."""
    start, _ = _arrivals(ranks)
    waiting = (start.max(axis=1, keepdims=True) - start).sum() / max(1, len(ranks) - 1)
    return "waiting for the last to arrive, mean of the other ranks", float(waiting) / ranks[0].steps / 1e3


def _late(finding: dict[str, Any], ranks: Sequence[Trace]) -> Iterator[Check]:
    """Which rank arrives last, and at how many collectives."""
    start, _ = _arrivals(ranks)
    last = np.bincount(start.argmax(axis=1), minlength=len(ranks))
    stated = re.match(r"Rank (\d+) arrives last at (\d+) of (\d+) collectives", finding["summary"])
    if stated:
        value = f"rank {last.argmax()}, {last.max()} of {last.sum()}"
        agrees = (int(stated[1]), int(stated[2]), int(stated[3])) == (last.argmax(), last.max(), last.sum())
        yield Check(stated[0], value, bool(agrees))


def _transfers(finding: dict[str, Any], ranks: Sequence[Trace]) -> tuple[str, float]:
    """Time of the collectives of one kind after the last rank has arrived, of the rank for which it is longest."""
    kind = f"gloo:{finding['rule'].removeprefix('exposed_')}"
    start, stop = _arrivals(ranks)
    names = [name for name in ranks[0].names if name.startswith("gloo:")][-len(start) :]
    mask = np.array([name == kind for name in names], bool)
    busy = (stop - start.max(axis=1, keepdims=True)).clip(0)[mask].sum(axis=0)
    return f"time in {kind} after the last arrival", float(busy.max()) / ranks[0].steps / 1e3


def _optimizer_ops(finding: dict[str, Any], ranks: Sequence[Trace]) -> Iterator[Check]:
    """The number of an optimizer's ops per step, at most all ATen ops inside its step."""
    counts = [
        int((rank.inside(rank.pick("Optimizer.step#")) & rank.pick("aten::")).sum()) / rank.steps for rank in ranks
    ]
    if stated := re.search(r"optimizer of ([\d,]+) kernels", finding["summary"]):
        yield Check(
            f"{stated[1]} kernels", f"{max(counts):,.0f} ops", int(stated[1].replace(",", "")) <= max(counts) + 1
        )


def _read_count(finding: dict[str, Any], ranks: Sequence[Trace]) -> Iterator[Check]:
    """The number of values read per step."""
    counts = [int(rank.pick("aten::item", "<built-in method tolist of Tensor").sum()) / rank.steps for rank in ranks]
    if stated := re.match(r"([\d,]+) (?:host sync|read)", finding["summary"]):
        yield Check(f"{stated[1]} syncs", f"{max(counts):,.1f} reads", abs(int(stated[1]) - max(counts)) <= 1)


def _check_names(finding: dict[str, Any], ranks: Sequence[Trace]) -> Iterator[Check]:
    """The largest intervals: each names spans of the file that last at least as long in one step. Times without a
    span's name, such as `Python 12.7 ms`, are gaps and are not checked."""
    largest = finding["evidence"].partition("largest: ")[2]
    for part in re.split(r", (?=[^,]*? \d)", largest):
        stated = re.match(rf"(.+?) {_DURATION}", part)
        if not stated:
            continue
        name = stated[1].split(" in ")[-1] if not stated[1].startswith(("<", "wait in")) else stated[1]
        begin, is_cut, end = name.partition("…")
        in_step = [
            rank.longest_in_step(
                np.array(
                    [
                        text == name if not is_cut else text.startswith(begin) and text.endswith(end)
                        for text in rank.names
                    ],
                    bool,
                )
            )
            for rank in ranks
        ]
        if longest_ms := max(in_step) / 1e3:
            agrees = _ms(stated[2], stated[3]) <= TOLERANCE * longest_ms
            value = f"at most {longest_ms:.2f} ms: its time in one step"
            yield Check(f"{stated[1]} lasts {stated[2]} {stated[3]}", value, agrees)


Bound = Callable[[dict[str, Any], Sequence[Trace]], tuple[str, float]]
_BOUNDS: dict[str, Bound] = {
    "data_wait": _loader,
    "launch_bound": _without_ops,
    "recompilation": _compilation,
    "optimizer_not_fused": _optimizer_gaps,
    "unfused_elementwise": _all_ops,
    "tiny_kernels": _all_ops,
    "sync_in_step": _reads,
    "straggler": _waits,
    "exposed": _transfers,
    "coverage": _all_ops,
}
"""Rule -> the most that its cause can cost, in ms per step, with its meaning."""
_COUNTS: dict[str, Callable[[dict[str, Any], Sequence[Trace]], Iterator[Check]]] = {
    "optimizer_not_fused": _optimizer_ops,
    "sync_in_step": _read_count,
    "straggler": _late,
}
"""Rule -> checks of the numbers and ranks that its summary states."""
