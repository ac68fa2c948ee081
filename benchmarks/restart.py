"""Measures restarts after a killed rank, against torchrun: `python -m benchmarks.restart [--kills N]`.

Two ranks on this host train the same job, `trainyard.run.local.worker`, with the same checkpoints. Each round starts it
once under trainyard's supervisor and once under `torchrun --max-restarts`, in changing order, and kills rank 1
(SIGKILL) after the same number of steps. The restart lasts from the kill to the end of the first step of the next
attempt. Its first part lasts until the new process of rank 0 starts: detection, end of the other rank, and rendezvous
of the agents. The second part is that of the new ranks: imports, process groups, model, checkpoint and a step. The CPU
time is that of both new ranks in this part; other load of the machine hardly changes it. Steps lost are those that are
trained again.

torchrun has its defaults (it looks for dead ranks every 0.1 s), except that each attempt opens a store of its own for
the ranks, as trainyard does. By default torch 2.13 keeps one store over all attempts, from which gloo may read the
addresses of dead ranks.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from benchmarks.process import process_times
from trainyard.record import Sample
from trainyard.store.run_folder import decode_sample

T = TypeVar("T")

JOB = """
[model]
layers = 2
hidden_size = 64
ffn_hidden_size = 192
heads = 2
kv_heads = 2
head_dim = 32
[layout]
dp_replicate = 2
[recipe]
seq_len = 64
tokens_per_step = 512
micro_batch_size = 4
[measure]
warmup = 2
steps = 100_000
repeats = 1
profiled = 0
[checkpoint]
interval = 10
[recovery]
max_restarts = 3
"""
_STEPS_BEFORE = 25
"""Steps before the kill: two checkpoints, and half the way to the third."""
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""torch's variable that lets each attempt open a store of its own."""
_WAIT_S = 90.0
_POLL_S = 0.005


class Restart(NamedTuple):
    """`seconds`: from the kill to the end of a step of the next attempt; `launch_s`: of them, until the new process of
    rank 0 starts; `cpu_s`: CPU time of both new ranks; `lost_steps`: completed steps that are trained again."""

    seconds: float
    launch_s: float
    cpu_s: float
    lost_steps: int


class Side(NamedTuple):
    """A launcher. `command`: starts the job in a folder; `run`: the run's folder, in that folder; `pid`: the process id
    of a rank, given the run's folder."""

    command: Callable[[Path], Sequence[str]]
    run: Callable[[Path], Path | None]
    pid: Callable[[Path, int], int]


def complete_samples(data: bytes) -> list[Sample]:
    """The samples in the contents of a rank's file, without a line that is being written."""
    return [decode_sample(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def lost_steps(samples: Sequence[Sample]) -> int:
    """The number of steps that the last attempt trains again. `samples`: of one rank, in the order of its file."""
    attempt = samples[-1].attempt
    first = next(sample.step for sample in samples if sample.attempt == attempt)
    return max((sample.step + 1 for sample in samples if sample.attempt < attempt), default=first) - first


def table(restarts: dict[str, list[Restart]]) -> str:
    """A line for each launcher, medians with the range, and the ratio of the first two launchers' medians."""
    heads = ("restart, s", "to new ranks, s", "from there, s", "CPU, s")
    lines = [f"  {'':10} {' '.join(f'{head:>20}' for head in heads)} {'steps lost':>11}"]
    for name, each in restarts.items():
        columns = [
            _median_and_range([restart.seconds for restart in each]),
            _median_and_range([restart.launch_s for restart in each]),
            _median_and_range([restart.seconds - restart.launch_s for restart in each]),
            _median_and_range([restart.cpu_s for restart in each]),
        ]
        lost = _median_and_range([restart.lost_steps for restart in each], digits=0)
        lines.append(f"  {name:10} {' '.join(f'{column:>20}' for column in columns)} {lost:>11}")
    first, second = (median(restart.seconds for restart in each) for each in restarts.values())
    return "\n".join([*lines, f"  {' / '.join(restarts)}: {first / second:.2f}"])


def _median_and_range(values: Sequence[float], digits: int = 2) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _read_samples(run: Path) -> list[Sample]:
    path = run / "samples" / "rank0.jsonl"
    return complete_samples(path.read_bytes()) if path.exists() else []


def _wait_for(find: Callable[[], T | None], process: subprocess.Popen[bytes], output: Path) -> T:
    """Wait until `find` returns a value, and return that. Exits if `process` has ended, or after `_WAIT_S` seconds."""
    deadline_s = time.monotonic() + _WAIT_S
    while (value := find()) is None:
        if process.poll() is not None:
            raise SystemExit(
                f"The launcher ended with code {process.returncode} before the restart was measured:\n{_tail(output)}"
            )
        if time.monotonic() > deadline_s:
            raise SystemExit(
                f"No run folder or new step within {_WAIT_S:g} s, and the launcher still runs:\n{_tail(output)}"
            )
        time.sleep(_POLL_S)
    return value


def _tail(output: Path) -> str:
    return output.read_text(errors="replace")[-2000:]


def measure_restart(side: Side, folder: Path) -> Restart:
    """Start a job in a new folder, kill its rank 1 once, and end the job after the restart."""
    folder.mkdir()
    (folder / "job.toml").write_text(JOB)
    environment = {**os.environ, "TRAINYARD_STORE": str(folder / "store"), "OMP_NUM_THREADS": "1", _OWN_STORE: "1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # both train on the CPU
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # byte-code is cached, as in an installation
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(side.command(folder), stdout=file, stderr=file, env=environment)
    try:
        run = _wait_for(lambda: side.run(folder), process, output)
        _wait_for(lambda: len(_read_samples(run)) >= _STEPS_BEFORE or None, process, output)
        rank_1 = side.pid(run, 1)
        killed_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.kill(rank_1, signal.SIGKILL)
        _wait_for(lambda: _read_samples(run)[-1].attempt > 0 or None, process, output)
        seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - killed_s
        ranks = [process_times(side.pid(run, rank)) for rank in range(2)]
        return Restart(
            seconds=seconds,
            launch_s=ranks[0].started_s - killed_s,
            cpu_s=sum(rank.cpu_s for rank in ranks),
            lost_steps=lost_steps(_read_samples(run)),
        )
    finally:
        for pid in _processes(str(folder)):
            with suppress(ProcessLookupError):  # it has ended with its parent
                os.kill(pid, signal.SIGKILL)
        process.wait(60)


def _processes(folder: str) -> list[int]:
    """The processes with `folder` or a path in it on their command line."""
    pids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if any(word == folder or word.startswith(f"{folder}/") for word in words):
            pids.append(int(entry.parent.name))
    return pids


def _pid_in_logs(run: Path, rank: int) -> int:
    """The process of a rank that trainyard started."""
    return int((run / "logs" / f"rank{rank}.pid").read_text())


def _pid_by_environment(run: Path, rank: int) -> int:
    """The process of a rank that torchrun started, by the RANK that it was started with."""
    for pid in _processes(str(run)):
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise SystemExit(f"no process of rank {rank} was found")


def _torchrun(folder: Path) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*command, "--max-restarts", "3", "-m", "trainyard.run.local.worker", str(folder), "cpu"]


_SIDES = {
    "trainyard": Side(
        command=lambda folder: [sys.executable, "-m", "trainyard.cli.main", "run", str(folder / "job.toml")],
        run=lambda folder: next((folder / "store" / "runs").glob("[!.]*"), None),
        pid=_pid_in_logs,
    ),
    "torchrun": Side(command=_torchrun, run=lambda folder: folder, pid=_pid_by_environment),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="kills under each launcher (default: 5)")
    kills = parser.parse_args().kills
    restarts: dict[str, list[Restart]] = {name: [] for name in _SIDES}
    with tempfile.TemporaryDirectory() as root:
        for kill in range(kills):
            for name in sorted(_SIDES, reverse=bool(kill % 2)):
                restart = measure_restart(_SIDES[name], Path(root) / f"{name}-{kill}")
                restarts[name].append(restart)
                load = os.getloadavg()[0]
                print(f"{name}: {restart.seconds:.2f} s, load {load:.1f}", file=sys.stderr, flush=True)
    print(f"torch {version('torch')}, {os.cpu_count()} cores, {kills} kills under each; medians and ranges")
    print(table(restarts))


if __name__ == "__main__":
    main()
