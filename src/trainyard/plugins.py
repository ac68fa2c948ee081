"""Plugins: the protocol of each entry-point group, and how its plugins are listed and loaded.

The groups are named `trainyard.<group>`. The built-in plugins are registered in the same groups (in pyproject.toml), so
that a plugin of another installed package is used like a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trainyard.booked import Booked
from trainyard.cost import Operation
from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.events import Events
from trainyard.finding import Finding
from trainyard.job import Job, Recipe
from trainyard.ledger import Account, Ledger
from trainyard.machine import Claim
from trainyard.record import DeviceSeen, Run


class Vendor(Protocol):
    """What a device says of itself."""

    def devices(self) -> Sequence[DeviceSeen]:
        """The devices of this vendor on this machine; empty where there are none."""
        ...

    def peaks(self, device: DeviceSeen) -> Mapping[str, Claim]:
        """dtype -> dense FLOP/s; empty where nobody states it."""
        ...

    def kernel_account(self, name: str) -> Account | None:
        """What a kernel's name says it is, or None."""
        ...

    def telemetry(self) -> Mapping[str, str]:
        """Clocks, power and throttle reasons now, as the driver words them."""
        ...


class Workload(Protocol):
    """A thing worth running."""

    name: str
    params: Sequence[str]
    unit: str
    """What a job's `tokens_per_step` counts, in the plural: tokens, images, samples."""

    def build(self, job: Job, vendor: str) -> Callable[[int], Any]:
        """In a rank of a started job: the function that runs one step and returns its outcome."""
        ...

    def expect(self, job: Job) -> Sequence[Operation]:
        """The arithmetic of one step on one rank."""
        ...

    def weights(self, job: Job) -> int:
        """Parameters that a rank has, before data parallelism divides them; at the least, where ranks differ."""
        ...


class Optimizer(Protocol):
    """How weights follow from gradients."""

    def make(self, named: Sequence[tuple[str, Any]], recipe: Recipe) -> Any:
        """A `torch.optim.Optimizer` of these parameters, named as in the whole model; some may be DTensors. The `lr`
        of each of its groups is set before each step, and `recipe.update` is not `auto`. torch is loaded here and not
        before."""
        ...


class ReadOptions(NamedTuple):
    """How files are to be read. `limit`: bytes a file may come to when unpacked (a gzip of 64 MB can hold the default);
    `mark`: what the names of the annotations around steps begin with (torch.profiler's, by default)."""

    limit: int = 64 << 30
    mark: str = "ProfilerStep#"


AS_WRITTEN = ReadOptions()


class Reader(Protocol):
    """Reads one kind of profiler file."""

    def sniff(self, path: Path) -> bool:
        """Whether the file looks like this kind; reads its first bytes only."""
        ...

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> Sequence[Events]:
        """One `Events` for each device in the file. Raises `BadFile`."""
        ...


class Launcher(Protocol):
    """How a job starts."""

    def render(self, job: Job, command: Sequence[str]) -> Mapping[str, str]:
        """File name -> contents of what would be submitted."""
        ...

    def submit(self, files: Path) -> str:
        """Starts what `render` wrote into the folder; an id."""
        ...

    def status(self, id: str) -> str:
        """`running`, `ended` or `failed: why`."""
        ...

    def cancel(self, id: str) -> None: ...


class Detector(Protocol):
    """A diagnosis rule.

    The module of a built-in rule has the rule's name. Its docstring begins with `RULE: ` and has the paragraphs What it
    does, Why it matters, Example and Remedy, which the reference lists.
    """

    rule: str
    """Its name, as in `Finding.rule`."""
    needs: Sequence[str]
    """Arguments of `check` without which the rule is not run: `ledger`, `run`, `events`."""

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        """What the rule finds in a mean ledger; empty when it finds nothing or lacks what it needs. `events`: what
        was booked of each rank, None for a ledger alone. Costs are of a step, averaged over ranks and full steps."""
        ...


PROTOCOLS = {
    "vendors": Vendor,
    "workloads": Workload,
    "optimizers": Optimizer,
    "readers": Reader,
    "launchers": Launcher,
    "detectors": Detector,
}


@cache  # asking reads the metadata of every installed package
def names(group: str) -> Mapping[str, EntryPoint]:
    """Entry points of a group by name; nothing is loaded."""
    if group not in PROTOCOLS:
        raise UnknownName(f"there is no entry-point group {group!r}.", nearest(group, PROTOCOLS))
    return {point.name: point for point in sorted(entry_points(group=f"trainyard.{group}"), key=lambda p: p.name)}


def load(group: str, name: str) -> Any:
    """One plugin, instantiated. Raises `UnknownName`, or `BadInput` when it lacks a method of its Protocol."""
    known = names(group)
    if name not in known:
        raise UnknownName(f"{group} has no {name!r}.", nearest(name, known))
    plugin = known[name].load()()
    missing = [part for part in _parts(PROTOCOLS[group]) if not hasattr(plugin, part)]
    if missing:
        raise BadInput(f"the {group} plugin {name!r} lacks {', '.join(missing)}.")
    return plugin


def load_all(group: str) -> dict[str, Any]:
    return {name: load(group, name) for name in names(group)}


def _parts(protocol: type) -> list[str]:
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    return sorted({*methods, *protocol.__annotations__})
