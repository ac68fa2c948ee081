"""The cost of planning: `python -m benchmarks.search` plans GPT-3 175B on 1,024 and 4,096 A100s over the whole space of
layouts, on one core, and prints CPU seconds and peak MB of the command, from its start to its end, a line each; then
with --json, which has the front of time and memory of the whole space too, with a budget of tokens, and with --full,
which searches other numbers of devices too.
"""

from __future__ import annotations

import sys
from statistics import median

from benchmarks.process import once

DEVICES = (1024, 4096)
ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
REPEATS = 3


def command(devices: int, *more: str) -> list[str]:
    plan = [sys.executable, "-m", "trainyard.cli.main", "plan", "gpt3-175b", "--machine", "a100"]
    return [*plan, "--devices", str(devices), "--batch", "1536", "--seq-len", "2048", "--for", "megatron", *more]


def main() -> None:
    for more in ((), ("--json",), ("--tokens", "3e11"), ("--tokens", "3e11", "--full")):
        for devices in DEVICES:
            costs = [once(command(devices, *more), ONE_CORE) for _ in range(REPEATS + 1)][1:]
            seconds, peak = median(cost.cpu_s for cost in costs), median(cost.peak_bytes for cost in costs)
            print(f"{devices:6,} devices   {seconds:.2f} CPU-s   {peak / 1e6:.0f} MB   {' '.join(more)}".rstrip())


if __name__ == "__main__":
    main()
