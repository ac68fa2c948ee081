"""Shows what trainyard does on an accelerator: `make device-evidence`.

Writes `evidence/<device>-<date>/`, 2 MB at most: the device tests' outcome, the run folder of the largest dense
job that fits (without its raw traces), its page, one trimmed trace and the ledger read back from it. Needs torch
and the base libraries, nothing else; where there is no accelerator it says so and succeeds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import NamedTuple

from trainyard.errors import EnvironmentFailed

NEEDED = ("click", "rich", "msgspec", "numpy", "tomli_w", "pytest", "pytest_timeout", "hypothesis")
# In a process of its own: this one must not hold a device that a rank wants to itself.
_LOOK = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([torch.__version__, [one.name for one in found], [one.total_memory for one in found]]))
"""


class Devices(NamedTuple):
    """The devices' names as torch reports them and the smallest one's memory (bytes), or `why` there are none."""

    names: tuple[str, ...]
    memory: int
    why: str = ""


def main() -> int:
    devices = accelerators()
    if not devices.names:
        print(f"There is no accelerator here ({devices.why}): nothing to show.")
        return 0
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(f"{', '.join(missing)} is not here. Bring it along: 'make carry' packs it.", file=sys.stderr)
        return EnvironmentFailed.exit_code
    from benchmarks.collect import collect  # imports packages that may be missing

    return collect(devices.names, devices.memory)


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
    return Devices(tuple(names), min(memory, default=0), f"torch {version} sees none{hidden}")


if __name__ == "__main__":
    raise SystemExit(main())
