"""A rank's reaction to faulty steps: it reports them and continues, or ends its process for a stop or a rollback.

A rollback launches all ranks again, from the last checkpoint. The event log of rank 0 names the faulty steps, so that
later attempts leave their batches out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trainyard.job import Job
from trainyard.launch.agents import rank_progress
from trainyard.launch.launch_spec import ROLLED_BACK, STOPPED, EndedByRecipe
from trainyard.launch.supervisor import event_log
from trainyard.launch.supervisor.event_log import EventLogWriter
from trainyard.train.checkpoint.rank_group import CheckpointGroup
from trainyard.train.process_group import Ranks, barrier
from trainyard.train.step.outcome import Guarded, StepFault
from trainyard.train.step.step_guard import stop_after_rollbacks

_CONSEQUENCES = {
    "stop": "the run stops, without the update of this step",
    "skip": "the update is skipped",
    "rollback": "the run goes back to its last checkpoint",
}
_TITLES = {"non_finite": "non-finite values", "loss_spike": "loss spike"}


class Rollbacks(NamedTuple):
    """The rollbacks of the earlier attempts of a run: their number, and the steps whose batches later attempts skip."""

    count: int = 0
    left_out: frozenset[int] = frozenset()


def earlier_rollbacks(folder: Path, job: Job, ranks: Ranks) -> Rollbacks:
    """The rollbacks in the event log of the run's `folder`, as rank 0 reads it. Collective if the recipe has any."""
    if not job.recipe.rolls_back:
        return Rollbacks()
    rollbacks = Rollbacks()
    if ranks.rank == 0:
        faulty_steps = [event.step for event in event_log.read(folder) if event.action == "rollback"]
        width = job.recipe.rollback_skip_steps
        left_out = {step for last in faulty_steps for step in range(max(0, last - width + 1), last + 1)}
        rollbacks = Rollbacks(len(faulty_steps), frozenset(left_out))
    return CheckpointGroup(ranks).broadcast(rollbacks)


class StepFaults:
    """Handles the faulty steps of a rank. `earlier`: the rollbacks of earlier attempts."""

    def __init__(
        self,
        job: Job,
        ranks: Ranks,
        training: Guarded,
        earlier: Rollbacks,
        events: EventLogWriter,
        say: Callable[[str], object],
        before_end: Callable[[int], object] = lambda _: None,
    ) -> None:
        """`events`: this rank's event log; `say`: prints a message; `before_end`: called with the last step before the
        process ends, collective."""
        self.job, self.ranks, self.training, self.earlier = job, ranks, training, earlier
        self.events, self.say, self.before_end = events, say, before_end

    def handle(self, step: int) -> None:
        """Report the fault of the last step, `step`, if it has one. Collective.

        Raises `EndedByRecipe` if the run stops or goes back; all ranks do.
        """
        fault = self.training.fault
        if fault is None:
            return
        heartbeat = rank_progress.own_heartbeat()
        heartbeat.phase("saving")  # the step is computed again, with checks of each tensor
        fault = stop_after_rollbacks(fault, self.earlier.count, self.job.recipe)
        rank, evidence = self._examine(fault, step)
        message = f"{_TITLES[fault.kind]} in step {step + 1}: {evidence}; {_CONSEQUENCES[fault.action]}"
        if self.ranks.rank == 0:
            self.events.fault(fault.kind, message, rank, step, fault.action)
        self.say(f"{message}\n")
        if fault.action == "skip":
            heartbeat.phase("stepping")
            return
        self.before_end(step)
        barrier(self.ranks)  # no rank closes its sockets while a peer still reads from them
        raise EndedByRecipe(STOPPED if fault.action == "stop" else ROLLED_BACK, message)

    def _examine(self, fault: StepFault, step: int) -> tuple[int, str]:
        """The rank of the first non-finite tensor, -1 for none, and the evidence in a clause."""
        if fault.kind != "non_finite":
            return -1, fault.message
        tensor = self.training.find_non_finite(step)
        if tensor is None:
            return -1, f"{fault.message}; no non-finite tensor was found when the step was computed again"
        return tensor.rank, f"{fault.message}; the first non-finite tensor is {tensor}"
