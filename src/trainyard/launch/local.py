"""Launcher for ranks on this machine, under a supervisor of torch's elastic agents."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec.structs import replace

from trainyard.errors import BadInput, EnvironmentFailed, MissingLibrary, PortInUse, UnknownName
from trainyard.launch.launch_spec import FILE, TOKEN, Spec
from trainyard.launch.process_lock import lock_for_processes
from trainyard.launch.supervisor import failure_report as failures
from trainyard.launch.supervisor.failure_report import Failure
from trainyard.launch.supervisor.signed_store import draw_token
from trainyard.launch_request import JobStatus, LaunchRequest

_GRACE_S = 5.0
"""Seconds that the supervisor has to end every process before it is killed."""


class Local:
    """The launcher `local`: ranks on this machine, under a supervisor.

    Only the process that started a job can query it, and the job ends with that process.
    """

    starts = "ranks"

    def __init__(self) -> None:
        """A launcher that has not started a job yet."""
        self._started: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        """Job id, the supervisor's process id -> (its process, the folder of the job's files)."""

    def render(self, request: LaunchRequest) -> Mapping[str, str]:
        """Return the files that `submit` needs, name -> contents: `launch.json`.

        `request.command`: a Python module, which each rank runs, and its arguments; `request.port`: port at which the
        job's agents meet, a free one if None. Raises `PortInUse`.
        """
        job, options = request.job, request.ranks
        port = _check_port(request.port) if request.port is not None else 0
        module, *args = request.command
        spec = Spec(
            ranks=job.layout.ranks,
            port=port,
            module=module,
            args=tuple(args),
            nodes=job.recovery.nodes,
            ranks_per_node=job.recovery.ranks_per_node,
            sizes=options.sizes,
            max_restarts=job.recovery.max_restarts,
            hang_timeout_s=job.recovery.hang_timeout_s,
            preload=options.preload,
            environment={name: variable.value for name, variable in request.environment.items()},
        )
        if (head := options.head) is not None:
            spec = replace(
                spec,
                host=head.host,
                port=head.port,
                started=1,
                gather_s=head.gather_s,
                job_id=head.job_id,
                files=options.files,
            )
        return {FILE: msgspec.json.encode(spec).decode()}

    def submit(self, files: Path) -> str:
        """Start the job in the folder `files`, which has the files of `render`; return the job's id.

        The id is the process id of the supervisor, whose agents start the ranks. Output goes to `logs/`. Raises
        `MissingLibrary` without torch, and `RunInUse` if processes of an earlier attempt do not end.
        """
        check_torch()
        failures.forget(files)
        logs = files / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / "launcher.log").open("ab") as log, lock_for_processes(files) as lock:
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
                env={**os.environ, TOKEN: draw_token()},
                pass_fds=(lock,),
                start_new_session=True,  # so that Ctrl-C reaches only this process, which ends the others in order
            )
        self._started[str(process.pid)] = (process, files)
        return str(process.pid)

    def status(self, id: str) -> JobStatus:
        """Return the status of a job that this object started; a failed job's has the rank that failed and why."""
        process, files = self._find(id)
        code = process.poll()
        if code is None:
            return JobStatus(state="running")
        logs = tuple(map(str, sorted((files / "logs").glob("*.*"))))
        if code == 0:
            return JobStatus(state="ended", logs=logs)
        failure = self.failure(id)
        return JobStatus(
            state="preempted" if failure.kind == "preempted" else "failed",
            reason=failure.summary,
            next_step=failure.next_step,
            rank=failure.rank,
            logs=logs,
        )

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

    def cancel(self, id: str, *, save: bool = False) -> None:
        """End every process of the job without saving: SIGINT to the supervisor, and after 5 seconds SIGKILL to all.

        `save`: only ask the job to save its state and leave (SIGTERM); its state is then `preempted`. No effect on a
        job that has ended.
        """
        process, _ = self._find(id)
        if save:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            return
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


def check_torch() -> None:
    """Raise `MissingLibrary` if torch is not installed."""
    if find_spec("torch") is None:
        raise MissingLibrary("torch is not installed.", "pip install 'trainyard[train]'")


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
