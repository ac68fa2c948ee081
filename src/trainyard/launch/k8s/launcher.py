"""The launcher `k8s`: applies manifests with `kubectl`, and reads the state of the job and its pods from it.

The job's id is `NAMESPACE/RESOURCE/NAME`, such as `default/jobset/trainyard-1a2b3c4d`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainyard.errors import BadInput, SchedulerFailed, UnknownName
from trainyard.launch.k8s.manifests import OPTIONS, render_manifests, secret_name
from trainyard.launch.k8s.pod_states import status_of
from trainyard.launch.request_checks import check_checkpoint_folder, check_options, check_request
from trainyard.launch.scheduler_tool import run_tool
from trainyard.launch.supervisor.signed_store import draw_token
from trainyard.launch_request import JobStatus, LaunchRequest

MANIFEST = "manifest.json"
_RESOURCES = {"JobSet": "jobset", "TrainJob": "trainjob", "Job": "job"}
_INSTALL = "Install kubectl, and set KUBECONFIG or ~/.kube/config for the cluster."
_NEXT_STEPS = {
    'no matches for kind "jobset"': "Install JobSet in the cluster, or use --option kind=job.",
    'no matches for kind "trainjob"': "Install Kubeflow Trainer in the cluster, or use --option kind=job.",
    "forbidden": "Your account may not do this in the namespace: ask for the role, or pass --option namespace=NAME.",
    "connection refused": "Check that the cluster is up and that kubectl's context is the right one.",
    "unable to connect": "Check that the cluster is up and that kubectl's context is the right one.",
    "exceeded quota": "The quota of the namespace is used up: wait, or request less.",
    "namespaces": "Create the namespace, or pass --option namespace=NAME.",
}


class Kubernetes:
    """Jobs on a Kubernetes cluster.

    Options (`SchedulerOptions.options`): `kind` (jobset, trainjob, job), `namespace`, `shm` (size of /dev/shm), `rdma`
    (resource name of RDMA adapters and their number, as `rdma/hca:8`), `topology` (topology key of which the job gets a
    domain for itself), `claim` (PersistentVolumeClaim mounted at the shared folder), `runtime` (of a TrainJob), `cpu`
    (CPUs to request for each pod), `memory` (of each pod, requested and its limit).
    """

    starts = "nodes"

    def render(self, request: LaunchRequest) -> Mapping[str, str]:
        """Return `manifest.json`, a List of the job's objects. Raises `BadInput` for options that Kubernetes lacks."""
        check_request(request)
        check_checkpoint_folder(request)
        check_options(request, "Kubernetes", OPTIONS, ("--account", "--array", "--host", "--qos"))
        if len(request.components) > 1:
            raise BadInput("components of different nodes are not supported on Kubernetes.", "Use --nodes.")
        objects = {"apiVersion": "v1", "kind": "List", "items": render_manifests(request)}
        return {MANIFEST: json.dumps(objects, indent=1) + "\n"}

    def submit(self, files: Path) -> str:
        """Create the Secret with the job's token, and apply `manifest.json`; return the job's id. If that fails, the
        Secret is deleted again."""
        items = json.loads((files / MANIFEST).read_text("utf-8"))["items"]
        metadata, kind = items[-1]["metadata"], items[-1]["kind"]
        namespace, name = metadata["namespace"], metadata["name"]
        token = {"token": draw_token()}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret_name(name), "namespace": namespace, "labels": metadata["labels"]},
            "stringData": token,
        }
        _kubectl(["create", "-f", "-"], stdin=json.dumps(secret))
        try:
            _kubectl(["apply", "-f", str(files / MANIFEST)])
        except SchedulerFailed:
            with suppress(SchedulerFailed):
                self.cancel(f"{namespace}/{_RESOURCES[kind]}/{name}")
            raise
        return f"{namespace}/{_RESOURCES[kind]}/{name}"

    def status(self, id: str) -> JobStatus:
        """Return the status of a job, with the reason of a pod that waits or has failed."""
        namespace, resource, name = _split(id)
        try:
            job = json.loads(_kubectl(["get", resource, name, "-n", namespace, "-o", "json"]))
        except SchedulerFailed as error:
            if "not found" in error.output.lower():
                raise UnknownName(f"there is no {resource} {name} in the namespace {namespace}.") from error
            raise
        selector = _pod_selector(resource, name)
        pods = json.loads(_kubectl(["get", "pods", "-n", namespace, "-l", selector, "-o", "json"]))["items"]
        logs = ("kubectl", "logs", "-n", namespace, "-l", selector, "--prefix", "--tail=-1", "--max-log-requests=1000")
        return status_of(job, pods, logs)

    def cancel(self, id: str, *, save: bool = False) -> None:
        """Delete the job's objects. Its pods receive SIGTERM, and save their state within the job's grace period;
        without `save` they get one second."""
        namespace, resource, name = _split(id)
        grace = [] if save else ["--grace-period=1"]
        for word, each in ((resource, name), ("service", name), ("configmap", name), ("secret", secret_name(name))):
            _kubectl(["delete", word, each, "-n", namespace, "--ignore-not-found", "--wait=false", *grace])
        if not save:
            # The grace period of a job does not apply to its pods; the Job of a JobSet would replace deleted pods.
            kinds = ("pods",) if resource == "job" else ("jobs", "pods")
            selected = {"jobs": f"jobset.sigs.k8s.io/jobset-name={name}", "pods": _pod_selector(resource, name)}
            for kind in kinds:
                _kubectl(["delete", kind, "-l", selected[kind], "-n", namespace, "--wait=false", *grace])


def _pod_selector(resource: str, name: str) -> str:
    """The label of a job's pods. Those of a TrainJob have that of the JobSet that Kubeflow Trainer creates for it."""
    return f"jobset.sigs.k8s.io/jobset-name={name}" if resource == "trainjob" else f"trainyard-launch={name}"


def _kubectl(words: Sequence[str], stdin: str | None = None) -> str:
    """Run kubectl; return its stdout. `stdin`: its input."""
    return run_tool(["kubectl", *words], install=_INSTALL, next_steps=_NEXT_STEPS, stdin=stdin)


def _split(id: str) -> tuple[str, str, str]:
    """(namespace, resource, name) of a job's id. Raises `UnknownName` for another text."""
    parts = id.split("/")
    if len(parts) != 3 or parts[1] not in _RESOURCES.values() or any(not part or part[0] == "-" for part in parts):
        raise UnknownName(f"{id!r} is not the id of a job on Kubernetes.", "Ids are NAMESPACE/RESOURCE/NAME.")
    return parts[0], parts[1], parts[2]
