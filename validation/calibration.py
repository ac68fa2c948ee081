"""Stated confidence of findings against truth, on synthetic profiles with planted causes.

`python -m validation.calibration [--draws N] [--groups known unknown held-out]` plants each cause in N jobs with noise
(20 by default), diagnoses their profiles, and prints for each kind of cause whether it was named, and for each range of
stated confidence how many findings were right. A finding is right if it names the planted cause or is true of the job
all the same (`right` of the plant). Findings that name no cause are left out: `coverage`, and ranks that are late in
turn for an unknown reason.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from trainyard.diagnose import price_findings
from trainyard.finding import Finding
from trainyard.trace.measure import measure, read
from validation.synthetic.known_causes import JOBS, KNOWN
from validation.synthetic.timeline import Rank
from validation.synthetic.training import Job, Plant
from validation.synthetic.unknown_causes import HELD_OUT, TUNED, Nothing

BINS = (0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 1.01)
CANNOT_TELL = 0.5
"""Stated confidence below which a finding does not claim to name the cause."""
_MIN_SLOWDOWN = 1.06
_REDRAW = 1_000_000
_BASE_FACTS = ("exposed_all_reduce",)
"""Findings that are true of every job: its last gradient bucket is exposed."""

_GROUPS: dict[str, tuple[str, Mapping[str, type[Plant]]]] = {
    "known": ("Causes that a rule knows", KNOWN),
    "unknown": ("Causes that no rule knows", TUNED),
    "held-out": ("Causes that no rule knows, held out", HELD_OUT),
}
"""Name on the command line -> title and kinds of causes."""


class Stated(NamedTuple):
    """A finding's rule, its stated confidence, and whether it is right."""

    rule: str
    confidence: float
    right: bool


def diagnose(kind: type[Plant], seed: int) -> tuple[Job, list[Finding]]:
    """Simulates a job with this cause and diagnoses its profiles: the job, and the findings in order. Draws whose cause
    costs less than `_MIN_SLOWDOWN`, compared with the same job without it, are drawn again."""
    job, ranks = _simulate(kind, seed)
    while kind is not Nothing and not _is_slower(kind, seed, job, ranks):
        seed += _REDRAW
        job, ranks = _simulate(kind, seed)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for rank in ranks:
            paths.append(Path(folder) / f"rank{rank.number}.json")
            paths[-1].write_bytes(msgspec.json.encode(rank.document(job.device)))
        measured = measure(read(paths))
        results = price_findings.diagnose(measured.mean, measured=measured)
    if job.reads_loss:
        other, others = _simulate(kind, seed, reads_loss=False)
        job.reading_costs_ns = (job.length_ns(ranks) - other.length_ns(others)) / job.steps
    return job, results


def _simulate(kind: type[Plant], seed: int, reads_loss: bool = True) -> tuple[Job, list[Rank]]:
    """The job of this seed and its ranks after all steps. `reads_loss`: False removes the value read at each end."""
    job = JOBS.get(kind, Job)(kind, np.random.default_rng(seed))
    job.reads_loss &= reads_loss
    return job, job.run()


def _is_slower(kind: type[Plant], seed: int, job: Job, ranks: list[Rank]) -> bool:
    """Whether the planted cause makes the job relevantly longer; true for a job of its own layout."""
    if kind in JOBS:
        return True

    class Without(Nothing):
        world, steps, marks = kind.world, kind.steps, kind.marks

    _, clean = _simulate(Without, seed)
    return job.length_ns(ranks) > _MIN_SLOWDOWN * job.length_ns(clean)


def judge(job: Job, results: Iterable[Finding]) -> list[Stated]:
    """Whether each finding names the planted cause, or is true of the job without it: `_BASE_FACTS`, and the value that
    is read at the end of each step, if the job is faster without it by at least half of the stated cost."""
    plant, stated = job.plant, []
    facts = {*plant.right, *_BASE_FACTS}
    late = getattr(plant, "late", None)
    for finding in results:
        if finding.rule == "coverage":
            continue
        right = bool({finding.rule, f"{finding.rule}/{finding.account.what}"} & facts)
        if finding.rule == "sync_in_step" and not right:
            right = 2 * job.reading_costs_ns >= finding.cost_ns
        if finding.rule == "straggler" and late is not None:
            right = finding.summary.startswith(f"Rank {late} ")
        if finding.rule == "imbalance":
            if "differs by" not in finding.evidence:
                continue  # it states that the ranks are late in turn, and names no cause
            right = finding.evidence.startswith(f"{getattr(plant, 'op_class', 'no class')} differs by")
        stated.append(Stated(finding.rule, finding.confidence, right))
    return stated


def outcome(job: Job, stated: Sequence[Stated]) -> str:
    """`right`, `wrong` or undecided: the verdict of the first confident finding that is not true of every job."""
    rules = {name.partition("/")[0] for name in job.plant.right}
    named = [item for item in stated if item.confidence >= CANNOT_TELL]
    named = [item for item in named if item.rule in rules or item.rule not in (*_BASE_FACTS, "imbalance")]
    return ("right" if named[0].right else "wrong") if named else "cannot tell"


def reliability(stated: Iterable[Stated]) -> list[tuple[float, float, int, float, float, float]]:
    """For each bin of `BINS` with findings: (low, high, findings, mean stated confidence, fraction that is right, its
    standard error)."""
    rows = []
    items = list(stated)
    for low, high in pairwise(BINS):
        inside = [item for item in items if low <= item.confidence < high]
        if inside:
            mean, right = (
                sum(column) / len(inside) for column in zip(*((item.confidence, item.right) for item in inside))
            )
            rows.append((low, high, len(inside), mean, right, sqrt(mean * (1 - mean) / len(inside))))
    return rows


def run(kinds: Mapping[str, type[Plant]], draws: int) -> dict[str, list[tuple[str, list[Stated]]]]:
    """Kind -> (outcome, judged findings) of each of its draws."""
    results: dict[str, list[tuple[str, list[Stated]]]] = {}
    for number, (name, kind) in enumerate(kinds.items()):
        for draw in range(draws):
            job, results_of_draw = diagnose(kind, 1_000 * number + draw)
            stated = judge(job, results_of_draw)
            results.setdefault(name, []).append((outcome(job, stated), stated))
    return results


def _print_kinds(title: str, results: Mapping[str, list[tuple[str, list[Stated]]]]) -> None:
    print(f"\n{title}\n{'kind':20s} {'right':>6s} {'wrong':>6s} {'cannot tell':>12s}  wrong findings (mean confidence)")
    for name, draws in results.items():
        outcomes = Counter(verdict for verdict, _ in draws)
        wrong: dict[str, list[float]] = {}
        for _, stated in draws:
            for item in stated:
                if not item.right:
                    wrong.setdefault(item.rule, []).append(item.confidence)
        listed = ", ".join(f"{rule} {len(sure)} ({sum(sure) / len(sure):.2f})" for rule, sure in wrong.items())
        print(f"{name:20s} {outcomes['right']:6d} {outcomes['wrong']:6d} {outcomes['cannot tell']:12d}  {listed}")


def _print_reliability(title: str, results: Mapping[str, list[tuple[str, list[Stated]]]]) -> None:
    print(f"\n{title}\n{'stated':>12s} {'findings':>9s} {'mean stated':>12s} {'right':>8s} {'std. error':>11s}")
    items = [item for draws in results.values() for _, stated in draws for item in stated]
    for low, high, count, mean, right, error in reliability(items):
        print(f"{low:5.2f} to {min(1, high):.2f} {count:9d} {mean:12.3f} {right:8.3f} {error:11.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--groups", nargs="*", choices=[*_GROUPS], default=[*_GROUPS])
    options = parser.parse_args()
    results = {title: run(kinds, options.draws) for title, kinds in (_GROUPS[name] for name in options.groups)}
    for title, group in results.items():
        _print_kinds(title, group)
    for title, group in results.items():
        _print_reliability(title, group)
    _print_reliability("All", {name: draws for group in results.values() for name, draws in group.items()})


if __name__ == "__main__":
    main()
