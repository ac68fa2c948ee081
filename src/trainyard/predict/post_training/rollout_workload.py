"""The work of a step of reinforcement learning: prompts, samples of each, and the distribution of response lengths."""

from __future__ import annotations

from functools import cached_property
from math import exp, log, log1p, sqrt
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from trainyard import limits
from trainyard.errors import BadInput
from trainyard.predict.post_training.rollout_defaults import LENGTH_CV
from trainyard.units import counted

_MOST_CV = 10.0
_LEAST_CV = 1e-6
"""Smaller spreads count as none: all lengths are the mean."""
_BISECTIONS = 100
_QUANTILES = 4096
"""Quantiles of the lengths over which a mean is taken."""
_NORMAL = NormalDist()
_SURE = 1 - 1e-9
"""Largest probability of a quantile."""

Lengths = npt.NDArray[np.int64]


class RolloutWorkload(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """`prompts` of a step, `samples` responses to each (the group size of GRPO). `prompt_tokens`: of each prompt;
    `response_tokens`: mean length of a response; `max_response_tokens`: length at which it is cut off. `length_cv`:
    standard deviation of the lengths over their mean, before they are cut off. `train_batch`: sequences of an optimizer
    update (the mini-batch); 0: all of the step."""

    prompts: int
    samples: int
    prompt_tokens: int
    response_tokens: int
    max_response_tokens: int
    length_cv: float = LENGTH_CV
    train_batch: int = 0

    def __post_init__(self) -> None:
        """Raises `BadInput` for numbers out of range or contradicting each other."""
        for flag, value, limit in (
            ("--prompts", self.prompts, limits.SAMPLES), ("--samples", self.samples, limits.SAMPLES),
            ("--prompt-tokens", self.prompt_tokens, limits.TOKENS),
            ("--response-tokens", self.response_tokens, limits.TOKENS),
            ("--max-response-tokens", self.max_response_tokens, limits.TOKENS),
        ):  # fmt: skip
            if value < 1:
                raise BadInput(f"{flag} {limits.show(value)} must be at least 1.", "Pass a positive number.")
            limits.check_value(flag, value, limit)
        limits.check_value("--prompts x --samples =", self.sequences, limits.SAMPLES)
        limits.check_value("tokens a step =", self.sequences * self.longest, limits.STEP)
        if self.max_response_tokens < self.response_tokens:
            raise BadInput(
                f"--max-response-tokens {self.max_response_tokens:,} is less than the mean length, "
                f"--response-tokens {self.response_tokens:,}.",
                "Pass a maximum of at least the mean.",
            )
        if not 0 <= self.length_cv <= _MOST_CV:
            raise BadInput(
                f"--length-cv {self.length_cv:g} is not between 0 and {_MOST_CV:g}.",
                f"Pass the standard deviation of the lengths over their mean, as {LENGTH_CV}; 0 if all are equal.",
            )
        if self.train_batch < 0 or (self.train_batch and self.sequences % self.train_batch):
            raise BadInput(
                f"--train-batch {self.train_batch:,} does not divide the {counted(self.sequences, 'sequence')} "
                f"of a step ({counted(self.prompts, 'prompt')} x {counted(self.samples, 'sample')}).",
                "Pass a divisor of them, or leave it out for one optimizer update per step.",
            )

    @property
    def sequences(self) -> int:
        """Responses of a step."""
        return self.prompts * self.samples

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: prompt and response."""
        return self.prompt_tokens + self.max_response_tokens

    @property
    def updates(self) -> int:
        """Optimizer updates of a step."""
        return self.sequences // (self.train_batch or self.sequences)

    @property
    def tokens(self) -> int:
        """Tokens of a step: prompts and mean responses."""
        return self.sequences * (self.prompt_tokens + self.response_tokens)

    @cached_property
    def _log_median(self) -> float:
        """Logarithm of the median of the lognormal distribution whose mean, cut off at the maximum, is the mean."""
        low, high = log(self.response_tokens) - 60 * (self._sigma + 1), log(self.max_response_tokens) + 60
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean_of(middle) < self.response_tokens else (low, middle)
        return (low + high) / 2

    @property
    def _sigma(self) -> float:
        """Standard deviation of the logarithm of a length."""
        return sqrt(log1p(self.length_cv**2))

    def _mean_of(self, log_median: float) -> float:
        """Mean of lengths with this median, cut off at the maximum: E[min(X, M)] of a lognormal X."""
        sigma = self._sigma
        distance = (log(self.max_response_tokens) - log_median) / sigma
        whole = exp(min(log_median + sigma**2 / 2, 700.0)) * _NORMAL.cdf(distance - sigma)
        return whole + self.max_response_tokens * (1 - _NORMAL.cdf(distance))

    def lengths_at(self, probabilities: npt.ArrayLike) -> Lengths:
        """Response lengths in tokens at these probabilities of their distribution, each from 0 to 1, exclusive."""
        chosen = np.asarray(probabilities, np.float64)
        if self.length_cv < _LEAST_CV or self.max_response_tokens == self.response_tokens:
            return np.full(chosen.shape, self.response_tokens, np.int64)
        deviations = np.array([_NORMAL.inv_cdf(min(each, _SURE)) for each in chosen.ravel()])
        most_log = log(self.max_response_tokens)
        lengths = np.exp(np.minimum(self._log_median + self._sigma * deviations, most_log))
        return np.maximum(np.rint(lengths), 1).astype(np.int64).reshape(chosen.shape)

    def mean_square_tokens(self) -> float:
        """Mean of the squared tokens of a sequence, prompt and response."""
        lengths = self.lengths_at((np.arange(_QUANTILES) + 0.5) / _QUANTILES)
        return float(np.mean(np.square(self.prompt_tokens + lengths.astype(np.float64))))
