"""Decides whether a step may update the weights, from the global loss and gradient norm. Needs no torch.

Every rank has the same numbers, so that all decide the same without communication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import isfinite
from statistics import median

from trainyard.recipe import Recipe
from trainyard.train.step.loss_spikes import has_enough, spike_score
from trainyard.train.step.outcome import StepFault

_SKIPS = "guard/skips"
_LOSS = "guard/loss/"
"""Names of the guard's numbers in a checkpoint; a loss's number follows, which sorts them by step."""


class StepGuard:
    """Judges the steps of a training in order. `recent`: losses of the last steps without a fault, for spikes only;
    `skips`: steps skipped in succession."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.recent: deque[float] = deque(maxlen=recipe.loss_spike_window)
        self.skips = 0

    @property
    def checks(self) -> bool:
        """Whether a step may have a fault."""
        return self.recipe.on_non_finite != "ignore" or self.recipe.on_loss_spike != "ignore"

    def judge(self, loss: float, is_norm_finite: bool) -> StepFault | None:
        """The fault of a step, None if it may update the weights. Call once per step, before the update."""
        fault = self._judge_values(loss, is_norm_finite)
        if fault is None:
            self.skips = 0
            if self.recipe.on_loss_spike != "ignore" and isfinite(loss):
                self.recent.append(loss)
            return None
        if fault.action == "skip":
            self.skips += 1
            if self.skips > self.recipe.max_consecutive_skips:
                reason = f"max_consecutive_skips = {self.recipe.max_consecutive_skips} steps were skipped before it"
                return fault._replace(action="stop", message=f"{fault.message}; {reason}")
        return fault

    def _judge_values(self, loss: float, is_norm_finite: bool) -> StepFault | None:
        recipe = self.recipe
        if not (isfinite(loss) and is_norm_finite):
            if recipe.on_non_finite == "ignore":
                return None
            value = (
                f"the loss is {loss}" if not isfinite(loss) else f"the gradient norm is not finite, at loss {loss:.4f}"
            )
            return StepFault("non_finite", recipe.on_non_finite, value)
        if recipe.on_loss_spike == "ignore" or not has_enough(self.recent, recipe.loss_spike_window):
            return None
        score = spike_score(loss, self.recent)
        if score <= recipe.loss_spike_threshold:
            return None
        return StepFault(
            "loss_spike",
            recipe.on_loss_spike,
            f"the loss {loss:.4f} is {score:.1f} robust standard deviations above {median(self.recent):.4f}, the "
            f"median of the last {len(self.recent)} (loss_spike_threshold = {recipe.loss_spike_threshold:g})",
        )

    def state(self) -> Mapping[str, float]:
        """State for a checkpoint; empty if there is none."""
        skips = {_SKIPS: float(self.skips)} if self.skips else {}
        return skips | {f"{_LOSS}{number:07}": loss for number, loss in enumerate(self.recent)}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restores the state of a checkpoint, which may lack it."""
        self.skips = int(state.get(_SKIPS, 0))
        self.recent.clear()
        if self.recipe.on_loss_spike != "ignore":
            self.recent.extend(state[name] for name in sorted(state) if name.startswith(_LOSS))


def stop_after_rollbacks(fault: StepFault, rollbacks: int, recipe: Recipe) -> StepFault:
    """The fault, with `stop` in place of a rollback if the run has rolled back `max_rollbacks` times already."""
    if fault.action != "rollback" or rollbacks < recipe.max_rollbacks:
        return fault
    reason = f"the run was rolled back {rollbacks} times before (max_rollbacks = {recipe.max_rollbacks})"
    return fault._replace(action="stop", message=f"{fault.message}; {reason}")
