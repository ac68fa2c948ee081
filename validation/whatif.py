"""Recovered time as predicted and as measured, on own runs: `python -m validation.whatif [REPEATS] [PLANT...]`.

Needs torch. Each run is a small training loop on this machine's cores (`validation.planted`) in which every second step
has a planted cost. The predicted time that these steps recover without it is compared with the time by which the other
steps of the same run are shorter, because the speed of a shared machine changes from one minute to the next. Times are
medians over steps of the mean over ranks.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from trainyard.diagnose.predict_changes import predict_changes
from trainyard.trace.measure import measure, read
from trainyard.trace.measured_trace import MeasuredTrace


class Plant(NamedTuple):
    """A planted cost of `validation.planted` in a job of `ranks` ranks, and the `changes` that remove it."""

    name: str
    ranks: int
    changes: tuple[str, ...]


PLANTS = (
    Plant("straggler", 2, ("rank:1=typical",)),
    Plant("loader", 1, ("data_wait=0",)),
    Plant("python", 1, ("op:python_loop=0",)),
    Plant("host_sync", 1, ("without:sync_in_step",)),
    Plant("slow_op", 1, ("op:aten::sort=0",)),
    Plant("collective", 2, ("comm/all_gather=0", "op:c10d::allgather_=0")),
    Plant("copies", 1, ("op:aten::copy_=0",)),
    Plant("checkpoint", 1, ("checkpoint=0",)),
    Plant("tiny_ops", 1, ("without:tiny_kernels",)),
)


class Outcome(NamedTuple):
    """ns: the planted steps, the time that they recover as predicted, and as measured in the other steps."""

    planted_ns: int
    predicted_ns: int
    recovered_ns: int

    @property
    def error(self) -> float:
        return self.predicted_ns / self.recovered_ns - 1


def record(plant: Plant) -> MeasuredTrace:
    """The measured traces of a run with the planted cost."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={plant.ranks}"]
        command = [*launcher, "-m", "validation.planted", folder, plant.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return measure(read([Path(folder)]))


def compare(plant: Plant, measured: MeasuredTrace) -> Outcome:
    """The recovered time of a recorded run, as predicted and as measured."""
    before, after = _step_ns(measured), _step_ns(predict_changes(measured, plant.changes).would)
    planted = [label for label in before if int(label) % 2 and label in after]
    others = [label for label in before if not int(label) % 2]
    planted_ns = statistics.median(before[label] for label in planted)
    return Outcome(
        round(planted_ns),
        round(statistics.median(before[label] - after[label] for label in planted)),
        round(planted_ns - statistics.median(before[label] for label in others)),
    )


def _step_ns(measured: MeasuredTrace) -> dict[str, float]:
    """Label of each full step -> its time in ns, mean over ranks."""
    times: dict[str, list[int]] = {}
    for ledger in measured.by_rank:
        if not ledger.scope.partial:
            times.setdefault(ledger.scope.steps[0], []).append(ledger.wall_ns)
    return {label: statistics.mean(ns) for label, ns in times.items() if label.isdecimal()}


def main(repeats: int, names: list[str]) -> None:
    """Prints a line for each run, and the median error of each plant and of all."""
    print(f"{'planted':<12}{'change':<24}{'step, ms':>10}{'predicted':>11}{'recovered':>11}{'error':>9}")
    medians: list[float] = []
    for plant in PLANTS:
        if names and plant.name not in names:
            continue
        outcomes: list[Outcome] = []
        for _ in range(repeats):
            outcomes.append(compare(plant, record(plant)))
            print(_line(plant, outcomes[-1]), flush=True)
        medians.append(statistics.median(abs(outcome.error) for outcome in outcomes))
        print(f"{plant.name}: median absolute error {medians[-1]:.1%} of {repeats} runs", flush=True)
    print(f"median over {len(medians)} kinds: {statistics.median(medians):.1%}, largest {max(medians):.1%}")


def _line(plant: Plant, outcome: Outcome) -> str:
    """A row of the table: times in ms, and the relative error of the predicted recovery."""
    times = "".join(f"{ns / 1e6:>{width}.1f}" for ns, width in zip(outcome, (10, 11, 11)))
    return f"{plant.name:<12}{plant.changes[0]:<24}{times}{outcome.error:>+9.1%}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3, sys.argv[2:])
