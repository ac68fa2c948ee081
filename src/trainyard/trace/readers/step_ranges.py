"""Steps in files without step marks: ranges that a program opens once per step.

Ranges of one thread form a family if they have one name, or names that differ in their numbers only and count upwards
(`iteration 7`, `iteration 8`). A family marks steps if its ranges do not overlap and launch nearly all kernels of the
time that they span, each its part. Ranges named as steps or iterations need less evidence than others. Of several such
families, the one that launches most kernels and lasts longest is taken: the outermost.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from trainyard.events import I64

_DIGITS = re.compile(r"\d+")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_STEP_WORDS = {"step", "iter", "iteration", "itr", "batch", "minibatch"}
_PART_WORDS = {
    "layer", "block", "stage", "module", "micro", "microbatch", "chunk", "epoch", "head", "expert", "stream", "rank",
    "device", "gpu", "optimizer", "optim", "opt", "warmup", "load", "copy", "wait", "sync", "loader",
}  # fmt: skip
"""Words of ranges that repeat within a step, or contain many steps."""
_MIN_RANGES, _MIN_NAMED_RANGES = 3, 2
_MIN_LAUNCHED, _MIN_LAUNCHED_BY_NAMED = 0.9, 0.5
"""Fraction of the kernels that the ranges launch."""
_MIN_BUSY_RANGES = 0.9
"""Fraction of the ranges that launch kernels, and whose number of kernels is at most twice or half of the typical."""
_PRIOR = 0.96
"""Confidence in many ranges that all launch kernels, regularly unless they are named as steps."""
_MAX_FAMILIES = 4096
_MAX_NAME = 256


class Range(NamedTuple):
    """A range from `start` to `stop` ns on a thread."""

    start: int
    stop: int
    name: str
    thread: Hashable


class Steps(NamedTuple):
    """`rows`: indices of the ranges that mark steps, in order; `labels`: of each; `name`: the common name, with `#` for
    numbers that differ; `confidence`: that they are steps, from 0 to 1."""

    rows: list[int]
    labels: list[str]
    name: str
    confidence: float


class _Family(NamedTuple):
    """Ranges of one thread that may be steps. `numbers`: those in each name, empty if all names are the same."""

    name: str
    rows: list[int]
    numbers: list[tuple[int, ...]]


class _Score(NamedTuple):
    """Evidence that a family marks steps, the most important first. `is_named`: its name has a word for steps;
    `launched_percent`: share of the kernels in the time that it spans which its ranges launch; `total_ns`: duration of
    its ranges; `confidence`: from 0 to 1."""

    is_named: bool
    launched_percent: int
    total_ns: int
    confidence: float


def split_words(name: str) -> set[str]:
    """The words in a name such as `forward_step`, `trainStep` or `opt.step`, in lower case."""
    return {word.lower() for word in _WORDS.findall(name[:_MAX_NAME])}


def find_steps(ranges: Sequence[Range], launches: I64) -> Steps | None:
    """The ranges that mark steps; None if no family of ranges does. `launches`: ascending times in ns at which kernels
    were launched."""
    best: tuple[_Score, _Family] | None = None
    for family in _families(ranges) if len(launches) else ():
        score = _score(family, ranges, launches)
        if score and (best is None or score[:3] > best[0][:3]):
            best = score, family
    if best is None:
        return None
    score, family = best
    varying = [len(set(column)) > 1 for column in zip(*family.numbers)] if family.numbers else []
    labels = [".".join(str(number) for number, varies in zip(numbers, varying) if varies) for numbers in family.numbers]
    return Steps(
        family.rows, labels or [str(index) for index in range(len(family.rows))], family.name, score.confidence
    )


def _families(ranges: Sequence[Range]) -> list[_Family]:
    """Families of at least two ranges: first by exact name, then by names that count upwards."""
    rows_by_name: defaultdict[tuple[Hashable, str], list[int]] = defaultdict(list)
    rows_by_pattern: defaultdict[tuple[Hashable, str], list[int]] = defaultdict(list)
    order = sorted(range(len(ranges)), key=lambda row: (ranges[row].start, -ranges[row].stop))
    for row in order:
        name = ranges[row].name[:_MAX_NAME]
        of_name = rows_by_name[ranges[row].thread, name]
        if not of_name or ranges[row].stop > ranges[of_name[-1]].stop:  # some programs open a range twice
            of_name.append(row)
        rows_by_pattern[ranges[row].thread, _DIGITS.sub("#", name)].append(row)
    families = [_Family(name, rows, []) for (_, name), rows in rows_by_name.items() if len(rows) > 1]
    for (_, pattern), rows in rows_by_pattern.items():
        numbers = _ascending_numbers(ranges, rows)
        if len(rows) > 1 and len(numbers) == len(rows):
            families.append(_Family(pattern, rows, numbers))
    return families[:_MAX_FAMILIES]


def _ascending_numbers(ranges: Sequence[Range], rows: Sequence[int]) -> list[tuple[int, ...]]:
    """The numbers in the name of each range, up to the first range whose numbers do not exceed the previous one's.
    `rows`: positions in `ranges`."""
    numbers: list[tuple[int, ...]] = []
    for row in rows:
        current = tuple(int(text[:18]) for text in _DIGITS.findall(ranges[row].name[:_MAX_NAME]))
        if numbers and current <= numbers[-1]:
            break
        numbers.append(current)
    return numbers


def _score(family: _Family, ranges: Sequence[Range], launches: I64) -> _Score | None:
    """Scores a family by the rules of the module's docstring; None if it does not mark steps. `launches`: ascending
    times of kernel launches, ns."""
    words = split_words(family.name)
    if words & _PART_WORDS:
        return None
    named = bool(words & _STEP_WORDS)
    start = np.array([ranges[row].start for row in family.rows], np.int64)
    stop = np.array([ranges[row].stop for row in family.rows], np.int64)
    if len(start) < (_MIN_NAMED_RANGES if named else _MIN_RANGES) or (start[1:] < stop[:-1]).any():
        return None
    # Launches in each range, and from the start of the first to the stop of the last.
    counts = np.searchsorted(launches, stop, "right") - np.searchsorted(launches, start, "left")
    spanned = np.searchsorted(launches, stop[-1], "right") - np.searchsorted(launches, start[0], "left")
    launched = counts.sum() / max(1, spanned)
    typical = np.median(counts)
    regular = (counts > 0) & (counts <= 2 * typical) & (2 * counts >= typical)
    if launched < (_MIN_LAUNCHED_BY_NAMED if named else _MIN_LAUNCHED):
        return None
    if (counts > 0).mean() < _MIN_BUSY_RANGES or (not named and regular.mean() < _MIN_BUSY_RANGES):
        return None
    if not named and spanned < len(launches) / 2:  # the steps may lie elsewhere in the file
        return None
    typical_ranges = int((counts > 0).sum() if named else regular.sum())
    confidence = _PRIOR * (typical_ranges + 1) / (len(counts) + 2)
    return _Score(named, round(100 * launched), int((stop - start).sum()), confidence)
