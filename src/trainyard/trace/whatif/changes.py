"""What can be supposed of a step, as it is written: one thing each, several together.

no-stragglers       every op takes, on every rank, what it takes on those that are not late
no-launch-gaps      the host is infinitely fast; it still waits for data and for the device
perfect-overlap     nothing waits for communication before its step ends
network=2x          transfers at twice the speed (0.5x: at half)
ACCOUNT=2x          whatever is booked there at twice the speed: compute, compute/norm, comm/all_gather@dp_shard
ACCOUNT=0           or at no cost: data_wait=0
op:NAME=2x          what ops of that name (and the ops in them) make the device do; `*` stands for any text
op:NAME=roofline    the same at the speed their arithmetic and traffic allow
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from trainyard import words
from trainyard.errors import BadInput, UnknownName, nearest

NO_STRAGGLERS, NO_LAUNCH_GAPS, PERFECT_OVERLAP = WHOLE = ("no-stragglers", "no-launch-gaps", "perfect-overlap")
NETWORK, ROOFLINE, OF_OP = "network", "roofline", "op:"
_FORMS = f"{', '.join(WHOLE)}, network=2x, compute/norm=2x, data_wait=0, op:aten::mm=2x, op:aten::mm=roofline"
_SPEED = re.compile(r"(?P<times>\d{1,6}(\.\d{1,6})?)x")
_WAITED = ("straggler", "bubble", "unexplained")


class Supposition(NamedTuple):
    """`what`: one of `WHOLE`, `network`, an account pattern, or `op:` and a name pattern. `share`: of its time that
    is left, None for the roofline's; 0 for the ones that have no factor."""

    text: str
    what: str
    share: Fraction | None = Fraction(0)


def parse(text: str) -> Supposition:
    """Raises `BadInput` for what cannot be supposed."""
    what, is_set, value = text.strip().rpartition("=")
    if not is_set:
        if value in WHOLE:
            return Supposition(text, value)
        raise BadInput(f"{text!r} is nothing that can be supposed.", _hint(value))
    if what in WHOLE:
        raise BadInput(f"{what} takes no value, but {text!r} gives it {value!r}.", f"Write {what}.")
    if what != NETWORK and not what.startswith(OF_OP):
        _check_account(what)
    elif what == OF_OP:
        raise BadInput(f"{text!r} names no op.", "Name one as the trace does: op:aten::mm=2x.")
    return Supposition(text, what, _share(text, what, value))


def _share(text: str, what: str, value: str) -> Fraction | None:
    if value == ROOFLINE and what.startswith(OF_OP):
        return None
    if value == "0":
        return Fraction(0)
    speed = _SPEED.fullmatch(value)
    if speed is None or not (times := Fraction(speed["times"])):
        also = ", or roofline" if what.startswith(OF_OP) else ""
        raise BadInput(
            f"{value!r} in {text!r} is no speed.",
            f"Write how many times as fast, as in {what}=2x, or 0 for no time{also}.",
        )
    return 1 / times


def _check_account(what: str) -> None:
    """`compute`, `compute/norm` or `compute/norm@tp`; `*` stands for any text after the kind."""
    kind = what.partition("@")[0].partition("/")[0]
    if kind not in words.KINDS:
        raise UnknownName(f"{what!r} is no account, network or op:NAME.", nearest(kind, [*words.KINDS, NETWORK]))
    if kind in _WAITED:
        raise BadInput(
            f"{kind} is what is left when others are waited for; nothing runs that could be made faster.",
            "Write no-stragglers." if kind == "straggler" else "Suppose something of the work that it waits for.",
        )


def _hint(value: str) -> str:
    close = nearest(value, WHOLE)
    return close if close.startswith("Did") else f"Write one of: {_FORMS}."
