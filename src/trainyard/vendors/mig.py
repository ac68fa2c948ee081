"""MIG slices of NVIDIA GPUs, as devices of their own: from NVML, or from the list of `nvidia-smi -L`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from trainyard.record import DeviceSeen

SLICE = "slice"
"""Value of the fact `mig` of a slice; that of a GPU is `on` or `off`."""
_GPU_LINE = re.compile(r"GPU (\d+): ")
_SLICE_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")
_PROFILE_MEMORY = re.compile(r"\.(\d+)gb")
_BYTES_PER_GB = 10**9


def slice_of(gpu: DeviceSeen, name: str, memory_bytes: int, uuid: str) -> DeviceSeen:
    """A slice of `gpu`, with the GPU's index and facts, except its own `uuid`."""
    return replace(gpu, name=name, memory_bytes=memory_bytes, facts={**gpu.facts, "uuid": uuid, "mig": SLICE})


def parse_list(output: str) -> dict[int, list[tuple[str, str]]]:
    """Index of a GPU -> (profile such as `1g.18gb`, UUID) of each of its slices, from the output of `nvidia-smi -L`."""
    slices: dict[int, list[tuple[str, str]]] = {}
    gpu = -1
    for line in output.splitlines():
        if match := _GPU_LINE.match(line):
            gpu = int(match[1])
        elif match := _SLICE_LINE.match(line):
            slices.setdefault(gpu, []).append((match[1], match[2]))
    return slices


def slices_by_list(gpu: DeviceSeen, listed: Mapping[int, Sequence[tuple[str, str]]]) -> list[DeviceSeen]:
    """The slices of `gpu`, by the result of `parse_list`. Their memory is that of the profile's name in GB, which is
    somewhat less than that of the slice."""
    return [
        slice_of(gpu, f"{gpu.name} MIG {profile}", _profile_bytes(profile), uuid)
        for profile, uuid in listed.get(gpu.index, ())
    ]


def _profile_bytes(profile: str) -> int:
    """Memory by the name of a profile: `1g.18gb` has 18 GB; 0 if the name states none."""
    match = _PROFILE_MEMORY.search(profile)
    return int(match[1]) * _BYTES_PER_GB if match else 0


def visible_by_default(devices: Sequence[DeviceSeen]) -> tuple[DeviceSeen, ...]:
    """The devices that CUDA considers without CUDA_VISIBLE_DEVICES, renumbered: if there is a slice, slices only. Of
    several slices a process can use one."""
    slices = [device for device in devices if device.facts.get("mig") == SLICE]
    return tuple(replace(device, index=index) for index, device in enumerate(slices or devices))
