"""Records of runs: Run, Sample, Provenance, Incident. Times in ns, sizes in bytes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from trainyard import words
from trainyard.job import Job
from trainyard.ledger import Ledger
from trainyard.machine import Claim
from trainyard.machine_load import MachineLoad

SCHEMA = "trainyard/run/3"
OLD_SCHEMAS = ("trainyard/run/1", "trainyard/run/2")
"""Schemas of runs that have the old keys of `renamed_keys.py`; they are upgraded when they are read."""
Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""An integer whose sums and means stay in 64 bits and whose ratios stay finite; 2**62 ns are 146 years."""


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of one rank. `loss`: mean over the global batch (nats per token), None if not reported; `tokens`: this
    rank's, 0 if not reported.

    `memory_bytes`: peak so far; allocated on an accelerator, resident on a CPU. `profiled` steps include the profiler's
    overhead and are never mixed with the others.
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
    skipped: bool = False
    """Whether the update of the step was not applied, since its loss or gradients were faulty."""
    attempt: Int = 0
    """Number of restarts of the job before this step; a step may have one sample per attempt."""
    ended_ns: Int = 0
    """When the step ended, in ns since the epoch; 0 if not reported."""
    clock: Literal["", "host", "synchronized", "events"] = ""
    """The clock of `wall_ns`, as in words.STEP_CLOCKS; empty if not recorded."""
    experts: dict[str, tuple[Int, ...]] = {}
    """Tokens of each expert over the global batch, by name of the layer. Recorded in some steps, by the first rank of
    each pipeline stage; else empty."""


class DeviceSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device as its driver reports it."""

    index: int
    name: str
    vendor: str
    memory_bytes: int = 0
    facts: dict[str, str] = {}


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The environment of a run, recorded to find unintended differences between two runs."""

    code: dict[str, str] = {}
    """`sha` and `dirty` of the working tree in which the run was started, if it is a git worktree."""
    packages: dict[str, str] = {}
    torch_build: dict[str, str] = {}
    driver: dict[str, str] = {}
    devices: tuple[DeviceSeen, ...] = ()
    environment: dict[str, str] = {}
    clocks: dict[str, str] = {}
    host: dict[str, str] = {}
    load: MachineLoad | None = None
    """CPU use of the host while the run lasted; None if that was not measured."""
    seeds: dict[str, int] = {}
    digests: dict[str, str] = {}
    """sha256 of the training text and of the initial and final weights, by name."""
    text: str = ""
    """Source of the training text."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a forked run started from: that of run `run` after step `step`."""

    run: str
    step: int


class Incident(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault of a running job and its consequences. `kind` as in words.FAULTS; times in seconds.

    `rank`, `node`: the culprit (-1: none, or not a single one); `step`: the last that had completed. `detect_s`: from
    the fault, if its time is known, to its detection; `restart_s`: from then until all ranks train again; `lost_s`:
    training repeated after the restart, 0 if a simultaneous incident already counts it. `resumed_step`: the step from
    which training resumed, -1 if none. `verdict`: on a hang, a key of words.HANGS; empty if undecided.
    `action`: what the run did at a faulty step, a key of words.STEP_ACTIONS; `step` is then that step.
    """

    kind: str
    time: str
    attempt: int
    summary: str
    rank: int = -1
    node: int = -1
    step: int = -1
    detect_s: float = 0.0
    restart_s: float = 0.0
    lost_s: float = 0.0
    resumed_step: int = -1
    verdict: str = ""
    action: str = ""

    def __post_init__(self) -> None:
        words.check(self.kind, words.FAULTS, "fault")
        if self.action:
            words.check(self.action, words.STEP_ACTIONS, "reaction to a faulty step")


class NodeShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks of a job that ran on one node. `node`: its name, empty if unknown; `missing`: the run lacks these ranks.
    `run`: id of the part that was recorded there; `trainyard`, `code`: as in its `part.json`."""

    node: str
    ranks: tuple[int, ...]
    missing: bool = False
    run: str = ""
    trainyard: str = ""
    code: dict[str, str] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution of a job. `ledgers`: one per rank and step, then the mean over full steps.

    `trace`: profiler files relative to the run's folder. `claims`, if available: `matmul_rate` and `peak` in FLOP/s per
    rank, `model_flops` per step of all ranks, `matmul_flops` per step of one rank, `profiler_cost` in ns. `failure`:
    the rank that died and its error, if the state is `failed`; the damage, if it is `damaged`, a state that is
    determined when a run is read and never stored.
    """

    id: str
    job: Job
    started: str
    state: Literal["complete", "failed", "incomplete", "damaged"] = "incomplete"
    origin: Origin | None = None
    """None unless the run was forked from another one."""
    provenance: Provenance = Provenance()
    samples: tuple[Sample, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    trace: tuple[str, ...] = ()
    claims: dict[str, Claim] = {}
    failure: str = ""
    incidents: tuple[Incident, ...] = ()
    goodput: dict[str, float] = {}
    """Seconds by cause (words.TIMES), which sum to the job's total run time. Empty if the run was not monitored."""
    job_id: str = ""
    """The id on which the nodes of a job agreed; empty for a run of a single node."""
    nodes: tuple[NodeShare, ...] = ()
    """The ranks of a job on several nodes, by node, and the ranks that this run lacks."""
    part_notes: tuple[str, ...] = ()
    """Differences between the parts that the run was joined from, such as other versions of the code."""
    digest: str = ""
    schema: Literal["trainyard/run/3"] = SCHEMA

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job that this run lacks, ascending."""
        return tuple(sorted(rank for share in self.nodes if share.missing for rank in share.ranks))

    def kept(self) -> list[Sample]:
        """The samples of each step's last attempt, of all ranks; those of earlier attempts were repeated after a
        restart."""
        last_attempt: dict[int, int] = {}  # step -> attempt
        for sample in self.samples:
            last_attempt[sample.step] = max(last_attempt.get(sample.step, 0), sample.attempt)
        return [sample for sample in self.samples if sample.attempt == last_attempt[sample.step]]

    @property
    def step_clocks(self) -> tuple[str, ...]:
        """The clocks that timed the measured steps, as in words.STEP_CLOCKS, sorted; empty if not recorded."""
        return tuple(sorted({sample.clock for sample in self.measured()} - {""}))

    def measured(self) -> list[Sample]:
        """The samples that figures are computed from: last attempts, without warm-up, profiled and skipped steps."""
        return [sample for sample in self.kept() if not sample.warmup and not sample.profiled and not sample.skipped]
