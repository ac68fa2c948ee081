"""Files of a chaos experiment in a run's folder: the fault plan and the faults injected so far. No torch.

chaos/plan.json      the plan; a run without chaos has no such folder
chaos/fault<N>.json  InjectedFault: written when the N-th fault of the plan is injected, which happens at most once
chaos.json           the score, written when the run is over
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
_FAULT_FILE = re.compile(r"fault(\d+)\.json\Z")


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """An injected fault. `at`: ns since the epoch, just before the injection; `step`: the step before which it was
    injected, in attempt `attempt`."""

    at: int
    step: int
    attempt: int


def write_plan(run: Path, plan: FaultPlan) -> None:
    """Write the fault plan into the run's folder; call it before any rank is started."""
    (run / FOLDER).mkdir()
    write_whole(run / FOLDER / "plan.json", msgspec.json.encode(plan))


def read_plan(run: Path) -> FaultPlan | None:
    """Return the run's fault plan; None for a run without chaos."""
    try:
        return msgspec.json.decode((run / FOLDER / "plan.json").read_bytes(), type=FaultPlan)
    except FileNotFoundError:
        return None


def claim_injection(run: Path, number: int, step: int, attempt: int) -> bool:
    """Record that fault `number` of the plan is injected now, and return True; False if it has been injected already.

    The file is created exclusively, so that of several processes only one injects the fault. `run`: the run's folder;
    `step`, `attempt`: at which it is injected.
    """
    injected_fault = msgspec.json.encode(InjectedFault(at=epoch.now_ns(), step=step, attempt=attempt))
    try:
        mark = os.open(run / FOLDER / f"fault{number}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    os.write(mark, injected_fault)
    os.close(mark)
    return True


def injected_faults(run: Path) -> Mapping[int, InjectedFault]:
    """Return index in the plan -> injected fault, for the run in the folder `run`."""
    return {
        int(match[1]): msgspec.json.decode(path.read_bytes(), type=InjectedFault)
        for path in (run / FOLDER).glob("fault*.json")
        if (match := _FAULT_FILE.match(path.name))
    }
