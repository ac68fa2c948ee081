"""MIG slices for several ranks, MIG mode without slices and compute mode Prohibited are refused."""

from __future__ import annotations

import pytest

from tests.refused import refused
from trainyard.errors import DeviceUnusable
from trainyard.record import DeviceSeen
from trainyard.run.local.host_devices import capacity
from trainyard.train.rules.device_state_rules import check_state


def gpus(count: int, memory_bytes: int = 80 * 2**30, **facts: str) -> list[DeviceSeen]:
    return [
        DeviceSeen(index=i, name="NVIDIA H100", vendor="nvidia", memory_bytes=memory_bytes, facts=facts)
        for i in range(count)
    ]


def test_several_ranks_on_mig_slices_are_refused() -> None:
    slices = gpus(3, memory_bytes=10 * 2**30, mig="slice")
    with refused(DeviceUnusable, "2 ranks", "3 MIG slices", "10.0 GiB", "NCCL", "nvidia-smi -mig 0"):
        check_state(slices, 2)
    check_state(slices, 1)
    assert capacity(slices) == 1
    assert capacity(gpus(3)) == 3


def test_mig_mode_without_slices_is_refused() -> None:
    with refused(DeviceUnusable, "device 0", "MIG", "nvidia-smi mig -cgi PROFILE -C"):
        check_state(gpus(1, mig="on"), 1)
    check_state(gpus(1, mig="off"), 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_prohibited_compute_mode_is_refused(ranks: int) -> None:
    devices = [*gpus(1), *gpus(1, compute_mode="prohibited", pci="00000000:02:00.0")]
    if ranks == 1:
        check_state(devices, ranks)  # it uses the first device only
        return
    with refused(DeviceUnusable, "Prohibited", "nvidia-smi -i 00000000:02:00.0 -c DEFAULT"):
        check_state(devices, ranks)


def test_exclusive_mode_with_a_rank_on_each_device_is_accepted() -> None:
    check_state(gpus(2, compute_mode="exclusive_process"), 2)
