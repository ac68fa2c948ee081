"""Whether the installed build of torch supports a device and its driver. Does not import torch."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import DeviceUnusable
from trainyard.record import DeviceSeen

_ON_CPU = "set CUDA_VISIBLE_DEVICES to an empty string to train on the CPU"
_PLATFORM = {"nvidia": "CUDA", "amd": "ROCm"}


class TorchBuild(NamedTuple):
    """`version` of torch, and the versions of CUDA and HIP that it was built for; empty for those that it was not."""

    version: str
    cuda: str
    hip: str

    @property
    def platform(self) -> str:
        """The platform that torch was built for, such as `CUDA 12.6`."""
        return f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.hip}" if self.hip else "the CPU only"


def installed_build() -> TorchBuild | None:
    """The installed build of torch, from its file version.py; None without torch or that file."""
    spec = find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        return None
    values = runpy.run_path(str(path))
    return TorchBuild(*(str(values.get(name) or "") for name in ("__version__", "cuda", "hip")))


def check_build(device: DeviceSeen, build: TorchBuild | None) -> None:
    """Raises `DeviceUnusable` if torch was built for another vendor's devices, or for a later major version of CUDA
    than the driver of `device` supports. `build`: None if unknown, which passes."""
    if build is None or device.vendor not in _PLATFORM:
        return
    if not (build.cuda if device.vendor == "nvidia" else build.hip):
        raise DeviceUnusable(
            f"{device.name} is a device of {device.vendor}, but torch {build.version} is built for {build.platform}.",
            f"Install a build of torch for {_PLATFORM[device.vendor]} (pytorch.org/get-started), or {_ON_CPU}.",
        )
    supported = _cuda_version(device.facts.get("cuda_driver", ""))
    needed = build.cuda.partition(".")[0]
    if device.vendor == "nvidia" and supported and needed.isdecimal() and supported[0] < int(needed):
        driver = device.facts.get("driver", "of unknown version")
        raise DeviceUnusable(
            f"the NVIDIA driver {driver} of {device.name} supports CUDA {supported[0]}.{supported[1]}, but torch "
            f"{build.version} is built for CUDA {build.cuda}.",
            f"Install a newer driver, or a build of torch for CUDA {supported[0]} (pytorch.org/get-started), or "
            f"{_ON_CPU}.",
        )


def _cuda_version(number: str) -> tuple[int, int] | None:
    """NVML's number of a CUDA version: `12040` -> (12, 4); None for anything else."""
    return (int(number) // 1000, int(number) % 1000 // 10) if number.isdecimal() else None
