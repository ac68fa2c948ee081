"""The request to a launcher to start a job, and the status of a job that a launcher started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from trainyard.job import Job

JobState = Literal["pending", "running", "ended", "failed", "preempted", "cancelled"]
"""State of a job: `ended` is success, `preempted` means that the job left on request, and saved its state before if it
has checkpoints."""
LEFT_ON_REQUEST = "The job left on request, and saved its state before if it has checkpoints."
"""The reason of the state `preempted`."""


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable of the started processes. `reason`: one sentence, which rendered files contain as a
    comment."""

    value: str
    reason: str


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """The container of each node's processes. `image`: reference or file; `vendor`: of the devices that it needs, empty
    for none; `mounts`: `HOST_PATH:CONTAINER_PATH`."""

    image: str
    vendor: str = ""
    runtime: Literal["pyxis", "apptainer"] = "pyxis"
    mounts: tuple[str, ...] = ()


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind in a job. `nodes`: number of nodes; `ranks_per_node`: ranks on each of them.

    `constraint`, `partition`: how the scheduler selects the nodes of this kind; empty for those of the request.
    `accelerators_per_node`: accelerators to request on each of them; 0 for the number of the request.
    """

    nodes: int
    ranks_per_node: int
    partition: str = ""
    constraint: str = ""
    accelerators_per_node: int = 0


class SchedulerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a scheduler; empty or zero values leave its defaults.

    `time_limit_s`: seconds after which the scheduler ends the job. `notice_s`: seconds before that limit at which it
    sends SIGTERM, so that the job saves its state. `accelerators_per_node`: accelerators to request on each node.
    `requeue`: start the job again after a node failure or a preemption. `array`: index expression of a job array, such
    as `0-3`, of which each element is a job of its own. `hosts`: names of the hosts, for launchers without a scheduler.
    `options`: further options, which only one launcher knows: name -> value.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time_limit_s: int = 0
    notice_s: int = 120
    accelerators_per_node: int = 0
    exclusive: bool = True
    requeue: bool = True
    array: str = ""
    hosts: tuple[str, ...] = ()
    options: dict[str, str] = {}


class HeadAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address `host`:`port` at which the nodes of the job `job_id` meet. `gather_s`: seconds to wait for them."""

    host: str
    port: int
    job_id: str
    gather_s: float


class RankOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a launcher that starts ranks on this host under a supervisor.

    `sizes`: node counts with which the job can continue; only all nodes if empty. `preload`: modules that are imported
    once for all ranks. `head`: where the agents of other hosts connect; None if all agents run on this host. `files`:
    names of the folder's files that those agents need.
    """

    sizes: tuple[int, ...] = ()
    preload: tuple[str, ...] = ()
    head: HeadAddress | None = None
    files: tuple[str, ...] = ()


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job to start and how to start it.

    `command`: words of the command line, started once for each node or rank, as the launcher's `starts` defines. For
    ranks it is a Python module and its arguments. For nodes its first word is the interpreter, which the launcher
    chooses if it is empty, and the launcher appends
    `--job JOB.toml --job-id ID --folder NODE_FOLDER/nodeN --nodes M --node N --head HOST:PORT`: the job file, the id of
    the job, the folder of this node, the number of nodes, the index of this node from 0, and the address of node 0; and
    `--shared SHARED_FOLDER`.
    `id`: of the launch; `name`: of the job, as the scheduler lists it. `folder`: absolute path of the launch's folder,
    which has `job.toml` and the rendered files. `store`: absolute path of the store, in which node 0 stores the run;
    the nodes' own choice if empty. `node_folder`: folder on each node for its files; `folder`/nodes
    if empty. `shared_folder`: folder that all nodes share, for checkpoints; if empty,
    `folder`/shared for a launcher whose nodes share `folder`, else none.
    `port`: port on node 0 at which the nodes meet; chosen by the launcher if None. `environment`: variables of the
    started processes, which the user's environment overrides. `components`: kinds of nodes, at least one.
    """

    job: Job
    command: tuple[str, ...]
    id: str = ""
    name: str = "trainyard"
    folder: str = ""
    store: str = ""
    node_folder: str = ""
    shared_folder: str = ""
    components: tuple[Component, ...] = ()
    port: int | None = None
    environment: Mapping[str, Variable] = {}
    scheduler: SchedulerOptions = SchedulerOptions()
    container: Container | None = None
    ranks: RankOptions = RankOptions()

    @property
    def nodes(self) -> int:
        """Number of nodes of all components; that of the job's `[recovery]` without components."""
        return sum(component.nodes for component in self.components) or self.job.recovery.nodes

    @property
    def has_equal_nodes(self) -> bool:
        """Whether all nodes have the same number of ranks."""
        return len({component.ranks_per_node for component in self.components}) < 2


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of a job. `reason`: why it waits or why it failed, in full sentences; `next_step`: advice to the user.

    `nodes`: names of the hosts, as far as they are known. `rank`: the rank that failed, -1 if no single rank failed.
    `logs`: paths of the log files. `log_command`: words of the command that prints the logs, if they are not files.
    `restarts`: number of times that the scheduler started the job again.
    """

    state: JobState
    reason: str = ""
    next_step: str = ""
    nodes: tuple[str, ...] = ()
    rank: int = -1
    logs: tuple[str, ...] = ()
    log_command: tuple[str, ...] = ()
    restarts: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the job has left the scheduler, with or without success."""
        return self.state not in ("pending", "running")
