"""Describe errors of devices that torch raises: memory that is exhausted, a device in use, a driver that is too old."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from trainyard.units import show_size

_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_BYTES_PER_UNIT = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_REQUESTED = re.compile(rf"out of memory\. Tried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"GPU (\d+) has a total capaci?ty of {_SIZE} of which {_SIZE} is free")
_IN_USE = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_CACHED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_HOST_REQUESTED = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes")
"""Parts of the messages of torch's allocators."""
_OTHERS_SHARE = 0.05
"""Share of a device's memory in use by other processes from which they are mentioned: contexts take less."""
_SMALLER = "Reduce micro_batch_size or seq_len, recompute activations (activation_checkpoint = 'full'), or "
_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"busy or unavailable",
        "Another process uses the device, and its compute mode admits only one (Exclusive_Process) or none "
        "(Prohibited). End that process, which nvidia-smi lists, or run: nvidia-smi -c DEFAULT",
    ),
    (
        r"driver on your system is too old",
        "Install a newer driver, or a build of torch for the driver's version of CUDA (pytorch.org/get-started).",
    ),
    (
        r"no kernel image is available",
        "This build of torch has no kernels for the device: install one for which torch.cuda.get_arch_list() includes "
        "the device's compute capability.",
    ),
    (
        r"Duplicate GPU detected",
        "Ranks share a device, such as a GPU in MIG mode, but NCCL needs one for each rank: start fewer ranks on this "
        "host, or turn MIG mode off (nvidia-smi -mig 0).",
    ),
    (
        r"uncorrectable ECC error|GPU is lost|fallen off the bus|hardware stack error",
        "The device is faulty: read the Xid errors in the kernel log (dmesg), and take the device out of the job "
        "(CUDA_VISIBLE_DEVICES) until it is reset or replaced.",
    ),
)
"""Pattern of an error's message -> advice."""


class DeviceShortage(NamedTuple):
    """Sizes in bytes from the message of a device's allocator; -1 for those that it does not state. `in_use`: by this
    process, of which torch has `allocated` for tensors and `cached` for later ones. `device`: its index, -1 if not
    stated."""

    device: int
    requested: int
    capacity: int
    free: int
    in_use: int
    allocated: int
    cached: int


def parse_shortage(text: str) -> DeviceShortage | None:
    """The sizes in an out-of-memory message of torch's allocator for CUDA or HIP; None for any other message."""
    if not (requested := _REQUESTED.search(text)):
        return None
    capacity = _CAPACITY.search(text)
    return DeviceShortage(
        device=int(capacity[1]) if capacity else -1,
        requested=_bytes(requested, 1),
        capacity=_bytes(capacity, 2),
        free=_bytes(capacity, 4),
        in_use=_bytes(_IN_USE.search(text), 1),
        allocated=_bytes(_ALLOCATED.search(text), 1),
        cached=_bytes(_CACHED.search(text), 1),
    )


def describe_device_error(error: BaseException) -> str:
    """Advice on an error of a device, with the sizes if memory is exhausted; empty for any other error. Considers the
    causes of `error` too."""
    text = "\n".join(str(cause) for cause in _causes(error))
    if shortage := parse_shortage(text):
        return " ".join(_describe_shortage(shortage))
    if host := _HOST_REQUESTED.search(text):
        return f"The host cannot allocate {show_size(int(host[1]))}. {_SMALLER}use fewer ranks on this host."
    return next((advice for pattern, advice in _KNOWN if re.search(pattern, text)), "")


def _describe_shortage(shortage: DeviceShortage) -> Iterator[str]:
    """Sentences: the sizes, then a remedy for each cause."""
    device = f"Device {shortage.device}" if shortage.device >= 0 else "The device"
    sizes = f"{device} cannot allocate {show_size(shortage.requested)}"
    if shortage.capacity >= 0:
        sizes += f": {show_size(shortage.free)} of {show_size(shortage.capacity)} are free"
    yield f"{sizes}."
    if min(shortage.allocated, shortage.cached) >= 0:
        yield f"This rank's tensors take {show_size(shortage.allocated)}, its cache {show_size(shortage.cached)}."
    others = shortage.capacity - shortage.free - shortage.in_use
    if shortage.in_use >= 0 and others > _OTHERS_SHARE * shortage.capacity:
        yield f"Other processes use {show_size(others)}: end them (nvidia-smi or amd-smi lists them)."
    if shortage.cached >= shortage.requested:
        yield "The cache is fragmented: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    yield f"{_SMALLER}divide the job over more ranks (dp_shard, tp or pp)."


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, then the errors that it was raised from, each once."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _bytes(match: re.Match[str] | None, group: int) -> int:
    """The size in the groups `group` (number) and the next (unit) of a match; -1 without a match."""
    return round(float(match[group]) * _BYTES_PER_UNIT[match[group + 1]]) if match else -1
