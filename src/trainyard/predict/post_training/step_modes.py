"""A step of reinforcement learning in each mode: which devices generate and train, and how its parts add up.

- Colocated (hybrid engine): all devices generate, then all train. The training's state stays in the device memory next
  to the KV cache, or is copied to the host while they generate, whichever is faster.
- Disaggregated: some nodes generate and the others train, one after the other.
- One-step-off asynchronous: the same, at the same time. Training uses the responses that the weights of the previous
  step generated. The weights are moved while both wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.model import Model
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.inputs.prediction_interval import Interval
from trainyard.predict.post_training.decode_cost import count_weights
from trainyard.predict.post_training.generation_search import EngineOptions, Generation, fastest_generation
from trainyard.predict.post_training.rollout_workload import RolloutWorkload
from trainyard.predict.post_training.training_phase import TrainingPhase, plan_training
from trainyard.predict.post_training.weight_transfer import copy_seconds, transfer_seconds
from trainyard.predict.search.offload_variants import usable_memory

ModeName = Literal["colocated", "disaggregated", "one-step-off"]
PartName = Literal["generation", "log_probs", "training", "transfer"]
STEP_INTERVAL = Interval(0.7, 3.5, "nothing is fitted to post-training")
"""Range of measured over predicted steps that is assumed. Seven published steps, to which nothing is fitted, took 1.1
to 3.1 times the prediction (`python -m validation.rollout`)."""
_NS = 1e9
_COARSE_SPLITS = 12
"""Most splits of the nodes that are tried before those next to the best one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Passes of a step besides generation and the policy's updates. `old_log_probs`: of the policy that generated,
    computed by the training engine; `reference`: those of a frozen reference model; `critic`: a value model as large as
    the policy, which is applied and trained too."""

    old_log_probs: bool = True
    reference: bool = True
    critic: bool = False

    @property
    def forward_passes(self) -> int:
        return self.old_log_probs + self.reference + self.critic


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """Time of a part in a step: `ns` that others wait for, and `hidden_ns` during other parts."""

    name: PartName
    ns: int
    hidden_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """A step in one mode. `parts` sum to the step. `offloaded_bytes`: of each rank, which are on the host while the
    device generates."""

    mode: ModeName
    parts: tuple[PartTime, ...]
    generation: Generation
    training: TrainingPhase
    generation_ranks: int
    training_ranks: int
    offloaded_bytes: int = 0

    @property
    def wall_ns(self) -> int:
        return sum(part.ns for part in self.parts)

    @property
    def busy_share(self) -> float:
        """Share of the ranks' time in which they generate, compute log-probabilities or train. Ranks without a replica
        do not generate."""
        totals = {part.name: part.ns + part.hidden_ns for part in self.parts}
        shared = self.mode == "colocated"
        ranks = self.training_ranks if shared else self.training_ranks + self.generation_ranks
        trains = totals["log_probs"] + totals["training"]
        busy = totals["generation"] * self.generation.tp * self.generation.replicas + trains * self.training_ranks
        return busy / (ranks * self.wall_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlanner:
    """Plans the steps of one model on one machine. `wanted`: the same model and all ranks of the cluster, with the
    dtype and the axes that are fixed for training. `refuses`: as in `plan_training`."""

    model: Model
    wanted: PlannerInput
    machine: MachineModel
    framework: Framework
    workload: RolloutWorkload
    engine: EngineOptions
    settings: StepSettings
    refuses: Callable[[Job], None]

    def colocated(self) -> RolloutStep:
        """The colocated step. Raises `BadJob` if training or generation does not fit."""
        ranks = self.wanted.devices
        training = self._train(ranks)
        steps: list[RolloutStep] = []
        refused: list[BadJob] = []
        host = usable_memory(self.machine.machine).host
        for offloaded in (0, training.state_bytes):
            if offloaded > host:
                continue
            resident = 0 if offloaded else training.state_bytes
            try:
                generation = self._generate(ranks, resident)
            except BadJob as error:
                refused.append(error)
                continue
            parts = _in_sequence(
                generation.seconds, *self._training_seconds(training),
                transfer_s=self._transfer_seconds(ranks) + (2 * self._copy(offloaded) if offloaded else 0.0),
            )  # fmt: skip
            steps.append(
                RolloutStep(
                    mode="colocated", parts=parts, generation=generation, training=training, generation_ranks=ranks,
                    training_ranks=ranks, offloaded_bytes=offloaded,
                )
            )  # fmt: skip
        if not steps:
            raise refused[-1]
        return min(steps, key=lambda step: step.wall_ns)

    def disaggregated(self, generation_ranks: int) -> tuple[RolloutStep, RolloutStep]:
        """(synchronous step, one-step-off asynchronous step) in which `generation_ranks` ranks generate and the others
        train. Raises `BadJob` if training or generation does not fit."""
        ranks = self.wanted.devices
        generation = self._generate(generation_ranks, 0)
        training = self._train(ranks - generation_ranks)
        log_probs_s, training_s = self._training_seconds(training)
        transfer_s = self._transfer_seconds(ranks)
        parts: dict[ModeName, tuple[PartTime, ...]] = {
            "disaggregated": _in_sequence(generation.seconds, log_probs_s, training_s, transfer_s=transfer_s),
            "one-step-off": _at_the_same_time(generation.seconds, log_probs_s, training_s, transfer_s=transfer_s),
        }
        synchronous, asynchronous = (
            RolloutStep(
                mode=mode, parts=parts[mode], generation=generation, training=training,
                generation_ranks=generation_ranks, training_ranks=ranks - generation_ranks,
            )
            for mode in parts
        )  # fmt: skip
        return synchronous, asynchronous

    def best_splits(self) -> tuple[RolloutStep, RolloutStep]:
        """The fastest (synchronous, asynchronous) steps over the splits of the nodes: all splits of few nodes; of many
        evenly spaced ones, then those around the best. Raises `BadJob` if none fits."""
        per_node = self.machine.machine.ranks_per_node
        nodes = self.wanted.devices // per_node
        steps: dict[int, tuple[RolloutStep, RolloutStep] | BadJob] = {}
        stride = -(-(nodes - 1) // _COARSE_SPLITS)
        candidates: Iterable[int] = range(stride, nodes, stride)
        while True:
            for generating in candidates:
                if generating not in steps:
                    steps[generating] = self._try_split(generating * per_node)
            fitting = {nodes_: pair for nodes_, pair in steps.items() if not isinstance(pair, BadJob)}
            if stride == 1:
                break
            stride = (stride + 1) // 2
            candidates = list(_around(fitting, stride, nodes)) or range(stride, nodes, stride)
        if not fitting:
            raise next(error for error in steps.values() if isinstance(error, BadJob))
        synchronous, asynchronous = (min(steps_, key=_wall_ns) for steps_ in zip(*fitting.values(), strict=True))
        return synchronous, asynchronous

    def _try_split(self, generation_ranks: int) -> tuple[RolloutStep, RolloutStep] | BadJob:
        try:
            return self.disaggregated(generation_ranks)
        except BadJob as error:
            return error

    def _train(self, ranks: int) -> TrainingPhase:
        return plan_training(
            self.wanted._replace(devices=ranks), self.machine.machine, self.framework, self.workload, self.refuses
        )

    def _generate(self, ranks: int, resident_bytes: float) -> Generation:
        return fastest_generation(self.model, self.machine, ranks, self.workload, self.engine, resident_bytes)

    def _training_seconds(self, training: TrainingPhase) -> tuple[float, float]:
        """Seconds of (passes for log-probabilities, optimizer updates). The reference's weights come from the host; the
        critic's state and the policy's take turns in the device memory."""
        settings = self.settings
        forward_s = settings.forward_passes * training.forward_ns / _NS
        if settings.reference:
            forward_s += self._copy(training.weight_bytes)
        updates_s = training.updates * training.update_ns / _NS
        if settings.critic:
            updates_s = 2 * updates_s + 4 * self._copy(training.state_bytes)
        return forward_s, updates_s

    def _transfer_seconds(self, ranks: int) -> float:
        return transfer_seconds(self.machine, count_weights(self.model, 1), ranks)

    def _copy(self, size_bytes: float) -> float:
        return copy_seconds(self.machine, size_bytes)


def _wall_ns(step: RolloutStep) -> int:
    return step.wall_ns


def _around(fitting: dict[int, tuple[RolloutStep, RolloutStep]], stride: int, nodes: int) -> Iterator[int]:
    """Numbers of generating nodes next to the best one of each mode."""
    for index in (0, 1) if fitting else ():
        best = min(fitting, key=lambda generating: fitting[generating][index].wall_ns)
        yield from (each for each in (best - stride, best + stride) if 0 < each < nodes)


def _in_sequence(
    generation_s: float, log_probs_s: float, training_s: float, *, transfer_s: float
) -> tuple[PartTime, ...]:
    """The parts of a step, one after the other."""
    return (
        PartTime(name="generation", ns=round(generation_s * _NS)),
        PartTime(name="log_probs", ns=round(log_probs_s * _NS)),
        PartTime(name="training", ns=round(training_s * _NS)),
        PartTime(name="transfer", ns=round(transfer_s * _NS)),
    )


def _at_the_same_time(
    generation_s: float, log_probs_s: float, training_s: float, *, transfer_s: float
) -> tuple[PartTime, ...]:
    """The parts of a step in which generation runs during the others: the shorter side is hidden."""
    generation, *trains, transfer = _in_sequence(generation_s, log_probs_s, training_s, transfer_s=transfer_s)
    if generation.ns >= sum(part.ns for part in trains):
        trains = [_hidden(part) for part in trains]
    else:
        generation = _hidden(generation)
    return (generation, *trains, transfer)


def _hidden(part: PartTime) -> PartTime:
    return PartTime(name=part.name, ns=0, hidden_ns=part.ns)
