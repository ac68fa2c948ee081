"""Children die with their parent, even if the parent is killed with SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""prctl's option that sets the signal to receive if the parent ends (linux/prctl.h)."""


def die_with_parent(parent: int, how: signal.Signals) -> None:
    """Requests the signal `how` from the kernel for when the parent ends; exits at once if it has already ended. Called
    in the child, after it was started. `parent`: the parent's process id.

    Linux only (prctl(2)); on other systems only the launcher's signal handlers stop its children.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)
