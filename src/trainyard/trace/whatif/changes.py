"""The syntax of suppositions (what-if changes to a step). Several can be combined.

no-stragglers       every op takes, on every rank, the time it takes on ranks that are not late
no-launch-gaps      the host is infinitely fast; it still waits for data and for the device
no-syncs            the host does not wait for the device
perfect-overlap     nothing waits for communication before its step ends
rank:7=typical      every op of rank 7 takes the time that it takes on the other ranks
network=2x          transfers run at twice the speed (0.5x: at half)
memory=2x           memory-bound work runs at twice the speed: pointwise ops, norms, reductions, the optimizer, copies
ACCOUNT=2x          work booked there runs at twice the speed: compute, compute/norm, comm/all_gather@dp_shard
ACCOUNT=0           or takes no time: data_wait=0
ACCOUNT=overlap     nothing waits for this communication before its step ends: comm/all_gather=overlap
op:NAME=2x          device work of ops with that name (and of the ops inside them); `*` matches any text
op:NAME=roofline    the same, at the speed that arithmetic and memory traffic allow
without:RULE        the cause of the finding of that rule is removed: without:straggler
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from trainyard import words
from trainyard.change import WITHOUT
from trainyard.errors import BadInput, UnknownName, nearest

NO_STRAGGLERS, NO_LAUNCH_GAPS, NO_SYNCS, PERFECT_OVERLAP = TARGETS_WITHOUT_VALUE = (
    "no-stragglers",
    "no-launch-gaps",
    "no-syncs",
    "perfect-overlap",
)
NETWORK, MEMORY, OP_PREFIX, RANK_PREFIX = "network", "memory", "op:", "rank:"
ROOFLINE, OVERLAP, TYPICAL = "roofline", "overlap", "typical"
_EXAMPLES = (
    f"{', '.join(TARGETS_WITHOUT_VALUE)}, network=2x, memory=2x, compute/norm=2x, data_wait=0, "
    f"comm/all_reduce=overlap, rank:7=typical, op:aten::mm=2x, op:aten::mm=roofline, {WITHOUT}straggler"
)
_SPEED_FORMAT = re.compile(r"(?P<times>\d{1,6}(\.\d{1,6})?)x")
_RANK_FORMAT = re.compile(r"rank:(?P<rank>\d{1,9})")
_WAITING_KINDS = ("straggler", "bubble", "unexplained")


class Supposition(NamedTuple):
    """`target`: one of `TARGETS_WITHOUT_VALUE`, `network`, `memory`, an account pattern, `op:` and a name pattern, or
    `rank:` and a rank. `share`: the fraction of its time that remains, 0 for those without a factor. `value`:
    `roofline`, `overlap` or `typical` in place of a factor."""

    text: str
    target: str
    share: Fraction = Fraction(0)
    value: str = ""

    @property
    def rank(self) -> int:
        """The rank of a `rank:` target, -1 for other targets."""
        match = _RANK_FORMAT.fullmatch(self.target)
        return int(match["rank"]) if match else -1


def parse(text: str) -> Supposition:
    """Parses a supposition, with the syntax in the module's description. Raises `BadInput` if it is invalid."""
    target, is_set, value = text.strip().rpartition("=")
    if not is_set:
        if value in TARGETS_WITHOUT_VALUE:
            return Supposition(text, value)
        raise BadInput(f"{text!r} is not a supposition.", _hint(value))
    if target in TARGETS_WITHOUT_VALUE:
        raise BadInput(f"{target} takes no value, but {text!r} gives it {value!r}.", f"Write {target}.")
    if target.startswith(RANK_PREFIX):
        return _parse_rank(text, target, value)
    if target not in (NETWORK, MEMORY) and not target.startswith(OP_PREFIX):
        kind = _check_account(target)  # the target is an account pattern
        if value == OVERLAP and kind == "comm":
            return Supposition(text, target, value=OVERLAP)
    elif target == OP_PREFIX:
        raise BadInput(f"{text!r} names no op.", "Give an op name as in the trace: op:aten::mm=2x.")
    if value == ROOFLINE and target.startswith(OP_PREFIX):
        return Supposition(text, target, value=ROOFLINE)
    return Supposition(text, target, _remaining_share(text, target, value))


def _parse_rank(text: str, target: str, value: str) -> Supposition:
    """Parses `rank:7=typical`. Raises `BadInput` for another value or a rank that is not a number."""
    if not _RANK_FORMAT.fullmatch(target) or value != TYPICAL:
        raise BadInput(f"{text!r} is not a supposition about a rank.", "Write its number: rank:7=typical.")
    return Supposition(text, target, value=TYPICAL)


def _remaining_share(text: str, target: str, value: str) -> Fraction:
    """The share of the time that remains: 1/2 for the value `2x`, 0 for `0`. `text`, `target`: the whole supposition
    and its left side, for the message of `BadInput`, which other values raise."""
    if value == "0":
        return Fraction(0)
    speed = _SPEED_FORMAT.fullmatch(value)
    if speed is None or not (times := Fraction(speed["times"])):
        also = ", or roofline" if target.startswith(OP_PREFIX) else ""
        raise BadInput(
            f"{value!r} in {text!r} is not a speed.",
            f"Write how many times as fast, as in {target}=2x, or 0 for no time{also}.",
        )
    return 1 / times


def _check_account(target: str) -> str:
    """The kind of the account pattern `compute`, `compute/norm` or `compute/norm@tp`; `*` stands for any text after the
    kind. Raises `UnknownName` for another target, `BadInput` for an account that holds no work."""
    kind = target.partition("@")[0].partition("/")[0]
    if kind not in words.KINDS:
        raise UnknownName(
            f"{target!r} is not an account, network, memory or op:NAME.", nearest(kind, [*words.KINDS, NETWORK, MEMORY])
        )
    if kind in _WAITING_KINDS:
        raise BadInput(
            f"{kind} is waiting or unexplained time; no work runs there that could be faster.",
            "Write no-stragglers." if kind == "straggler" else "Change the work that it waits for instead.",
        )
    return kind


def _hint(value: str) -> str:
    close = nearest(value, TARGETS_WITHOUT_VALUE)
    return close if close.startswith("Did") else f"Write one of: {_EXAMPLES}."
