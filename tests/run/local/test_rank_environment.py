"""Default environment variables of the ranks on this host."""

from __future__ import annotations

import pytest

from trainyard.run.local.rank_environment import environment, variable_values
from trainyard.vendors import cpu_vendor


@pytest.mark.parametrize(("vendor", "is_timed"), [("nvidia", True), ("amd", True), ("cpu", False), ("pretend", False)])
def test_nccl_is_timed_on_the_devices_of_the_ranks(vendor: str, is_timed: bool) -> None:
    # Without the vendors of accelerators: their drivers are not asked again for the devices.
    values = variable_values(environment(1, {"cpu": cpu_vendor.Cpu()}, vendor))
    assert values.get("TORCH_NCCL_ENABLE_TIMING", "") == ("1" if is_timed else "")


def test_ranks_divide_the_cores() -> None:
    for ranks in (1, cpu_vendor.cores(), cpu_vendor.cores() + 1):
        values = variable_values(environment(ranks, {"cpu": cpu_vendor.Cpu()}, "cpu"))
        assert int(values["OMP_NUM_THREADS"]) == max(1, cpu_vendor.cores() // ranks)
