"""What a launcher's environment variables state about a process: its rank, the number of ranks, and the job's id.

torchrun, accelerate and deepspeed set RANK and WORLD_SIZE; srun, mpirun and Ray set variables of their own.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import NamedTuple

NODE = "TRAINYARD_NODE"
"""Environment variable: the name of this node, for hosts or containers that have the same host name."""
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
# SLURM_STEP_NUM_TASKS is set by srun only; SLURM_NTASKS also in a batch script, whose process is not a rank.
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_UNUSUAL = re.compile(r"[^A-Za-z0-9._:@+-]+")
_MAX_ID_LENGTH = 96


class LauncherId(NamedTuple):
    """A job's id as its launcher gives it, such as `slurm-1234`; empty if it gives none. `variables`: the names of the
    environment variables, separated by commas."""

    id: str
    variables: str


def node_name() -> str:
    """The name of this node: $TRAINYARD_NODE, else Slurm's name of it, else the host name."""
    name = os.environ.get(NODE) or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return "".join(letter for letter in name if letter.isprintable())[:255] or "unnamed"


def rank(environment: Mapping[str, str]) -> int:
    """The rank of this process; 0 if no launcher states it."""
    return max(0, _first_number(environment, _RANK, 0))


def world_size(environment: Mapping[str, str]) -> int:
    """Number of ranks of the job; 1 if no launcher states it."""
    return max(1, _first_number(environment, _WORLD_SIZE, 1))


def launcher_id(environment: Mapping[str, str]) -> LauncherId:
    """The job's id that all of its nodes have in their environment.

    A scheduler's id counts its restarts, which are runs of their own. `torchrun` without --rdzv-id has the id `none`,
    which is not used. The last resort, address and port of rank 0, is the same for later jobs on the same port.
    """
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    candidates = (
        ("torchelastic", ("TORCHELASTIC_RUN_ID",)),
        ("slurm", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
        ("ray", ("RAY_JOB_ID",)),
        ("mpi", ("PMIX_NAMESPACE",)),
        ("mpi", ("OMPI_MCA_ess_base_jobid",)),
        ("mpi", ("PMI_JOBID",)),
        ("master", ("MASTER_ADDR", "MASTER_PORT")),
    )
    for prefix, names in candidates:
        values = [environment.get(name, "") for name in names]
        if values[0] and values[0] != "none":
            if prefix == "slurm" and restarts != "0":
                values.append(f"restart{restarts}")
            text = _UNUSUAL.sub("_", "-".join([prefix, *filter(None, values)]))
            return LauncherId(text[:_MAX_ID_LENGTH], ", ".join(names))
    return LauncherId("", "")


def _first_number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    """The value of the first of these variables that is a decimal number; `default` if none is."""
    values = (environment.get(name, "") for name in names)
    return next((int(value) for value in values if re.fullmatch(r"\d{1,8}", value)), default)
