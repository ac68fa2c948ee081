"""What happened, where, on which code: Run, Sample, Provenance. Times in ns, sizes in bytes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from trainyard import words
from trainyard.job import Job
from trainyard.ledger import Ledger
from trainyard.machine import Claim

SCHEMA = "trainyard/run/1"
Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""An integer whose sums and means stay in 64 bits and whose ratios stay finite; 2**62 ns are 146 years."""


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of one rank. `loss` is the mean over the global batch (nats a token), None where nobody said it;
    `tokens` this rank's, 0 likewise.

    `memory_bytes`: peak so far; allocated on an accelerator, resident on a CPU. `profiled` steps carry
    the profiler's own cost and are never mixed with the others.
    """

    step: Int
    rank: Int
    repeat: Int
    wall_ns: Int
    tokens: Int
    loss: float | None = None
    memory_bytes: Int
    profiled: bool = False
    warmup: bool = False
    attempt: Int = 0
    """How often the job had been started again before this step; a step may stand here once for each attempt."""
    ended_ns: Int = 0
    """When it had ended, ns since the epoch; 0 where nobody said it."""


class DeviceSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device as its driver reports it."""

    index: int
    name: str
    vendor: str
    memory_bytes: int = 0
    facts: dict[str, str] = {}


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Enough to say whether two runs differ in anything but what is asked about."""

    code: dict[str, str] = {}
    """`sha` and `dirty` of the working tree the run was started in, when it is a git checkout."""
    packages: dict[str, str] = {}
    torch_build: dict[str, str] = {}
    driver: dict[str, str] = {}
    devices: tuple[DeviceSeen, ...] = ()
    environment: dict[str, str] = {}
    clocks: dict[str, str] = {}
    host: dict[str, str] = {}
    seeds: dict[str, int] = {}
    digests: dict[str, str] = {}
    """sha256 of the training text and of the initial and final weights, by name."""
    text: str = ""
    """Where the training text came from."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a run began with: that of the run `run` after its step `step`."""

    run: str
    step: int


class Incident(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault of a running job and what came of it. `kind` as in words.FAULTS; times in seconds.

    `rank` and `node` are who is blamed (-1: nobody, or no single one); `step` the last that had ended. `detect_s`: from
    the fault, as far as its moment is known, to its being noticed; `restart_s`: from then until all ranks train again;
    `lost_s`: training done before the fault and done again, 0 if a simultaneous incident already counts it.
    `resumed`: the step from which training resumed, -1 if none.
    """

    kind: str
    when: str
    attempt: int
    says: str
    rank: int = -1
    node: int = -1
    step: int = -1
    detect_s: float = 0.0
    restart_s: float = 0.0
    lost_s: float = 0.0
    resumed: int = -1

    def __post_init__(self) -> None:
        words.check(self.kind, words.FAULTS, "fault")


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution of a job. `ledgers`: per rank and step, the mean over full steps last.

    `trace`: profiler files relative to the run's folder. `claims`, where something supports them: `matmul_rate` and
    `peak` in FLOP/s a rank, `model_flops` a step of all ranks, `matmul_flops` a step of one, `profiler_cost` in ns.
    `failure`: the dead rank and its last words, when the state is `failed`; the damage, when it is `damaged`, which is
    concluded when a run is read and never stored.
    """

    id: str
    job: Job
    started: str
    state: Literal["complete", "failed", "incomplete", "damaged"] = "incomplete"
    origin: Origin | None = None
    """None of a run that began at its beginning."""
    provenance: Provenance = Provenance()
    samples: tuple[Sample, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    trace: tuple[str, ...] = ()
    claims: dict[str, Claim] = {}
    failure: str = ""
    incidents: tuple[Incident, ...] = ()
    goodput: dict[str, float] = {}
    """Seconds of the job's life by cause (words.TIMES); they sum to its whole life. Empty where nothing watched it."""
    digest: str = ""
    schema: Literal["trainyard/run/1"] = SCHEMA

    def kept(self) -> list[Sample]:
        """Each step's samples of the last attempt that took it: what it did before was done again."""
        last: dict[int, int] = {}
        for sample in self.samples:
            last[sample.step] = max(last.get(sample.step, 0), sample.attempt)
        return [sample for sample in self.samples if sample.attempt == last[sample.step]]

    def measured(self) -> list[Sample]:
        """The samples a figure may be made of: no warm-up, no profiler, and of a step done again the last."""
        return [sample for sample in self.kept() if not sample.warmup and not sample.profiled]
