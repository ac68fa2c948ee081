"""Waits for conditions and for the end of processes."""

import time
from collections.abc import Callable
from pathlib import Path


def gone(pid: int) -> bool:
    """Whether the process has ended; its parent need not have collected its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Waits until `condition` holds; false if it does not within `seconds`."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()
