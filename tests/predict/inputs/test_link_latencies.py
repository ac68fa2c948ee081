"""Seconds of a hop follow the latencies of a machine file."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from trainyard import machine as machines
from trainyard.machine import Claim, Machine
from trainyard.predict.inputs import machine_model

H100 = machines.load("h100")
SOFTWARE = ("megatron", "fsdp")


def with_latencies(machine: Machine, inside_s: float, between_s: float, device: str = "") -> Machine:
    """A copy with other latencies, and another name of its device."""
    claim, between = Claim(value=0.0, unit="s", source="test"), machine.inter_node
    assert between
    return replace(
        machine,
        device=replace(machine.device, name=device or machine.device.name),
        intra_node=replace(machine.intra_node, latency=replace(claim, value=inside_s)),
        inter_node=replace(between, latency=replace(claim, value=between_s)),
    )


def hops(machine: Machine, software: str) -> tuple[float, float]:
    """Seconds of a hop in a node, and between nodes."""
    values = machine_model.build(machine, software, "bfloat16").values
    return values.intra_node_s, values.inter_node_s


@pytest.mark.parametrize("software", SOFTWARE)
def test_higher_latencies_are_added_to_the_fitted_hop(software: str) -> None:
    inside, between = H100.intra_node.latency.value, H100.inter_node.latency.value if H100.inter_node else 0.0
    fitted = hops(H100, software)
    assert hops(with_latencies(H100, inside, between), software) == fitted
    slower = hops(with_latencies(H100, inside + 2e-6, between + 90e-6), software)
    assert slower == pytest.approx((fitted[0] + 2e-6, fitted[1] + 90e-6))


@given(software=st.sampled_from(SOFTWARE), latencies=st.lists(st.floats(1e-9, 1e-3), min_size=2, max_size=5))
def test_hops_grow_with_latencies_and_are_positive(software: str, latencies: list[float]) -> None:
    seconds = [hops(with_latencies(H100, latency, latency), software) for latency in sorted(latencies)]
    assert all(inside > 0 and between > 0 for inside, between in seconds)
    for shorter, longer in pairwise(seconds):
        assert shorter[0] <= longer[0]
        assert shorter[1] <= longer[1]


def test_a_hop_of_an_unknown_device_takes_at_least_the_latency() -> None:
    inside, between = hops(with_latencies(H100, 7e-4, 9e-4, "Unknown X1"), "megatron")
    assert (inside, between) == pytest.approx((7e-4, 9e-4))
