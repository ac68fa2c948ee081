"""The environment of the ranks on this host: variables with their reasons, and modules that are imported beforehand."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from trainyard.job import Job
from trainyard.launch_request import Variable
from trainyard.plugins import Vendor
from trainyard.run.local.host_devices import capacity
from trainyard.run.nodes.host_address import interface_of, own_address
from trainyard.run.nodes.hosts import Hosts

_LOOPBACK = "127.0.0.1"
PRELOAD = (
    "trainyard.job_file",
    "trainyard.run.local.checkpointing",
    "trainyard.run.local.capture",
    "trainyard.run.probe.kept_rate",
    "trainyard.train.model.language_task",
    "trainyard.train.step.trainer",
)
"""Slow imports of the ranks' module, loaded once for all ranks."""


def job_environment(job: Job, hosts: Hosts | None, vendors: Mapping[str, Vendor], vendor: str) -> dict[str, Variable]:
    """Default environment variables of the ranks on this machine, by name. `hosts`: of the job, of which this machine
    is the first, None for a job on this machine; `vendors`: by name; `vendor`: of the devices that the ranks use."""
    if hosts is None:
        return environment(job.layout.ranks, vendors, vendor)
    address = own_address(hosts.host, hosts.port)
    return environment(max(1, job.node_ranks(0)), vendors, vendor, address)


def environment(
    ranks: int, vendors: Mapping[str, Vendor], vendor: str, address: str = _LOOPBACK
) -> dict[str, Variable]:
    """Default environment variables of `ranks` ranks on one host, by name, which the user's environment overrides.
    `vendors`: by name; `vendor`: of the devices that the ranks use. `address`: that of this host at which ranks of
    other hosts reach it.

    Each rank gets its share of the cores; ranks use the interface of `address`, whatever the host name resolves to.
    """
    threads = max(1, capacity(vendors["cpu"].devices()) // ranks)
    variables = {"OMP_NUM_THREADS": Variable(value=str(threads), reason="Each rank gets its share of the cores.")}
    if sys.platform.startswith("linux") and (interface := interface_of(address)):
        reason = f"The ranks reach each other through the interface of {address}."
        variables["GLOO_SOCKET_IFNAME"] = Variable(value=interface, reason=reason)
    if vendor in ("nvidia", "amd"):
        reason = "Collectives are timed on the device, so that slow ranks are detected."
        variables["TORCH_NCCL_ENABLE_TIMING"] = Variable(value="1", reason=reason)
    return variables


def variable_values(variables: Mapping[str, Variable]) -> dict[str, str]:
    """Name -> value of each variable, without the reasons."""
    return {name: variable.value for name, variable in variables.items()}
