"""Kill a training run at every fault point that it reaches, then resume it: `python -m validation.kill_points`.

Each trial is a run of two ranks that is started with `TRAINYARD_FAULT_POINT=POINT:N`; N rises until the run ends
undisturbed. After each kill the store must be listed without warnings, and the run must be absent or marked as
unfinished or complete; `trainyard run resume` must complete it with exactly the losses of an undisturbed run. The
supervisor, a rank, or both ranks at once may reach a point: the first process that reaches it N times is killed.

`--point NAME`: only this point. `--ranks N`: number of ranks (2).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.fault_points import POINTS, VARIABLE
from trainyard.store.store import Store

JOB = """
[model]
layers = 1
hidden_size = 16
ffn_hidden_size = 16
heads = 2
kv_heads = 1
head_dim = 8
[layout]
dp_shard = {ranks}
[recipe]
seq_len = 16
tokens_per_step = 64
[measure]
warmup = 1
steps = 4
repeats = 1
profiled = 0
[checkpoint]
interval = 2
keep_latest_k = 1
"""
MOST = 200
"""Most arrivals at a point that are tried."""


class Trial(NamedTuple):
    """`state`: of the run after the kill; `absent` if there is no run. `wrong`: the defect, empty if there is none."""

    point: str
    number: int
    state: str
    wrong: str = ""


def trial(folder: Path, job: Path, point: str, number: int, calm: Mapping[int, float]) -> Trial | None:
    """Run one trial; None if the run ended undisturbed, because it reaches the point less often."""
    root = folder / f"{point}-{number}"
    ended = _trainyard(root, ["run", str(job), "--quiet"], {VARIABLE: f"{point}:{number}"})
    if ended.returncode == 0:
        wrong = "" if _losses(root) == calm else "an undisturbed run has other losses"
        return Trial(point, number, "undisturbed", wrong) if wrong else None
    complaints: list[str] = []
    rows = Store(root, say=complaints.append).rows()
    if complaints:
        return Trial(point, number, "unreadable", "; ".join(complaints))
    if not rows:
        return Trial(point, number, "absent")
    state = rows[0].state
    if state != "complete":
        resumed = _trainyard(root, ["run", "resume", rows[0].id, "--quiet"], {})
        if resumed.returncode:
            return Trial(point, number, state, f"resume ended with {resumed.returncode}: {resumed.stderr[-300:]}")
    wrong = "" if _losses(root) == calm else f"other losses: {_losses(root)}"
    return Trial(point, number, state, wrong)


def _losses(root: Path) -> dict[int, Any]:
    """Rank 0's loss of each step, of the last attempt that took it; empty if the run is not complete."""
    store = Store(root, say=print)
    (row,) = store.rows()
    run = store.load(row.id)
    return {sample.step: sample.loss for sample in run.kept() if sample.rank == 0} if run.state == "complete" else {}


def _trainyard(root: Path, words: list[str], more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRAINYARD_STORE": str(root), "OMP_NUM_THREADS": "1", **more}
    command = [sys.executable, "-m", "trainyard.cli.main", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--point", choices=POINTS, action="append")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    began, failed, tried = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as top:
        folder, job = Path(top), Path(top) / "job.toml"
        job.write_text(JOB.format(ranks=options.ranks), "utf-8")
        ended = _trainyard(folder / "calm", ["run", str(job), "--quiet"], {})
        if ended.returncode:
            raise SystemExit(ended.stderr)
        calm = _losses(folder / "calm")
        for point in options.point or POINTS:
            for number in range(1, MOST):
                result = trial(folder, job, point, number, calm)
                if result is None:
                    break
                tried, failed = tried + 1, failed + bool(result.wrong)
                print(json.dumps(result._asdict()), flush=True)
    print(f"{tried} kills, {failed} failed, {time.monotonic() - began:.0f} s")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
