"""This process's place among the ranks, its device, and how they come together and part."""

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
"""How long a collective waits for a peer that is alive but does not come; one that died is noticed at once."""
PATIENCE = timedelta(minutes=30)
"""The same where a peer may be busy with a large file."""


class Ranks(NamedTuple):
    """`vendor` as in words.VENDORS. `device` index is the local rank."""

    rank: int
    local_rank: int
    world: int
    local_world: int
    vendor: str
    device: torch.device

    @property
    def backend(self) -> str:
        """`nccl` is RCCL's name too. A rank alone needs none."""
        if self.world == 1:
            return ""
        return "nccl" if self.device.type == "cuda" else "gloo"


def vendor_here(found: str = "cpu") -> str:
    """The vendor of the devices that this torch can use, `cpu` where there is none.

    `found`: the vendor whose devices the machine has. Raises `DeviceUnusable` when torch cannot use those.
    """
    here = "cpu" if not torch.cuda.is_available() else "amd" if torch.version.hip else "nvidia"
    if found not in ("cpu", "pretend", here):
        raise DeviceUnusable(
            f"this machine has devices of {found}, but torch {torch.__version__} cannot use them.",
            "Install the torch that is built for them and fits their driver, or set CUDA_VISIBLE_DEVICES to an empty "
            "text to train on the CPU.",
        )
    return here


def find(vendor: str) -> Ranks:
    """From the environment the elastic launcher sets; alone where there is none. Raises `DeviceUnusable`."""
    local_rank, local_world = _count("LOCAL_RANK", 0), _count("LOCAL_WORLD_SIZE", 1)
    if vendor == "cpu":
        device = torch.device("cpu")
    elif local_world > torch.cuda.device_count():
        raise DeviceUnusable(
            f"{local_world} ranks on this host need a device each, but torch sees {torch.cuda.device_count()}.",
            "Lower $.layout, or set CUDA_VISIBLE_DEVICES to an empty text to train on the CPU.",
        )
    else:
        device = torch.device("cuda", local_rank)
    return Ranks(_count("RANK", 0), local_rank, _count("WORLD_SIZE", 1), local_world, vendor, device)


def _count(variable: str, default: int) -> int:
    return int(os.environ.get(variable, default))


@contextmanager
def joined(ranks: Ranks, meet: str | None = None, timeout: timedelta = TIMEOUT) -> Iterator[None]:
    """Inside, the process group exists and the device is current. `meet`: the URL at which ranks find each other,
    where the environment does not say."""
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    if ranks.world == 1:
        yield
        return
    bound = ranks.device if ranks.device.type == "cuda" else None
    dist.init_process_group(
        ranks.backend, init_method=meet, rank=ranks.rank, world_size=ranks.world, timeout=timeout, device_id=bound
    )
    yield
    # Not after an error: the peers may wait in another collective, and the process ends anyway.
    dist.barrier()  # nobody closes its sockets while a peer still reads from them
    dist.destroy_process_group()


def barrier(ranks: Ranks) -> None:
    if ranks.world > 1:
        dist.barrier()


def patient_barrier(ranks: Ranks) -> None:
    """For ranks that come minutes apart. Over the host's network, in a group of its own: only a group has patience."""
    if ranks.world > 1:
        group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))  # all ranks are members
        dist.barrier(group)
        dist.destroy_process_group(group)


def synchronize(ranks: Ranks) -> None:
    """Waits until the device has done what was launched."""
    if ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)
