"""Process names in `ps` and `top`: the role of each process of a job, as all have the same command line."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_NAME = 15


def set_process_name(part: str) -> None:
    """Name this process `ty-PART`, of which the kernel keeps 15 characters. No effect outside Linux (prctl(2))."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"ty-{part}".encode(), 0, 0, 0)
