"""A Slurm cluster for tests on this host, from Debian's packages: munged, slurmctld, and a slurmd for each node.

Everything runs in the foreground as children of the test, without systemd, in a temporary folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.processes import until

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SlurmdTimeout=10
KillWait=2
ReturnToService=2
JobRequeue=1
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=short Nodes=ALL MaxTime=2 State=UP
PartitionName=small Nodes=n1 MaxNodes=1 State=UP
"""


class Cluster(NamedTuple):
    """A running cluster: its configuration file, and the process of each node's slurmd by name."""

    configuration: Path
    nodes: dict[str, subprocess.Popen[bytes]]

    def run(self, *words: str) -> str:
        """The stdout of a tool of Slurm."""
        env = {**os.environ, "SLURM_CONF": str(self.configuration)}
        return subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def missing() -> str:
    """The reason why no cluster can be started here; empty if it can."""
    programs = ("munged", "slurmctld", "slurmd", "sbatch")
    absent = [name for name in programs if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent:
        return f"Slurm is not installed: {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def _free_ports(count: int) -> list[int]:
    """Distinct free ports of this host."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def cluster(folder: Path, nodes: int = 2) -> Iterator[Cluster]:
    """Start a cluster with nodes n1, n2, ... of two cores each in `folder`, and end all its processes afterwards."""
    for name in ("munge", "state", *(f"spool/n{node + 1}" for node in range(nodes))):
        (folder / name).mkdir(parents=True)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    controller, *ports = _free_ports(nodes + 1)
    host = socket.gethostname().partition(".")[0]
    lines = [
        f"NodeName=n{node + 1} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node]} CPUs=2 RealMemory=500 "
        f"Feature={'fast' if node == 0 else 'slow'} State=UNKNOWN"
        for node in range(nodes)
    ]
    configuration = folder / "slurm.conf"
    user = pwd.getpwuid(os.geteuid()).pw_name
    configuration.write_text(
        _CONFIGURATION.format(host=host, port=controller, folder=folder, user=user, nodes="\n".join(lines))
    )
    env = {**os.environ, "SLURM_CONF": str(configuration), "PATH": f"{os.environ['PATH']}:/usr/sbin"}

    with ExitStack() as stack, (folder / "output").open("wb") as output:

        def start(*words: str) -> subprocess.Popen[bytes]:
            """Start a daemon in the foreground, which ends with the cluster."""
            process = subprocess.Popen(words, env=env, stdout=output, stderr=output, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        munge = [f"--{name}={folder}/munge/{path}" for name, path in (("key-file", "key"), ("socket", "socket"))]
        munge += [f"--{name}={folder}/munge/{name}" for name in ("pid-file", "log-file", "seed-file")]
        start("munged", "--foreground", "--force", *munge)
        assert until((folder / "munge" / "socket").exists, 20), (folder / "output").read_text()
        start("slurmctld", "-D")
        running = Cluster(configuration, {f"n{n + 1}": start("slurmd", "-D", "-N", f"n{n + 1}") for n in range(nodes)})

        def is_idle() -> bool:
            """Whether all nodes wait for work."""
            listed = subprocess.run(
                ["sinfo", "-h", "-o", "%D %t", "-p", "main"], env=env, capture_output=True, text=True, check=False
            )
            return listed.stdout.strip() == f"{nodes} idle"

        assert until(is_idle, 30), (folder / "slurmctld.log").read_text()[-3000:]
        try:
            yield running
        finally:
            subprocess.run(
                ["scancel", "--signal=KILL", "--user", user], env=env, capture_output=True, timeout=30, check=False
            )
            until(lambda: not subprocess.run(["squeue", "-h"], env=env, capture_output=True, check=False).stdout, 10)
