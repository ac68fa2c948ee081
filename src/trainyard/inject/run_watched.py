"""Run a command whose Python processes import our sitecustomize."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from trainyard.inject.python_path import python_path
from trainyard.pdeathsig import die_with_parent

_STDERR = 2
_PATIENCE_S = 10
"""Time that an interrupted command has to end."""


def run_watched(command: Sequence[str], variables: Mapping[str, str], inherited: Collection[int] = ()) -> int:
    """Runs a command to its end, with its output on stderr. Returns its exit code, negative for a signal.

    `variables`: added to its environment. `inherited`: file descriptors that stay open in the command. An interrupt is
    passed on, and the command is killed if it does not end within 10 seconds. If this process is killed, the command
    receives SIGTERM.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ), **variables}
    end_with_parent = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    with subprocess.Popen(
        command,
        stdout=_STDERR,
        env=environment,
        pass_fds=tuple(inherited),
        preexec_fn=end_with_parent,  # noqa: PLW1509 - between fork and exec it needs no lock that a thread of ours holds
    ) as process:
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
