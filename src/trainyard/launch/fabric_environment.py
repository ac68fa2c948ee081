"""Environment variables of NCCL, RCCL and libfabric for the network of a machine, each with its reason.

Only variables whose default is wrong for the machine's fabric are set; the user's environment overrides them. Names of
network interfaces are set only if the fabric determines them. Sources: the environment variables page of NCCL's user
guide; AMD's MI300X workload optimization guide; libfabric's pages on the EFA and CXI providers; OLCF's guide to
Frontier.
"""

from __future__ import annotations

from trainyard.launch_request import Variable
from trainyard.machine import Machine


def fabric_environment(machine: Machine, nodes: int) -> dict[str, Variable]:
    """Variables for the ranks of a job on `nodes` nodes of `machine`, by name; none between hosts for a single node."""
    vendor = machine.device.vendor
    variables: dict[str, Variable] = {}
    if vendor in ("nvidia", "amd"):
        library = "NCCL" if vendor == "nvidia" else "RCCL"
        variables["NCCL_DEBUG"] = Variable(value="WARN", reason=f"{library} prints why a connection failed.")
    if vendor == "amd":
        variables["GPU_MAX_HW_QUEUES"] = Variable(
            value="2", reason="Two hardware queues, so that collectives overlap with compute instead of waiting for it."
        )
    if nodes < 2 or machine.inter_node is None:
        return variables
    name = machine.inter_node.name.lower()
    rate = f"{machine.inter_node.bandwidth.value / 1e9:g} GB/s"
    if "slingshot" in name:
        return variables | _slingshot()
    if "efa" in name:
        return variables | _efa(vendor)
    if vendor in ("nvidia", "amd") and ("infiniband" in name or "ethernet" in name or "roce" in name):
        variables |= _verbs(machine.inter_node.name, rate)
        if "ethernet" in name or "roce" in name:
            variables |= _converged_ethernet()
    return variables


def _verbs(fabric: str, rate: str) -> dict[str, Variable]:
    """Variables for RDMA verbs. `rate`: bandwidth per device, as text."""
    return {
        "NCCL_NET": Variable(
            value="IB",
            reason=f"{fabric} has {rate} per device; without it NCCL falls back to TCP, silently and slowly.",
        ),
        "NCCL_IB_TIMEOUT": Variable(
            value="22",
            reason="A retry takes up to 17 s (4.1 us * 2^22), so that a link that flaps does not end the job.",
        ),
    }


def _converged_ethernet() -> dict[str, Variable]:
    """Variables for RDMA over Ethernet (RoCE)."""
    return {
        "NCCL_IB_QPS_PER_CONNECTION": Variable(
            value="4", reason="Four queue pairs give the switches four flows to spread over equal paths (ECMP)."
        ),
        "NCCL_IB_SPLIT_DATA_ON_QPS": Variable(
            value="0", reason="Whole messages alternate between the queue pairs, since small parts are inefficient."
        ),
    }


def _efa(vendor: str) -> dict[str, Variable]:
    """Variables for AWS's Elastic Fabric Adapter."""
    variables = {
        "FI_PROVIDER": Variable(value="efa", reason="libfabric must use EFA, and not fall back to TCP."),
        "FI_EFA_USE_DEVICE_RDMA": Variable(value="1", reason="EFA reads and writes device memory directly (RDMA)."),
        "FI_EFA_FORK_SAFE": Variable(
            value="1", reason="Loader workers are forked from ranks that have registered memory."
        ),
    }
    if vendor in ("nvidia", "amd"):
        variables["NCCL_NET"] = Variable(
            value="AWS Libfabric", reason="NCCL must use the plugin for EFA, and not fall back to TCP."
        )
    return variables


def _slingshot() -> dict[str, Variable]:
    """Variables for HPE Slingshot."""
    return {
        "FI_PROVIDER": Variable(
            value="cxi", reason="libfabric must use Slingshot's provider, and not fall back to TCP."
        ),
        "NCCL_SOCKET_IFNAME": Variable(
            value="hsn0", reason="Slingshot's interfaces are named hsn; others are for management."
        ),
        "GLOO_SOCKET_IFNAME": Variable(value="hsn0", reason="Gloo meets over the same interface as NCCL."),
        "NCCL_NET_GDR_LEVEL": Variable(
            value="PHB", reason="Adapters read device memory directly if both are at one host bridge."
        ),
        "FI_MR_CACHE_MONITOR": Variable(
            value="userfaultfd", reason="The default monitor of registered memory can deadlock with the GPU runtime."
        ),
        "FI_CXI_DEFAULT_CQ_SIZE": Variable(
            value="131072", reason="Collectives of many ranks overflow the default completion queue."
        ),
    }
