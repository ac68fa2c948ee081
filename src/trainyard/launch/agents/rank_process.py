"""Set up a rank's process, which the agent forks from a process that has torch loaded, and run its module.

Its output goes to `LOGS/rank<N>.out` and `.err`, its process id to `.pid`; it dies with the agent. It writes when and
why it failed to `.failed`: the earliest failure is the cause, the others follow from it. On SIGUSR1 it writes the
stacks of all its threads to `.stacks`, on SIGUSR2 and at a failure its flight record to `.flight`.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from trainyard.launch import epoch
from trainyard.launch.agents import rank_progress
from trainyard.launch.agents.flight_recorder import FlightRecorder
from trainyard.launch.agents.process_title import set_process_name
from trainyard.launch.agents.rank_progress import Heartbeat
from trainyard.launch.launch_spec import PLANNED_ENDS, EndedByRecipe
from trainyard.launch.supervisor import resource_exhaustion
from trainyard.launch.supervisor.device_errors import describe_device_error
from trainyard.pdeathsig import die_with_parent
from trainyard.redact import redact


def main(
    logs: Path, parent: int, environment: Mapping[str, str], heartbeat: Heartbeat, module: str, args: Sequence[str]
) -> None:
    """Run the rank's module in the forked process, as `python -m MODULE ARGS`.

    Raises whatever ends the module, which ends the process. `logs`: folder of its output; `parent`: the agent's process
    id; `environment`: variables of the rank, such as RANK; `heartbeat`: the memory in which it records its progress.
    """
    die_with_parent(parent, signal.SIGKILL)
    os.environ.update(environment)
    name = f"rank{os.environ['RANK']}"
    set_process_name(name)
    signal.signal(signal.SIGTERM, _ignore_notice)
    # Processes that the rank forks, such as loader workers, end on SIGTERM as usual.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    for stream, suffix in ((sys.stdout, "out"), (sys.stderr, "err")):
        stream.flush()
        target = os.open(logs / f"{name}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1 if suffix == "out" else 2)
        os.close(target)
    (logs / f"{name}.pid").write_text(str(os.getpid()))
    for suffix in ("failed", "stacks", "flight"):
        (logs / f"{name}.{suffix}").unlink(missing_ok=True)  # from an earlier attempt
    faulthandler.enable()
    stacks = os.open(logs / f"{name}.stacks", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    rank_progress.set_own_heartbeat(heartbeat)
    recorder = FlightRecorder(logs / f"{name}.flight", logs.parent.name, heartbeat.steps)
    recorder.start()
    sys.argv = [module, *args]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as error:
        # If a loader's worker has ended, torch's SIGCHLD handler raises an exception in whatever runs at the time.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if isinstance(error, EndedByRecipe):
            write_failure(logs / f"{name}.failed", epoch.now_ns(), error.message)
        elif not isinstance(error, SystemExit) or error.code not in (None, *PLANNED_ENDS):
            failed_ns = epoch.now_ns()
            reason = "".join(traceback.format_exception_only(error)).strip()
            explanations = (resource_exhaustion.storage(error, [str(logs)]), describe_device_error(error))
            reason = "\n".join(filter(None, (reason, *explanations)))
            recorder.write(reason, exit_code=1)  # before the report, after which the agent reads it
            write_failure(logs / f"{name}.failed", failed_ns, reason)
        raise


def _ignore_notice(sign: int, frame: FrameType | None) -> None:
    """Ignore a SIGTERM: a cluster sends it to every process, and the supervisor handles it for all ranks at once."""


def write_failure(path: Path, time_ns: int, reason: str) -> None:
    """Write a rank's report of its failure, without secrets. `time_ns`: ns since the epoch."""
    path.write_text(f"{time_ns}\n{redact(reason)}", "utf-8")


def read_failure(path: Path) -> tuple[int, str]:
    """Read a rank's report of its failure: (time in ns since the epoch, reason); 0 and "" if it could not report."""
    try:
        time_ns, _, reason = path.read_text("utf-8").partition("\n")
        return int(time_ns), reason
    except (OSError, ValueError):
        return 0, ""
