"""A torch that was built for other devices, or for a newer driver, is refused before ranks start."""

from __future__ import annotations

import pytest

from tests.refused import refused
from trainyard.errors import DeviceUnusable
from trainyard.record import DeviceSeen
from trainyard.train.rules.torch_build_rules import TorchBuild, check_build, installed_build

CUDA = TorchBuild("2.13.0+cu126", "12.6", "")
ROCM = TorchBuild("2.13.0+rocm7.0", "", "7.0.51831")
CPU = TorchBuild("2.13.0+cpu", "", "")
H100 = DeviceSeen(
    index=0, name="NVIDIA H100", vendor="nvidia", facts={"driver": "470.82.01", "cuda_driver": "11040"}
)  # fmt: skip
MI300 = DeviceSeen(index=0, name="AMD Instinct MI300X", vendor="amd")
CORES = DeviceSeen(index=0, name="some cores", vendor="cpu")


@pytest.mark.parametrize(
    ("device", "build", "names"),
    [
        (H100, ROCM, ("ROCm 7.0.51831", "CUDA")),
        (H100, CPU, ("CPU", "CUDA")),
        (MI300, CUDA, ("CUDA 12.6", "ROCm")),
        (MI300, CPU, ("CPU", "ROCm")),
    ],
)
def test_torch_built_for_other_devices_is_refused(
    device: DeviceSeen, build: TorchBuild, names: tuple[str, ...]
) -> None:
    with refused(DeviceUnusable, device.name, device.vendor, build.version, *names, "CUDA_VISIBLE_DEVICES"):
        check_build(device, build)


def test_driver_of_an_earlier_cuda_version_is_refused() -> None:
    with refused(DeviceUnusable, "470.82.01", "CUDA 11.4", "2.13.0+cu126", "CUDA 12.6", "CUDA_VISIBLE_DEVICES"):
        check_build(H100, CUDA)


@pytest.mark.parametrize("supported", ["12040", "13000", "", "unknown"])
def test_driver_of_the_same_major_version_is_accepted(supported: str) -> None:
    check_build(DeviceSeen(index=0, name="NVIDIA H100", vendor="nvidia", facts={"cuda_driver": supported}), CUDA)


@pytest.mark.parametrize(
    ("device", "build"), [(MI300, ROCM), (CORES, CPU), (CORES, CUDA), (CORES, None), (MI300, None)]
)
def test_other_combinations_are_accepted(device: DeviceSeen, build: TorchBuild | None) -> None:
    check_build(device, build)


@pytest.mark.torch
def test_installed_build_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert installed_build() == (torch.__version__, torch.version.cuda or "", torch.version.hip or "")
