"""No process outlives the one that started it: a kill -9 of the parent reaches the child."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, how: signal.Signals) -> None:
    """Asks the kernel for the signal `how` when the parent ends; exits at once if it has already ended.

    Linux only (prctl(2)); elsewhere the launcher's own handlers do what they can.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)
