"""Kubernetes manifests of a job: a JobSet, a Kubeflow TrainJob, or an Indexed Job with a headless Service.

Each node of the job is a pod with a completion index, on a host of its own. The pods get the job file from a ConfigMap
and the token of the job from a Secret, which is created when the job is submitted and is not rendered.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from trainyard import job_file
from trainyard.errors import BadInput
from trainyard.launch.launch_spec import BAD_INPUT, LEFT, TOKEN
from trainyard.launch.request_checks import choose_port
from trainyard.launch_request import LaunchRequest

KINDS = ("jobset", "trainjob", "job")
OPTIONS = ("kind", "namespace", "shm", "rdma", "topology", "claim", "runtime", "cpu", "memory")
POD_GROUP = "node"
"""Name of the replicated job in a JobSet, as Kubeflow's runtimes name it, and of the container."""
_JOB_TEXT = "JOB_TOML"
"""Environment variable with the text of the job file."""
_INDEX = "JOB_COMPLETION_INDEX"
"""Environment variable with the index of a pod, which Kubernetes sets."""
_NAME_LABEL = "trainyard-launch"
_QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,3})?(m|k|[MGTP]|[KMGTP]i)?\Z")
_DEVICES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}


def object_name(request: LaunchRequest) -> str:
    """Name of the job's objects: a DNS label, which begins with a letter."""
    return "trainyard-" + re.sub(r"[^a-z0-9]+", "-", request.id.lower()).strip("-")


def secret_name(name: str) -> str:
    """Name of the Secret with the token of the job `name`."""
    return f"{name}-token"


def render_manifests(request: LaunchRequest) -> list[dict[str, Any]]:
    """The objects of the job, in the order in which they are created. Raises `BadInput` for an unknown kind, or
    without a container image."""
    kind = request.scheduler.options.get("kind", "jobset")
    if kind not in KINDS:
        raise BadInput(f"--option kind={kind} is not a kind of job.", f"Use one of: {', '.join(KINDS)}.")
    if request.container is None:
        raise BadInput("Kubernetes needs a container image.", "Pass --image with an image that has trainyard.")
    _check_options(request, kind)
    render = {"jobset": _job_set, "trainjob": _train_job, "job": _indexed_job}[kind]
    return [_config_map(request), *render(request)]


def _check_options(request: LaunchRequest, kind: str) -> None:
    """Raises `BadInput` for amounts that Kubernetes does not read, for options of the pods of a TrainJob, which its
    runtime defines, and for a shared folder that no volume provides. `kind`: of the manifest (`--option kind=`), such
    as `jobset` or `trainjob`."""
    scheduler, options = request.scheduler, request.scheduler.options
    mounts = request.container.mounts if request.container else ()
    for name in ("cpu", "memory", "shm"):
        if name in options and not _QUANTITY.match(options[name]):
            raise BadInput(f"--option {name}={options[name]} is not an amount.", f"Write --option {name}=64Gi or 32.")
    if kind == "trainjob":
        given = [f"--option {name}" for name in ("claim", "shm", "topology") if options.get(name)]
        given += ["--constraint"] if scheduler.constraint else []
        given += ["--mount"] if mounts else []
        if given:
            raise BadInput(
                f"a TrainJob takes its pods' volumes and placement from its runtime, and would ignore {given[0]}.",
                f"Omit {given[0]} and define it in the runtime (--option runtime=NAME), or use --option kind=jobset.",
            )
        return
    folders = [(mount.split(":") * 2)[1].rstrip("/") for mount in mounts]
    shared = request.shared_folder.rstrip("/")
    if shared and not options.get("claim") and not any(f"{shared}/".startswith(f"{folder}/") for folder in folders):
        raise BadInput(
            f"no volume is mounted at --shared-folder {shared}: it would be a folder of each pod, and end with it.",
            "Pass --option claim=NAME, a PersistentVolumeClaim with access mode ReadWriteMany, or --mount HOST:INSIDE.",
        )


def _metadata(request: LaunchRequest, name: str = "") -> dict[str, Any]:
    """The metadata of an object; `name`: that of the job if empty."""
    labels = {_NAME_LABEL: object_name(request)}
    if request.scheduler.partition:
        labels["kueue.x-k8s.io/queue-name"] = request.scheduler.partition
    namespace = request.scheduler.options.get("namespace", "default")
    return {"name": name or object_name(request), "namespace": namespace, "labels": labels}


def _config_map(request: LaunchRequest) -> dict[str, Any]:
    """The ConfigMap with the job file."""
    text = job_file.write(request.job)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(request), "data": {"job.toml": text}}


def _job_set(request: LaunchRequest) -> list[dict[str, Any]]:
    """A JobSet with one replicated job, whose pods find each other by DNS."""
    name, topology = object_name(request), request.scheduler.options.get("topology")
    metadata = _metadata(request)
    if topology:
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": topology}
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": name},
        "failurePolicy": {
            "maxRestarts": _restarts(request),
            # A new attempt has the same input and the same time limit.
            "rules": [
                {
                    "name": "final",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
                }
            ],
        },
        "replicatedJobs": [
            {
                "name": POD_GROUP,
                "replicas": 1,
                "template": {"spec": _job_spec(request, f"{name}-{POD_GROUP}-0-0.{name}", backoff=0)},
            }
        ],
    }
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}]


def _indexed_job(request: LaunchRequest) -> list[dict[str, Any]]:
    """An Indexed Job, and the headless Service by which its pods find each other."""
    name = object_name(request)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request),
        "spec": {
            "clusterIP": "None",
            "selector": {_NAME_LABEL: name},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "meet", "port": request.port or choose_port(request.id)}],
        },
    }
    spec = _job_spec(request, f"{name}-0.{name}", backoff=_restarts(request))
    spec["template"]["spec"]["subdomain"] = name
    return [service, {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(request), "spec": spec}]


def _train_job(request: LaunchRequest) -> list[dict[str, Any]]:
    """A TrainJob; its runtime (`--option runtime=NAME`) determines volumes and placement."""
    name = object_name(request)
    container = _container(request, f"{name}-{POD_GROUP}-0-0.{name}")
    trainer = {
        "image": container["image"],
        "command": container["command"],
        "args": container["args"],
        "env": container["env"],
        "numNodes": request.nodes,
    }
    if container.get("resources"):
        trainer["resourcesPerNode"] = container["resources"]
    runtime = request.scheduler.options.get("runtime", "torch-distributed")
    spec: dict[str, Any] = {"runtimeRef": {"name": runtime}, "trainer": trainer}
    if request.scheduler.time_limit_s:
        spec["activeDeadlineSeconds"] = request.scheduler.time_limit_s
    return [
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": _metadata(request),
            "spec": spec,
        }
    ]


def _restarts(request: LaunchRequest) -> int:
    """Number of times that Kubernetes starts the job, or a pod of it, again after a failure."""
    return request.job.recovery.max_restarts if request.scheduler.requeue else 0


def _job_spec(request: LaunchRequest, head: str, backoff: int) -> dict[str, Any]:
    """The spec of the Job whose pods are the nodes. `head`: host name of the pod with index 0. `backoff`: number of
    failures of pods that the Job tolerates.

    A pod that leaves on notice (exit code 75) or is evicted is started again without counting as a failure, or ends the
    job if it is not requeued. Bad input (exit code 2) ends the job. The job is complete when its head is.
    """
    action = "Ignore" if request.scheduler.requeue else "FailJob"
    rules = [
        # The first rule that matches a pod decides; a pod that is evicted may have left on notice.
        {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": action, "onExitCodes": {"operator": "In", "values": [LEFT]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [BAD_INPUT]}},
    ]
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": request.nodes,
        "parallelism": request.nodes,
        "backoffLimit": backoff,
        "podFailurePolicy": {"rules": rules},
        "podReplacementPolicy": "Failed",  # never two pods of an index at once
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": {"metadata": {"labels": {_NAME_LABEL: object_name(request)}}, "spec": _pod_spec(request, head)},
    }
    if request.scheduler.time_limit_s:
        spec["activeDeadlineSeconds"] = request.scheduler.time_limit_s
    return spec


def _pod_spec(request: LaunchRequest, head: str) -> dict[str, Any]:
    """The spec of a node's pod: one per host, with a large /dev/shm and the mounts of the request."""
    options, container = request.scheduler.options, _container(request, head)
    volumes: list[dict[str, Any]] = [
        # Data loaders and NCCL pass data through shared memory; a container has 64 MiB by default.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.get("shm", "16Gi")}},
        {"name": "nodes", "emptyDir": {}},
    ]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "nodes", "mountPath": _node_folder(request)}]  # noqa: S108
    if claim := options.get("claim"):
        if not request.shared_folder:
            raise BadInput("--option claim needs the path of its mount.", "Pass --shared-folder /mnt/shared.")
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "shared", "mountPath": request.shared_folder})
    for index, mount in enumerate(request.container.mounts if request.container else ()):
        host, _, inside = mount.partition(":")
        volumes.append({"name": f"host-{index}", "hostPath": {"path": host}})
        mounts.append({"name": f"host-{index}", "mountPath": inside.partition(":")[0] or host})
    container["volumeMounts"] = mounts
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(30, request.scheduler.notice_s),
        "containers": [container],
        "volumes": volumes,
    }
    if request.scheduler.constraint:
        spec["nodeSelector"] = _selector(request.scheduler.constraint)
    if request.scheduler.exclusive:
        term = {
            "labelSelector": {"matchLabels": {_NAME_LABEL: object_name(request)}},
            "topologyKey": "kubernetes.io/hostname",
        }
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return spec


def _container(request: LaunchRequest, head: str) -> dict[str, Any]:
    """The container of a node. Its shell replaces itself by the node's process, which so receives SIGTERM."""
    assert request.container is not None  # noqa: S101 - checked by render_manifests
    options, name = request.scheduler.options, object_name(request)
    folder = shlex.quote(_node_folder(request))
    port = request.port or choose_port(request.id)
    shared = f" --shared {shlex.quote(request.shared_folder)}" if request.shared_folder else ""
    script = (
        f'folder={folder}/node"${_INDEX}" && mkdir -p "$folder" && printf %s "${_JOB_TEXT}" > "$folder/job.toml" && '
        f'exec "$@" --job "$folder/job.toml" --job-id {shlex.quote(request.id)} --folder "$folder" '
        f'--nodes {request.nodes} --node "${_INDEX}" --head {head}:{port}{shared}'
    )
    environment: list[dict[str, Any]] = [
        {"name": variable, "value": value.value} for variable, value in sorted(request.environment.items())
    ]
    environment.append({"name": _JOB_TEXT, "valueFrom": {"configMapKeyRef": {"name": name, "key": "job.toml"}}})
    secret = {"name": secret_name(name), "key": "token"}
    environment.append({"name": TOKEN, "valueFrom": {"secretKeyRef": secret}})
    if request.shared_folder:  # so that the run outlives the pod
        environment.append({"name": "TRAINYARD_STORE", "value": os.path.join(request.shared_folder, "store")})
    limits: dict[str, str] = {}
    if request.scheduler.accelerators_per_node:
        limits[_device_resource(request.container.vendor)] = str(request.scheduler.accelerators_per_node)
    container: dict[str, Any] = {
        "name": POD_GROUP,
        "image": request.container.image,
        "command": ["sh", "-c", script, POD_GROUP],
        "args": list(request.command),
        "env": environment,
    }
    if rdma := options.get("rdma"):
        resource, _, count = rdma.partition(":")
        limits[resource] = count or "1"
        # RDMA registers memory, which must be locked.
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    if memory := options.get("memory"):
        limits["memory"] = memory
    requests = limits | ({"cpu": options["cpu"]} if options.get("cpu") else {})  # a limit of CPUs would throttle ranks
    if requests:
        container["resources"] = {"limits": limits, "requests": requests}
    return container


def _node_folder(request: LaunchRequest) -> str:
    """The folder of the nodes in each pod."""
    return request.node_folder or "/trainyard"


def _device_resource(vendor: str) -> str:
    """The resource name of a vendor's devices. Raises `BadInput` for an unknown vendor."""
    if vendor not in _DEVICES:
        raise BadInput(
            "accelerators are requested, but the job names no machine with NVIDIA or AMD devices.",
            "Set machine in the job file, or pass --accelerators 0.",
        )
    return _DEVICES[vendor]


def _selector(constraint: str) -> dict[str, str]:
    """Labels that a node must have, from `key=value,key=value`. Raises `BadInput`."""
    pairs = [part.partition("=") for part in constraint.split(",")]
    if any(not key or not value for key, _, value in pairs):
        raise BadInput(f"--constraint {constraint!r} is not KEY=VALUE.", "Write node labels, such as gpu-type=h100.")
    return {key: value for key, _, value in pairs}
