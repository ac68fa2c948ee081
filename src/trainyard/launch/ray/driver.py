"""`python -m trainyard.launch.ray.driver`: runs on a Ray cluster as the entry point of a job, in its working directory.

Reserves a bundle on each of as many different nodes (STRICT_SPREAD), starts a node's process in each, and ends with the
exit code of node 0. On SIGTERM it asks all nodes to save and leave. A node that is lost is started again in another
bundle, up to the job's `max_restarts`.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainyard.launch.launch_spec import FAILED, TOKEN
from trainyard.launch.ray.nodes_file import FILE, Nodes

_LAST_S = 60.0
"""Seconds that the other nodes have to end after node 0."""


class NodeProcess:
    """An actor in the bundle of a node, which runs the node's process."""

    def __init__(self) -> None:
        """An actor that has not started a process."""
        self._process: subprocess.Popen[bytes] | None = None

    def address(self) -> tuple[str, int]:
        """(IP address of this host, a free port)."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def run(self, spec: Nodes, node: int, head: str, job_toml: str, token: str) -> int:
        """Run the process of `node` to its end; return its exit code. Its output is this actor's, which Ray passes to
        the driver. `job_toml`: text of the job file."""
        parent = Path(spec.folder or Path.home() / ".cache" / "trainyard" / "launches" / spec.id)
        folder = parent / f"node{node}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.toml").write_text(job_toml, "utf-8")
        python = spec.command[0] or sys.executable
        words = [
            python,
            *spec.command[1:],
            "--job",
            str(folder / "job.toml"),
            "--job-id",
            spec.id,
            "--folder",
            str(folder),
        ]
        words += ["--nodes", str(spec.nodes), "--node", str(node), "--head", head]
        words += ["--shared", spec.shared] if spec.shared else []
        self._process = subprocess.Popen(words, env={**_environment(), TOKEN: token}, stdin=subprocess.DEVNULL)
        return self._process.wait()

    def notice(self) -> None:
        """Ask the node's process to save its state and leave."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


def _environment() -> dict[str, str]:
    """The environment of an actor for its node's process, without the number of threads that Ray chooses: it is the
    number of the actor's CPUs, which all ranks of the node share."""
    environment = dict(os.environ)
    if "OMP_NUM_THREADS" not in (ray.get_runtime_context().runtime_env.get("env_vars") or {}):
        environment.pop("OMP_NUM_THREADS", None)
    return environment


class Driver:
    """The actors of a job, by node, and the results that they will return."""

    def __init__(self, spec: Nodes, group: Any, job_toml: str) -> None:
        """`group`: the placement group, which is ready; `job_toml`: text of the job file."""
        self._spec, self._group, self._job_toml = spec, group, job_toml
        self._token = secrets.token_hex(32)
        self._actors: dict[int, Any] = {}
        self._head = ""
        self.results: dict[Any, int] = {}
        """Reference of the exit code that a node will return -> node."""

    def start(self, node: int) -> None:
        """Start a node in its bundle; node 0, which determines the address of the head, must be the first."""
        # Several calls at once, because `run` returns only at the end of the process.
        remote: Any = ray.remote(NodeProcess)
        resources = self._spec.resources
        actor = remote.options(
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),  # Ray hides the accelerators that an actor does not request
            max_concurrency=3,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=node),
        )
        self._actors[node] = actor.remote()
        if node == 0:
            host, port = ray.get(self._actors[0].address.remote())
            self._head = f"{host}:{self._spec.port or port}"
        run = self._actors[node].run.remote(self._spec, node, self._head, self._job_toml, self._token)
        self.results[run] = node

    def notice(self) -> None:
        """Ask every node to save its state and leave."""
        for actor in self._actors.values():
            actor.notice.remote()


def main() -> int:
    """Run the job in the working directory; return the exit code of node 0."""
    spec = msgspec.json.decode(Path(FILE).read_bytes(), type=Nodes)
    job_toml = Path("job.toml").read_text("utf-8")
    ray.init(address="auto", log_to_driver=True)
    alive = [node for node in ray.nodes() if node["Alive"]]
    group = placement_group([spec.resources] * spec.nodes, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready(), timeout=spec.wait_s)
    except GetTimeoutError:
        print(  # noqa: T201 - the output of the job
            f"error: the job needs {spec.nodes} different nodes with {spec.resources} each, and the cluster, which has "
            f"{len(alive)} nodes, could not reserve them within {spec.wait_s} s.",
            file=sys.stderr,
        )
        return FAILED
    try:
        return _run_nodes(Driver(spec, group, job_toml), spec)
    finally:
        remove_placement_group(group)


def _run_nodes(driver: Driver, spec: Nodes) -> int:
    """Start all nodes and wait for node 0; return its exit code. Starts lost nodes again."""
    signal.signal(signal.SIGTERM, lambda *_: driver.notice())
    for node in range(spec.nodes):
        driver.start(node)
    restarts = 0
    while True:
        done, _ = ray.wait(list(driver.results), timeout=1.0)
        for reference in done:
            node = driver.results.pop(reference)
            try:
                code = ray.get(reference)
            except RayActorError as error:
                print(f"node {node} was lost: {error}", file=sys.stderr)  # noqa: T201
                restarts += 1
                if node == 0 or restarts > spec.max_restarts:
                    return FAILED
                driver.start(node)
                continue
            if node == 0:
                if driver.results:
                    ray.wait(list(driver.results), num_returns=len(driver.results), timeout=_LAST_S)
                return code


if __name__ == "__main__":
    raise SystemExit(main())
