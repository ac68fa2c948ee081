"""What a run's folder knows of its chaos: the plan, and which faults were made. No torch.

chaos/plan.json      the plan; a run without chaos has no such folder
chaos/fault<N>.json  Made: written as the N-th fault of the plan is made, and never made again
chaos.json           the score, when the run is over
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trainyard.launch import epoch
from trainyard.run.chaos.fault_plan import FaultPlan
from trainyard.store.disk_space import write_whole

FOLDER = "chaos"
SCORE = "chaos.json"
_MADE = re.compile(r"fault(\d+)\.json\Z")


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """`at`: ns since the epoch, just before; `step`: before which it was made, of the attempt `attempt`."""

    at: int
    step: int
    attempt: int


def arm(run: Path, plan: FaultPlan) -> None:
    """Before any rank is started."""
    (run / FOLDER).mkdir()
    write_whole(run / FOLDER / "plan.json", msgspec.json.encode(plan))


def armed(run: Path) -> FaultPlan | None:
    """None of a run without chaos."""
    try:
        return msgspec.json.decode((run / FOLDER / "plan.json").read_bytes(), type=FaultPlan)
    except FileNotFoundError:
        return None


def claim(run: Path, number: int, step: int, attempt: int) -> bool:
    """Whether the fault is ours to make, now: only once it is."""
    injected_faults = msgspec.json.encode(InjectedFault(at=epoch.now_ns(), step=step, attempt=attempt))
    try:
        mark = os.open(run / FOLDER / f"fault{number}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    os.write(mark, injected_faults)
    os.close(mark)
    return True


def injected_faults(run: Path) -> Mapping[int, InjectedFault]:
    """By place in the plan."""
    return {
        int(match[1]): msgspec.json.decode(path.read_bytes(), type=InjectedFault)
        for path in (run / FOLDER).glob("fault*.json")
        if (match := _MADE.match(path.name))
    }
