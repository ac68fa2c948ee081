"""Which steps of a run record the tokens of each expert.

Profiled steps do not, since the copy to the host would be in their profile. Between the other steps the copy is outside
the timed interval, and a run has few of them.
"""

from __future__ import annotations

from trainyard.train.step.outcome import CountsExperts, ExpertCounts, Training

_MOST_STEPS, _LEAST_STEPS = 50, 4
_MOST_COUNTS = 200_000
"""Counts that the samples of a rank hold in all, unless `_LEAST_STEPS` steps have more."""


class ExpertSamples:
    """Copies the tokens per expert of every `interval`-th step; `interval` is 0 if this rank records none."""

    def __init__(self, training: Training, steps: int) -> None:
        """`steps`: number of steps of the run."""
        self.training = training
        self.interval = 0
        if isinstance(training, CountsExperts) and training.expert_count:
            recorded = min(_MOST_STEPS, max(_LEAST_STEPS, _MOST_COUNTS // training.expert_count))
            self.interval = max(1, -(-steps // recorded))

    def copy(self, step: int) -> ExpertCounts | None:
        """Launches the copy of the counts of `step`, the last one; None if that step does not record them."""
        if not self.interval or step % self.interval or not isinstance(self.training, CountsExperts):
            return None
        return self.training.expert_counts()
