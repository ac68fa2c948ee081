"""The launcher `ray`: submits a job to a Ray cluster through its jobs API.

The job's id is `ADDRESS#SUBMISSION`: the address of the cluster's dashboard and the id of the submission.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trainyard import job_file
from trainyard.errors import BadInput, EnvironmentFailed, MissingLibrary, SchedulerFailed, UnknownName
from trainyard.launch.launch_spec import LEFT
from trainyard.launch.ray.nodes_file import FILE, Nodes
from trainyard.launch.request_checks import (
    check_checkpoint_folder,
    check_equal_nodes,
    check_options,
    check_request,
)
from trainyard.launch_request import LEFT_ON_REQUEST, JobState, JobStatus, LaunchRequest
from trainyard.redact import redact

SUBMISSION = "submission.json"
_DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_STATES: Mapping[str, JobState] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "ended",
    "STOPPED": "cancelled",
    "FAILED": "failed",
}


class _Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What is submitted. `address`: of the cluster's dashboard; `runtime_env`: as Ray's jobs API takes it."""

    address: str
    entrypoint: str
    submission_id: str
    runtime_env: dict[str, Any]
    metadata: dict[str, str]


class Ray:
    """Jobs on a Ray cluster.

    Options (`SchedulerOptions.options`): `address` of the dashboard, by default $RAY_ADDRESS or the local one; `cpus`
    of each node's bundle; `wait_s`, seconds that the job waits for its nodes.
    """

    starts = "nodes"

    def render(self, request: LaunchRequest) -> Mapping[str, str]:
        """Return `submission.json`, and the files of the job's working directory. Raises `BadInput` for options that
        Ray does not have."""
        check_request(request)
        check_equal_nodes(request, "Ray")
        check_checkpoint_folder(request)
        lacks = ("--account", "--array", "--constraint", "--host", "--partition", "--qos", "--time-limit")
        check_options(request, "Ray", ("address", "cpus", "wait_s"), lacks)
        options, scheduler = request.scheduler.options, request.scheduler
        if request.container:
            raise BadInput(
                "Ray cannot run a job with files in a container of its own.",
                "Omit --image, and start the nodes of the Ray cluster in the image.",
            )
        resources = {"CPU": _number(options, "cpus", 1.0)}
        if scheduler.accelerators_per_node:
            resources["GPU"] = float(scheduler.accelerators_per_node)
        nodes = Nodes(
            command=request.command,
            id=request.id,
            nodes=request.nodes,
            resources=resources,
            port=request.port or 0,
            folder=request.node_folder,
            shared=request.shared_folder,
            wait_s=int(_number(options, "wait_s", 3600.0)),
            max_restarts=request.job.recovery.max_restarts,
        )
        variables = {name: variable.value for name, variable in request.environment.items()}
        # Seconds between SIGTERM and SIGKILL for a job that is stopped; Ray's default is 3.
        variables["RAY_JOB_STOP_WAIT_TIME_S"] = str(max(3, scheduler.notice_s))
        submission = _Submission(
            address=options.get("address") or os.environ.get("RAY_ADDRESS") or _DEFAULT_ADDRESS,
            entrypoint="python -m trainyard.launch.ray.driver",
            submission_id=f"trainyard-{request.id}",
            runtime_env={"env_vars": variables},
            metadata={"name": request.name},
        )
        return {
            SUBMISSION: _formatted(submission),
            f"working_dir/{FILE}": _formatted(nodes),
            "working_dir/job.toml": job_file.write(request.job),
        }

    def submit(self, files: Path) -> str:
        """Submit the job; return `ADDRESS#SUBMISSION`. Raises `MissingLibrary` without ray, or `EnvironmentFailed` if
        the cluster cannot be reached."""
        submission = msgspec.json.decode((files / SUBMISSION).read_bytes(), type=_Submission)
        client = _client(submission.address)
        try:
            client.submit_job(
                entrypoint=submission.entrypoint,
                submission_id=submission.submission_id,
                runtime_env={**submission.runtime_env, "working_dir": str(files / "working_dir")},
                metadata=submission.metadata,
            )
        except (RuntimeError, OSError) as error:
            raise SchedulerFailed(
                f"Ray refused the job: {_first_line(error)}", "Check the address and the job's id."
            ) from error
        return f"{submission.address}#{submission.submission_id}"

    def status(self, id: str) -> JobStatus:
        """Return the status of a job. Its logs are printed by `ray job logs`."""
        address, submission = _split(id)
        info = _info(address, submission)
        state = _STATES.get(str(getattr(info.status, "value", info.status)), "failed")
        code = getattr(info, "driver_exit_code", None)
        if state == "failed" and code == LEFT:
            state = "preempted"
        words = (sys.executable, "-m", "ray.scripts.scripts", "job", "logs", "--address", address, submission)
        error = _last_error(_client(address), submission) if state == "failed" else ""
        reason = {
            "pending": "Ray has not started the driver of the job yet.",
            "failed": error or redact(info.message or "The job failed."),
            "preempted": LEFT_ON_REQUEST,
        }.get(state, "")
        next_step = "`trainyard launch logs` prints its output." if state == "failed" else ""
        node = getattr(info, "driver_node_id", None)
        return JobStatus(
            state=state, reason=reason, next_step=next_step, nodes=(node,) if node else (), log_command=words
        )

    def cancel(self, id: str, *, save: bool = False) -> None:
        """Stop the job: SIGTERM, after which it saves its state, and SIGKILL after the job's `notice_s`. Ray knows one
        way to stop a job, so that `save` makes no difference."""
        address, submission = _split(id)
        if not self.status(id).is_over:
            _client(address).stop_job(submission)


def _client(address: str) -> Any:
    """Ray's client of the jobs API. Raises `MissingLibrary` or `EnvironmentFailed`."""
    try:
        from ray.exceptions import RayError
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise MissingLibrary("ray is not installed.", "pip install 'trainyard[ray]'") from None
    try:
        return JobSubmissionClient(address)
    except RayError as error:  # such as a missing token
        raise EnvironmentFailed(
            f"the Ray cluster at {address} refuses the connection: {_first_line(error)}",
            "Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as the cluster needs them.",
        ) from error
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise EnvironmentFailed(
            f"no Ray cluster answers at {address}: {_first_line(error)}",
            "Start one (ray start --head), or pass --option address=http://HOST:8265.",
        ) from error


def _info(address: str, submission: str) -> Any:
    """Ray's record of a submission. Raises `UnknownName` if there is none."""
    client = _client(address)
    try:
        return client.get_job_info(submission)
    except RuntimeError as error:
        raise UnknownName(f"Ray does not know the job {submission}: {_first_line(error)}") from error


def _last_error(client: Any, submission: str) -> str:
    """The last line of the job's output that begins with `error`; empty if there is none."""
    lines = [line for line in client.get_job_logs(submission).splitlines() if line.startswith("error")]
    return redact(lines[-1]) if lines else ""


def _split(id: str) -> tuple[str, str]:
    """(address, submission) of a job's id. Raises `UnknownName` for another text."""
    address, mark, submission = id.rpartition("#")
    if not mark:
        raise UnknownName(f"{id!r} is not the id of a job on Ray.", "Ids are ADDRESS#SUBMISSION.")
    return address, submission


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    """The option `name` as a positive number. Raises `BadInput`."""
    text = options.get(name)
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise BadInput(f"--option {name}={text} is not a positive number.", f"Write --option {name}=8.")
    return value


def _first_line(error: Exception) -> str:
    return redact((str(error).splitlines() or [type(error).__name__])[0])


def _formatted(document: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
