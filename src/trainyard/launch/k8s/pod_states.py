"""Status of a job on Kubernetes from its object and its pods, as `kubectl get -o json` prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.launch_request import JobState, JobStatus
from trainyard.redact import redact

_ENDED = ("Complete", "Completed", "SuccessCriteriaMet")
_WAITING = {
    "ErrImagePull": "Check the name of --image, and that the cluster may pull it.",
    "ImagePullBackOff": "Check the name of --image, and that the cluster may pull it.",
    "InvalidImageName": "Check the name of --image.",
    "CreateContainerConfigError": "An object that the pod refers to does not exist; `kubectl describe pod` names it.",
    "CrashLoopBackOff": "`trainyard launch logs` prints its output.",
}
"""Reason of a container that waits because of a fault -> next step."""


def status_of(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], log_command: tuple[str, ...]) -> JobStatus:
    """The status of a job. `job`: a JobSet, TrainJob or Job; `pods`: its pods; `log_command`: prints their logs."""
    status = job.get("status") or {}
    true = {c.get("type"): c for c in status.get("conditions") or [] if c.get("status") == "True"}
    nodes = tuple(dict.fromkeys(name for pod in pods if (name := (pod.get("spec") or {}).get("nodeName"))))
    restarts = int(status.get("restarts") or 0)

    def result(state: JobState, reason: str = "", next_step: str = "") -> JobStatus:
        """The status in this state."""
        return JobStatus(
            state=state,
            reason=redact(reason),
            next_step=next_step,
            nodes=nodes,
            log_command=log_command,
            restarts=restarts,
        )

    if any(name in true for name in _ENDED):
        return result("ended")
    if failed := true.get("Failed"):
        if failed.get("reason") == "DeadlineExceeded" or "DeadlineExceeded" in failed.get("message", ""):
            return result(
                "failed",
                "The job reached its time limit: its pods had their grace period to save, and do not start again.",
                "Launch it with a longer --time-limit.",
            )
        text = f"{failed.get('reason', 'Failed')}: {failed.get('message', '')}".rstrip(": ")
        return result("failed", f"{text}. {_failed_pod(pods)}".strip(), "`trainyard launch logs` prints its output.")
    if suspended := true.get("Suspended"):
        return result("pending", f"The job waits in its queue: {suspended.get('message', 'it is suspended')}.")
    phases = [(pod.get("status") or {}).get("phase") for pod in pods]
    if pods and all(phase in ("Running", "Succeeded") for phase in phases):
        return result("running")
    reason, next_step = _waiting_pod(pods)
    return result("running" if "Running" in phases and not reason else "pending", reason, next_step)


def _waiting_pod(pods: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """(why a pod does not start, next step); empty if no pod says why."""
    for pod in pods:
        name, status = (pod.get("metadata") or {}).get("name", "a pod"), pod.get("status") or {}
        for condition in status.get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                message = condition.get("message") or condition.get("reason") or "no reason is given"
                return (
                    f"Pod {name} is not scheduled: {message.rstrip('.')}.",
                    "Request less, or change --constraint, --option rdma or --option topology; `kubectl get nodes`.",
                )
        for container in status.get("containerStatuses") or []:
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _WAITING:
                message = f": {waiting['message']}" if waiting.get("message") else ""
                return f"Pod {name} does not start: {waiting['reason']}{message}.", _WAITING[waiting["reason"]]
    return "", ""


def _failed_pod(pods: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on the first container that ended with an error; empty if there is none."""
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                name = (pod.get("metadata") or {}).get("name", "a pod")
                return f"Pod {name} ended with exit code {ended['exitCode']} ({ended.get('reason', 'Error')})."
    return ""
