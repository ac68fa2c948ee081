"""Variables for the network of every bundled machine: complete, explained, and only between hosts."""

from __future__ import annotations

import pytest

from trainyard import machine
from trainyard.launch.fabric_environment import Fabric, fabric_environment

FABRICS: tuple[Fabric, ...] = ("", "ib", "roce", "efa", "slingshot", "none")


@pytest.mark.parametrize("name", sorted(machine.known()))
def test_every_variable_has_a_reason_of_a_sentence(name: str) -> None:
    for fabric in FABRICS:
        for variable in fabric_environment(machine.load(name), 2, fabric).values():
            assert variable.value
            assert variable.reason.endswith(".")
            assert len(variable.reason.split()) > 4


@pytest.mark.parametrize("name", sorted(machine.known()))
def test_a_single_node_gets_nothing_for_the_fabric(name: str) -> None:
    for fabric in FABRICS:
        names = set(fabric_environment(machine.load(name), 1, fabric))
        assert names <= {"NCCL_DEBUG"}


@pytest.mark.parametrize(
    ("name", "fabric", "expected"),
    [
        ("h100", "", {"NCCL_DEBUG": "WARN", "NCCL_IB_TIMEOUT": "22"}),
        ("mi300x", "", {"NCCL_DEBUG": "WARN", "NCCL_IB_TIMEOUT": "22"}),
        ("h100", "none", {"NCCL_DEBUG": "WARN"}),
        ("h100", "ib", {"NCCL_DEBUG": "WARN", "NCCL_IB_TIMEOUT": "22", "NCCL_NET": "IB"}),
        ("trn2", "", {"FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1"}),
        ("trn2", "none", {}),
        ("v100-32gb", "", {"NCCL_DEBUG": "WARN", "NCCL_IB_TIMEOUT": "22"}),
        (None, "", {}),
        (None, "ib", {"NCCL_IB_TIMEOUT": "22", "NCCL_NET": "IB"}),
    ],
)
def test_variables_of_a_fabric(name: str | None, fabric: Fabric, expected: dict[str, str]) -> None:
    variables = fabric_environment(machine.load(name) if name else None, 2, fabric)
    assert {key: variable.value for key, variable in variables.items()} == expected


@pytest.mark.parametrize(
    ("name", "fabric", "expected"),
    [
        ("mi300x", "roce", {"NCCL_NET": "IB", "NCCL_IB_QPS_PER_CONNECTION": "4"}),
        ("h100", "efa", {"FI_PROVIDER": "efa", "NCCL_NET": "AWS Libfabric"}),
        ("h100", "slingshot", {"FI_PROVIDER": "cxi", "NCCL_NET": "AWS Libfabric"}),
        (
            "mi250x",
            "",
            {
                "FI_PROVIDER": "cxi",
                "NCCL_NET": "AWS Libfabric",
                "NCCL_CROSS_NIC": "1",
                "NCCL_SOCKET_IFNAME": "hsn0",
                "GLOO_SOCKET_IFNAME": "hsn0",
                "FI_CXI_DISABLE_HOST_REGISTER": "1",
                "FI_CXI_DEFAULT_TX_SIZE": "2048",
                "FI_CXI_RX_MATCH_MODE": "hybrid",
            },
        ),
    ],
)
def test_fabric_has_its_variables(name: str, fabric: Fabric, expected: dict[str, str]) -> None:
    variables = fabric_environment(machine.load(name), 2, fabric)
    assert {key: variables[key].value for key in expected} == expected


@pytest.mark.parametrize("name", sorted(machine.known()))
def test_unstated_fabric_excludes_no_plugin(name: str) -> None:
    variables = fabric_environment(machine.load(name), 2)
    assert "NCCL_NET" not in variables or variables["NCCL_NET"].value != "IB"
