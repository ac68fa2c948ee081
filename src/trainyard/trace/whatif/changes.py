"""The syntax of suppositions (what-if changes to a step). Several can be combined.

no-stragglers       every op takes, on every rank, the time it takes on ranks that are not late
no-launch-gaps      the host is infinitely fast; it still waits for data and for the device
perfect-overlap     nothing waits for communication before its step ends
network=2x          transfers run at twice the speed (0.5x: at half)
ACCOUNT=2x          work booked there runs at twice the speed: compute, compute/norm, comm/all_gather@dp_shard
ACCOUNT=0           or takes no time: data_wait=0
op:NAME=2x          device work of ops with that name (and of the ops inside them); `*` matches any text
op:NAME=roofline    the same, at the speed that arithmetic and memory traffic allow
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from trainyard import words
from trainyard.errors import BadInput, UnknownName, nearest

NO_STRAGGLERS, NO_LAUNCH_GAPS, PERFECT_OVERLAP = TARGETS_WITHOUT_VALUE = (
    "no-stragglers",
    "no-launch-gaps",
    "perfect-overlap",
)
NETWORK, ROOFLINE, OP_PREFIX = "network", "roofline", "op:"
_EXAMPLES = (
    f"{', '.join(TARGETS_WITHOUT_VALUE)}, network=2x, compute/norm=2x, data_wait=0, op:aten::mm=2x, "
    "op:aten::mm=roofline"
)
_SPEED_FORMAT = re.compile(r"(?P<times>\d{1,6}(\.\d{1,6})?)x")
_WAITING_KINDS = ("straggler", "bubble", "unexplained")


class Supposition(NamedTuple):
    """`target`: one of `TARGETS_WITHOUT_VALUE`, `network`, an account pattern, or `op:` and a name pattern. `share`:
    the fraction of its time that remains, None for the roofline, 0 for those without a factor."""

    text: str
    target: str
    share: Fraction | None = Fraction(0)


def parse(text: str) -> Supposition:
    """Parses a supposition. Raises `BadInput` if it is invalid."""
    target, is_set, value = text.strip().rpartition("=")
    if not is_set:
        if value in TARGETS_WITHOUT_VALUE:
            return Supposition(text, value)
        raise BadInput(f"{text!r} is not a supposition.", _hint(value))
    if target in TARGETS_WITHOUT_VALUE:
        raise BadInput(f"{target} takes no value, but {text!r} gives it {value!r}.", f"Write {target}.")
    if target != NETWORK and not target.startswith(OP_PREFIX):
        _check_account(target)
    elif target == OP_PREFIX:
        raise BadInput(f"{text!r} names no op.", "Give an op name as in the trace: op:aten::mm=2x.")
    return Supposition(text, target, _remaining_share(text, target, value))


def _remaining_share(text: str, target: str, value: str) -> Fraction | None:
    """The share of the time that remains: 1/2 for `2x`, 0 for `0`, None for `roofline`. Raises `BadInput` for other
    values. `text`: the whole supposition, for the message."""
    if value == ROOFLINE and target.startswith(OP_PREFIX):
        return None
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


def _check_account(target: str) -> None:
    """`compute`, `compute/norm` or `compute/norm@tp`; `*` stands for any text after the kind."""
    kind = target.partition("@")[0].partition("/")[0]
    if kind not in words.KINDS:
        raise UnknownName(f"{target!r} is not an account, network or op:NAME.", nearest(kind, [*words.KINDS, NETWORK]))
    if kind in _WAITING_KINDS:
        raise BadInput(
            f"{kind} is waiting or unexplained time; no work runs there that could be faster.",
            "Write no-stragglers." if kind == "straggler" else "Change the work that it waits for instead.",
        )


def _hint(value: str) -> str:
    close = nearest(value, TARGETS_WITHOUT_VALUE)
    return close if close.startswith("Did") else f"Write one of: {_EXAMPLES}."
