"""Environment variables of NCCL, RCCL and libfabric for the network between hosts, each with its reason.

Only variables whose default is wrong for the fabric are set; the user's environment overrides them. A machine describes
a typical network of its device. That decides the fabric only if the device has no other one; otherwise the variables
that choose a network or tune it for one are set only if the user states the fabric, because a wrong choice stops NCCL
or excludes its plugins. Names of network interfaces are set only if the fabric determines them. Sources: the
environment variables page of NCCL's user guide; libfabric's pages on the EFA and CXI providers; OLCF's guide to
Frontier; HPE's guide to collective libraries on Slingshot.
"""

from __future__ import annotations

from typing import Literal

from trainyard.launch_request import Variable
from trainyard.machine import Machine

Fabric = Literal["", "ib", "roce", "efa", "slingshot", "none"]
"""The network between hosts: InfiniBand, RDMA over Ethernet, AWS's EFA, HPE Slingshot, one without RDMA; empty if it is
not stated."""


def fabric_environment(machine: Machine | None, nodes: int, fabric: Fabric = "") -> dict[str, Variable]:
    """Variables for the ranks of a job on `nodes` nodes of `machine`, by name; none between hosts for a single node.

    `machine`: None if the job names none. `fabric`: as the user states it; if empty, that of the machine.
    """
    vendor = machine.device.vendor if machine else ""
    uses_nccl = machine is None or vendor in ("nvidia", "amd")
    variables: dict[str, Variable] = {}
    if machine and uses_nccl:
        library = "NCCL" if vendor == "nvidia" else "RCCL"
        variables["NCCL_DEBUG"] = Variable(
            value="WARN", reason=f"{library} prints why a connection failed; INFO also prints which network it uses."
        )
    if nodes < 2 or fabric == "none":
        return variables
    name = machine.inter_node.name.lower() if machine and machine.inter_node else ""
    if fabric == "slingshot" or (not fabric and "slingshot" in name):
        return variables | _slingshot()
    if fabric == "efa" or (not fabric and "efa" in name):
        return variables | _efa(uses_nccl)
    if uses_nccl and (fabric or "infiniband" in name or "ethernet" in name or "roce" in name):
        variables["NCCL_IB_TIMEOUT"] = Variable(
            value="22",
            reason="A retry takes up to 17 s (4.1 us * 2^22): a link down for less than hang_timeout_s ends no job.",
        )
        if fabric:
            variables["NCCL_NET"] = Variable(
                value="IB", reason="RDMA verbs are the stated fabric; NCCL must stop instead of falling back to TCP."
            )
    return variables | (_converged_ethernet() if fabric == "roce" and uses_nccl else {})


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


def _efa(uses_nccl: bool) -> dict[str, Variable]:
    """Variables for AWS's Elastic Fabric Adapter. `uses_nccl`: whether ranks communicate with NCCL or RCCL."""
    variables = {
        "FI_PROVIDER": Variable(value="efa", reason="libfabric must use EFA, and not fall back to TCP."),
        "FI_EFA_FORK_SAFE": Variable(
            value="1", reason="Loader workers are forked from ranks that have registered memory."
        ),
    }
    if uses_nccl:
        variables["NCCL_NET"] = _libfabric_plugin()
    return variables


def _libfabric_plugin() -> Variable:
    """The value of NCCL_NET for aws-ofi-nccl, a name that all of its versions accept."""
    return Variable(
        value="AWS Libfabric", reason="NCCL must use the plugin aws-ofi-nccl, and stop instead of falling back to TCP."
    )


def _slingshot() -> dict[str, Variable]:
    """Variables for HPE Slingshot."""
    return {
        "FI_PROVIDER": Variable(
            value="cxi", reason="libfabric must use Slingshot's provider, and not fall back to TCP."
        ),
        "NCCL_NET": _libfabric_plugin(),
        "NCCL_CROSS_NIC": Variable(
            value="1", reason="Rings may use different adapters on two hosts, as Slingshot's switches connect them all."
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
        "FI_CXI_DISABLE_HOST_REGISTER": Variable(
            value="1",
            reason="Registration of host memory with the GPU runtime inside libfabric can deadlock with NCCL.",
        ),
        "FI_CXI_DEFAULT_TX_SIZE": Variable(
            value="2048", reason="The default queue holds too few transmissions for many ranks at once."
        ),
        "FI_CXI_RX_MATCH_MODE": Variable(
            value="hybrid", reason="Messages are matched in software if the adapter's match entries are used up."
        ),
        "FI_CXI_DEFAULT_CQ_SIZE": Variable(
            value="131072", reason="Collectives of many ranks overflow the default completion queue."
        ),
    }
