"""The section "What if" of a page as plain data: the levers, and the mean step at each replayed grid point."""

from __future__ import annotations

import msgspec


class WhatIfLever(msgspec.Struct, frozen=True, kw_only=True):
    """A slider or switch. `key`: the target of its change; `speeds`: the factors with a replay, 1 first; (1, 0) for a
    switch; `value`: of the target when switched on, or empty; `assumes`: the assumption of its change; `unavailable`:
    why the trace does not support it, or empty; `includes`: the key of a lever whose change is a part of this one, or
    empty. They are not combined."""

    key: str
    label: str
    speeds: tuple[int, ...]
    value: str = ""
    assumes: str
    unavailable: str = ""
    includes: str = ""


class WhatIfDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothetical device: the settings of the levers that describe it."""

    label: str
    settings: tuple[int, ...]


class WhatIfPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A replayed mean step at `settings`, an index into the speeds of each lever. `changes`: as for `trainyard trace
    what-if`; `ns`: time in each account, in the order of `WhatIfSection.accounts`, None if it was not
    booked; `interval_ns`: the 80 % interval of
    `recovered_ns`, None for fewer than two steps."""

    settings: tuple[int, ...]
    changes: tuple[str, ...]
    wall_ns: int
    recovered_ns: int
    interval_ns: tuple[int, int] | None
    ns: tuple[int, ...] | None


class WhatIfSection(msgspec.Struct, frozen=True, kw_only=True):
    """The replayed points, and the measured step to compare them with. `accounts`: (account, label, colour); `ns`: the
    measured time in each; `order`: the keys of the levers in the order in which their changes are applied; `steps`:
    full steps that were compared; `combinations`: of all settings; `command`: predicts a combination, to which
    `--change CHANGE` is appended; `full_command`: replays all combinations; `not_replayed`: why there are no points, or
    empty."""

    levers: tuple[WhatIfLever, ...]
    devices: tuple[WhatIfDevice, ...] = ()
    points: tuple[WhatIfPoint, ...] = ()
    accounts: tuple[tuple[str, str, str], ...] = ()
    wall_ns: int
    ns: tuple[int, ...] = ()
    order: tuple[str, ...] = ()
    steps: int = 0
    combinations: int
    command: str
    full_command: str
    not_replayed: str = ""
    assumes: str
    """What every replay assumes."""
