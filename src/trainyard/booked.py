"""Booked: one rank's Events with what was concluded of every interval, as columns, for rules that read it.

Shapes: n intervals (device work in its order; on a CPU the training thread's stretches, then the collectives), k idle
stretches, m host rows (those of `events.host`), w waits for late ranks. Times are integer ns. `key` columns are
rows of `pairs`; `module` columns are name numbers, -1 for none.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.events import I8, I32, I64, Collective, Events
from trainyard.ledger import Account

Mask = NDArray[np.bool_]


class BookedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the rank's window, [start, stop). `partial`: no full step, so no part of any mean."""

    label: str
    start: int
    stop: int
    partial: bool = False


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """k stretches, by start, in which the device (a CPU's training thread) did no work. `ns`: what each owns; `host`:
    the innermost span open on the thread that was to launch the next work, -1 for none; `next`: the interval that the
    stretch waits for, -1 for none."""

    start: I64
    stop: I64
    key: I32
    ns: I64
    host: I32
    next: I32


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """w waits of this rank in collectives for the rank `late` to arrive; `ns`: what each owns."""

    start: I64
    stop: I64
    key: I32
    late: I32
    ns: I64


class Booked(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """`owned`: ns each interval owns in the ledger. A collective starts at its last arrival where that is known.
    `launcher`: the host row that launched an interval (a CPU: that is it), -1 for none. `begins`: whether the work
    begins here, and does not go on after an interruption. `flops`, `bytes`: -1 where unknown. Of each host row:
    `phase` as a place in words.PHASES, `cause` a row of `causes` (an account in text form, -1 none) and `host_module`.
    In full steps the rank was the last to come to `last` of the `met` collectives that it was matched in.
    """

    events: Events
    pairs: tuple[tuple[Account, str], ...]
    parts: tuple[BookedPart, ...]
    start: I64
    stop: I64
    key: I32
    name: I32
    module: I32
    launcher: I32
    begins: Mask
    owned: I64
    flops: I64
    bytes: I64
    collectives: dict[int, Collective] = {}
    idle: Idle
    waits: Late
    phase: I8
    cause: I8
    causes: tuple[str, ...] = ()
    host_module: I32
    last: int = 0
    met: int = 0

    @property
    def steps(self) -> int:
        """How many full steps there are: what per-step figures are divided by. All parts, where none is full."""
        return sum(not part.partial for part in self.parts) or len(self.parts)

    def step_of(self, time: I64) -> I64:
        """The place in `parts` of the full step each time lies in, -1 for none."""
        bounds = np.array([self.parts[0].start, *(part.stop for part in self.parts)], np.int64)
        counts = np.array([not part.partial for part in self.parts])
        if not counts.any():
            counts[:] = True
        place = np.searchsorted(bounds, time, "right") - 1
        inside = (place >= 0) & (place < len(counts))
        return np.where(inside & counts[np.clip(place, 0, len(counts) - 1)], place, -1)

    def full(self, time: I64) -> Mask:
        """Whether each time lies in a full step."""
        return self.step_of(time) >= 0

    def keys(self, wanted: Callable[[Account, str], bool]) -> Mask:
        """Of each row of `pairs`, whether its account and phase are wanted."""
        return np.array([wanted(account, phase) for account, phase in self.pairs], bool)

    def names(self, wanted: Callable[[str], object]) -> Mask:
        """Of each name number, whether it is wanted; each text is asked once. The last one stands for -1."""
        return np.array([bool(wanted(name)) for name in self.events.names] + [False], bool)

    @property
    def on_device(self) -> bool:
        """Whether a device did the work; else the training thread itself."""
        return len(self.events.work) > 0
