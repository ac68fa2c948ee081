"""Shows what trainyard does on an accelerator: `make device-evidence`.

`PART=n` runs one part (`PARTS`) of at most eight minutes; without it all run in this order, each in a process of its
own, and a part that fails does not stop the next one. Writes `evidence/<device>-<date>/<part>/`, 2 MB at most in all.
Needs torch and the base libraries, nothing else; without an accelerator it prints that and succeeds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from trainyard.errors import BadInput, EnvironmentFailed

NEEDED = ("click", "rich", "msgspec", "numpy", "tomli_w", "pytest", "pytest_timeout", "hypothesis")
PARTS = {
    1: "tests",
    2: "dense",
    3: "workloads",
    4: "probe",
    5: "numerics",
    6: "faults",
}
"""Number -> folder, ordered by what each could prove wrong."""
PART_S, START_S = 480.0, 60.0
"""Seconds at most: for the commands of a part, and in addition for its process."""
# In a process of its own: this one must not hold a device that a rank wants to itself.
_LOOK = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
cuda = getattr(getattr(torch, "version", None), "cuda", None)
print(json.dumps([f"{torch.__version__}" + f" (CUDA {cuda})" * bool(cuda), [d.name for d in found],
                  [d.total_memory for d in found]]))
"""


class Devices(NamedTuple):
    """The devices' names as torch reports them and the smallest one's memory (bytes), or `why` there are none.
    `torch`: its version."""

    names: tuple[str, ...]
    memory: int
    why: str = ""
    torch: str = ""


def main(part: str = "") -> int:
    """`part`: a number in `PARTS`, empty for all of them."""
    if part and part not in map(str, PARTS):
        known = ", ".join(f"{number} {name}" for number, name in PARTS.items())
        print(f"PART = {part} is not a part of the evidence. The parts are {known}.", file=sys.stderr)
        return BadInput.exit_code
    devices = accelerators()
    if not devices.names:
        print(f"There is no accelerator here ({devices.why}): nothing to show.")
        return 0
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(
            f"{', '.join(missing)} is not installed. Pack it with 'make carry' on a machine that has it.",
            file=sys.stderr,
        )
        return EnvironmentFailed.exit_code
    if not part:
        return run_all()
    from benchmarks.device_hour.run_part import run_part  # imports packages that may be missing

    began = time.monotonic()
    passed = run_part(int(part), devices)
    print(f"part {part}: {'passed' if passed else 'failed'} after {time.monotonic() - began:.0f} of {PART_S:.0f} s")
    return 0 if passed else 1


def run_all(command: Sequence[str] = (sys.executable, "-m", "benchmarks.evidence")) -> int:
    """Run `command` with the number of each part. The exit code is the first one that is not 0."""
    codes: list[int] = []
    for number, name in PARTS.items():
        print(f"part {number}, {name}", flush=True)
        try:
            done = subprocess.run([*command, str(number)], check=False, timeout=PART_S + START_S)
            codes.append(done.returncode)
        except subprocess.TimeoutExpired:
            print(f"part {number} did not end in {PART_S + START_S:.0f} s", file=sys.stderr)
            codes.append(124)
    return next((code for code in codes if code), 0)


def accelerators(python: str = sys.executable) -> Devices:
    """What torch sees. A torch that cannot be imported, or a driver that does not answer it, is a reason too."""
    if find_spec("torch") is None:
        return Devices((), 0, "torch is not installed")
    try:
        done = subprocess.run([python, "-c", _LOOK], capture_output=True, text=True, check=False, timeout=120)
        version, names, memory = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Devices((), 0, "torch gave no answer in 120 s")
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines()
        return Devices((), 0, f"torch does not work: {lines[-1] if lines else f'exit code {done.returncode}'}")
    hidden = " with CUDA_VISIBLE_DEVICES set" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
    return Devices(tuple(names), min(memory, default=0), f"torch {version} sees none{hidden}", version)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2]))
