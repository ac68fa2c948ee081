"""Launcher for ranks on this machine, under a supervisor of torch's elastic agents."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec.structs import replace

from trainyard.errors import BadInput, EnvironmentFailed, MissingLibrary, PortInUse, UnknownName
from trainyard.job import Job
from trainyard.launch.launch_spec import FILE, TOKEN, HeadAddress, Spec
from trainyard.launch.supervisor import failure_report as failures
from trainyard.launch.supervisor.failure_report import Failure

_GRACE_S = 5.0
"""Seconds that the supervisor has to end every process before it is killed."""


class Local:
    """A `Launcher` for this machine.

    `port`: port at which the job's agents meet; a free one if None. `environment`: variables for the ranks, unless this
    process's environment sets them. `sizes`: node counts with which the job can continue; only all nodes if empty.
    `preload`: modules that are imported once for all ranks. `head`: where nodes on other hosts connect; None if all
    nodes are simulated on this machine. `files`: names of the job's files that those nodes need.
    """

    def __init__(
        self,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        sizes: Sequence[int] = (),
        preload: Sequence[str] = (),
        head: HeadAddress | None = None,
        files: Sequence[str] = (),
    ) -> None:
        """Keeps the settings, which the class describes; `submit` starts jobs."""
        self.port = port
        self.environment = environment or {}
        self.sizes = tuple(sizes)
        self.preload = tuple(preload)
        self.head = head
        self.files = tuple(files)
        self._started: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        """Job id, the supervisor's process id -> (its process, the folder of the job's files)."""

    def render(self, job: Job, command: Sequence[str]) -> Mapping[str, str]:
        """Return the files that `submit` needs, name -> contents: `launch.json`.

        `command`: a Python module, which each rank runs, and its arguments. Raises `PortInUse`.
        """
        port = _check_port(self.port) if self.port is not None else 0
        module, *args = command
        spec = Spec(
            ranks=job.layout.ranks,
            port=port,
            module=module,
            args=tuple(args),
            nodes=job.recovery.nodes,
            sizes=self.sizes,
            max_restarts=job.recovery.max_restarts,
            hang_timeout_s=job.recovery.hang_timeout_s,
            preload=self.preload,
        )
        if self.head is not None:
            spec = replace(
                spec,
                host=self.head.host,
                port=self.head.port,
                started=1,
                gather_s=self.head.gather_s,
                job_id=self.head.job_id,
                files=self.files,
            )
        return {FILE: msgspec.json.encode(spec).decode()}

    def submit(self, files: Path) -> str:
        """Start the job in the folder `files`, which has the files of `render`; return the job's id.

        The id is the process id of the supervisor, whose agents start the ranks. Output goes to `logs/`. Raises
        `MissingLibrary` without torch.
        """
        if find_spec("torch") is None:
            raise MissingLibrary("torch is not installed.", "pip install 'trainyard[train]'")
        failures.forget(files)
        token = os.environ.get(TOKEN) or secrets.token_hex(16)
        logs = files / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / "launcher.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "trainyard.launch.supervisor.supervisor_main",
                    str(files / FILE),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.environment, **os.environ, TOKEN: token},
                start_new_session=True,  # so that Ctrl-C reaches only this process, which ends the others in order
            )
        self._started[str(process.pid)] = (process, files)
        return str(process.pid)

    def status(self, id: str) -> str:
        """Return `running`, `ended` or `failed: REASON`."""
        code = self._find(id)[0].poll()
        if code is None:
            return "running"
        return "ended" if code == 0 else f"failed: {self.failure(id).says}"

    def failure(self, id: str) -> Failure:
        """Return the failure of a job that failed: that of a rank, as the supervisor recorded it, else that of the
        supervisor itself, with the end of its log."""
        process, files = self._find(id)
        return failures.read(files) or Failure(
            rank=-1,
            pid=process.pid,
            exit_code=process.returncode or 0,
            when=time.time(),
            last_words=failures.tail(files / "logs" / "launcher.log"),
        )

    def notice(self, id: str) -> None:
        """Ask the job to save its state and leave; it then counts as failed, with the kind `preempted`."""
        process, _ = self._find(id)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)

    def cancel(self, id: str) -> None:
        """End every process of the job without saving: SIGINT to the supervisor, and after 5 seconds SIGKILL to all.

        No effect on a job that has ended.
        """
        process, _ = self._find(id)
        for end_process in (lambda: process.send_signal(signal.SIGINT), lambda: os.killpg(process.pid, signal.SIGKILL)):
            if process.poll() is not None:
                return
            end_process()
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                continue

    def _find(self, id: str) -> tuple[subprocess.Popen[bytes], Path]:
        if id not in self._started:
            raise UnknownName(f"this launcher has not started a job {id!r}.")
        return self._started[id]


def _check_port(port: int) -> int:
    """Return `port` if it is free on the loopback address. Raises `BadInput`, `PortInUse` or `EnvironmentFailed`."""
    if not 0 < port < 65536:
        raise BadInput(f"{port} is not a port number.", "Use 1 to 65535, or omit --port to use a free port.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"port {port} on 127.0.0.1 is in use by another program.",
                    "Omit --port to use a free port.",
                ) from error
            raise EnvironmentFailed(f"port {port} on 127.0.0.1 cannot be used: {error.strerror}.") from error
    return port
