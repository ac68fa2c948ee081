"""Booked: one rank's Events with the attribution of every interval, as numpy columns that the diagnosis rules read.

Shapes: n intervals (device work in its order; on a CPU the training thread's intervals, then the collectives), k idle
intervals, m host rows (those of `events.host`), w waits for late ranks. Times are integer ns. `key` columns index
`pairs`; `module` columns index `events.names`, -1 for none.
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
    """An interval of the rank's window, [start, stop). `partial`: not a full step, so excluded from every mean; `kind`:
    a key of words.PARTS."""

    label: str
    start: int
    stop: int
    partial: bool = False
    kind: str = "step"


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """k intervals, sorted by start, in which the device (on a CPU, the training thread) was idle. `ns`: time booked to
    each; `host`: the innermost host span open on the thread that launches the next work, -1 for none; `next`: the
    interval that ends the idle time, -1 for none."""

    start: I64
    stop: I64
    key: I32
    ns: I64
    host: I32
    next: I32


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """w waits of this rank in collectives for the rank `late` to arrive; `ns`: time booked to each."""

    start: I64
    stop: I64
    key: I32
    late: I32
    ns: I64


class Booked(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """One rank's booked profile.

    Per interval (n): `owned`: ns booked to it in the ledger; `start`: a collective starts when the last rank arrives,
    if that is known; `launcher`: the host row that launched it (on a CPU, its own row), -1 for none; `begins`: False if
    it resumes work that was interrupted; `flops`, `bytes`: -1 if unknown. Per host row (m): `phase`: an index into
    words.PHASES; `cause`: an index into `causes` (accounts in text form), -1 for none; `host_module`. `met`:
    collectives in full steps that were matched across ranks; `last`: those at which this rank arrived last.
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
        """Number of full steps, the divisor of per-step figures; number of all parts if none is full."""
        return sum(not part.partial for part in self.parts) or len(self.parts)

    def step_of(self, time: I64) -> I64:
        """Index into `parts` of the full step that contains each time (ns); -1 for none. If no part is full, all parts
        count as full."""
        bounds_ns = np.array([self.parts[0].start, *(part.stop for part in self.parts)], np.int64)
        is_full = np.array([not part.partial for part in self.parts])
        if not is_full.any():
            is_full[:] = True
        index = np.searchsorted(bounds_ns, time, "right") - 1
        is_inside = (index >= 0) & (index < len(is_full))
        return np.where(is_inside & is_full[np.clip(index, 0, len(is_full) - 1)], index, -1)

    def full(self, time: I64) -> Mask:
        """Mask of the times that lie in a full step."""
        return self.step_of(time) >= 0

    def keys(self, accepts: Callable[[Account, str], bool]) -> Mask:
        """Mask over `pairs`: True for each (account, phase) that `accepts` holds for. Index it with a `key` column to
        select rows."""
        return np.array([accepts(account, phase) for account, phase in self.pairs], bool)

    def names(self, accepts: Callable[[str], object]) -> Mask:
        """Mask over `events.names`: True for each name that `accepts` holds for, evaluated once per name. Index it with
        a `name` or `module` column; the extra last element, False, is what the index -1 selects."""
        return np.array([bool(accepts(name)) for name in self.events.names] + [False], bool)

    @property
    def on_device(self) -> bool:
        """Whether the work ran on a device, rather than on the training thread."""
        return len(self.events.work) > 0
