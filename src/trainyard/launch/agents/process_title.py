"""What `ps` and `top` show of a job's processes: the part each plays, where all have the same command line."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_NAME = 15


def set_process_name(part: str) -> None:
    """Names this process `ty-PART`; the kernel keeps 15 characters. Linux only (prctl(2)), and nothing elsewhere."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"ty-{part}".encode(), 0, 0, 0)
