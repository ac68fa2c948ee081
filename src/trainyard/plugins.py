"""Plugins: the protocol of each entry-point group, and how its plugins are listed and loaded.

The groups are named `trainyard.<group>`. The built-in plugins are registered in the same groups (in pyproject.toml), so
that a plugin of another installed package is used like a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from trainyard.booked import Booked
from trainyard.cost import Operation
from trainyard.entry_points import EntryPoint, entry_points
from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.events import Events
from trainyard.finding import Finding
from trainyard.job import Job
from trainyard.launch_request import JobStatus, LaunchRequest
from trainyard.ledger import Account, Ledger
from trainyard.machine import Claim
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen, Run
from trainyard.step_marks import STEP_MARK


class Vendor(Protocol):
    """Access to the devices of one hardware vendor."""

    def devices(self) -> Sequence[DeviceSeen]:
        """The devices of this vendor on this machine; empty if there are none."""
        ...

    def peaks(self, device: DeviceSeen) -> Mapping[str, Claim]:
        """dtype -> dense FLOP/s; empty if not published."""
        ...

    def kernel_account(self, name: str) -> Account | None:
        """The account that a kernel's name implies, or None."""
        ...

    def telemetry(self) -> Mapping[str, str]:
        """Current clocks, power and throttle reasons, as the driver reports them."""
        ...


class Workload(Protocol):
    """A kind of model and data that can be trained."""

    name: str
    params: Sequence[str]
    unit: str
    """The unit of a job's `tokens_per_step`, in the plural: tokens, images, samples."""

    def build(self, job: Job, vendor: str) -> Callable[[int], Any]:
        """Called in each rank of a started job: the function that runs one step and returns its outcome."""
        ...

    def expect(self, job: Job) -> Sequence[Operation]:
        """The arithmetic of one step on one rank; with unequal batch shares, on one with the most micro-batches."""
        ...

    def weights(self, job: Job) -> int:
        """Parameters per rank before data parallelism shards them; the smallest count if ranks differ."""
        ...


class Optimizer(Protocol):
    """An optimizer."""

    def make(self, named: Sequence[tuple[str, Any]], recipe: Recipe) -> Any:
        """A `torch.optim.Optimizer` of these (name, parameter) pairs, with names as in the whole model; some parameters
        may be DTensors. The `lr` of each of its groups is set before each step, and
        `recipe.optimizer_implementation` is not `auto`. Import torch here, not at module level."""
        ...


class ReadOptions(NamedTuple):
    """Options of readers. `limit`: largest unpacked size of a file in bytes (a gzip of 64 MB can reach the default);
    `mark`: name or prefix of the step annotations (torch.profiler's by default)."""

    limit: int = 64 << 30
    mark: str = STEP_MARK


AS_WRITTEN = ReadOptions()


class Reader(Protocol):
    """Reads one kind of profiler file."""

    def sniff(self, path: Path) -> bool:
        """Whether the file is of this kind, judged by its contents. A packed file that no reader accepts is offered
        again unpacked."""
        ...

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> Sequence[Events]:
        """One `Events` for each device in a file that `sniff` accepts. Raises `BadFile`."""
        ...


class Launcher(Protocol):
    """A way to start jobs, such as a batch scheduler."""

    starts: Literal["ranks", "nodes"]
    """What `LaunchRequest.command` is started once for: each rank, under a supervisor, or each node."""

    def render(self, request: LaunchRequest) -> Mapping[str, str]:
        """File name -> contents of the files that `submit` needs: exactly what is submitted. Starts nothing. Raises
        `BadInput` for a request that cannot be started this way."""
        ...

    def submit(self, files: Path) -> str:
        """Submit the files that `render` produced, from a folder; returns the job's id, with which any process on this
        host can query the job. Logs are written to `logs/` in that folder, unless the launcher keeps them itself."""
        ...

    def status(self, id: str) -> JobStatus:
        """The current status of a submitted job. Raises `UnknownName` if there is no such job."""
        ...

    def cancel(self, id: str, *, save: bool = False) -> None:
        """End the job; no effect if it is over. `save`: only ask it to save its state and leave (SIGTERM)."""
        ...


class Detector(Protocol):
    """A diagnosis rule.

    The module of a built-in rule has the rule's name. Its docstring begins with `RULE: ` and has the paragraphs What it
    does, Why it matters, Example and Remedy, which the reference lists.
    """

    rule: str
    """Its name, as in `Finding.rule`."""
    needs: Sequence[str]
    """Arguments of `check` that the rule requires: `ledger`, `run`, `ranks`."""

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """Findings in a mean ledger; empty if there are none or required input is missing. `ranks`: the booked profile
        of each rank, None if only a ledger is available. Costs are per step, averaged over ranks and full steps."""
        ...


PROTOCOLS = {
    "vendors": Vendor,
    "workloads": Workload,
    "optimizers": Optimizer,
    "readers": Reader,
    "launchers": Launcher,
    "detectors": Detector,
}


@cache  # `entry_points` reads the metadata of every installed package
def names(group: str) -> Mapping[str, EntryPoint]:
    """Entry points of a group by name, without loading them."""
    if group not in PROTOCOLS:
        raise UnknownName(f"there is no entry-point group {group!r}.", nearest(group, PROTOCOLS))
    return {point.name: point for point in sorted(entry_points(f"trainyard.{group}"), key=lambda p: p.name)}


def load(group: str, name: str) -> Any:
    """Loads one plugin of a group and returns a new instance of it. Raises `UnknownName` for an unknown group or
    plugin, or `BadInput` if it lacks a member of the group's Protocol."""
    entry_point_by_name = names(group)
    if name not in entry_point_by_name:
        raise UnknownName(f"{name!r} is not one of the {group}.", nearest(name, entry_point_by_name))
    plugin_class = entry_point_by_name[name].load()
    plugin = plugin_class()
    missing = [part for part in _member_names(PROTOCOLS[group]) if not hasattr(plugin, part)]
    if missing:
        raise BadInput(f"the {group} plugin {name!r} lacks {', '.join(missing)}.")
    return plugin


def load_all(group: str) -> dict[str, Any]:
    """Loads all plugins of a group: name -> instance. Raises as `load`."""
    return {name: load(group, name) for name in names(group)}


def unit_of(job: Job) -> str:
    """The unit of a job's `tokens_per_step`, a plural such as tokens or images; tokens if its workload is not installed
    here."""
    return load("workloads", job.workload).unit if job.workload in names("workloads") else "tokens"


def _member_names(protocol: type) -> list[str]:
    """Names of the public methods and attributes that a Protocol requires."""
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    return sorted({*methods, *protocol.__annotations__})
