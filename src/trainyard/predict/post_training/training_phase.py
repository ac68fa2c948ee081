"""The training side of a step of reinforcement learning: optimizer updates, and passes for log-probabilities.

Sequences are packed into rows as long as the longest one, so that a layout fits whatever it gets. The fastest layout of
these rows is searched as for pre-training. Attention is computed within each sequence only, so that its time in the
predicted ledger is scaled by the sum of the squared lengths over that of full rows. A pass for log-probabilities is the
forward phase of the same ledger, with its share of the pipeline's bubble and of the host's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.economics.training_budget import NO_BUDGET
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.post_training.rollout_workload import RolloutWorkload
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.predict.search.search import fastest

_ROW_MULTIPLE = 256
"""Row lengths are multiples of it, so that tp x cp divides them."""
_MOST_PADDING = 16
"""The rows of an update are rounded up to a multiple of at most a sixteenth of them, so that data parallelism divides
them."""
_PASSES = ("forward", "recompute", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPhase:
    """`cost`: of the layout, for one optimizer update; `updates` in a step. `update_ns`, `forward_ns`: of an update,
    and of the forward passes over all sequences of the step. `rows` of an update, of `row_tokens` tokens.
    `attention_share`: time of attention over that of full rows. `state_bytes`: of the weights and the optimizer's state
    of a rank; `weight_bytes`: of these, weights."""

    cost: LayoutCost
    updates: int
    update_ns: float
    forward_ns: float
    rows: int
    row_tokens: int
    attention_share: float
    state_bytes: int
    weight_bytes: int


def plan_training(
    wanted: PlannerInput, machine: Machine, framework: Framework, workload: RolloutWorkload,
    refuses: Callable[[Job], None] = lambda _: None,
) -> TrainingPhase:  # fmt: skip
    """The fastest training of a step on `wanted.devices` ranks. `wanted`: the model, ranks, dtype and fixed axes; its
    batch is replaced. `refuses`: raises `BadJob` for a job that cannot be run. Raises `BadJob` if no layout fits."""
    update = update_input(wanted, workload)
    rows, row_tokens = update.samples, update.seq_len
    cost = fastest(update, machine, framework, NO_BUDGET, refuses)
    squares = workload.mean_square_tokens() * workload.sequences / workload.updates
    attention_share = min(1.0, squares / (rows * row_tokens**2))
    update_ns, forward_ns = _split(cost, attention_share)
    memory = cost.plan.memory
    return TrainingPhase(
        cost=cost, updates=workload.updates, update_ns=update_ns, forward_ns=forward_ns * workload.updates, rows=rows,
        row_tokens=row_tokens, attention_share=attention_share,
        state_bytes=memory["parameter"] + memory["optimizer_state"], weight_bytes=memory["parameter"],
    )  # fmt: skip


def update_input(wanted: PlannerInput, workload: RolloutWorkload) -> PlannerInput:
    """`wanted` with the rows of an optimizer update as its batch."""
    row_tokens = -(-workload.longest // _ROW_MULTIPLE) * _ROW_MULTIPLE
    update_tokens = workload.tokens / workload.updates
    rows = _divisible_rows(-(-update_tokens // row_tokens), wanted.devices)
    return wanted._replace(samples=rows, seq_len=row_tokens)


def _split(cost: LayoutCost, attention_share: float) -> tuple[float, float]:
    """(ns of an update, ns of its forward passes) with attention scaled by `attention_share`."""
    ns_by_phase: dict[str, float] = {}
    for entry in cost.plan.ledger.entries:
        share = attention_share if str(entry.account) == "compute/attention" else 1.0
        ns_by_phase[entry.phase] = ns_by_phase.get(entry.phase, 0.0) + share * entry.ns
    passes = sum(ns_by_phase.get(phase, 0.0) for phase in _PASSES)
    forward = ns_by_phase.get("forward", 0.0)
    return sum(ns_by_phase.values()), forward + ns_by_phase.get("other", 0.0) * forward / max(passes, 1.0)


def _divisible_rows(rows: float, ranks: int) -> int:
    """The rows, rounded up to a multiple of the largest divisor of `ranks` that is at most a sixteenth of them."""
    divisor = max(each for each in _divisors(ranks) if each == 1 or each <= rows / _MOST_PADDING)
    return int(-(-rows // divisor) * divisor)


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return small + [number // each for each in small]
