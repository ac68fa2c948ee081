"""The causes of a pipeline's bubble: its idle time, as the sum of what each property of the pipeline adds to it.

The step is simulated several times, first with equal stages (layers, head and loss spread evenly over them, no
transfers, no host time), then with one more property each time, until it is the pipeline as it is. The idle time that a
property adds belongs to it, so that the parts sum to the bubble. A part is negative if its property fills idle time of
the parts before it: a last stage with fewer layers waits (`layers`), and the head uses that time (`head`). The rows of
an array of seconds are those of `StageTimes`: forward pass, backward pass, gradients of weights.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from trainyard.ledger import Ledger
from trainyard.predict.inputs.cases import Column
from trainyard.predict.pipeline import schedules
from trainyard.predict.pipeline.simulation import SimulatedPipeline, simulate
from trainyard.predict.pipeline.step_bounds import StageTimes

CAUSES: tuple[str, ...] = ("schedule", "host", "transfers", "layers", "head")
"""What adds to the bubble, in the order in which it is added: the schedule with equal stages; host time outside the
layers; transfers between ranks; layers that are divided unevenly or are of several kinds; the head and the loss on the
last stage. The embedding takes no time in the cost model."""
_NS_PER_SECOND = 1_000_000_000


class PipelineRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a pipeline. `stages`: numbers of its stages, from 0 at the model's input; `layers`: layers of each;
    `forward_ns`, `backward_ns`: of a micro-batch on all of them, with the head and the loss on the last one. The others
    are per step and sum to the time of the pipeline: at work (`busy_ns`), exposed transfers, and idle before its first
    operation (`warmup_ns`), between operations (`steady_ns`) and after its last (`drain_ns`)."""

    stages: tuple[int, ...]
    layers: tuple[int, ...]
    forward_ns: int
    backward_ns: int
    busy_ns: int
    transfer_ns: int
    warmup_ns: int
    steady_ns: int
    drain_ns: int


class PipelineBubble(msgspec.Struct, frozen=True, kw_only=True):
    """The bubble of a step, mean over the ranks of the pipeline. `causes`: ns of each of `CAUSES`, which sum to the
    bubble of the ledger; `pipeline_ns`: time of all micro-batches, the step without the work after the last one;
    `ideal_share`: bubble over the time of the pipeline with equal stages and nothing else,
    (pp - 1) / (micro-batches x stages per rank + pp - 1); None for schedules without this formula. `micro_batches`: per
    step."""

    causes: dict[str, int]
    pipeline_ns: int
    micro_batches: int
    ideal_share: float | None
    ranks: tuple[PipelineRank, ...]

    @property
    def bubble_ns(self) -> int:
        """The sum of the causes."""
        return sum(self.causes.values())


class _Explained(NamedTuple):
    """`idle_s`: bubble with the first n + 1 of `CAUSES`; `step`: the simulation with all of them."""

    idle_s: list[float]
    step: SimulatedPipeline


def explain(times: StageTimes, ledger: Ledger) -> PipelineBubble:
    """The causes of the bubble of a pipeline. `ledger`: of the predicted step, whose bubble the causes sum to."""
    idle_s, step = _simulate_causes(times)
    ledger_ns = sum(entry.ns for entry in ledger.entries if entry.account.kind == "bubble")
    # Cumulated and then rounded, so that the differences sum to the bubble of the ledger exactly.
    cumulated_ns = [*(round(seconds * _NS_PER_SECOND) for seconds in idle_s[:-1]), ledger_ns]
    causes = dict(zip(CAUSES, np.diff(cumulated_ns, prepend=0).tolist(), strict=True))
    interleave = len(times.layer_counts) // times.ranks
    return PipelineBubble(
        causes=causes,
        pipeline_ns=round(step.wall * _NS_PER_SECOND),
        micro_batches=times.micro_batches,
        ideal_share=ideal_share(times.schedule, times.ranks, interleave, times.micro_batches),
        ranks=tuple(_explain_rank(rank, times, step) for rank in range(times.ranks)),
    )


def ideal_share(schedule: str, pp: int, interleave: int, micro_batches: int) -> float | None:
    """The bubble over the time of a pipeline with equal stages and without transfers (Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2); None for schedules that split the backward pass, and for those with rounds of
    micro-batches that are not of `pp` each."""
    has_formula = schedule not in schedules.SPLIT and (interleave == 1 or micro_batches % pp == 0)
    return (pp - 1) / (micro_batches * interleave + pp - 1) if has_formula else None


def _simulate_causes(times: StageTimes) -> _Explained:
    """The mean idle seconds of a rank with the first one, the first two, ... of `CAUSES`."""
    stages = times.layers.shape[1]
    even_layers = np.repeat(times.layers.mean(axis=1, keepdims=True), stages, axis=1)
    even_head, host = times.head[:, None] / stages, times.host[:, None]
    equal = even_layers + even_head
    pipelines = [
        times.pipeline_of(equal, 0.0),
        times.pipeline_of(equal + host, 0.0),
        times.pipeline_of(equal + host, times.hop),
        times.pipeline_of(times.layers + even_head + host, times.hop),
        times.pipeline,
    ]
    results = simulate(pipelines)
    return _Explained([float(np.mean(_idle(result))) for result in results], results[-1])


def _idle(result: SimulatedPipeline) -> Column:
    """Idle seconds of each rank."""
    return result.warmup + result.steady + result.drain


def _explain_rank(rank: int, times: StageTimes, step: SimulatedPipeline) -> PipelineRank:
    """One rank of the simulated `step`; its `busy_ns` has the rounding error of its times."""
    pipeline, pipeline_ns = times.pipeline, round(step.wall * _NS_PER_SECOND)
    stages = schedules.stages_of(rank, times.schedule, times.ranks, len(times.layer_counts) // times.ranks)
    transfer, warmup, steady, drain = (
        round(float(column[rank]) * _NS_PER_SECOND) for column in (step.exchange, step.warmup, step.steady, step.drain)
    )
    forward_s, backward_s = pipeline.forward[stages].sum(), (pipeline.inputs + pipeline.weights)[stages].sum()
    return PipelineRank(
        stages=tuple(stages.tolist()),
        layers=tuple(times.layer_counts[stage] for stage in stages.tolist()),
        forward_ns=round(float(forward_s) * _NS_PER_SECOND),
        backward_ns=round(float(backward_s) * _NS_PER_SECOND),
        busy_ns=pipeline_ns - transfer - warmup - steady - drain,
        transfer_ns=transfer,
        warmup_ns=warmup,
        steady_ns=steady,
        drain_ns=drain,
    )
