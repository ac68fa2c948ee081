"""How the errors of all judged tensors are distributed relative to their limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.numerics.compare.align_tensors import Alignment
from trainyard.numerics.compare.comparison_result import ErrorHistogram, PhaseErrors
from trainyard.numerics.compare.judge_tensors import Judgements
from trainyard.numerics.compare.summarise_tensors import JUDGED

_BINS_PER_DECADE = 4
_LOWEST, _HIGHEST = -8, 12
"""Powers of ten at which the first bin begins and the last one ends; errors beyond them are counted in these bins."""


def count_errors(alignment: Alignment, judgements: Judgements) -> ErrorHistogram:
    """The histogram of error / limit by phase, in quarters of a power of ten."""
    of_phase: dict[str, list[int]] = {}
    for row, pair in enumerate(alignment.pairs):
        of_phase.setdefault(pair.a.tensor.phase, []).append(row)
    ratios = {phase: _ratios(rows, judgements) for phase, rows in of_phase.items()}
    positive = np.concatenate([values[values > 0] for values in ratios.values()] or [np.empty(0)])
    edges = _edges(positive)
    return ErrorHistogram(
        edges=tuple(edges),
        phases=tuple(
            PhaseErrors(
                phase=alignment.pairs[rows[0]].a.tensor.phase,
                counts=_counts(ratios[phase], edges),
                exact=int((ratios[phase] == 0).sum()),
                compensated=sum(judgements.status[row] == "compensated" for row in rows),
                undetectable=sum(judgements.status[row] == "undetectable" for row in rows),
            )
            for phase, rows in of_phase.items()
        ),
    )


def _ratios(rows: Sequence[int], judgements: Judgements) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """error / limit of the rows that are judged by value."""
    judged = [row for row in rows if judgements.status[row] in JUDGED]
    values = judgements.of_limit[judged]
    return values[~np.isnan(values)]


def _edges(ratios: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """The edges of the bins, as powers of ten; none without errors above 0."""
    if not len(ratios):
        return []
    powers = np.clip(np.log10(ratios), _LOWEST, _HIGHEST)
    low = int(np.floor(powers.min() * _BINS_PER_DECADE))
    high = max(low, int(np.ceil(powers.max() * _BINS_PER_DECADE)) - 1) + 1
    return [at / _BINS_PER_DECADE for at in range(low, high + 1)]


def _counts(ratios: np.ndarray[tuple[int], np.dtype[np.float64]], edges: Sequence[float]) -> tuple[int, ...]:
    """The number of positive ratios in each bin."""
    if not edges:
        return ()
    powers = np.clip(np.log10(ratios[ratios > 0]), edges[0], edges[-1])
    return tuple(int(count) for count in np.histogram(powers, edges)[0])
