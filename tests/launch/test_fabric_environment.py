"""Variables for the network of every bundled machine: complete, explained, and only between hosts."""

from __future__ import annotations

import pytest

from trainyard import machine
from trainyard.launch.fabric_environment import fabric_environment


@pytest.mark.parametrize("name", sorted(machine.known()))
def test_every_variable_has_a_reason_of_a_sentence(name: str) -> None:
    for nodes in (1, 2, 64):
        for variable in fabric_environment(machine.load(name), nodes).values():
            assert variable.value
            assert variable.reason.endswith(".")
            assert len(variable.reason.split()) > 4


@pytest.mark.parametrize("name", sorted(machine.known()))
def test_a_single_node_gets_nothing_for_the_fabric(name: str) -> None:
    names = set(fabric_environment(machine.load(name), 1))
    assert names <= {"NCCL_DEBUG", "GPU_MAX_HW_QUEUES"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100", {"NCCL_NET": "IB", "NCCL_IB_TIMEOUT": "22"}),
        ("mi300x", {"NCCL_NET": "IB", "NCCL_IB_QPS_PER_CONNECTION": "4", "GPU_MAX_HW_QUEUES": "2"}),
        ("mi250x", {"FI_PROVIDER": "cxi", "NCCL_SOCKET_IFNAME": "hsn0", "GLOO_SOCKET_IFNAME": "hsn0"}),
        ("trn2", {"FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1"}),
        ("v100-32gb", {"NCCL_DEBUG": "WARN"}),
    ],
)
def test_fabric_determines_the_variables(name: str, expected: dict[str, str]) -> None:
    variables = fabric_environment(machine.load(name), 2)
    assert {key: variables[key].value for key in expected} == expected
    assert ("NCCL_NET" in variables) == ("NCCL_NET" in expected)


def test_reason_has_the_bandwidth_of_the_machine() -> None:
    known = machine.load("h100")
    assert known.inter_node is not None
    reason = fabric_environment(known, 2)["NCCL_NET"].reason
    assert f"{known.inter_node.bandwidth.value / 1e9:g} GB/s" in reason
