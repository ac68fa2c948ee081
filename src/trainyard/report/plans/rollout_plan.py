"""The result of `trainyard plan rollout`: a step of reinforcement learning in each mode, with its parts."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.job import Job
from trainyard.machine import Claim
from trainyard.predict.post_training.rollout_workload import RolloutWorkload
from trainyard.predict.post_training.step_modes import ModeName, PartName

SCHEMA = "trainyard/rollout/1"
MODES: dict[ModeName, str] = {
    "colocated": "colocated",
    "disaggregated": "disaggregated",
    "one-step-off": "one step off",
}
"""Mode -> its name in tables."""


class RolloutPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a step. `ns`: the time that it adds to the step; the parts sum to it. `hidden_ns`: its time during
    other parts."""

    name: PartName
    ns: int
    hidden_ns: int = 0


class GenerationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Generation on `devices` devices: `replicas` engines with tensor parallelism `tp`. `requests`: of the slowest
    replica, of which at most `concurrent` run at a time, `mean_concurrent` on average. `prefill_ns`, `tail_ns`: of its
    time, prefill, and the end with at most a quarter of the most concurrent requests. `weight_bytes`, `cache_bytes`: of
    a rank, the KV cache at its fullest. `capacity_tokens`: tokens that the cache of a replica holds."""

    devices: int
    tp: int
    replicas: int
    requests: int
    concurrent: int
    mean_concurrent: float
    prefill_ns: int
    tail_ns: int
    weight_bytes: int
    cache_bytes: int
    capacity_tokens: int


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Training on `devices` devices: `updates` optimizer updates of `update_ns` each, of `rows` packed rows of
    `row_tokens` tokens. `job`: with the layout; `layout`: in words. `reserved_bytes`: of a rank, of which `state_bytes`
    are weights and optimizer state."""

    devices: int
    job: Job
    layout: str
    updates: int
    update_ns: int
    rows: int
    row_tokens: int
    reserved_bytes: int
    state_bytes: int


class RolloutMode(msgspec.Struct, frozen=True, kw_only=True):
    """A step in one mode; None and empty if there is none, for which `reason` is. `low_ns`, `high_ns`: the assumed
    interval of the step. `offloaded_bytes`: of the training's state of a rank, which is on the host during generation.
    `tokens_per_s`: prompt and response tokens of a step over its time, of all devices; `busy_share`: share of the
    devices' time in which they generate, compute log-probabilities or train."""

    name: ModeName
    step_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    parts: tuple[RolloutPart, ...] = ()
    generation: GenerationPlan | None = None
    training: TrainingPlan | None = None
    offloaded_bytes: int = 0
    tokens_per_s: float | None = None
    busy_share: float | None = None
    reason: str = ""


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The modes of a step, the fastest first, those without a step last. `device`: the full name of the machine's;
    `constants`: the set of fitted constants; `assumptions`: those of generation, with their sources. `calibrated`:
    whether the interval comes from measurements. `limits`: sentences on what is not predicted; `notes`: on the inputs
    and on idle devices."""

    schema: Literal["trainyard/rollout/1"] = SCHEMA
    model: str
    machine: str
    device: str
    devices: int
    framework: str
    constants: str
    workload: RolloutWorkload
    modes: tuple[RolloutMode, ...]
    assumptions: tuple[Claim, ...]
    calibrated: bool
    limits: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> RolloutMode:
        """The fastest mode."""
        return self.modes[0]
