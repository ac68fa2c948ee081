"""Measures the time from submission to the first step on Slurm: `python -m benchmarks.slurm_start [--pairs N]`.

A Slurm cluster of two nodes is started on this host. In each pair the same job is started twice, in changing order:
by `trainyard launch --on slurm`, and by `sbatch` with a batch script that was written beforehand. The ratio is that
of the medians.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests import slurm_cluster
from tests.tiny_job import TWO_REPLICAS
from trainyard.api.run_jobs import read_job
from trainyard.launch.launch_spec import TOKEN
from trainyard.run.launches.launch_job import LaunchOptions, build_request, load_launcher
from trainyard.run.parts.part import joined_run_id
from trainyard.store.store import Store, new_id

_WAIT_S = 120.0


def first_step_s(store: Store, run: str, began_ns: int) -> float:
    """Wait for the first step of a run; return the seconds from `began_ns` (since the epoch) until its end."""
    path, deadline_s = store.runs / run / "samples" / "rank0.jsonl", time.monotonic() + _WAIT_S
    while not (path.exists() and path.stat().st_size):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the job of run {run} did not begin within {_WAIT_S:g} s")
        time.sleep(0.005)
    return (time.time_ns() - began_ns) / 1e9


def by_launch(store: Store, job: Path) -> float:
    """Seconds until the first step of a job that `trainyard launch` submits."""
    before = set((store.root / "launches").glob("*"))
    began_ns = time.time_ns()
    command = [sys.executable, "-m", "trainyard.cli.main", "launch", str(job), "--on", "slurm", "--nodes", "2"]
    subprocess.run([*command, "--detach"], check=True, capture_output=True)
    (folder,) = set((store.root / "launches").glob("*")) - before
    return first_step_s(store, joined_run_id(folder.name), began_ns)


def by_hand(store: Store, job: Path) -> float:
    """Seconds until the first step of a job whose batch script exists already."""
    id = new_id()
    folder = store.root / "by-hand" / id
    (folder / "logs").mkdir(parents=True)
    (folder / "job.toml").write_text(job.read_text())
    read, _ = read_job(job)
    files = load_launcher("slurm").render(build_request(read, LaunchOptions(nodes=2), id, folder))
    for name, text in files.items():
        (folder / name).write_text(text)
    began_ns = time.time_ns()
    script, environment = next(folder.glob("*.sbatch")), {**os.environ, TOKEN: os.urandom(32).hex()}
    subprocess.run(["sbatch", "--parsable", str(script)], check=True, capture_output=True, env=environment)
    return first_step_s(store, joined_run_id(id), began_ns)


def wait_until_idle(cluster: slurm_cluster.Cluster) -> None:
    """Wait until no job is left."""
    while cluster.run("squeue", "-h").strip():
        time.sleep(0.2)
    time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="number of pairs (default: 5)")
    pairs = parser.parse_args().pairs
    if reason := slurm_cluster.missing():
        raise SystemExit(f"{reason}. `bash .ci/engines` installs it.")
    seconds: dict[str, list[float]] = {"launch": [], "by hand": []}
    with tempfile.TemporaryDirectory() as root, slurm_cluster.cluster(Path(root) / "slurm") as cluster:
        store, job = Store(Path(root) / "store"), Path(root) / "job.toml"
        job.write_text('name = "start"\n' + TWO_REPLICAS)
        os.environ |= {"SLURM_CONF": str(cluster.configuration), "TRAINYARD_STORE": str(store.root)}
        starts = {"launch": by_launch, "by hand": by_hand}
        by_hand(store, job)  # the first start compiles modules and fills caches
        for pair in range(pairs):
            for name in sorted(starts, reverse=bool(pair % 2)):
                wait_until_idle(cluster)
                seconds[name].append(starts[name](store, job))
                print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
        wait_until_idle(cluster)
    ratio = median(seconds["launch"]) / median(seconds["by hand"])
    print(f"medians: {', '.join(f'{name} {median(each):.2f} s' for name, each in seconds.items())}; ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
