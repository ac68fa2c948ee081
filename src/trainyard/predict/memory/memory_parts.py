"""Memory of a rank by part, and the peak over several moments.

A column has a value per case (a layout of a job), of shape [case].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Column


class MemoryParts(NamedTuple):
    """Bytes by part. `gathered`: unsharded weights, and gradients that are being reduced."""

    parameters: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    gathered: Column

    @property
    def total(self) -> Column:
        return sum(self, np.zeros(1))

    def parts(self) -> dict[str, Column]:
        """The parts by their names in `words.MEMORY`; `logits` and `gathered` have names of their own."""
        return {
            "parameter": self.parameters,
            "gradient": self.gradients,
            "optimizer_state": self.optimizer,
            "activation": self.activations,
            "logits": self.logits,
            "gathered": self.gathered,
        }


def fullest(moments: Sequence[MemoryParts]) -> MemoryParts:
    """Bytes by part at the moment with most bytes in total, for each case; the first of equal ones."""
    fullest_moment = moments[0]
    for moment in moments[1:]:
        is_fuller = moment.total > fullest_moment.total
        fullest_moment = MemoryParts(
            *(
                np.where(is_fuller, moment_bytes, fullest_bytes)
                for moment_bytes, fullest_bytes in zip(moment, fullest_moment, strict=True)
            )
        )
    return fullest_moment
