"""Runs the pods of a rendered manifest as local processes, by the rules of an Indexed Job.

Each index gets a process with the container's command, arguments and environment: values, keys of ConfigMaps and
Secrets, and JOB_COMPLETION_INDEX. Mount paths become folders of the pod, those of a volume claim folders that all pods
share, and the host name of the head the loopback address. A pod that ends with an ignored exit code is started again
without counting; other failures count against `backoffLimit`. The job is complete when every index has succeeded.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.processes import until


class Outcome(NamedTuple):
    """How a job ended: completed, exit codes of each index in the order of its pods, and the output by index."""

    complete: bool
    codes: dict[int, list[int]]
    output: dict[int, str]


def pod_job(objects: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], str]:
    """(spec of the Job, host name of the pod with index 0) in a manifest with a JobSet or a Job."""
    job = objects[-1]
    name = job["metadata"]["name"]
    if job["kind"] == "JobSet":
        group = job["spec"]["replicatedJobs"][0]
        assert job["spec"]["network"]["enableDNSHostnames"]
        return group["template"]["spec"], f"{name}-{group['name']}-0-0.{job['spec']['network']['subdomain']}"
    service = next(each for each in objects if each["kind"] == "Service")
    template = job["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    return job["spec"], f"{name}-0.{template['spec']['subdomain']}"


def run_pods(
    objects: Sequence[Mapping[str, Any]],
    secrets: Mapping[str, Mapping[str, str]],
    folder: Path,
    seconds: float = 60,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the pods of a manifest to the end of the job. `secrets`: name of a Secret -> its keys; `folder`: of the pods;
    `variables`: of the image's environment.

    Asserts that it ends within `seconds`.
    """
    spec, head = pod_job(objects)
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    ignored = {
        code for rule in spec.get("podFailurePolicy", {}).get("rules", [])
        if rule["action"] == "Ignore" for code in rule.get("onExitCodes", {}).get("values", [])
    }  # fmt: skip
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    claims = {volume["name"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume}
    codes: dict[int, list[int]] = {index: [] for index in range(spec["completions"])}
    running: dict[int, subprocess.Popen[bytes]] = {}
    failures = 0

    def volume_folder(volume: str, index: int) -> Path:
        """The folder of a volume of a pod."""
        return folder / "claims" / volume if volume in claims else folder / f"pod{index}" / volume

    def local(text: str, index: int) -> str:
        """A word of the command with the folders and the host of this pod."""
        for path, volume in mounts.items():
            text = text.replace(path, str(volume_folder(volume, index))) if path != "/dev/shm" else text  # noqa: S108
        return text.replace(head, "127.0.0.1")

    def value(entry: Mapping[str, Any]) -> str:
        """The value of a variable, as the kubelet resolves it."""
        if "value" in entry:
            return entry["value"]
        source = entry["valueFrom"]
        if "configMapKeyRef" in source:
            return maps[source["configMapKeyRef"]["name"]][source["configMapKeyRef"]["key"]]
        return secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]

    def start(index: int) -> None:
        """Start a pod of this index."""
        for volume in mounts.values():
            volume_folder(volume, index).mkdir(parents=True, exist_ok=True)
        env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "JOB_COMPLETION_INDEX": str(index), **(variables or {})}
        env |= {entry["name"]: local(value(entry), index) for entry in container["env"]}
        words = [local(word, index) for word in (*container["command"], *container["args"])]
        with (folder / f"log{index}").open("ab") as log:
            running[index] = subprocess.Popen(words, env=env, stdout=log, stderr=log, cwd=folder)

    def over() -> bool:
        """Whether the job has ended; starts ignored pods again."""
        nonlocal failures
        for index, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            codes[index].append(code)
            del running[index]
            failures += code != 0 and code not in ignored
            if code and failures <= spec["backoffLimit"]:
                start(index)
        return failures > spec["backoffLimit"] or not running

    for index in codes:
        start(index)
    ended = until(over, seconds)
    for process in running.values():
        process.kill()
        process.wait()
    assert ended, {index: (folder / f"log{index}").read_text() for index in codes}
    complete = all(each and each[-1] == 0 for each in codes.values())
    return Outcome(complete, codes, {index: (folder / f"log{index}").read_text() for index in codes})
