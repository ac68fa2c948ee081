"""What-if predictions compared with the change itself, on own runs: `python -m validation.whatif [REPEATS]`.

Needs torch. Each run is a small training job on this machine's cores with a delay injected into every second step. The
predicted time of these steps without the delay is compared with the other steps of the same run, because the speed of a
shared machine changes from one minute to the next. Times are medians over steps of the mean over ranks. On a machine
with other work there are other stragglers as well: a step without any is a step less the time its ranks waited for each
other.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from trainyard.trace.measure import measure, read
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.what_if import what_if

JOB = """\
[model]
layers = 2
hidden_size = 64
ffn_hidden_size = 128
heads = 2
kv_heads = 2
head_dim = 32
[layout]
dp_replicate = {ranks}
[recipe]
seq_len = 64
tokens_per_step = {tokens}
micro_batch_size = 4
[measure]
warmup = 2
steps = 2
repeats = 1
profiled = 24
"""


class Plant(NamedTuple):
    """The delay `what` of `ms` per step, in a job of `ranks` ranks and `tokens` tokens per step; the scenario
    `supposed` removes it."""

    what: str
    ranks: int
    tokens: int
    ms: int
    supposed: str


PLANTS = (
    Plant("straggler", 2, 1024, 60, "no-stragglers"),
    Plant("loader", 1, 4096, 60, "data_wait=0"),
    Plant("host", 1, 4096, 60, "op:slow=0"),
)


class Pair(NamedTuple):
    """Step times in ns: with the delay, predicted without it, and measured without it."""

    planted: int
    predicted: int
    without: int

    @property
    def error(self) -> float:
        return self.predicted / self.without - 1


def trained(plant: Plant) -> MeasuredTrace:
    """The measured traces of a run with the delay."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.toml").write_text(JOB.format(ranks=plant.ranks, tokens=plant.tokens), "utf-8")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={plant.ranks}"]
        command = [*launcher, "-m", "validation.planted", str(folder), plant.what, str(plant.ms)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return measure(read([folder / "traces"]))


def pair(plant: Plant) -> Pair:
    measured = trained(plant)
    would = what_if(measured, [plant.supposed]).would
    waits = plant.what == "straggler"
    return Pair(_step(measured, True), _step(would, True), _step(measured, False, waits))


def _step(measured: MeasuredTrace, delayed: bool, less_waits: bool = False) -> int:
    """Time of the delayed steps, or of the others. Step marks are the steps' numbers plus an even constant."""
    times: dict[str, list[int]] = {}
    for ledger in measured.by_rank:
        label = ledger.scope.steps[0]
        if label.isdecimal() and int(label) % 2 == delayed and not ledger.scope.partial:
            waits = ledger.by_kind().get("straggler", 0) if less_waits else 0
            times.setdefault(label, []).append(ledger.wall_ns - waits)
    return round(statistics.median(statistics.mean(column) for column in times.values()))


def main(repeats: int = 5) -> None:
    print(f"{'planted':<28}{'supposed':<22}{'measured':>10}{'predicted':>11}{'without':>10}{'error':>9}")
    for plant in PLANTS:
        pairs = []
        for _ in range(repeats):
            pairs.append(pair(plant))
            print(_line(plant, pairs[-1]), flush=True)
        middle = Pair(*(round(statistics.median(column)) for column in zip(*pairs)))
        errors = sorted(result.error for result in pairs)
        spread = (
            f"   median of {repeats}; error {statistics.median(errors):+.1%} ({errors[0]:+.1%} to {errors[-1]:+.1%})"
        )
        print(_line(plant, middle) + spread, flush=True)


def _line(plant: Plant, pair: Pair) -> str:
    times = "".join(f"{ns / 1e6:>{wide}.1f}" for ns, wide in zip(pair, (10, 11, 10)))
    return f"{plant.what + f', {plant.ms} ms, {plant.ranks} ranks':<28}{plant.supposed:<22}{times}{pair.error:>+9.1%}"


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
