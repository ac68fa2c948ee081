"""Real training jobs on a Slurm cluster and in pods: the losses are those of a run on this machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.launch.k8s.pod_runner import run_pods
from tests.launch.real_job import losses
from tests.processes import until
from tests.run.parts.two_hosts import LATE_SCRIPT, SHIFT_S
from tests.slurm_cluster import Cluster
from trainyard.api.run_jobs import read_job
from trainyard.launch.k8s.launcher import Kubernetes
from trainyard.launch.k8s.manifests import secret_name
from trainyard.launch_request import Container, SchedulerOptions
from trainyard.run.launches.launch_job import LaunchOptions, build_request, load_launcher, submit_job
from trainyard.run.parts.part import joined_run_id
from trainyard.store.store import Store

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def steps_taken(store: Store, run: str) -> int:
    """Number of samples of rank 0 so far."""
    path = store.runs / run / "samples" / "rank0.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slurm
def test_a_job_requeued_on_notice_has_the_losses_of_a_local_run(
    cluster: Cluster, store: Store, job: Path, local_losses: Mapping[tuple[int, int], float | None]
) -> None:
    record = submit_job(*read_job(job), "slurm", LaunchOptions(nodes=2), store.root)
    slurm, id, run = load_launcher("slurm"), record.scheduler_id, joined_run_id(record.id)
    log = Path(record.folder) / "logs" / "node0.log"
    assert until(lambda: steps_taken(store, run) > 20, 120), log.read_text()
    cluster.run("scancel", "--signal=TERM", id)  # the notice that --signal sends before the time limit
    assert until(lambda: slurm.status(id).state == "pending", 60), log.read_text()
    assert steps_taken(store, run) < 300
    cluster.run("scontrol", "update", f"JobId={id}", "StartTime=now+3")
    assert until(lambda: slurm.status(id).is_over, 120), log.read_text()
    assert (slurm.status(id).state, slurm.status(id).restarts) == ("ended", 1), log.read_text()
    stored = store.load(run)
    assert stored.state == "complete"
    assert losses(stored) == local_losses


def test_pods_have_the_losses_of_a_local_run(
    job: Path, local_losses: Mapping[tuple[int, int], float | None], tmp_path: Path
) -> None:
    read, _ = read_job(job)
    options = LaunchOptions(
        nodes=2, container=Container(image="image"), shared_folder="/mnt/team", python=sys.executable,
        scheduler=SchedulerOptions(options={"claim": "work"}),
    )  # fmt: skip
    request = build_request(read, options, "a1b2c3d4", tmp_path)
    objects = json.loads(Kubernetes().render(request)["manifest.json"])["items"]
    secrets = {secret_name(objects[-1]["metadata"]["name"]): {"token": "f" * 64}}
    outcome = run_pods(objects, secrets, tmp_path / "pods", seconds=240, variables={"OMP_NUM_THREADS": "1"})
    assert outcome.complete, outcome.output
    stored = Store(tmp_path / "pods" / "claims" / "work" / "store").load(joined_run_id("a1b2c3d4"))
    assert losses(stored) == local_losses


@pytest.mark.slurm
def test_srun_on_two_nodes_gives_one_run_with_the_late_rank(
    cluster: Cluster, shifted_clock: Path, tmp_path: Path
) -> None:
    """Each node has a store and a wall clock of its own; each task is a rank."""
    script = tmp_path / "train.py"
    script.write_text(LATE_SCRIPT)
    shift = f"LD_PRELOAD={shlex.quote(str(shifted_clock))} CLOCK_SHIFT_S={SHIFT_S}"
    task = (
        f"export TRAINYARD_STORE={shlex.quote(str(tmp_path))}/store$SLURM_NODEID; "
        f'[ "$SLURM_NODEID" = 0 ] || export {shift}; '
        'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
    )
    command = [sys.executable, "-m", "trainyard.cli.main", "run", "--json", "--", sys.executable, str(script), "-1"]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871", "OMP_NUM_THREADS": "1"}
    options = ["--nodes=2", "--ntasks-per-node=1", f"--output={tmp_path}/%t.json", f"--error={tmp_path}/%t.log"]
    subprocess.run(["srun", *options, "sh", "-c", task, "sh", *command], env=environment, check=True, timeout=300)
    result = json.loads((tmp_path / "0.json").read_text())
    assert [(share["node"], share["ranks"]) for share in result["nodes"]] == [("n1", [0]), ("n2", [1])]
    assert result["ledgers"][-1]["scope"]["aligned"] == "bounds"
    assert result["findings"][0]["rule"] == "straggler"
    late = result["ledgers"][-1]["late"]
    assert max(late, key=late.get) == "1"
    assert 40e6 < late["1"] < 120e6  # one rank waits some 60 ms a step
