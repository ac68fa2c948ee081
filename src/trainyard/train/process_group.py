"""This process's rank and device, and setup and teardown of the default process group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from trainyard.errors import DeviceUnusable

TIMEOUT = timedelta(seconds=120)
"""Timeout of a collective whose peer is alive but does not join; a dead peer is detected at once."""
PATIENCE = timedelta(minutes=30)
"""Timeout of a collective whose peer may be busy with a large file."""


class Ranks(NamedTuple):
    """A process's rank in the job and its device. `world`, `local_world`: number of ranks in the job and on this host;
    `local_rank`: index on this host, over all its agents, and of `device`. `vendor` of the device: nvidia, amd or
    cpu."""

    rank: int
    local_rank: int
    world: int
    local_world: int
    vendor: str
    device: torch.device

    @property
    def backend(self) -> str:
        """The torch.distributed backend; empty for a single rank. `nccl` is also the name of RCCL."""
        if self.world == 1:
            return ""
        return "nccl" if self.device.type == "cuda" else "gloo"


def detect_vendor(vendor: str = "cpu") -> str:
    """The vendor of the devices that this build of torch can use: nvidia, amd, or cpu if it can use none.

    `vendor`: the vendor of the devices that the machine has. Raises `DeviceUnusable` if torch cannot use them.
    """
    torch_vendor = "cpu" if not torch.cuda.is_available() else "amd" if torch.version.hip else "nvidia"
    if vendor not in ("cpu", "pretend", torch_vendor):
        raise DeviceUnusable(
            f"this machine has {vendor} devices, but torch {torch.__version__} cannot use them{_reason(torch_vendor)}.",
            "Install a torch build that supports the devices and their driver, or set CUDA_VISIBLE_DEVICES to an empty "
            "string to train on the CPU.",
        )
    return torch_vendor


def _reason(torch_vendor: str) -> str:
    """Why torch cannot use the devices that the machine has, to append to a sentence; empty if torch gives no reason.
    `torch_vendor`: the vendor of those that it can use."""
    if torch_vendor != "cpu":
        return f", as it is built for those of {torch_vendor}"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f": {str(error).partition('. ')[0].rstrip('.')}"
    return ""


def find_ranks(vendor: str) -> Ranks:
    """This process's rank, from the environment set by the elastic launcher; without it, a single rank.

    Raises `DeviceUnusable` if there are fewer devices than local ranks.
    """
    local_rank, local_world = _environment_int("LOCAL_RANK", 0), _environment_int("LOCAL_WORLD_SIZE", 1)
    if vendor == "cpu":
        device = torch.device("cpu")
    elif local_world > torch.cuda.device_count():
        raise DeviceUnusable(
            f"{local_world} ranks on this host need a device each, but torch sees {torch.cuda.device_count()}.",
            "Lower $.layout, use more hosts, or set CUDA_VISIBLE_DEVICES to an empty string to train on the CPU.",
        )
    else:
        device = torch.device("cuda", local_rank)
    return Ranks(
        rank=_environment_int("RANK", 0),
        local_rank=local_rank,
        world=_environment_int("WORLD_SIZE", 1),
        local_world=local_world,
        vendor=vendor,
        device=device,
    )


def _environment_int(variable: str, default: int) -> int:
    """The integer in an environment variable, or the default if it is not set."""
    return int(os.environ.get(variable, default))


@contextmanager
def process_group_context(ranks: Ranks, init_method: str | None = None, timeout: timedelta = TIMEOUT) -> Iterator[None]:
    """Context in which torch's default process group exists and the rank's device is the current device.

    A single rank needs no group and gets none. `init_method`: the rendezvous URL if the environment does not set one.
    Leaving the context is collective; after an exception the group is not destroyed.
    """
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    if ranks.world == 1:
        yield
        return
    bound_device = ranks.device if ranks.device.type == "cuda" else None
    dist.init_process_group(
        ranks.backend,
        init_method=init_method,
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timeout,
        device_id=bound_device,
    )
    yield
    # Not after an error: the peers may wait in another collective, and the process ends anyway.
    dist.barrier()  # no rank closes its sockets while a peer still reads from them
    dist.destroy_process_group()


def barrier(ranks: Ranks) -> None:
    """Waits until all ranks have called it."""
    if ranks.world > 1:
        dist.barrier()


def on_any(ranks: Ranks, value: bool) -> bool:
    """Whether `value` is true on any rank. Collective."""
    if ranks.world == 1:
        return value
    flag = torch.tensor(int(value), device=ranks.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def patient_barrier(ranks: Ranks) -> None:
    """A barrier for ranks that arrive minutes apart. Uses a separate gloo group, since timeouts are set per group."""
    if ranks.world > 1:
        group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))  # all ranks are members
        dist.barrier(group)
        dist.destroy_process_group(group)


def synchronize(ranks: Ranks) -> None:
    """Waits until the device has finished all launched work."""
    if ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)
