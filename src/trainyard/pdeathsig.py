"""Children die with their parent, even if the parent is killed with SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, how: signal.Signals) -> None:
    """Request the signal `how` from the kernel when the parent ends; exit at once if it has already ended.

    Linux only (prctl(2)); on other systems only the launcher's signal handlers stop its children.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)
