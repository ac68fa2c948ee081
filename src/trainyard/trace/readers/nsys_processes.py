"""Facts about the processes in a Nsight Systems database: rank, program, devices, host and clock.

A process is a number as `extract_process` makes it from the ids in the tables; `nsys.py` is the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from trainyard.trace.readers.nsys_tables import WORK_TABLES, Tables, extract_pid, extract_process

_MPI_RANK = re.compile(r"MPI Rank (\d{1,9})\Z")
_THREAD_NAMED = 39
"""Type of the NVTX event that names a thread."""
_PYTHON = re.compile(r"(i?python|pypy)[\d.]*(\.exe)?\Z", re.I)
# Environment variables of launchers: this process's rank and the number of ranks.
_RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("RANK", ("WORLD_SIZE",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)
_MAX_RANK = 1 << 24


class Process(NamedTuple):
    """A process. `rank`: its rank, -1 if the file does not state it; `world`: number of ranks, 0 if not stated;
    `python`: it is a Python interpreter."""

    rank: int = -1
    world: int = 0
    python: bool = False


class Processes:
    """The facts that the file states about its processes and their machine.

    `names`, `ranks`: process -> name of its program, and rank; `environment`: name -> value of launchers' variables;
    `base`: ns to add to timestamps for UTC; `gpus`: (process id, its number of a device) -> number of the GPU of the
    machine; `device_names`: number of a GPU of the machine -> name; `host_name`: empty if it is not stated.
    """

    def __init__(self, tables: Tables) -> None:
        """Reads the tables about processes, devices and the session."""
        self.names = {extract_process(ident): name for ident, name in tables.rows("PROCESSES", "globalPid name")}
        self.ranks = dict(_mpi_ranks(tables))
        self.environment = dict(_environment(tables))
        self.base = _clock_base(tables)
        # Each process numbers its visible devices from 0; this table maps them to GPUs of the machine.
        self.gpus = {
            (pid, device): gpu
            for pid, device, gpu in tables.rows("TARGET_INFO_CUDA_DEVICE", "pid cudaId gpuId")
            if type(gpu) is int
        }
        self.device_names = {
            ident: str(name) for ident, name in tables.rows("TARGET_INFO_GPU", "id name") if type(ident) is int and name
        }
        self.host_name = next(
            (value for name, value in tables.pairs("TARGET_INFO_SYSTEM_ENV") if name == "Hostname"), ""
        )

    def process(self, process: int, is_only: bool) -> Process:
        """The facts about a process. `is_only`: no other process of the file uses a device, so that the environment
        in which the profiler was started is its own. A launcher's variables count only if they do not contradict the
        rank in MPI's tables."""
        rank, world = self.ranks.get(process, -1), 0
        for variable, size_variables in _RANK_VARIABLES if is_only else ():
            stated_rank = _number(self.environment.get(variable, ""))
            sizes = (_number(self.environment.get(name, "")) for name in size_variables)
            size = next((size for size in sizes if size >= 0), 0)
            if 0 <= stated_rank < size and size > 1 and rank in (-1, stated_rank):
                rank, world = stated_rank, size
                break
        # The name of the program's file, without its path and arguments.
        name = str(self.names.get(process, "")).split(" ", 1)[0].replace("\\", "/").rpartition("/")[2]
        return Process(rank, world, python=_PYTHON.match(name) is not None)

    def gpu(self, process: int, device: object) -> int:
        """The number in the machine of the device that the process calls `device`; -1 if that is not a number."""
        number = self.gpus.get((extract_pid(process), device), device)
        return number if type(number) is int else -1


def _mpi_ranks(tables: Tables) -> Iterator[tuple[int, int]]:
    """Yields (process, rank) as the MPI trace states them: in a table of its own or, in older exports, as names of
    threads. Of several pairs of a process the last, that of the table, is to be used."""
    for thread, name in tables.rows("ThreadNames", "globalTid nameId"):
        if match := _MPI_RANK.match(tables.text(name)):
            yield extract_process(thread), int(match[1])
    thread_names = tables.rows("NVTX_EVENTS", "text textId globalTid", only=("eventType", _THREAD_NAMED))
    for text, ident, thread in thread_names:
        if match := _MPI_RANK.match(text if isinstance(text, str) else tables.text(ident)):
            yield extract_process(thread), int(match[1])
    for thread, rank in tables.rows("MPI_RANKS", "globalTid rank"):
        if type(rank) is int and 0 <= rank < _MAX_RANK:
            yield extract_process(thread), rank


def _environment(tables: Tables) -> Iterator[tuple[str, str]]:
    """Yields (name, value) of the environment variables with which the program was started. Only those of launchers are
    kept: others may hold secrets."""
    launcher_variables = {name for rank, sizes in _RANK_VARIABLES for name in (rank, *sizes)}
    # Texts `NAME=value`. `pairs` yields the (name, value) of each row of a table of settings.
    settings = [
        part
        for name, value in tables.pairs("TARGET_INFO_SYSTEM_ENV")
        if name == "DeviceEnvironment"
        for part in re.split(r"[;\0\n]", value)
    ]
    captured = tables.pairs("META_DATA_CAPTURE")
    settings += [value for name, value in captured if name.endswith("ENVIRONMENT_VARIABLE")]
    for setting in settings:
        name, _, value = setting.partition("=")
        if name in launcher_variables:
            yield name, value.strip('"')


def _clock_base(tables: Tables) -> int:
    """ns to add to the file's timestamps for UTC; 0 if the file does not show it. Newer exports count from the boot of
    the machine and state that clock at the session's start; older ones count from the session's start. An export may
    hold UTC already."""
    if ("EXPORT_PARAM_TIME_NORMALIZE", "true") in tables.pairs("META_DATA_EXPORT"):
        return 0
    # A timestamp of the file shows from where it counts: one since the boot is not before the session's start.
    starts = [next((row[0] for row in tables.rows(table, "start")), None) for table in WORK_TABLES]
    sample_ns = next((start for start in starts if type(start) is int), 0)
    for utc_ns, boot_ns in tables.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs systemClockNs"):
        if type(utc_ns) is int:
            return utc_ns - boot_ns if type(boot_ns) is int and sample_ns >= boot_ns else utc_ns
    return 0


def _number(text: str) -> int:
    """The number of up to eight digits that a text consists of; -1 for any other text."""
    return int(text) if text.isdecimal() and len(text) < 9 else -1
