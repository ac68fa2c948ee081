"""Run a command whose operations are checked against float64."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from trainyard.errors import BadInput
from trainyard.numerics.kernels.check_result import KernelCheck, KernelCheckRequest, RankCheck
from trainyard.numerics.kernels.merge_checks import merge_ranks
from trainyard.numerics.record.record_command import run_recorded
from trainyard.numerics.record.record_process import RecordRequest
from trainyard.redact import redact_command

_FILE = re.compile(r"rank\d+\.json")


def check_command(command: Sequence[str], steps: Sequence[int], request: KernelCheckRequest) -> KernelCheck:
    """Runs a training once and checks the operations of these steps on all ranks.

    Raises `BadInput` if the command cannot be found or no requested step was seen, `CommandFailed` if it fails.
    """
    with TemporaryDirectory(prefix="trainyard-kernels-") as name:
        folder, began = Path(name), time.monotonic()
        run_recorded(
            command, folder, RecordRequest(variant="plain", steps=tuple(steps), level="operations", check=request)
        )
        seconds = time.monotonic() - began
        ranks = [
            msgspec.json.decode(path.read_bytes(), type=RankCheck)
            for path in folder.iterdir()
            if _FILE.fullmatch(path.name)
        ]
    finished = max((rank.steps for rank in ranks), default=0)
    if finished <= steps[0]:
        raise BadInput(
            f"{shlex.join(redact_command(command))} succeeded, but finished none of the steps {steps[0]}-{steps[-1]}: "
            f"torch.optim optimizers stepped {finished} times in a Python that has trainyard installed.",
            "Run it with a Python that has trainyard, and pass --steps that it reaches.",
        )
    ranks.sort(key=lambda rank: rank.rank)
    checked, unchecked = merge_ranks(ranks)
    return KernelCheck(
        command=tuple(redact_command(command)),
        device=ranks[0].device,
        ranks=len(ranks),
        steps=tuple(step for step in steps if step < finished),
        seconds=round(seconds, 2),
        operations=checked,
        unchecked=unchecked,
    )
