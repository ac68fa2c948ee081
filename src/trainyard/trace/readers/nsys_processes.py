"""Facts about the processes in a Nsight Systems database: rank, program, devices, host and clock."""

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
    """A process. `rank`: its rank, -1 if the file does not state it; `world`: number of ranks, 0 if not stated."""

    rank: int = -1
    world: int = 0
    python: bool = False


class Processes:
    """What the file states about its processes and their machine. `base`: ns to add to timestamps for UTC;
    `device_names`: number of a GPU of the machine -> name."""

    def __init__(self, tables: Tables) -> None:
        """Read the tables about processes, devices and the session."""
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
        in which the profiler was started is its own."""
        rank, world = self.ranks.get(process, -1), 0
        for variable, sizes in _RANK_VARIABLES if is_only else ():
            stated = _number(self.environment.get(variable, ""))
            size = next((number for name in sizes if (number := _number(self.environment.get(name, ""))) >= 0), 0)
            if 0 <= stated < size and size > 1 and rank in (-1, stated):
                rank, world = stated, size
                break
        name = str(self.names.get(process, "")).split(" ", 1)[0].replace("\\", "/").rpartition("/")[2]
        return Process(rank, world, python=_PYTHON.match(name) is not None)

    def gpu(self, process: int, device: object) -> int:
        """The device's number in the machine."""
        number = self.gpus.get((extract_pid(process), device), device)
        return number if type(number) is int else -1


def _mpi_ranks(tables: Tables) -> Iterator[tuple[int, int]]:
    """(process, rank) as the MPI trace states them: in a table of its own or, in older exports, as names of threads."""
    for thread, name in tables.rows("ThreadNames", "globalTid nameId"):
        if match := _MPI_RANK.match(tables.text(name)):
            yield extract_process(thread), int(match[1])
    named = tables.rows("NVTX_EVENTS", "text textId globalTid", only=("eventType", _THREAD_NAMED))
    for text, ident, thread in named:
        if match := _MPI_RANK.match(text if isinstance(text, str) else tables.text(ident)):
            yield extract_process(thread), int(match[1])
    for thread, rank in tables.rows("MPI_RANKS", "globalTid rank"):
        if type(rank) is int and 0 <= rank < _MAX_RANK:
            yield extract_process(thread), rank


def _environment(tables: Tables) -> Iterator[tuple[str, str]]:
    """(name, value) of the environment variables with which the program was started. Only those of launchers are kept:
    others may hold secrets."""
    wanted = {name for rank, sizes in _RANK_VARIABLES for name in (rank, *sizes)}
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
        if name in wanted:
            yield name, value.strip('"')


def _clock_base(tables: Tables) -> int:
    """ns to add to the file's timestamps for UTC. Newer exports count from the boot of the machine and state that clock
    at the session's start; older ones count from the session's start. An export may hold UTC already."""
    if ("EXPORT_PARAM_TIME_NORMALIZE", "true") in tables.pairs("META_DATA_EXPORT"):
        return 0
    starts = [next((row[0] for row in tables.rows(table, "start")), None) for table in WORK_TABLES]
    some_time = next((start for start in starts if type(start) is int), 0)
    for utc, clock in tables.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs systemClockNs"):
        if type(utc) is int:
            return utc - clock if type(clock) is int and some_time >= clock else utc
    return 0


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else -1
