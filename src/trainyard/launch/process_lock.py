"""The lock that the processes of a job hold on its folder until the last of them has ended.

The supervisor inherits the locked file, and passes it on to its agents and ranks: a killed command or supervisor leaves
ranks that end some tenths of a second later, and another attempt in the same folder must not start before that.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import RunInUse

FILE = "processes.lock"
"""Name of the locked file in the job's folder."""
_WAIT_S = 10.0
_POLL_S = 0.02


@contextmanager
def lock_for_processes(folder: Path, wait_s: float = _WAIT_S, hint: str = "") -> Iterator[int]:
    """Lock the file in `folder`; yield its descriptor, for `pass_fds` of a child process. `hint`: the next step if the
    folder is in use; empty for the folder of a run.

    The lock ends when this context has ended and all processes that inherited the descriptor have. Waits up to `wait_s`
    seconds for the processes of an earlier attempt; then raises `RunInUse`.
    """
    deadline_s = time.monotonic() + wait_s
    with (folder / FILE).open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline_s:
                    raise RunInUse(
                        f"processes of an earlier attempt in {folder} have not ended for {wait_s:g} s.",
                        hint or f"Their process ids are in {folder / 'logs'}/*.pid: end them first.",
                    ) from error
            time.sleep(_POLL_S)
        yield file.fileno()  # closing the file does not unlock it for those that inherited it
