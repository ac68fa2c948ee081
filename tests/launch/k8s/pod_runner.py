"""Runs the pods of a rendered manifest as local processes, by the rules of an Indexed Job and of a JobSet.

Each index gets a process with the container's command, arguments and environment: values, keys of ConfigMaps and
Secrets, and JOB_COMPLETION_INDEX. Mount paths become folders of the pod, or of all pods for a PersistentVolumeClaim,
and the host name of the head the loopback address. The first rule of the pod failure policy that matches an exit code
decides: `Ignore` starts the pod again without counting, `FailJob` ends the Job; other failures count against
`backoffLimit`. The Job is complete when the index of its success policy has succeeded. A JobSet starts a failed Job
again up to `maxRestarts` times, unless a rule of its failure policy matches the reason.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.processes import until


class Outcome(NamedTuple):
    """How a job ended: completed, exit codes of each index in the order of its pods, the output by index, and the
    number of restarts of the JobSet."""

    complete: bool
    codes: dict[int, list[int]]
    output: dict[int, str]
    restarts: int = 0


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
    actions: dict[int, str] = {}
    for rule in reversed(spec["podFailurePolicy"]["rules"]):  # the first rule wins
        actions |= dict.fromkeys(rule.get("onExitCodes", {}).get("values", []), rule["action"])
    assert spec["podReplacementPolicy"] == "Failed", "required with a pod failure policy"
    (success,) = (int(rule["succeededIndexes"]) for rule in spec["successPolicy"]["rules"])
    policy = objects[-1]["spec"].get("failurePolicy", {}) if objects[-1]["kind"] == "JobSet" else {}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    codes: dict[int, list[int]] = {index: [] for index in range(spec["completions"])}
    running: dict[int, subprocess.Popen[bytes]] = {}
    failures = restarts = 0
    reason = ""  # of the Job's failure

    def volume_folder(volume: str, index: int) -> Path:
        """The folder of a volume in this pod."""
        return folder / "claims" / claims[volume] if volume in claims else folder / f"pod{index}" / volume

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

    def reap() -> None:
        """Take the exit codes of pods that have ended; start pods again whose failure the Job tolerates."""
        nonlocal failures, reason
        for index, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            codes[index].append(code)
            del running[index]
            action = actions.get(code, "Count")
            failures += code != 0 and action == "Count"
            if code and action == "FailJob":
                reason = "PodFailurePolicy"
            elif failures > spec["backoffLimit"]:
                reason = "BackoffLimitExceeded"
            elif code:
                start(index)

    def end_pods() -> None:
        """Kill the pods that run."""
        for index, process in running.items():
            process.kill()
            codes[index].append(process.wait())
        running.clear()

    def over() -> bool:
        """Whether the job has ended; starts the Job of a JobSet again."""
        nonlocal failures, reason, restarts
        reap()
        if not reason:
            return codes[success][-1:] == [0]
        end_pods()
        final = {each for rule in policy.get("rules", []) for each in rule["onJobFailureReasons"]}
        if restarts >= policy.get("maxRestarts", 0) or reason in final:
            return True
        restarts, failures, reason = restarts + 1, 0, ""
        for index in codes:
            start(index)
        return False

    for index in codes:
        start(index)
    ended = until(over, seconds)
    complete = not reason
    if ended and complete:  # the others get time to end, but no longer decide
        until(lambda: all(process.poll() is not None for process in running.values()), 5)
    end_pods()
    assert ended, {index: (folder / f"log{index}").read_text() for index in codes}
    output = {index: (folder / f"log{index}").read_text() for index in codes}
    return Outcome(complete, codes, output, restarts)
