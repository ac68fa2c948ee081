"""Estimate the scale of the planner's errors from the rows that were left out with their whole source or device:
`python -m validation.intervals` writes it to src/trainyard/data/prediction_interval.toml.

Reads validation/left_out.csv (`left_out.py`). Each group, the rows of one owner, machine generation and kind of model,
has the same weight, since its rows share their error. The mean error of each kind and the scale, a sum of variances,
are fitted by maximum likelihood with a weak prior; the interval's half width in units of that scale is the 80 %
quantile over the groups, corrected for their number, so that it holds for a new group that is exchangeable with them
(hierarchical conformal prediction: Dunn, Wasserman and Ramdas, JASA 118, 2023).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trainyard.formats import toml
from trainyard.predict.inputs.prediction_interval import ErrorScale, Interval, uncalibrated
from validation import left_out
from validation.left_out import LeftOut

FILE = Path(__file__).parents[1] / "src" / "trainyard" / "data" / "prediction_interval.toml"
COVERED = 0.8
"""Coverage of the intervals."""
NORMAL_QUANTILE = 1.282
"""Half the width of an 80 % interval of a normal distribution, in standard deviations."""
_CENTRE, _HOST_CENTRE, _PRIOR = np.log(0.1), np.log(np.log(2)), 1.0
"""Mean and standard deviation of the prior of the logarithm of each standard deviation; `_HOST_CENTRE`: of that of the
host's time, which differs by a factor of two between processors and libraries."""
_PRIOR_BIAS = 0.1
"""Standard deviation of the prior of each mean error, around 0: that of an error of the size of `_CENTRE`."""
_ENOUGH_GROUPS = 3
"""Groups with rows at a distance for which an interval there is calibrated."""
_NOT_COMPARABLE = uncalibrated("no training of its kind with its software was fitted")
_TERMS = ("same_owner", "other_machine", "other_software", "other_format", "doubling", "host")


def weights(residuals: Sequence[LeftOut]) -> npt.NDArray[np.float64]:
    """Weight of each row: those of a group sum to 1."""
    groups = [residual.group for residual in residuals]
    counts = {group: groups.count(group) for group in set(groups)}
    return np.array([1 / counts[group] for group in groups])


def estimate(every: Sequence[LeftOut]) -> ErrorScale:
    """The scale of the errors of these rows, of those whose kind of model and software were fitted. Rows of a machine
    that was left out have an owner whose other rows were fitted: a mean and a standard deviation of their own replace
    those of their kind, and they do not count for the quantile."""
    from scipy.optimize import minimize

    residuals = [residual for residual in every if residual.is_comparable]
    kinds = sorted({residual.kind for residual in residuals})
    new_owner = np.array([residual.split == "owner" for residual in residuals])
    weight, errors = weights(residuals), np.array([residual.log_ratio for residual in residuals])
    spreads = np.array([residual.log_spread for residual in residuals])
    # The mean error is linear in the biases, [row, bias], and the squared scale in the squared terms, [row, term].
    bias_features = np.array([
        [*(new and residual.kind == kind for kind in kinds), not new]
        for residual, new in zip(residuals, new_owner, strict=True)
    ])  # fmt: skip
    scale_features = np.array([
        [
            *(new * (residual.kind == kind) * (1 + 1 / residual.owners_of_kind) for kind in kinds), float(not new),
            float(not residual.distance.machine_fitted), float(not residual.distance.same_software),
            float(not residual.distance.format_fitted), residual.distance.doublings**2, residual.host_share**2,
        ]
        for residual, new in zip(residuals, new_owner, strict=True)
    ])  # fmt: skip

    centres = np.full(scale_features.shape[1], _CENTRE)
    centres[-1] = _HOST_CENTRE

    def loss(parameters: npt.NDArray[np.float64]) -> float:
        """Negative logarithm of the posterior."""
        logs, biases = np.split(parameters, [scale_features.shape[1]])
        variances = scale_features @ np.exp(2 * logs) + spreads**2
        likelihood = weight @ (np.log(variances) + (errors - bias_features @ biases) ** 2 / variances)
        prior = np.sum(((logs - centres) / _PRIOR) ** 2) + np.sum((biases / _PRIOR_BIAS) ** 2)
        return float(likelihood + prior) / 2

    distances = [residual.distance for residual in residuals]
    distances_of_owners = [residual.distance for residual in residuals if residual.split == "owner"]
    start = np.concatenate([centres, np.zeros(bias_features.shape[1])])
    logs, biases = np.split(minimize(loss, start).x, [scale_features.shape[1]])
    terms = np.exp(logs)
    scores = np.abs(errors - bias_features @ biases) / np.sqrt(scale_features @ terms**2 + spreads**2)
    return ErrorScale(
        biases={kind: _rounded(bias) for kind, bias in zip(kinds, biases, strict=False)},
        kinds={kind: _rounded(term) for kind, term in zip(kinds, terms, strict=False)},
        **{
            name: _rounded(term) for name, term in zip(_TERMS, terms[len(kinds) :], strict=True) if name != "same_owner"
        },
        quantile=_rounded(_quantile(scores[new_owner], weight[new_owner])),
        most_doublings=_rounded(_most_doublings(residuals)),
        most_attention=_farthest(distance.attention_share for distance in distances_of_owners),
        most_ranks=_farthest(distance.outside.get("ranks", 0.0) for distance in distances),
        most_above_largest=_farthest(distance.above_largest for distance in distances),
        groups=len({residual.group for residual in residuals if residual.split == "owner"}),
        source=", ".join(sorted({residual.owner for residual in residuals})),
        date=datetime.now(UTC).date().isoformat(),
    )


class Prediction(NamedTuple):
    """A predicted and measured row. `log_ratio`: logarithm of measured over predicted; `log_spread`: standard deviation
    of the logarithm of the prediction over what the source leaves open."""

    interval: Interval
    log_ratio: float
    log_spread: float

    @property
    def log_half_width(self) -> float:
        """Half the logarithm of the interval's width, including what the source leaves open."""
        half = np.log(self.interval.high / self.interval.low) / 2
        return float(np.hypot(half, NORMAL_QUANTILE * self.log_spread))

    @property
    def width(self) -> float:
        """Upper over lower bound."""
        return float(np.exp(2 * self.log_half_width))

    @property
    def log_bounds(self) -> tuple[float, float]:
        """Logarithms of its bounds as multiples of the predicted step, including what the source leaves open."""
        centre = float(np.log(self.interval.high * self.interval.low)) / 2
        return centre - self.log_half_width, centre + self.log_half_width

    @property
    def log_excess(self) -> float:
        """Logarithm of how far the measured step is outside of the interval; 0 inside."""
        low, high = self.log_bounds
        return max(0.0, low - self.log_ratio, self.log_ratio - high)

    @property
    def holds(self) -> bool:
        return not self.log_excess

    @property
    def score(self) -> float:
        """The interval score of the logarithm, smaller is better: its width, and each excess times 2 / 0.2 (Gneiting
        and Raftery, JASA 102, 2007)."""
        return 2 * self.log_half_width + 2 / (1 - COVERED) * self.log_excess


def judge(residuals: Sequence[LeftOut]) -> list[tuple[LeftOut, Prediction]]:
    """Each row with an interval to which no row of its owner contributed, or none of its machine if that was left
    out."""
    judged: list[tuple[LeftOut, Prediction]] = []
    for split, name in sorted({(residual.split, residual.left_out) for residual in residuals}):
        scale = estimate([residual for residual in residuals if getattr(residual, split) != name])
        for residual in residuals:
            if (residual.split, residual.left_out) == (split, name):
                interval = scale.interval(residual.distance) if residual.is_comparable else _NOT_COMPARABLE
                judged.append((residual, Prediction(interval, residual.log_ratio, residual.log_spread)))
    return judged


def _quantile(scores: npt.NDArray[np.float64], weight: npt.NDArray[np.float64]) -> float:
    """The `COVERED` quantile of weighted scores, with one more group, whose score is unknown, at infinity."""
    order = np.argsort(scores)
    share = np.cumsum(weight[order]) / (np.sum(weight) + 1)
    return float(scores[order][min(np.searchsorted(share, COVERED), len(scores) - 1)])


def _most_doublings(residuals: Sequence[LeftOut]) -> float:
    """The largest distance that rows of `_ENOUGH_GROUPS` groups have."""
    farthest: dict[tuple[str, ...], float] = {}
    for residual in residuals:
        if residual.split == "owner":
            farthest[residual.group] = max(residual.distance.doublings, farthest.get(residual.group, 0.0))
    return sorted(farthest.values())[-_ENOUGH_GROUPS]


def _farthest(doublings: Iterable[float]) -> float:
    """The largest of some distances, rounded up, so that its row is within it."""
    return max(ceil(100 * distance) / 100 for distance in doublings)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    scale = estimate(left_out.read())
    comment = "Scale of the error of predicted steps. Written by `python -m validation.intervals`."
    FILE.write_text(toml.dumps(msgspec.to_builtins(scale), comment), "utf-8")
    print(scale)


if __name__ == "__main__":
    main()
