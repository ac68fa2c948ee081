"""Wait until other processes leave a machine to a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainyard.machine_load import MachineLoad
from trainyard.run.record.load_meter import present_load

_PAUSE_S = 0.75
"""Seconds between two measurements of the load, each of which takes a quarter of a second."""


def wait_until_idle(wait_s: float, say: Callable[[str], None]) -> MachineLoad | None:
    """The load of the machine once other processes leave it idle enough, or after `wait_s` seconds (0: at once).

    `say` is called once, with the load, if there is something to wait for. None if the kernel does not count CPU time.
    """
    deadline_s = time.monotonic() + wait_s
    load = present_load()
    is_waiting = False
    while load is not None and load.is_busy and time.monotonic() < deadline_s:
        if not is_waiting:
            say(
                f"Other processes use {load.other_cores + load.stolen_cores:.1f} of {load.cores} cores. Waiting up to "
                f"{wait_s:g} s until they are idle."
            )
            is_waiting = True
        time.sleep(min(_PAUSE_S, max(0.0, deadline_s - time.monotonic())))
        load = present_load()
    return load
