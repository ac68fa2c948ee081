"""Kubernetes manifests: valid by the schemas of their kinds, and executed by a small pod runner."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.launch.k8s.pod_runner import run_pods
from tests.launch.requests import JOB, request
from tests.refused import refused
from trainyard import job_file
from trainyard.errors import BadInput, MissingProgram, UnknownName
from trainyard.job import Checkpoint, Job
from trainyard.launch.k8s.launcher import Kubernetes
from trainyard.launch.k8s.manifests import secret_name
from trainyard.launch.k8s.pod_states import status_of
from trainyard.launch_request import Component, Container, SchedulerOptions, Variable

TOKEN = "f" * 64
NODE = """
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
options = dict(zip(words[1::2], words[2::2]))
folder = Path(options["--folder"])
(folder / "options.json").write_text(json.dumps(options | dict(os.environ)))
print("node", options["--node"], "is here", flush=True)
first = not (folder / "second").exists()
(folder / "second").touch()
if words[0] == "leave" and first:
    sys.exit(75)
if words[0] == "fail" and first:
    sys.exit(4)
if words[0] == "hang" and options["--node"] == "1":
    __import__("time").sleep(300)
sys.exit(int(words[0]) if words[0].isdecimal() else 0)
"""


def render(folder: Path, how: str = "0", kind: str = "jobset", **options: Any) -> list[dict[str, Any]]:
    """The objects of the manifest of a substitute for a node on two nodes."""
    (folder / "node.py").write_text(NODE)
    pods = kind != "trainjob"  # the runtime of a TrainJob defines volumes and placement
    further = {"kind": kind, "rdma": "rdma/hca:8", **({"claim": "work"} if pods else {}), **options.pop("options", {})}
    further = {name: value for name, value in further.items() if value}
    scheduler = SchedulerOptions(
        options=further,
        accelerators_per_node=8,
        time_limit_s=3600,
        partition="team",
        constraint="gpu=h100" if pods else "",
        requeue=options.pop("requeue", True),
    )
    mounts = ("/data:/inside",) if pods else ()
    fields = {
        "scheduler": scheduler,
        "container": Container(image="registry/image:1", vendor="nvidia", mounts=mounts),
        "shared_folder": "/mnt/team",
        "environment": {"NCCL_DEBUG": Variable(value="INFO", reason="A reason.")},
        **options,
    }
    command = (sys.executable, str(folder / "node.py"), how)
    return json.loads(Kubernetes().render(request(folder, command, **fields))["manifest.json"])["items"]


def secrets(objects: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The Secret of the job that `submit` creates."""
    return {secret_name(objects[-1]["metadata"]["name"]): {"token": TOKEN}}


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("kind", ["jobset", "trainjob", "job"])
def test_core_objects_are_valid(tmp_path: Path, kind: str, requeue: bool) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    objects = render(tmp_path, kind=kind, requeue=requeue, options={"cpu": "32", "memory": "512Gi"})
    core = [each for each in objects if each["apiVersion"] in ("v1", "batch/v1")]
    if kind == "jobset":  # the Job in a JobSet is one of the core kinds
        metadata = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
        core.append(metadata | objects[-1]["spec"]["replicatedJobs"][0]["template"])
    assert len(core) == {"jobset": 2, "trainjob": 1, "job": 3}[kind]
    for each in core:
        validate.validate(each, "1.31", strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate({**core[0], "colour": "red"}, "1.31", strict=True)


@pytest.mark.parametrize(
    ("kind", "model"), [("jobset", "JobsetV1alpha2JobSet"), ("trainjob", "TrainerV1alpha1TrainJob")]
)
def test_custom_objects_have_only_known_properties(tmp_path: Path, kind: str, model: str) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    custom = render(tmp_path, kind=kind)[-1]
    known = getattr(models, model)
    assert json.loads(known.from_dict(custom).to_json()) == custom
    spoilt = {**custom, "spec": {**custom["spec"], "colour": "red"}}
    assert json.loads(known.from_dict(spoilt).to_json()) != spoilt, "unknown properties are dropped"


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_pods_run_the_nodes(tmp_path: Path, kind: str) -> None:
    objects = render(tmp_path, kind=kind)
    outcome = run_pods(objects, secrets(objects), tmp_path)
    assert outcome.complete, outcome.output
    assert outcome.output == {0: "node 0 is here\n", 1: "node 1 is here\n"}
    paths = [tmp_path / f"pod{index}" / "nodes" / f"node{index}" for index in range(2)]
    first, second = (json.loads((path / "options.json").read_text()) for path in paths)
    assert [each["--node"] for each in (first, second)] == ["0", "1"]
    assert [each["--nodes"] for each in (first, second)] == ["2", "2"]
    assert first["--head"] == second["--head"]
    assert first["--head"].startswith("127.0.0.1:2")
    assert first["--job-id"] == "a1b2c3d4"
    assert first["--shared"] == second["--shared"] == str(tmp_path / "claims" / "work")
    assert first["NCCL_DEBUG"] == "INFO"
    assert first["TRAINYARD_JOB_TOKEN"] == second["TRAINYARD_JOB_TOKEN"] == TOKEN
    assert job_file.load(paths[0] / "job.toml") == request(tmp_path, ()).job


def test_pods_that_leave_on_notice_run_again(tmp_path: Path) -> None:
    objects = render(tmp_path, "leave")
    outcome = run_pods(objects, secrets(objects), tmp_path)
    assert outcome.complete
    assert outcome.codes == {0: [75, 0], 1: [75, 0]}


@pytest.mark.parametrize("kind", ["jobset", "job"])
@pytest.mark.parametrize("how", ["leave", "fail", "4", "2"])
def test_pod_that_fails_without_requeue_is_final(tmp_path: Path, kind: str, how: str) -> None:
    objects = render(tmp_path, how, kind, requeue=False, job=restarts(3))
    outcome = run_pods(objects, secrets(objects), tmp_path)
    assert not outcome.complete
    assert outcome.restarts == 0
    assert max(len(each) for each in outcome.codes.values()) == 1


@pytest.mark.parametrize("most", [0, 2])
def test_jobset_restarts_as_often_as_the_job_may(tmp_path: Path, most: int) -> None:
    objects = render(tmp_path, "4", job=restarts(most))
    outcome = run_pods(objects, secrets(objects), tmp_path)
    assert not outcome.complete
    assert outcome.restarts == most
    assert {len(each) for each in outcome.codes.values()} == {most + 1}, "failures of pods do not multiply"


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_job_that_failed_once_completes(tmp_path: Path, kind: str) -> None:
    objects = render(tmp_path, "fail", kind, job=restarts(2))
    outcome = run_pods(objects, secrets(objects), tmp_path)
    assert outcome.complete
    assert outcome.codes[0][-1] == 0


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_bad_input_is_not_tried_again(tmp_path: Path, kind: str) -> None:
    objects = render(tmp_path, "2", kind, job=restarts(3))
    outcome = run_pods(objects, secrets(objects), tmp_path)
    assert not outcome.complete
    assert outcome.restarts == 0
    assert max(len(each) for each in outcome.codes.values()) == 1


def test_job_is_complete_with_its_head(tmp_path: Path) -> None:
    objects = render(tmp_path, "hang")
    outcome = run_pods(objects, secrets(objects), tmp_path)
    assert outcome.complete
    assert outcome.codes == {0: [0], 1: [-9]}


def restarts(most: int) -> Job:
    """A job that may restart `most` times."""
    return replace(JOB, recovery=replace(JOB.recovery, max_restarts=most))


def test_pod_has_shared_memory_devices_and_placement(tmp_path: Path) -> None:
    objects = render(tmp_path, options={"shm": "64Gi", "topology": "cloud/rack", "cpu": "32", "memory": "512Gi"})
    spec = objects[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert container["volumeMounts"][0]["mountPath"] == "/dev/shm"  # noqa: S108
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "8", "memory": "512Gi"}
    assert container["resources"]["requests"] == container["resources"]["limits"] | {"cpu": "32"}
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["affinity"]["podAntiAffinity"]
    assert spec["activeDeadlineSeconds"] == 3600
    metadata = objects[-1]["metadata"]
    assert metadata["annotations"] == {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud/rack"}
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "team"


def test_no_secret_is_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB_TOKEN", TOKEN)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    text = json.dumps(render(tmp_path))
    assert TOKEN not in text
    assert "0123456789abcdef" not in text
    with refused(BadInput, "WANDB_API_KEY"):
        render(tmp_path, environment={"WANDB_API_KEY": Variable(value="0123456789abcdef", reason="A reason.")})


@pytest.mark.parametrize(
    "change",
    [
        {"container": None},
        {"options": {"kind": "cron"}},
        {"options": {"colour": "red"}},
        {"scheduler": SchedulerOptions(qos="high", options={"claim": "work"})},
        {"scheduler": SchedulerOptions(array="0-3", options={"claim": "work"})},
        {"container": Container(image="x")},
        {"components": (Component(nodes=1, ranks_per_node=1), Component(nodes=1, ranks_per_node=1))},
        {"shared_folder": ""},
        {"options": {"claim": ""}},
        {"options": {"claim": ""}, "container": Container(image="x", mounts=("/x:/mnt/teams",))},
        {"options": {"memory": "a lot"}},
        {"options": {"cpu": "-1"}},
        {"options": {"shm": "16GB"}},
        {"options": {"claim": ""}, "shared_folder": "", "job": replace(JOB, checkpoint=Checkpoint(interval=1))},
    ],
)
def test_impossible_request_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        render(tmp_path, **change)


@pytest.mark.parametrize("mount", ["/x:/mnt/team", "/x:/mnt", "/mnt", "/x:/mnt/team/:ro"])
def test_mount_provides_the_shared_folder(tmp_path: Path, mount: str) -> None:
    container = Container(image="x", vendor="nvidia", mounts=(mount,))
    assert render(tmp_path, options={"claim": ""}, container=container)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"options": {"claim": "work"}}, "--option claim"),
        ({"options": {"shm": "64Gi"}}, "--option shm"),
        ({"options": {"topology": "rack"}}, "--option topology"),
        ({"container": Container(image="x", vendor="nvidia", mounts=("/data",))}, "--mount"),
        ({"scheduler": SchedulerOptions(options={"kind": "trainjob"}, constraint="gpu=h100")}, "--constraint"),
    ],
)
def test_trainjob_refuses_options_of_its_runtime(tmp_path: Path, change: dict[str, Any], name: str) -> None:
    with refused(BadInput, name):
        render(tmp_path, kind="trainjob", **change)
    assert render(tmp_path, kind="trainjob")[-1]["spec"]["trainer"]["resourcesPerNode"]["limits"]["rdma/hca"] == "8"


@pytest.mark.parametrize(
    ("resource", "pods", "jobs"),
    [
        ("jobset", "trainyard-launch=x", True),
        ("trainjob", "jobset.sigs.k8s.io/jobset-name=x", True),
        ("job", "trainyard-launch=x", False),
    ],
)
@pytest.mark.parametrize("save", [True, False])
def test_cancel_shortens_the_grace_of_pods_unless_they_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resource: str, pods: str, jobs: bool, save: bool
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    Kubernetes().cancel(f"default/{resource}/x", save=save)
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert calls[0][:3] == ["delete", resource, "x"], "before its pods, which it would replace"
    selected = {each[1]: each for each in calls if "-l" in each}
    assert selected.keys() == (set() if save else {"pods", *(["jobs"] if jobs else [])})
    assert all(("--grace-period=1" in each) == (not save) for each in calls)
    if not save:
        assert pods in selected["pods"]


def pod(phase: str, **status: Any) -> dict[str, Any]:
    """A pod of the job in a phase."""
    return {"metadata": {"name": "p-0"}, "spec": {"nodeName": "host"}, "status": {"phase": phase, **status}}


UNSCHEDULED = pod(
    "Pending",
    conditions=[{"type": "PodScheduled", "status": "False", "message": "0/4 nodes: 4 Insufficient nvidia.com/gpu."}],
)
NO_IMAGE = pod(
    "Pending", containerStatuses=[{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]
)
ENDED = pod("Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 4, "reason": "Error"}}}])


@pytest.mark.parametrize(
    ("condition", "pods", "state", "words"),
    [
        (None, [], "pending", ""),
        (None, [UNSCHEDULED], "pending", "4 Insufficient nvidia.com/gpu"),
        (None, [NO_IMAGE, pod("Running")], "pending", "ErrImagePull"),
        (None, [pod("Running"), pod("Running")], "running", ""),
        ("Complete", [pod("Succeeded")], "ended", ""),
        ("Completed", [pod("Succeeded")], "ended", ""),
        ("Failed", [ENDED], "failed", "exit code 4"),
        ("Suspended", [], "pending", "queue"),
    ],
)
def test_state_of_a_job(condition: str | None, pods: list[dict[str, Any]], state: str, words: str) -> None:
    conditions = [{"type": condition, "status": "True", "message": "why"}] if condition else []
    status = status_of({"status": {"conditions": conditions, "restarts": 2}}, pods, ("kubectl", "logs"))
    assert status.state == state
    assert words in status.reason
    assert status.restarts == 2
    assert bool(status.next_step) == (state in ("failed",) or bool(words and state == "pending" and not condition))


@pytest.mark.parametrize(
    "condition",
    [
        {"reason": "DeadlineExceeded", "message": "Job was active longer than specified deadline"},
        {"reason": "FailJobSetFailurePolicyAction", "message": "(child job x failed with reason DeadlineExceeded)"},
    ],
)
def test_time_limit_is_named(condition: dict[str, str]) -> None:
    failed = {"type": "Failed", "status": "True", **condition}
    status = status_of({"status": {"conditions": [failed]}}, [pod("Failed")], ("kubectl", "logs"))
    assert status.state == "failed"
    assert "--time-limit" in status.next_step


def test_time_limit_holds_over_all_restarts(tmp_path: Path) -> None:
    rules = render(tmp_path)[-1]["spec"]["failurePolicy"]["rules"]
    final = {each for rule in rules if rule["action"] == "FailJobSet" for each in rule["onJobFailureReasons"]}
    assert final == {"PodFailurePolicy", "DeadlineExceeded"}


def test_no_kubectl_has_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    render(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused(MissingProgram, "kubectl"):
        Kubernetes().status("default/jobset/x")
    with refused(UnknownName, "'x'"):
        Kubernetes().status("x")
